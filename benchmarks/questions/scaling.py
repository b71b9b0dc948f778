"""Does the speed grow with the cores? One worker, two, four, and so on to all that the machine has.

python -m benchmarks scaling [--quick]

Speed per core as a share of one core's, for this library and for the bare loop (which shows what the machine itself
loses: shared caches, memory, clock frequency).
"""

import os
import statistics
from typing import Any

from benchmarks.harness import charts
from benchmarks.harness.comparing import ratios_to
from benchmarks.harness.lineup import BARE, OURS
from benchmarks.harness.machine import describe
from benchmarks.harness.question import arguments, save
from benchmarks.harness.rounds import Plan, measured
from benchmarks.harness.running import Contender
from benchmarks.harness.tables import goals_table, table

WORKLOAD = "cheap_500"


def core_counts(n_cores: int) -> list[int]:
    """Return one, two, four, … and all."""
    counts = [1]
    while 2 * counts[-1] < n_cores:
        counts.append(2 * counts[-1])
    return counts if n_cores == 1 else [*counts, n_cores]


def speeds(result: dict[str, Any]) -> list[float | None]:
    """Return each round's timesteps per second."""
    return [None if answer is None else answer["timesteps"] / answer["seconds"] for answer in result.get("rounds", [])]


def main() -> None:
    """Answer the question."""
    args = arguments("scaling", 1.0, 5)
    machine = describe()
    counts = core_counts(len(os.sched_getaffinity(0)))
    lineup = [
        Contender(f"{base.name}_{n}", base.module, {**base.settings, **more}, n_processes=n)
        for base in (BARE, OURS)
        for n in counts
        # As long a call for each number of workers.
        for more in ([{"batch": 50_000 * n}] if base is OURS else [{}])
    ]
    results = measured(lineup, WORKLOAD, Plan(args.seconds, args.rounds, args.rounds))
    header = ["cores", *(f"{base.name}, per core to one core's" for base in (BARE, OURS)), "ours to bare"]
    lines: dict[str, list[float]] = {"bare": [], "ours": []}
    rows, goals = [], []
    for n in counts:
        for name, line in lines.items():
            ratios = ratios_to(speeds(results[f"{name}_1"]), speeds(results[f"{name}_{n}"]))
            line.append(statistics.median(ratios) / n)
        share = statistics.median(ratios_to(speeds(results[f"bare_{n}"]), speeds(results[f"ours_{n}"])))
        rows.append([str(n), f"{lines['bare'][-1]:.3f}", f"{lines['ours'][-1]:.3f}", f"{share:.3f}"])
        if n > 1:
            value = lines["ours"][-1]
            text = f"speed per core with {n} workers to one worker's"
            goals.append({"text": text, "wanted": 0.95, "most": False, "value": value, "met": value >= 0.95})
    print(table(header, rows))
    print(goals_table(goals))
    title = "Scaling with cores"
    contents = {"title": title, "workloads": {WORKLOAD: results}, "goals": goals, "table": [header, *rows]}
    save("scaling", contents, args, machine)
    if not args.quick:
        charts.line_chart(title, ("cores", counts), "speed per core to one core's", lines, args.out / "scaling.png")


if __name__ == "__main__":
    main()
