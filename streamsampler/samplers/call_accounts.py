"""What became of the trajectories that arrived in a call."""

from __future__ import annotations

from collections.abc import Sequence

from streamsampler.data.statistics import Stats
from streamsampler.scheduling.gathering import Gathering

__all__ = ["add_returned", "add_unseen"]


def add_returned(stats: Stats, gathering: Gathering) -> None:
    """Count what is returned as kept, and what else arrived as surplus.

    Args:
        stats: The call's accounts.
        gathering: What arrived, and what is returned.
    """
    stats.kept_trajectories = gathering.n_trajectories
    stats.kept_timesteps = gathering.n_timesteps
    n_trajectories, n_timesteps = gathering.surplus()
    stats.surplus_trajectories += n_trajectories + gathering.result.n_held
    stats.surplus_timesteps += n_timesteps


def add_unseen(stats: Stats, gathering: Gathering, seen: Sequence[int]) -> None:
    """Count as surplus what arrived and was never returned, by a stream or by a call that an exception ended.

    Args:
        stats: The call's accounts.
        gathering: What arrived.
        seen: Trajectories and timesteps that a stream's consumer has seen.
    """
    arrived = gathering.arrived_trajectories + gathering.repeated_trajectories + gathering.result.n_held
    stats.surplus_trajectories += arrived - seen[0]
    stats.surplus_timesteps += gathering.arrived_timesteps + gathering.repeated_timesteps - seen[1]
