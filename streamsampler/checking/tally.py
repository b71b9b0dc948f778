"""Compute timesteps per second from when timesteps arrived. Pure: no clock."""

from __future__ import annotations

_MANY = 10
"""Timesteps of each environment from which a rate can be told. With fewer, where they begin and end decides it."""
_LATE = 1.25
"""An environment without a timestep so many times as long as the first one's took is not waited for."""


class Tally:
    """Timesteps of a round, which begins before any environment is reset.

    The rate counts from the beginning to the arrival of the last timestep: each timestep has what led to it in that
    time, its reset included, and nothing that leads to a later one. Resets belong to whole trajectories, of which a
    short round steps only a part. So only that part of the time until the first timesteps is counted, where there are
    many later ones. How long trajectories are is not known but that they are that long at least: the rate may be too
    low, and not too high.

    Args:
        n_envs: How many environments are stepped, in all processes.
        length: Timesteps that trajectories are known to have; they may have more.
        resets: Seconds that the first resets take, about.

    Attributes:
        timesteps: How many there are.
        seconds: When the last one arrived.
    """

    def __init__(self, n_envs: int, length: float, resets: float = 0.0) -> None:
        self._n_envs, self._length, self._resets = n_envs, length, resets
        self._first: tuple[int, float] | None = None
        self.timesteps, self.seconds = 0, 0.0

    def add(self, timesteps: int, seconds: float) -> None:
        """Note that there are so many timesteps in all, so many seconds after the beginning."""
        if timesteps <= self.timesteps:
            return
        self.timesteps, self.seconds = timesteps, seconds
        if self._first is None:
            self._first = timesteps, seconds

    def ends(self, seconds: float, window: float, most: float = 0.0) -> bool:
        """Return whether the round ends: its window is over, and each environment had time for a timestep.

        Args:
            seconds: Seconds since the beginning.
            window: How long the round is to be, besides the first resets.
            most: How long it may be for the sake of a rate that is certain, besides the first resets.
        """
        if self._first is None or seconds - self._resets < window:
            return False
        if self.certain:
            return True
        if seconds - self._resets < most:
            return False
        return self.timesteps >= self._n_envs or seconds >= _LATE * self._first[1]

    @property
    def certain(self) -> bool:
        """Whether there are timesteps enough for a rate that another round would confirm."""
        return self.timesteps >= _MANY * self._n_envs

    @property
    def rate(self) -> float:
        """Timesteps per second; 0 where there were none."""
        if self._first is None:
            return 0.0
        plain = self.timesteps / max(self.seconds, 1e-9)
        first, until_first = self._first
        later = self.timesteps - first
        if later < _MANY * self._n_envs:
            return plain
        stepped = min(1.0, later / (self._n_envs * self._length))
        return max(plain, later / (self.seconds - until_first + stepped * until_first))
