"""Write the README's table and chart: this library and its peers, under the names that users know."""

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
    "PufferLib": ("pufferlib",),
    "RLlib": ("rllib",),
    "TorchRL": ("torchrl_sync", "torchrl_async"),
    "Gymnasium AsyncVectorEnv": ("async_vector_env_2", "async_vector_env_8"),
    "Stable-Baselines3 SubprocVecEnv": ("sb3_subproc_2", "sb3_subproc_8"),
    "Tianshou": ("tianshou",),
}
CHARTED = ("cheap_20", "mlp_cartpole")


def shares(results: dict[str, Any]) -> dict[str, float]:
    """Return each library's share of the bare loop's speed on a workload, in its best setting.

    Args:
        results: The measurements on it, by contender. Libraries without one are left out.
    """
    found = {}
    for library, contenders in LIBRARIES.items():
        medians = [results[name]["ratio"]["median"] for name in contenders if "ratio" in results.get(name, {})]
        if medians:
            found[library] = max(medians)
    return found


def section(workloads: dict[str, dict[str, Any]]) -> str:
    """Return the README's text, in Markdown: a row for each workload, a column for each library.

    Args:
        workloads: The measurements, by workload and contender.
    """
    by_workload = {title: shares(workloads[name]) for name, title in WORKLOADS.items() if name in workloads}
    libraries = [library for library in LIBRARIES if any(library in found for found in by_workload.values())]
    rows = [
        [title, *(f"{found[library]:.2f}" if library in found else "" for library in libraries)]
        for title, found in by_workload.items()
    ]
    return (
        "Timesteps per second, as a share of a bare loop: one process per core that steps the environment with the "
        "agent and records nothing. Each library with its best setting. Above 1 where actions are computed in batches. "
        "The two by hand return fragments of trajectories in order of arrival, without infos.\n\n"
        + table(["", *libraries], rows)
        + "\n\n![Timesteps per second of each library, as a share of the bare loop](benchmarks/results/overview.png)"
    )


def chart(workloads: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw the shares on two workloads, the largest first, for light and dark pages."""
    panels = {
        WORKLOADS[name]: dict(sorted(shares(workloads[name]).items(), key=lambda item: -item[1]))
        for name in CHARTED
        if name in workloads
    }
    charts.share_chart("share of the bare loop (dashed)", panels, path)
