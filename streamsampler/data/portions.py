"""Cut what a folder or a stream is to have into portions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class Portion:
    """How much a portion of a stream still lacks: timesteps, or trajectories, whichever suffices first.

    Args:
        timesteps: Timesteps that suffice; None if only trajectories count.
        trajectories: Trajectories that suffice; None if only timesteps count.
    """

    def __init__(self, timesteps: int | None, trajectories: int | None) -> None:
        self._timesteps = timesteps
        self._trajectories = trajectories

    @property
    def met(self) -> bool:
        """Whether the portion is complete."""
        enough_timesteps = self._timesteps is not None and self._timesteps <= 0
        return enough_timesteps or (self._trajectories is not None and self._trajectories <= 0)

    def fill(self, lengths: Iterable[int]) -> int:
        """Take trajectories with these lengths, from the first on, until they suffice; return how many."""
        taken = 0
        for length in lengths:
            if self.met:
                break
            taken += 1
            if self._timesteps is not None:
                self._timesteps -= length
            if self._trajectories is not None:
                self._trajectories -= 1
        return taken


@dataclass(frozen=True)
class Target:
    """How much all portions together must have.

    Attributes:
        unit: "timesteps" or "trajectories".
        number: How many.
    """

    unit: str
    number: int

    def missing(self, n_trajectories: int, n_timesteps: int) -> int:
        """Return how many are missing if there are so many; at least 0."""
        return max(0, self.number - (n_timesteps if self.unit == "timesteps" else n_trajectories))

    def next_portion(self, size: int, n_trajectories: int, n_timesteps: int) -> Portion:
        """Return what the next portion must have: `size` timesteps, or less for the last one.

        It depends only on the portions so far: they are the same wherever sampling was interrupted.
        """
        missing = self.missing(n_trajectories, n_timesteps)
        return Portion(min(size, missing), None) if self.unit == "timesteps" else Portion(size, missing)
