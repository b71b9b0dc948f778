"""Are the goals for speed met? Each figure with its goal, in some twelve minutes, on a machine that does nothing else.

    python -m benchmarks goals BEFORE [--parts one,parent] [--rounds 5] [--quick]

BEFORE is a checkout of an earlier version of this project, for the goals that are gains over it; see `versions`. The
parts are:

* `one`: one environment per worker, to the bare loop and to a pool by hand that seeds and records the same.
* `several`: `VecWorker`, to the batched bare loop. Batches have 10 trajectories for each environment and more.
* `gains`: `VecWorker` where batches have few trajectories, to the version before; 8 workers are simulated by sleeping.
* `native`: natively vectorised environments, to the bare environment and to the version before.
* `parent`: the parent's CPU time for a report, to the version before, with real workers and with 64 simulated ones;
  and with 256 simulated workers to that with 2.

Shares of the bare loop are by CPU time of all processes, but where workers wait for each other: there they are by
timesteps per second.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.comparing import compared
from benchmarks.harness.lineup import BARE, OURS, ours
from benchmarks.harness.machine import describe
from benchmarks.harness.question import RESULTS, Goal, judged
from benchmarks.harness.rounds import Plan, measured
from benchmarks.harness.running import Contender
from benchmarks.harness.tables import goals_table, throughput_table
from benchmarks.questions import native
from benchmarks.questions.lanes import lane_contenders
from benchmarks.questions.large_observations import STORING
from benchmarks.questions.parent_cost import simulated
from benchmarks.questions.torch_mlp import several, ten

POOL = Contender("futures_by_hand_same", "futures_by_hand", {"seeded": True, "infos": True})
ROUNDS = 5


@dataclass(frozen=True)
class Measurement:
    """Measure contenders on a workload, the limit first, for some goals.

    Attributes:
        workload: The workload.
        contenders: The contenders.
        goals: By contender, what is to be reached and of whom.
        seconds: The length of a measurement.
    """

    workload: str
    contenders: Sequence[Contender]
    goals: Sequence[Goal]
    seconds: float = 1.0


def one() -> list[Measurement]:
    """Return what is measured with one environment per worker."""
    wanted = {"cheap_20": 0.90, "cheap_500": 0.90, "mlp_cartpole": 0.96, "mlp_cartpole_500": 0.96, "mlp_cheetah": 0.94}
    measurements = []
    for workload, share in {**wanted, "pixels": 0.95}.items():
        limit = STORING if workload == "pixels" else BARE
        goals = [
            Goal(workload, "ours", share, of=limit.name, key="cpu_share"),
            Goal(workload, "ours", 1.0, of=POOL.name, key="cpu_share"),
        ]
        measurements.append(Measurement(workload, [limit, OURS, POOL], goals))
    return measurements


def vec(workload: str, contender: Contender) -> Measurement:
    """Return what is measured with several environments per worker."""
    limit = several(contender.settings["vec"])[0]
    return Measurement(workload, [limit, contender], [Goal(workload, contender.name, 0.92, of=limit.name)], seconds=2.0)


def gain(workload: str, contender: Contender, share: float, before: Path, key: str = "ratio") -> Measurement:
    """Return what is measured where this version is compared with the one before."""
    other = replace(contender, name="before", checkout=before)
    return Measurement(workload, [other, contender], [Goal(workload, contender.name, share, of="before", key=key)])


def gains(before: Path) -> list[Measurement]:
    """Return what is measured where batches have few trajectories."""
    vec_8 = ours("ours_vec_8", vec=8)
    small = [gain(workload, vec_8, 1.5, before) for workload in ("mlp_cheetah", "on_policy_varied")]
    simulated = ("lanes_cheetah", "lanes_on_policy")
    return [*small, *(gain(workload, lane_contenders(workload, 8)[1], 2.0, before) for workload in simulated)]


def vectorised(before: Path) -> list[Measurement]:
    """Return what is measured with environments that are vectorised natively."""
    measurements = []
    for n_envs, share in native.GOALS.items():
        limit, contender = native.both(n_envs)
        goals = [
            Goal(native.WORKLOAD, contender.name, share, of=limit.name, key="cpu_share"),
            Goal(native.WORKLOAD, contender.name, 3.0, of="before", key="cpu_share"),
        ]
        other = replace(contender, name="before", checkout=before)
        measurements.append(Measurement(native.WORKLOAD, [limit, contender, other], goals))
    return measurements


def parent(before: Path) -> list[Measurement]:
    """Return what is measured of the parent."""
    found = []
    for contender in (Contender("reports", "reports"), *simulated(64)):
        other = replace(contender, name="before", checkout=before)
        goal = Goal("short", contender.name, 0.65, of="before", key="report_ratio", most=True)
        found.append(Measurement("short", [other, contender], [goal]))
    few, many = simulated(2, 256)
    growth = Goal("short", many.name, 1.2, of=few.name, key="report_ratio", most=True)
    return [*found, Measurement("short", [few, many], [growth])]


PARTS = {
    "one": lambda _: one(),
    "several": lambda _: [
        vec("mlp_cartpole", ours("ours_vec_32", vec=32)),
        vec("mlp_cartpole_500", ten(32, length=500)),
        vec("mlp_cheetah", ten(8, length=1000)),
    ],
    "gains": gains,
    "native": vectorised,
    "parent": parent,
}


def commit_of(checkout: Path) -> str:
    """Return the commit that is checked out, as far as git knows."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    """Measure, print each figure with its goal, and return the number of goals that are not met."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    parser = argparse.ArgumentParser(prog="benchmarks goals", description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path, help="a checkout of the version before")
    parser.add_argument("--parts", default=",".join(PARTS), help="only these, separated by commas")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    begin, machine, before = time.monotonic(), describe(), arguments.before.resolve()
    found: list[dict[str, Any]] = []
    raw: dict[str, Any] = {}
    for part in arguments.parts.split(","):
        for measurement in PARTS[part](before):
            plan = Plan(measurement.seconds, arguments.rounds, 0, fresh=3, verbose=False)
            results = measured(measurement.contenders, measurement.workload, plan)
            shown = compared({name: dict(result) for name, result in results.items()}, measurement.contenders[0].name)
            print(throughput_table(measurement.workload, shown), flush=True)
            found += [judged(goal, {measurement.workload: results}) for goal in measurement.goals]
            raw[f"{measurement.workload}, {measurement.contenders[-1].name}"] = results
    print(goals_table(found), f"\n{time.monotonic() - begin:.0f} s")
    if arguments.parts == ",".join(PARTS) and not arguments.quick:
        notes = [f"`before` is commit {commit}."] if (commit := commit_of(before)) else []
        contents = {"title": "Goals for speed", "machine": machine, "rounds": arguments.rounds, "workloads": raw}
        text = json.dumps({"question": "goals", **contents, "goals": found, "notes": notes}, indent=1)
        (RESULTS / "goals.json").write_text(f"{text}\n")
    return sum(goal["met"] is not True for goal in found)


if __name__ == "__main__":
    sys.exit(main())
