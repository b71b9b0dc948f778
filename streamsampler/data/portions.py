"""The sizes of a folder's shards and of a stream's portions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class Portion:
    """The timesteps or trajectories (None: not counted) missing in a portion; either suffices to complete it."""

    def __init__(self, timesteps: int | None, trajectories: int | None) -> None:
        self._timesteps = timesteps
        self._trajectories = trajectories

    @property
    def met(self) -> bool:
        enough_timesteps = self._timesteps is not None and self._timesteps <= 0
        return enough_timesteps or (self._trajectories is not None and self._trajectories <= 0)

    def fill(self, lengths: Iterable[int]) -> int:
        """Count trajectories of these lengths until they suffice; return how many did."""
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
    """The required number of "timesteps" or "trajectories" (`unit`) of all portions together."""

    unit: str
    number: int

    def missing(self, n_trajectories: int, n_timesteps: int) -> int:
        return max(0, self.number - (n_timesteps if self.unit == "timesteps" else n_trajectories))

    def next_portion(self, size: int, n_trajectories: int, n_timesteps: int) -> Portion:
        """Return the next portion: `size` timesteps, or less for the last.

        It depends only on the earlier portions, so it is the same wherever sampling was interrupted.
        """
        missing = self.missing(n_trajectories, n_timesteps)
        return Portion(min(size, missing), None) if self.unit == "timesteps" else Portion(size, missing)
