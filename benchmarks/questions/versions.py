"""Is this version as fast as another one? Both in one interleaved run, by the CPU time of all their processes.

    python -m benchmarks versions CHECKOUT [--workloads cheap_20,pixels] [--contenders ours] [--rounds 15]

CHECKOUT is another checkout of this project, a worktree of an earlier commit perhaps. For each workload it prints the
CPU time per timestep of the other version as a share of this one's: above 1, this version is faster. The interval is
Student's for the mean logarithm of the rounds' ratios; "within 1 %" means that it includes .99.
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

from benchmarks.harness.comparing import ratios_to
from benchmarks.harness.lineup import OURS, ours
from benchmarks.harness.rounds import Plan, measured

WORKLOADS = ("cheap_20", "cheap_500", "short", "mlp_cartpole", "mlp_cheetah", "pixels", "on_policy")
CONTENDERS = {
    "ours": OURS,
    "vec_8": ours("vec_8", vec=8),
    "vec_32": ours("vec_32", vec=32),
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


def ratios(workload: str, name: str, checkout: Path, plan: Plan) -> tuple[list[float], float]:
    """Measure both versions of a contender; return the other's cost to this one's by round, and this one's median cost.

    Raises:
        SystemExit: One of them broke; the message says why.
    """
    here = CONTENDERS[name]
    other = replace(here, name=f"{name}, other", checkout=checkout)
    results = measured([here, other], workload, plan)
    for result in results.values():
        if "reason" in result:
            raise SystemExit(f"{workload}, {name}: {result['reason']}")
    costs = [
        [answer["cpu"] / answer["timesteps"] for answer in results[contender.name]["rounds"]]
        for contender in (here, other)
    ]
    return ratios_to(*costs), statistics.median(costs[0])


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
    for workload in arguments.workloads.split(","):
        for name in arguments.contenders.split(","):
            found, cost = ratios(workload, name, arguments.checkout.resolve(), plan)
            mean, low, high = interval(found)
            held = held and high >= BOUND
            verdict = "held" if high >= BOUND else f"below {BOUND}"
            print(f"{workload:18} {name:7} {mean:.3f} ({low:.3f} to {high:.3f}) {1e6 * cost:8.2f} µs  {verdict}")
    return not held


if __name__ == "__main__":
    sys.exit(main())
