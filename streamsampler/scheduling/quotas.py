"""How a long sequence of trajectories is cut into portions: pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Quota", "Target"]


class Quota:
    """What a portion is to have: the first trajectories that have so many timesteps, or are so many.

    Args:
        timesteps: Timesteps that suffice; None if only trajectories count.
        trajectories: Trajectories that suffice; None if only timesteps count.
    """

    def __init__(self, timesteps: int | None, trajectories: int | None) -> None:
        self._timesteps = timesteps
        self._trajectories = trajectories

    @property
    def met(self) -> bool:
        """Whether what was taken suffices."""
        enough_timesteps = self._timesteps is not None and self._timesteps <= 0
        return enough_timesteps or (self._trajectories is not None and self._trajectories <= 0)

    def take(self, lengths: Iterable[int]) -> int:
        """Take trajectories with these lengths, from the first on, until they suffice; returns how many.

        A length of 0 is a trajectory that was left out: it is passed by, and counts for nothing.
        """
        taken = 0
        for length in lengths:
            if self.met:
                break
            taken += 1
            if self._timesteps is not None:
                self._timesteps -= length
            if self._trajectories is not None:
                self._trajectories -= bool(length)
        return taken


@dataclass(frozen=True)
class Target:
    """How much there is to be in all.

    Attributes:
        unit: "timesteps", for the first trajectories that have so many, or "trajectories".
        number: How many.
    """

    unit: str
    number: int

    def missing(self, n_trajectories: int, n_timesteps: int) -> int:
        """How many are missing where so much is there; never less than 0."""
        return max(0, self.number - (n_timesteps if self.unit == "timesteps" else n_trajectories))

    def next_quota(self, size: int, n_trajectories: int, n_timesteps: int) -> Quota:
        """What the next portion of at least `size` timesteps is to have; less if it is the last one.

        It depends on nothing but what is there: portions are the same wherever the work was interrupted.
        """
        missing = self.missing(n_trajectories, n_timesteps)
        return Quota(min(size, missing), None) if self.unit == "timesteps" else Quota(size, missing)
