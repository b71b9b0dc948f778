"""What does a report cost the parent, and how many workers can one sampler serve?

python -m benchmarks parent_cost [--quick]

It divides the parent's CPU time in obtaining calls by the number of reports. A report holds some 30 ms of rollouts,
so a worker sends about 33 of them a second; a sampler can serve as many workers as fill one core of the parent.
Copying what a report holds into the batch is part of it, which is what large observations show.

`least` is a parent that only wakes up, reads, copies and answers: a lower bound.

`reports` has a short trajectory in each report, so that the parent does nothing else and its caches stay warm. With
simulated workers it is measured for as many as one likes.
"""

import statistics
from typing import Any

from benchmarks.harness import charts
from benchmarks.harness.comparing import spread
from benchmarks.harness.lineup import LEAST, chosen, ours
from benchmarks.harness.machine import describe
from benchmarks.harness.question import arguments, save
from benchmarks.harness.rounds import Plan, measured
from benchmarks.harness.running import Contender
from benchmarks.harness.tables import goals_table, table

WORKLOADS = ("cheap_20", "cheap_500", "sleepers", "on_policy", "pixels")
LIMIT = 80e-6
WARM, SIMULATED = "short", (2, 64, 256)


def answers(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rounds in which there were reports."""
    return [answer for answer in result.get("rounds", []) if answer and answer["reports"]]


def costs(result: dict[str, Any]) -> list[float]:
    """Return each round's seconds of the parent's CPU for a report."""
    return [answer["parent_cpu"] / answer["reports"] for answer in answers(result)]


def main() -> None:
    """Answer the question."""
    args = arguments("parent_cost", 1.0, 5)
    plan = Plan(args.seconds, args.rounds, args.rounds)
    machine = describe()
    results: dict[str, Any] = {}
    panels: dict[str, dict[str, dict[str, float]]] = {}
    rows, goals = [], []
    for name in args.workloads.split(",") if args.workloads else WORKLOADS:
        contenders = results[name] = measured(chosen([ours(), LEAST], args.contenders), name, plan)
        panels[name] = {}
        for who, result in contenders.items():
            if found := costs(result):
                panels[name][who] = result["parent_cost"] = spread([1e6 * cost for cost in found])
        rows.append(_row(name, contenders))
        if "ours" in panels[name]:
            cost = panels[name]["ours"]["median"]
            text = f"µs of the parent's CPU per report on {name}"
            goals.append({"text": text, "wanted": 1e6 * LIMIT, "most": True, "value": cost, "met": cost <= 1e6 * LIMIT})
    if not args.workloads:
        more, judged = warm(plan, results)
        rows += more
        goals += judged
    header = ["parent", "µs of CPU per report", "the least", "reports/s", "workers it can serve"]
    print(table(header, rows))
    print(goals_table(goals))
    title = "The parent's cost of a report"
    save("parent_cost", {"title": title, "workloads": results, "goals": goals, "table": [header, *rows]}, args, machine)
    if not args.quick:
        charts.bar_chart(title, "µs of the parent's CPU", panels, args.out / "parent_cost.png", digits=0)


def warm(plan: Plan, results: dict[str, Any]) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """Measure a parent that does nothing but take in reports; add to the results, and return rows and a goal."""
    lineup = [Contender("reports", "reports"), *simulated(*SIMULATED)]
    found = results[WARM] = measured(lineup, WARM, plan)
    cost = {name: statistics.median(1e6 * each for each in costs(result)) for name, result in found.items()}
    rows = [[f"{name}, warm", f"{value:.0f}", "", "", f"{3e4 / value:.0f}"] for name, value in cost.items()]
    few, many = (f"simulated_{SIMULATED[end]}" for end in (0, -1))
    growth, text = cost[many] / cost[few], f"µs of the parent's CPU per report, {many} to {few}"
    return rows, [{"text": text, "wanted": 1.2, "most": True, "value": growth, "met": growth <= 1.2}]


def simulated(*numbers: int) -> list[Contender]:
    """Return parents of so many simulated workers."""
    return [Contender(f"simulated_{n}", "reports", {"simulated": True}, n_processes=n) for n in numbers]


def _row(name: str, contenders: dict[str, Any]) -> list[str]:
    shown = {who: f"{result['parent_cost']['median']:.0f}" for who, result in contenders.items() if costs(result)}
    if "ours" not in shown:
        return [name, *(result.get("reason", "")[:60] for result in contenders.values()), "", ""]
    rate = statistics.median(answer["reports"] / answer["seconds"] for answer in answers(contenders["ours"]))
    serves = 0.03 / statistics.median(costs(contenders["ours"]))
    return [name, shown["ours"], shown.get("least", "n/a"), f"{rate:.0f}", f"{serves:.0f}"]


if __name__ == "__main__":
    main()
