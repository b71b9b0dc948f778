"""Write the README's chart, and the tables at a glance: this library and its peers, under the names users know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import charts
from benchmarks.harness.tables import table

__all__ = ["at_a_glance", "chart", "section", "shares"]

WORKLOADS = {
    "cheap_20": "CartPole, NumPy agent",
    "mlp_cartpole": "CartPole, torch MLP",
    "mlp_cheetah": "HalfCheetah, torch MLP",
    "pixels": "4x84x84 pixels",
    "stragglers": "one process four times slower",
    "on_policy": "2,000 timesteps an update",
}
LIBRARIES: dict[str, Sequence[str]] = {
    "streamsampler": ("ours",),
    "streamsampler VecWorker": ("ours_vec_32", "ours_vec_8"),
    "process pool by hand": ("futures_by_hand_seeded",),
    "Ray actors by hand": ("ray_by_hand",),
    "PufferLib": ("pufferlib",),
    "RLlib": ("rllib",),
    "TorchRL": ("torchrl_sync", "torchrl_async"),
    "Gymnasium AsyncVectorEnv": ("async_vector_env_2", "async_vector_env_8"),
    "Stable-Baselines3 SubprocVecEnv": ("sb3_subproc_2", "sb3_subproc_8"),
    "Tianshou": ("tianshou",),
}
PACKAGES = {
    "PufferLib": ("PufferLib", "pufferlib"),
    "RLlib": ("Ray", "ray"),
    "TorchRL": ("TorchRL", "torchrl"),
    "Gymnasium AsyncVectorEnv": ("Gymnasium", "gymnasium"),
    "Stable-Baselines3 SubprocVecEnv": ("Stable-Baselines3", "stable_baselines3"),
    "Tianshou": ("Tianshou", "tianshou"),
}
"""By the name in `LIBRARIES`: what the versions are of, and the package that has them."""
CHARTED = ("cheap_20", "mlp_cartpole")
"""The workloads of the chart in which workers choose the actions."""
CHARTED_STEPPING = ("stepping", "cheap_500")
"""The question and the workload of the chart in which the caller's process chooses them."""

STEPPED = {
    ("one_process", "cheap_500"): ("CartPole, 8 environments in one process, CPU time, to the bare loop", "cpu_share"),
    ("stepping", "cheap_500"): ("CartPole, 32 environments, to the bare loop in two processes", "ratio"),
    ("stepping", "steps_heavy"): ("8 environments whose steps vary much, to stepping them together", "ratio"),
    ("inference", "inference_mlp"): ("CartPole, torch MLP in your process, to `VecWorker`", "ratio"),
    ("inference", "inference_cnn"): ("4x84x84 pixels, CNN in your process, to `VecWorker`", "ratio"),
}
"""Questions and workloads in which actions come from the caller's process: what is compared with what, and by which
figure."""
STEPPERS: dict[str, Sequence[str]] = {
    "streamsampler": (
        *("ours_synchronous_32", "ours_asynchronous_32", "ours_asynchronous", "ours_parent", "ours_vector_env_8"),
    ),
    "Gymnasium SyncVectorEnv": ("sync_vector_env_8", "sync_vector_env_32"),
    "Stable-Baselines3 DummyVecEnv": ("sb3_dummy_8", "sb3_dummy_32"),
    "Gymnasium AsyncVectorEnv": tuple(f"async_vector_env_{n}" for n in (8, 16, 32)),
    "Stable-Baselines3 SubprocVecEnv": tuple(f"sb3_subproc_{n}" for n in (8, 16, 32)),
}


def shares(
    results: dict[str, Any], libraries: dict[str, Sequence[str]] | None = None, key: str = "ratio"
) -> dict[str, float]:
    """Return each library's speed on a workload, as a share of what it is compared with, in its best setting.

    Args:
        results: The measurements on it, by contender. Libraries without one are left out.
        libraries: The contenders of each library.
        key: "ratio" for timesteps per second, "cpu_share" for timesteps per second of CPU.
    """
    found = {}
    for library, contenders in (libraries or LIBRARIES).items():
        medians = [results[name][key]["median"] for name in contenders if key in results.get(name, {})]
        if medians:
            found[library] = max(medians)
    return found


