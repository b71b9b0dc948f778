"""Write the results into benchmarks/README.md, and their summary into the README.

python -m benchmarks report [--check]     # --check only checks that they are up to date

The text between the two markers of each file is replaced. Every figure comes from a file in `results`.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import summary
from benchmarks.harness.running import BENCHMARKS
from benchmarks.harness.tables import goals_table, table, throughput_table
from benchmarks.ppo import results as ppo_results

README = BENCHMARKS.parent / "README.md"
RESULTS = BENCHMARKS / "README.md"
BEGIN = "<!-- performance: written by benchmarks report -->"
END = "<!-- performance: end -->"
ORDER = (
    "cheap_steps",
    "short_trajectories",
    "torch_mlp",
    "agents",
    "lanes",
    "native",
    "streams",
    "large_observations",
    "stragglers",
    "slow_worker",
    "on_policy",
    "parameters",
    "many_workers",
    "order",
    "fragments",
    "filters",
    "staleness",
    "several_agents",
    "parent_cost",
    "scale",
    "scaling",
    "stepping",
    "one_process",
    "step_costs",
    "waiting",
    "inference",
    "ray",
    "goals",
)

# Those that compare something else than the others do on a workload, and those of them that get tables of their own.
_TABLES = (
    "lanes",
    "native",
    "streams",
    "stepping",
    "one_process",
    "step_costs",
    "inference",
    "ray",
    "fragments",
    "filters",
    "staleness",
    "several_agents",
)
_APART = ("order", "goals", "slow_worker", "scale", "waiting", *_TABLES)

# Explanations of limits, for results that have them.
_LIMITS = {
    "least": "`least` is a lower bound for the cost of any parent that collects batches: workers write whole "
    "trajectories to shared memory, the parent copies them and sends the next ticket. It orders, checks and restarts "
    "nothing.",
    "least_uncopied": "`least_uncopied` does not copy: the next batch overwrites the last one. "
    "`least_uncopied_anew` has new memory for each batch, as it must where callers keep their batches.",
}


def load(folder: Path) -> list[dict[str, Any]]:
    """Load the results of the questions, in the order of the report."""
    paths = [folder / f"{name}.json" for name in ORDER]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def _share(result: dict[str, Any] | None) -> str:
    if result is None:
        return ""
    return f"{result['ratio']['median']:.2f}" if "ratio" in result else "n/a"


def workloads_of(questions: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the results by workload, without those of questions that compare something else."""
    return {
        name: results
        for question in questions
        if question["question"] not in _APART
        for name, results in question["workloads"].items()
        if "bare" in results
    }


def _grid(title: str, columns: dict[str, dict[str, Any]], cell: Callable[[dict[str, Any] | None], str]) -> str:
    """Lay out a table of contenders by workloads, without contenders whose cells are all empty."""
    names = list(dict.fromkeys(name for results in columns.values() for name in results))
    rows = [[name, *(cell(results.get(name)) for results in columns.values())] for name in names]
    return table([title, *columns], [row for row in rows if any(row[1:])])


def nanoseconds(columns: dict[str, dict[str, Any]]) -> list[str]:
    """Return the table of the nanoseconds of CPU that each timestep costs over the bare loop's, where measured."""
    if not any("over" in result for results in columns.values() for result in results.values()):
        return []
    others = {
        workload: {name: it for name, it in results.items() if name != "bare" and not it.get("peer")}
        for workload, results in columns.items()
    }
    return [
        "Nanoseconds of CPU for each timestep over the bare loop's, of all processes of a contender. Shares depend on "
        "how fast a processor runs environment and agent; these depend less on it:",
        _grid(
            "ns over the bare loop", others, lambda it: f"{it['over']['median']:,.0f}" if it and "over" in it else ""
        ),
    ]


def apart(question: dict[str, Any]) -> list[str]:
    """Return a table of each workload of a question that is not in the overview."""
    if question["question"] not in _TABLES:
        return []
    return [
        f"{question['title']}:",
        *(throughput_table(name, results) for name, results in question["workloads"].items()),
    ]


