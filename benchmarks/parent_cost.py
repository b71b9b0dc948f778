"""What does a report cost the parent, and how many workers can one sampler serve?

python benchmarks/parent_cost.py [--quick]

The parent's CPU time in obtaining calls, by the number of reports that it took. A report holds some 30 ms of rollouts,
so a worker sends about 33 of them a second; a sampler can serve as many workers as fill one core of the parent.
Copying what a report holds into the batch is part of it, which is what large observations show.
"""

import statistics
from typing import Any

from harness.lineup import chosen, ours
from harness.machine import describe
from harness.question import arguments, save
from harness.rounds import Plan, measured
from harness.tables import goals_table, table

WORKLOADS = ("cheap_20", "cheap_500", "sleepers", "on_policy", "pixels")
LIMIT = 80e-6


def per_report(result: dict[str, Any]) -> tuple[float, float] | None:
    """Give the parent's seconds of CPU for a report, and reports per worker-second: medians of the rounds."""
    answers = [answer for answer in result.get("rounds", []) if answer and answer["reports"]]
    if not answers:
        return None
    cost = statistics.median(answer["parent_cpu"] / answer["reports"] for answer in answers)
    rate = statistics.median(answer["reports"] / answer["seconds"] for answer in answers)
    return cost, rate


def main() -> None:
    """Answer the question."""
    args = arguments("parent_cost", 1.0, 3)
    plan = Plan(args.seconds, args.rounds, args.rounds)
    machine = describe()
    names = args.workloads.split(",") if args.workloads else WORKLOADS
    results = {name: measured(chosen([ours()], args.contenders), name, plan) for name in names}
    rows, goals = [], []
    for name, contenders in results.items():
        found = per_report(contenders["ours"])
        if found is None:
            rows.append([name, contenders["ours"].get("reason", "")[:60], "", ""])
            continue
        cost, rate = found
        contenders["ours"].update(parent_cost=cost, reports_per_second=rate)
        rows.append([name, f"{1e6 * cost:.0f}", f"{rate:.0f}", f"{0.03 / cost:.0f}"])
        text = f"µs of the parent's CPU per report on {name}"
        goals.append({"text": text, "wanted": 1e6 * LIMIT, "most": True, "value": 1e6 * cost, "met": cost <= LIMIT})
    header = ["parent", "µs of CPU per report", "reports/s", "workers it can serve"]
    print(table(header, rows))
    print(goals_table(goals))
    title = "The parent's cost of a report"
    save("parent_cost", {"title": title, "workloads": results, "goals": goals, "table": [header, *rows]}, args, machine)


if __name__ == "__main__":
    main()
