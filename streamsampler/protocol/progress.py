"""The progress that a worker shows."""

from __future__ import annotations

from dataclasses import dataclass

from streamsampler.core.errors import Phase


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that a worker showed last.

    Attributes:
        version: The agent version in hand.
        timesteps: Timesteps of that ticket so far.
        trajectory: Index of the trajectory in hand; None outside trajectories.
        phase: What the worker was doing.
    """

    version: int
    timesteps: int
    trajectory: int | None
    phase: Phase