def overview(questions: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """Return the table of every contender's share of the bare loop, and the reasons where a contender has none."""
    columns = workloads_of(questions)
    shares = {
        workload: {name: result for name, result in results.items() if name != "bare"}
        for workload, results in columns.items()
    }
    reasons: dict[str, list[str]] = {}
    for workload, results in columns.items():
        for name, result in results.items():
            if "ratio" not in result:
                reasons.setdefault(f"{name}: {result.get('reason', 'not measured')}", []).append(workload)
    said = [
        f"- {reason}" + ("" if len(workloads) == len(columns) else f" ({', '.join(workloads)})")
        for reason, workloads in reasons.items()
    ]
    return _grid("share of the bare loop", shares, _share), said


def adjusted(by_workload: dict[str, dict[str, Any]]) -> list[str]:
    """Return what this library's share would be if the machine's own speed were not divided out."""
    shown = [
        f"{workload} {plain['median']:.3f} (quartiles {plain['low']:.2f} to {plain['high']:.2f}; "
        f"with it {ratio['low']:.2f} to {ratio['high']:.2f})"
        for workload, results in by_workload.items()
        if (plain := results.get("ours", {}).get("plain_ratio")) and (ratio := results["ours"].get("ratio"))
    ]
    if not shown:
        return []
    return [
        "This machine is shared: in one second it may be twice as fast as in the next. So each core times a few "
        "additions every 20 ms, and the speeds of contenders are adjusted to one speed of the machine. How strongly a "
        "contender follows the machine's speed is estimated from the same measurements, once for each workload. "
        f"Without the adjustment, `ours` would be: {', '.join(shown)}."
    ]


def _described(machine: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory']} GiB, {machine['kernel']}, "
        f"Python {machine['python']}, {packages}; {machine['date'][:10]}"
    )


def machines(measured: dict[str, dict[str, Any]]) -> list[str]:
    """Return the machines: that of most questions first, then the others with the names of their questions.

    Args:
        measured: The machine of each question.
    """
    names: dict[str, list[str]] = {}
    for name, machine in measured.items():
        names.setdefault(_described(machine), []).append(name)
    (most, _), *others = sorted(names.items(), key=lambda item: -len(item[1]))
    return [f"Measured on {most}.", *(f"But {', '.join(few)}: on {machine}." for machine, few in others)]


def section(questions: list[dict[str, Any]], charts: Path) -> str:
    """Return the text of the results, in Markdown."""
    if not questions:
        return "Not measured yet: `python -m benchmarks`."
    shares, reasons = overview(questions)
    by_workload = workloads_of(questions)
    parts = [
        summary.at_a_glance(by_workload, questions),
        "Timesteps per second, as a share of the bare loop: `env.step(agent(observation))` in one process per core, "
        "nothing recorded, every trajectory seeded as this library seeds it (`bare_unseeded` seeds nothing). Medians "
        "of interleaved measurements; the other contenders are frozen meanwhile. Peers do not seed trajectories "
        "(`futures_by_hand_seeded` does), and return fragments of trajectories that continue in the next batch; this "
        "library returns whole trajectories.",
        *adjusted(by_workload),
        *(text for name, text in _LIMITS.items() if any(name in results for results in by_workload.values())),
        shares,
        *nanoseconds(by_workload),
    ]
    if reasons:
        parts.append("Not measured (n/a):\n\n" + "\n".join(reasons))
    for question in questions:
        parts += apart(question)
        if "table" in question:
            header, *rows = question["table"]
            parts.append(f"{question['title']}:\n\n{table(header, rows)}")
        parts += question.get("notes", [])
    measured = {question["question"]: question["machine"] for question in questions}
    for name in ("ppo", "ppo_halfcheetah"):
        if (file := charts / f"{name}.json").exists():
            trained = json.loads(file.read_text())
            measured[name] = trained["machine"]
            parts += trained_parts(name, trained)
    goals = [goal for question in questions for goal in question["goals"]]
    parts.append(f"Goals:\n{goals_table(goals).rstrip()}")
    pictures = [name for name in ("cheap_steps", "large_observations") if (charts / f"{name}.png").exists()]
    parts += [f"![{name.replace('_', ' ')}](results/{name}.png)" for name in pictures]
    parts.append(
        f"{' '.join(machines(measured))} Raw numbers and charts are in `benchmarks/results`; "
        "`python -m benchmarks peers && python -m benchmarks --again` repeats the measurements."
    )
    return "\n\n".join(part.strip("\n") for part in parts)


def trained_parts(name: str, trained: dict[str, Any]) -> list[str]:
    """Return what is said of a file of results of PPO."""
    finals, machine = ppo_results.finals(trained["runs"]), trained["machine"]
    notes = "" if finals else " These runs had a learner of the benchmark's own, which the example has replaced since."
    if machine["load"] > machine["cores"]:
        notes += (
            f" Other programs ran meanwhile (a load of {machine['load']:.0f} on {machine['cores']} cores): compare CPU "
            "seconds rather than wall time."
        )
    return [
        f"PPO's wall time, with the start of the workers (`benchmarks/ppo/run.py` describes the contenders, "
        f"`results/{name}.png` shows the curves; medians over seeds).{notes}\n\n"
        f"{ppo_results.summary(trained['runs'], trained['targets'])}",
        *([finals] if finals else []),
    ]


def replaced(readme: str, text: str) -> str:
    """Return the file's text with the text between the markers replaced.

    Raises:
        ValueError: There are not exactly two markers, in order.
    """
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise ValueError(f"the file must hold {BEGIN!r} and then {END!r}, each once")
    before, _, rest = readme.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}"


def main() -> int:
    """Write both files, or check them."""
    parser = argparse.ArgumentParser(prog="benchmarks report")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if it would change")
    args = parser.parse_args()
    folder = BENCHMARKS / "results"
    questions = load(folder)
    texts = {README: summary.section(questions), RESULTS: section(questions, folder)}
    changed = {
        path: new for path, text in texts.items() if (new := replaced(path.read_text(), text)) != path.read_text()
    }
    if args.check:
        return int(bool(changed))
    for path, new in changed.items():
        path.write_text(new)
    summary.chart(workloads_of(questions), questions, folder / "overview.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
