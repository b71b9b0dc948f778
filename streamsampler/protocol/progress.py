"""Define the progress of a worker."""

from __future__ import annotations

from dataclasses import dataclass

from streamsampler.core.errors import Phase


@dataclass(frozen=True, slots=True)
class Progress:
    """A worker's latest progress."""

    version: int  # the current agent version
    timesteps: int  # of the current ticket so far
    trajectory: int | None  # index of the current trajectory; None outside trajectories
    phase: Phase  # the worker's phase
    waits: int = 0  # waits for environments or agents so far: a running event loop is not stuck
    task: int | None = None  # outside trajectories: number of the worker's task, with several

    @property
    def is_closing(self) -> bool:
        """Whether the worker is closing a task's environment."""
        return self.task is not None and self.phase is Phase.CLOSE
