"""How long do 40 MB of parameters take to four workers? From the call to each worker's first step under them.

python -m benchmarks parameters [--quick]

The limit is one process that copies 40 MB four times, once for each worker, into memory that is there already.
"""

import statistics
from typing import Any

from benchmarks.harness import charts
from benchmarks.harness.comparing import spread
from benchmarks.harness.lineup import chosen, ours
from benchmarks.harness.machine import describe
from benchmarks.harness.question import arguments, save
from benchmarks.harness.rounds import Plan, measured
from benchmarks.harness.running import Contender
from benchmarks.harness.tables import goals_table, table

WORKLOAD, N_WORKERS, FACTOR = "big_parameters", 4, 3.0
LINEUP = (
    Contender("copying", "copying"),
    ours(),
    Contender("futures_by_hand", "futures_by_hand"),
    Contender("ray_by_hand", "ray_by_hand", peer=True),
)


def last_delays(result: dict[str, Any]) -> list[float | None]:
    """Return each round's median delay until the last worker had acted, in seconds; None where there is none."""
    found: list[float | None] = []
    for answer in result.get("rounds", []):
        delays = [max(delay) for delay in (answer or {}).get("delays", []) if len(delay) in (1, N_WORKERS)]
        found.append(statistics.median(delays) if delays else None)
    return found


def main() -> None:
    """Answer the question."""
    args = arguments("parameters", 2.0, 5)
    plan = Plan(args.seconds, args.rounds, args.rounds)
    machine = describe()
    results = measured(chosen(LINEUP, args.contenders), WORKLOAD, plan)
    copying = last_delays(results["copying"])
    rows, goals = [], []
    shown: dict[str, dict[str, float]] = {}
    for name, result in results.items():
        pairs = [(delay, copy) for delay, copy in zip(last_delays(result), copying, strict=False) if delay and copy]
        if not pairs:
            rows.append([name, result.get("reason", "tells no delays")[:60], "", ""])
            continue
        shown[name] = spread([1e3 * delay for delay, _ in pairs])
        delay = statistics.median(delay for delay, _ in pairs)
        ratio = statistics.median(delay / copy for delay, copy in pairs)
        result.update(delay=delay, delay_ratio=ratio)
        rows.append([name, f"{1e3 * delay:.1f}", f"{ratio:.2f}", f"{N_WORKERS * ratio:.2f}"])
        if name == "ours":
            goals.append(_goal(f"last worker's first step, to {N_WORKERS} copies", FACTOR, ratio))
            # The other way to read the goal: the workers copy at once, so the time of one copy is what counts.
            goals.append(_goal("last worker's first step, to one copy", FACTOR, N_WORKERS * ratio))
    header = [WORKLOAD, "last worker's first step, ms", f"to {N_WORKERS} copies", "to one copy"]
    print(table(header, rows))
    print(goals_table(goals))
    title = "40 MB of parameters to four workers"
    contents = {"title": title, "workloads": {WORKLOAD: results}, "goals": goals, "table": [header, *rows]}
    save("parameters", contents, args, machine)
    if not args.quick:
        label = "from the call to the last worker's first step, ms"
        charts.bar_chart(title, label, {WORKLOAD: shown}, args.out / "parameters.png", digits=1)


def _goal(text: str, wanted: float, value: float) -> dict[str, Any]:
    return {"text": text, "wanted": wanted, "most": True, "value": value, "met": value <= wanted}


if __name__ == "__main__":
    main()
