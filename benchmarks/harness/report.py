"""Writes the results into benchmarks/README.md, and their overview into the README.

python -m benchmarks report [--check]     # --check only says whether it is up to date

What stands between the two markers is replaced. Every figure comes from a file in `results`.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import summary
from benchmarks.harness.running import BENCHMARKS
from benchmarks.harness.tables import goals_table, table
from benchmarks.ppo import results as ppo_results

README = BENCHMARKS.parent / "README.md"
RESULTS = BENCHMARKS / "README.md"
BEGIN = "<!-- performance: written by benchmarks report -->"
END = "<!-- performance: end -->"
ORDER = (
    "cheap_steps",
    "short_trajectories",
    "torch_mlp",
    "large_observations",
    "stragglers",
    "on_policy",
    "parameters",
    "many_workers",
    "order",
    "parent_cost",
    "scaling",
)

# What to say of limits, where they were measured.
_LIMITS = {
    "least": "`least` is the least that collecting by calls takes: workers store whole trajectories in shared memory, "
    "and the parent copies them and answers, and orders, checks, watches and makes good nothing.",
    "least_uncopied": "`least_uncopied` leaves them where they are. The next batch is written over them; where each "
    "batch is its caller's, new memory is needed for each: `least_uncopied_anew`.",
}


def load(folder: Path) -> list[dict[str, Any]]:
    """Load the questions' results, in the order in which they are to be told."""
    paths = [folder / f"{name}.json" for name in ORDER]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def _share(result: dict[str, Any] | None) -> str:
    if result is None:
        return ""
    return f"{result['ratio']['median']:.2f}" if "ratio" in result else "n/a"


def workloads_of(questions: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Give the shares of the bare loop by workload; `order` has workloads of others, and asks something else."""
    return {
        name: results
        for question in questions
        if question["question"] != "order"
        for name, results in question["workloads"].items()
        if "bare" in results
    }


def overview(questions: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """Lay out every contender's share of the bare loop, by workload, and give the reasons of those that have none."""
    columns = workloads_of(questions)
    names = list(dict.fromkeys(name for results in columns.values() for name in results if name != "bare"))
    rows = [[name, *(_share(results.get(name)) for results in columns.values())] for name in names]
    reasons: dict[str, list[str]] = {}
    for workload, results in columns.items():
        for name, result in results.items():
            if "ratio" not in result:
                reasons.setdefault(f"{name}: {result.get('reason', 'not measured')}", []).append(workload)
    said = [
        f"- {reason}" + ("" if len(workloads) == len(columns) else f" ({', '.join(workloads)})")
        for reason, workloads in reasons.items()
    ]
    return table(["share of the bare loop", *columns], rows), said


def adjusted(by_workload: dict[str, dict[str, Any]]) -> list[str]:
    """Say where the machine's own speed was divided out, and what this library's share would be without that."""
    told = [
        f"{workload} {plain['median']:.3f} (quartiles {plain['low']:.2f} to {plain['high']:.2f}; "
        f"with it {ratio['low']:.2f} to {ratio['high']:.2f})"
        for workload, results in by_workload.items()
        if (plain := results.get("ours", {}).get("plain_ratio")) and (ratio := results["ours"].get("ratio"))
    ]
    if not told:
        return []
    return [
        "This machine is shared, and up to twice as fast in one second as in the next. So each core times a few "
        "additions every 20 ms, and contenders are compared at one and the same speed of the machine; how much of it "
        "reaches them is estimated from the same measurements, once for all contenders of a workload. Without that, "
        f"`ours` would read: {', '.join(told)}."
    ]


def _described(machine: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory']} GiB, {machine['kernel']}, "
        f"Python {machine['python']}, {packages}; {machine['date'][:10]}"
    )


def machines(measured: dict[str, dict[str, Any]]) -> list[str]:
    """Say what questions were measured on: most of them first, and then the others by name.

    Args:
        measured: The machine that each was measured on.
    """
    names: dict[str, list[str]] = {}
    for name, machine in measured.items():
        names.setdefault(_described(machine), []).append(name)
    (most, _), *others = sorted(names.items(), key=lambda item: -len(item[1]))
    return [f"Measured on {most}.", *(f"But {', '.join(few)}: on {machine}." for machine, few in others)]


def section(questions: list[dict[str, Any]], charts: Path) -> str:
    """Write the section's text, in Markdown."""
    if not questions:
        return "Not measured yet: `python -m benchmarks`."
    shares, reasons = overview(questions)
    by_workload = workloads_of(questions)
    parts = [
        "Timesteps per second as a share of the bare loop: `env.step(agent(observation))` in one process per core, all "
        "at once, nothing recorded, every trajectory seeded as this library seeds it (`bare_unseeded` seeds nothing). "
        "Medians of interleaved measurements; all others are frozen meanwhile. Peers seed nothing per trajectory "
        "(`futures_by_hand_seeded` does), and hand out fragments of trajectories that go on in the next batch; this "
        "library hands out whole ones.",
        *adjusted(by_workload),
        *(text for name, text in _LIMITS.items() if any(name in results for results in by_workload.values())),
        shares,
    ]
    if reasons:
        parts.append("Not measured (n/a):\n\n" + "\n".join(reasons))
    for question in questions:
        if "table" in question:
            header, *rows = question["table"]
            parts.append(f"{question['title']}:\n\n{table(header, rows)}")
        parts += question.get("notes", [])
    measured = {question["question"]: question["machine"] for question in questions}
    if (ppo := charts / "ppo.json").exists():
        told = json.loads(ppo.read_text())
        measured["ppo"] = told["machine"]
        parts.append(
            "PPO's wall time, workers' start included (`benchmarks/ppo/run.py` says what the contenders are; medians "
            f"over seeds):\n\n{ppo_results.summary(told['runs'], told['targets'])}"
        )
    goals = [goal for question in questions for goal in question["goals"]]
    parts.append(f"What was to be reached:\n{goals_table(goals).rstrip()}")
    pictures = [name for name in ("cheap_steps", "large_observations") if (charts / f"{name}.png").exists()]
    parts += [f"![{name.replace('_', ' ')}](results/{name}.png)" for name in pictures]
    parts.append(
        f"{' '.join(machines(measured))} Raw numbers and charts are in `benchmarks/results`; "
        "`python -m benchmarks peers && python -m benchmarks --again` measures anew."
    )
    return "\n\n".join(part.strip("\n") for part in parts)


def replaced(readme: str, text: str) -> str:
    """Put the text between the markers.

    Raises:
        ValueError: There are not exactly two markers, in order.
    """
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise ValueError(f"the file must hold {BEGIN!r} and then {END!r}, each once")
    before, _, rest = readme.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}"


def main() -> int:
    """Write both, or check them."""
    parser = argparse.ArgumentParser(prog="benchmarks report")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if it would change")
    args = parser.parse_args()
    folder = BENCHMARKS / "results"
    questions = load(folder)
    texts = {README: summary.section(workloads_of(questions)), RESULTS: section(questions, folder)}
    changed = {
        path: new for path, text in texts.items() if (new := replaced(path.read_text(), text)) != path.read_text()
    }
    if args.check:
        return int(bool(changed))
    for path, new in changed.items():
        path.write_text(new)
    summary.chart(workloads_of(questions), folder / "overview.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
