"""The progress that a worker shows."""

from __future__ import annotations

from dataclasses import dataclass

from streamsampler.core.errors import Phase


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that a worker showed last."""

    version: int  # the agent version in hand
    timesteps: int  # of that ticket so far
    trajectory: int | None  # index of the trajectory in hand; None outside trajectories
    phase: Phase  # what the worker was doing
    waits: int = 0  # how often it has waited for environments or agents: an event loop that goes on is not stuck
    task: int | None = None  # outside trajectories the number of the task that it works for, where there are several

    @property
    def is_closing(self) -> bool:
        """Whether the worker closes the environment of one of several tasks."""
        return self.task is not None and self.phase is Phase.CLOSE
