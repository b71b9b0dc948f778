"""Is this version as fast as another one? Both in one interleaved run, by the CPU time of all their processes.

    python -m benchmarks versions CHECKOUT [--workloads cheap_20,pixels] [--contenders ours] [--rounds 15]

CHECKOUT is another checkout of this project, a worktree of an earlier commit perhaps; its library is measured by this
checkout's contenders. For each workload it prints the CPU time per timestep of the other version as a share of this
one's, and this one's timesteps per second as a share of the other's: above 1, this version is faster. Workloads that
sleep are judged by their timesteps per second, the others by CPU time. The interval is Student's for the mean logarithm
of the rounds' ratios; "held" means that it includes .99.
"""

from __future__ import annotations

import argparse
import math
import signal
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness.comparing import ratios_to
from benchmarks.harness.lineup import OURS, ours
from benchmarks.harness.rounds import Plan, measured
from benchmarks.harness.running import Contender
from benchmarks.questions.lanes import N_ENVS
from benchmarks.questions.stepping import TIMED

WORKLOADS = ("cheap_20", "cheap_500", "short", "mlp_cartpole", "mlp_cheetah", "pixels", "on_policy")
SLEEPING = ("stragglers", "sleepers", "sleepers_128", "big_parameters", "steps_10ms", "walks_10ms", *N_ENVS, *TIMED)
CONTENDERS = {
    "ours": OURS,
    "stream": ours("stream", stream=True),
    **{f"vec_{n}": ours(f"vec_{n}", vec=n) for n in (8, 32)},
    **{f"native_{n}": ours(f"native_{n}", native=n) for n in (32, 256, 1024)},
    "fragments": ours("fragments", fragments=True, trajectories=64, length=500),
    "filters": ours("filters", filters="both"),
    "stepping": Contender("stepping", "ours_stepping", {"n_envs": 32}),
    "stepping_async": Contender("stepping_async", "ours_stepping", {"n_envs": 32, "asynchronous": True, "least": 16}),
    "reports": Contender("reports", "reports"),
}
BOUND = 0.99


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of ratios and its 95 % interval, by Student's t.

    The quantile of t comes from the normal one by the series of Cornish and Fisher (Abramowitz and Stegun, Handbook of
    Mathematical Functions, 26.7.5); with four degrees of freedom and more it is right to a hundredth.
    """
    logarithms = [math.log(ratio) for ratio in ratios]
    freedom = len(ratios) - 1
    z = statistics.NormalDist().inv_cdf(0.975)
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    mean, half = statistics.fmean(logarithms), t * statistics.stdev(logarithms) / math.sqrt(len(ratios))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def answers(workload: str, name: str, checkout: Path, plan: Plan) -> list[list[dict[str, Any]]]:
    """Measure both versions of a contender; return the answers of this one and of the other.

    Raises:
        SystemExit: One of them broke; the message says why.
    """
    here = CONTENDERS[name]
    other = replace(here, name=f"{name}, other", checkout=checkout)
    results = measured([here, other], workload, plan)
    for result in results.values():
        if "reason" in result:
            raise SystemExit(f"{workload}, {name}: {result['reason']}")
    return [results[contender.name]["rounds"] for contender in (here, other)]


def main() -> int:
    """Measure, print a line for each workload, and say with the exit code whether all are within the bound."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    parser = argparse.ArgumentParser(prog="benchmarks versions", description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--contenders", default="ours", help=f"of {', '.join(CONTENDERS)}")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a measurement")
    arguments = parser.parse_args()
    plan = Plan(arguments.seconds, arguments.rounds, 0, verbose=False)
    held = True
    print(f"{'':18} {'':11} CPU time{'':16} timesteps per second{'':4} this version's CPU per timestep")
    for workload in arguments.workloads.split(","):
        for name in arguments.contenders.split(","):
            here, other = answers(workload, name, arguments.checkout.resolve(), plan)
            costs = [[answer["cpu"] / answer["timesteps"] for answer in rounds] for rounds in (here, other)]
            speeds = [[answer["timesteps"] / answer["seconds"] for answer in rounds] for rounds in (other, here)]
            by_cpu, by_speed = (interval(ratios_to(*values)) for values in (costs, speeds))
            high = (by_speed if workload in SLEEPING else by_cpu)[2]
            held = held and high >= BOUND
            verdict = "held" if high >= BOUND else f"below {BOUND}"
            shown = "  ".join(f"{mean:.3f} ({low:.3f} to {high:.3f})" for mean, low, high in (by_cpu, by_speed))
            print(f"{workload:18} {name:11} {shown} {1e9 * statistics.median(costs[0]):10,.0f} ns  {verdict}")
    return not held


if __name__ == "__main__":
    sys.exit(main())
