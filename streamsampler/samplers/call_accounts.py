"""What became of the trajectories that arrived in a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamsampler.data.statistics import Stats
from streamsampler.scheduling.gathering import Gathering, Run

__all__ = ["add_returned", "add_unseen"]


def add_returned(stats: Stats, gathering: Gathering[Any], runs: list[Run[Any]]) -> None:
    """Count what is returned as kept, and what else arrived as surplus.

    Args:
        stats: The call's accounts.
        gathering: What arrived.
        runs: What is returned.
    """
    stats.kept_trajectories = gathering.n_trajectories
    stats.kept_timesteps = sum(sum(run.lengths) for run in runs)
    for _, n_trajectories, n_timesteps in gathering.surplus():
        stats.surplus_trajectories += n_trajectories
        stats.surplus_timesteps += n_timesteps
    stats.surplus_trajectories += gathering.result.n_held


def add_unseen(stats: Stats, gathering: Gathering[Any], seen: Sequence[int]) -> None:
    """Count as surplus what arrived and was never returned, by a stream or by a call that an exception ended.

    Args:
        stats: The call's accounts.
        gathering: What arrived.
        seen: Trajectories and timesteps that a stream's consumer has seen.
    """
    stats.surplus_trajectories += gathering.arrived_trajectories - seen[0] + gathering.result.n_held
    stats.surplus_timesteps += gathering.arrived_timesteps - seen[1]
    for _, n_trajectories, n_timesteps in gathering.repeated:
        stats.surplus_trajectories += n_trajectories
        stats.surplus_timesteps += n_timesteps
