"""Answer a question about throughput: command line, table, JSON file and chart."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import charts, tables
from benchmarks.harness.comparing import compared
from benchmarks.harness.lineup import BARE, chosen
from benchmarks.harness.machine import describe
from benchmarks.harness.rounds import Plan, measured
from benchmarks.harness.running import BENCHMARKS, Contender

__all__ = ["RESULTS", "Goal", "Question", "arguments", "save", "throughput"]

RESULTS = BENCHMARKS / "results"
_WHAT = {"ratio": "speed", "cpu_share": "timesteps per CPU second", "report_ratio": "the parent's CPU for a report"}


@dataclass(frozen=True)
class Goal:
    """Describe what is to be reached.

    Attributes:
        workload: The workload.
        contender: The contender.
        value: At least this ratio (at most, if `most`).
        of: The contender to compare with, in the same round.
        key: "ratio" compares timesteps per second, "cpu_share" timesteps per second of CPU of all processes,
            "report_ratio" the parent's CPU for a report.
        most: Whether less is better.
    """

    workload: str
    contender: str
    value: float
    of: str = "bare"
    key: str = "ratio"
    most: bool = False


@dataclass(frozen=True)
class Question:
    """Describe a question about throughput.

    Attributes:
        name: The name of the script and of the results.
        title: The question in a line.
        workloads: Names of the workloads.
        contenders: The contenders on all of them.
        goals: What is to be reached.
        extra: By workload, further contenders.
        seconds: The length of a measurement.
        rounds: The number of rounds.
        notes: Returns further sentences about the results, to print and to save.
        more_goals: Goals that were judged already.
        limit: The name of the contender that all are compared with.
        label: Of the chart's axis: what a ratio to the limit is.
    """

    name: str
    title: str
    workloads: Sequence[str]
    contenders: Sequence[Contender]
    goals: Sequence[Goal] = ()
    extra: dict[str, Sequence[Contender]] = field(default_factory=dict)
    seconds: float = 1.0
    rounds: int = 20
    notes: Callable[[dict[str, Any]], list[str]] | None = None
    more_goals: Sequence[dict[str, Any]] = ()
    limit: str = BARE.name
    label: str = "share of the bare loop's timesteps per second"


def arguments(name: str, seconds: float, rounds: int) -> argparse.Namespace:
    """Read the command line that all questions share.

    Returns:
        With `seconds`, `rounds`, `peer_rounds`, `contenders`, `workloads`, `quick` and `out`.
    """
    # Ended from outside, the frozen contenders must be ended as well.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    parser = argparse.ArgumentParser(prog=f"benchmarks {name}")
    parser.add_argument("--seconds", type=float, help=f"of a measurement (default {seconds})")
    parser.add_argument("--rounds", type=int, help=f"how many (default {rounds})")
    parser.add_argument("--peer-rounds", type=int, help="in how many of them peers take part (default 5)")
    parser.add_argument("--contenders", help="only these, separated by commas")
    parser.add_argument("--workloads", help="only these, separated by commas")
    parser.add_argument("--quick", action="store_true", help="half a second, two rounds, no chart, no JSON")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON and chart (default results)")
    found = parser.parse_args()
    found.seconds = found.seconds or (min(seconds, 0.5) if found.quick else seconds)
    found.rounds = found.rounds or (2 if found.quick else rounds)
    found.peer_rounds = found.peer_rounds or (1 if found.quick else 5)
    return found


def throughput(question: Question) -> None:
    """Answer a question about throughput: measure, print, and save."""
    args = arguments(question.name, question.seconds, question.rounds)
    plan = Plan(args.seconds, args.rounds, args.peer_rounds)
    workloads = args.workloads.split(",") if args.workloads else question.workloads
    machine = describe()
    results: dict[str, Any] = {}
    for workload in workloads:
        lineup = [*question.contenders, *question.extra.get(workload, ())]
        named = args.contenders and ",".join(
            name for name in args.contenders.split(",") if name in {contender.name for contender in lineup}
        )
        results[workload] = compared(measured(chosen(lineup, named), workload, plan), question.limit)
        print(tables.throughput_table(workload, results[workload]))
    goals = [judged(goal, results) for goal in question.goals if goal.workload in results]
    goals += question.more_goals
    print(tables.goals_table(goals))
    notes = question.notes(results) if question.notes else []
    print("\n".join(notes))
    contents = {"title": question.title, "workloads": results, "goals": goals, "notes": notes}
    save(question.name, contents, args, machine)
    if not args.quick:
        charts.throughput_chart(question.title, results, args.out / f"{question.name}.png", question.label)


def judged(goal: Goal, results: dict[str, Any]) -> dict[str, Any]:
    """Compare a goal with the measurements; `value` is None where a contender is missing."""
    contenders = {name: dict(result) for name, result in results[goal.workload].items()}
    found = compared(contenders, goal.of) if any(contenders.get(goal.of, {}).get("rounds", [])) else {}
    reached = found.get(goal.contender, {}).get(goal.key)
    median = reached["median"] if reached else None
    met = None if median is None else (median <= goal.value if goal.most else median >= goal.value)
    text = f"{goal.contender} on {goal.workload}, {_WHAT[goal.key]} to {goal.of}"
    return {"text": text, "wanted": goal.value, "most": goal.most, "value": median, "met": met}


def save(name: str, contents: dict[str, Any], args: argparse.Namespace, machine: dict[str, Any]) -> None:
    """Write a question's JSON file, unless the run was quick."""
    if args.quick:
        return
    args.out.mkdir(parents=True, exist_ok=True)
    plan = {"seconds": args.seconds, "rounds": args.rounds, "peer_rounds": args.peer_rounds, "fresh": Plan.fresh}
    path = args.out / f"{name}.json"
    path.write_text(json.dumps({"question": name, "machine": machine, "plan": plan, **contents}, indent=1) + "\n")
    print(f"written to {path}")