def section(questions: Sequence[dict[str, Any]]) -> str:
    """Return the README's text, in Markdown: the chart, and four sentences.

    Args:
        questions: All questions.
    """
    stepped = _stepped(questions).get(STEPPED[CHARTED_STEPPING][0], {})
    one_process = _stepped(questions).get(STEPPED["one_process", "cheap_500"][0], {})
    return (
        "![Timesteps per second of each library, as a share of a bare loop](benchmarks/results/overview.png)\n\n"
        "Timesteps per second, as a share of a bare loop: one process per core that steps the environment with the "
        "agent and records nothing; each library with its best setting. Where your own process steps cheap "
        f"environments, `SyncVectorEnv` ({stepped.get('Gymnasium SyncVectorEnv', 0):.2f}) and `DummyVecEnv` "
        f"({stepped.get('Stable-Baselines3 DummyVecEnv', 0):.2f}) are ahead of `EnvManager` "
        f"({stepped.get('streamsampler', 0):.2f}). In one process, by CPU time, it is "
        f"{one_process.get('Gymnasium SyncVectorEnv', 0):.2f} for `SyncVectorEnv` and "
        f"{one_process.get('streamsampler', 0):.2f} for `SerialEnvManager`. Stay with Gymnasium's and "
        "Stable-Baselines3's there. [speed](streamsampler/docs/speed.md) says when which is faster, "
        "[benchmarks](benchmarks/README.md) has all results and versions."
    )


def _stepped(questions: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the shares where the caller's process chooses the actions, by the title of the row and by library."""
    by_name = {question["question"]: question.get("workloads", {}) for question in questions}
    return {
        title: shares(by_name[question][workload], STEPPERS, key)
        for (question, workload), (title, key) in STEPPED.items()
        if workload in by_name.get(question, {})
    }


def at_a_glance(workloads: dict[str, dict[str, Any]], questions: Sequence[dict[str, Any]] = ()) -> str:
    """Return two tables, in Markdown: a row for each workload, a column for each library.

    Args:
        workloads: The measurements, by workload and contender.
        questions: All questions, of which those of `STEPPED` have rows of their own.
    """
    by_workload = {title: shares(workloads[name]) for name, title in WORKLOADS.items() if name in workloads}
    stepped = _stepped(questions)
    return (
        "At a glance: timesteps per second, as a share of a bare loop, one process per core that steps the environment "
        "with the agent and records nothing. Each library with its best setting. Above 1 where actions are computed in "
        "batches. The two by hand return fragments of trajectories in order of arrival, without infos."
        + _versions(workloads)
        + _elsewhere(questions)
        + "\n\n"
        + _table_of(by_workload)
        + (f"\n\nThe same where your own process chooses each action:\n\n{_table_of(stepped)}" if stepped else "")
    )


def _elsewhere(questions: Sequence[dict[str, Any]]) -> str:
    """Return what was measured on another machine than what it stands beside, as sentences."""
    charted = [each for each in questions if not WORKLOADS.keys().isdisjoint(each.get("workloads", {}))]
    notes = {note for question in charted for note in question.get("notes", []) if "on another machine" in note}
    return "".join(f" {note}" for note in sorted(notes))


def _versions(workloads: dict[str, dict[str, Any]]) -> str:
    """Return the versions of the libraries that were measured, as a sentence."""
    listed = []
    for library, (name, package) in PACKAGES.items():
        measured = [results[it] for results in workloads.values() for it in LIBRARIES[library] if it in results]
        if versions := sorted({result["versions"][package] for result in measured if "versions" in result}):
            listed.append(f"{name} {' and '.join(versions)}")
    return f" Versions: {', '.join(listed)}." if listed else ""


def _table_of(shares_by_row: dict[str, dict[str, float]]) -> str:
    """Lay out the shares of each row, without libraries that have none."""
    found = {library for row in shares_by_row.values() for library in row}
    libraries = [library for library in dict.fromkeys([*LIBRARIES, *STEPPERS]) if library in found]
    rows = [
        [title, *(f"{row[library]:.2f}" if library in row else "" for library in libraries)]
        for title, row in shares_by_row.items()
    ]
    return table(["", *libraries], rows)


def chart(workloads: dict[str, dict[str, Any]], questions: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the shares on three workloads, the largest first, for light and dark pages."""
    panels = {WORKLOADS[name]: shares(workloads[name]) for name in CHARTED if name in workloads}
    panels["CartPole, your process steps it"] = _stepped(questions).get(STEPPED[CHARTED_STEPPING][0], {})
    panels = {title: dict(sorted(found.items(), key=lambda item: -item[1])) for title, found in panels.items() if found}
    charts.share_chart("share of the bare loop (dashed)", panels, path)
