"""The README's table and chart: this library and what others use, under the names that users know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import charts
from benchmarks.harness.tables import table

__all__ = ["chart", "section", "shares"]

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
    "Gymnasium AsyncVectorEnv": ("async_vector_env_2", "async_vector_env_8"),
    "Stable-Baselines3 SubprocVecEnv": ("sb3_subproc_2", "sb3_subproc_8"),
    "Tianshou": ("tianshou",),
    "TorchRL": ("torchrl_sync", "torchrl_async"),
    "RLlib": ("rllib",),
    "PufferLib": ("pufferlib",),
}
CHARTED = ("cheap_20", "mlp_cartpole")


def shares(results: dict[str, Any]) -> dict[str, float]:
    """Return each library's share of the bare loop's speed on a workload: that of its best setting.

    Args:
        results: What was measured on it, by contender. Libraries that were not measured are left out.
    """
    found = {}
    for library, contenders in LIBRARIES.items():
        medians = [results[name]["ratio"]["median"] for name in contenders if "ratio" in results.get(name, {})]
        if medians:
            found[library] = max(medians)
    return found


def section(workloads: dict[str, dict[str, Any]]) -> str:
    """Write the README's text, in Markdown.

    Args:
        workloads: What was measured, by workload and contender.
    """
    columns = {name: shares(workloads[name]) for name in WORKLOADS if name in workloads}
    rows = [
        [library, *(f"{column[library]:.2f}" if library in column else "" for column in columns.values())]
        for library in LIBRARIES
        if any(library in column for column in columns.values())
    ]
    return (
        "Timesteps per second as a share of a bare loop that steps the environment with the agent in one process per "
        "core and records nothing; of several settings, the best one. Above 1 where actions are computed in batches. "
        "What is by hand hands out fragments of trajectories in the order of their arrival, without infos.\n\n"
        + table(["", *(WORKLOADS[name] for name in columns)], rows)
        + "\n\n![timesteps per second](benchmarks/results/overview.png)"
    )


def chart(workloads: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw the shares on two workloads, the largest first; readable on light and on dark pages."""
    panels = {
        WORKLOADS[name]: dict(sorted(shares(workloads[name]).items(), key=lambda item: -item[1]))
        for name in CHARTED
        if name in workloads
    }
    charts.share_chart("share of the bare loop's timesteps per second", panels, path)
