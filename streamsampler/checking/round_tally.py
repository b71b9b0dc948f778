"""Compute timesteps per second from the arrival of timesteps. Pure."""

from __future__ import annotations

_MANY = 10
"""Timesteps per environment for a reliable rate. With fewer, the start and end of the round decide the rate."""
_LATE = 1.25
"""A round waits for an environment's first timestep up to this multiple of the first environment's time."""


class RoundTally:
    """The timesteps of a round, which begins before the first reset. Pure: it has no clock.

    The rate counts from the start of the round to the arrival of the last timestep, so that each timestep's cost,
    resets included, is counted, and no cost of a later timestep. A reset's cost belongs to a whole trajectory, and a
    short round steps only a part of it. If many timesteps follow, only this part of the time before the first timesteps
    is counted. Trajectories may be longer than `length`, so the rate may be too low, but not too high.

    Args:
        n_envs: Number of environments in all processes.
        length: Known timesteps of a trajectory, which may have more.
        resets: Seconds of the first resets, about.

    Attributes:
        timesteps: Number of timesteps so far.
        seconds: Arrival of the last timestep.
    """

    def __init__(self, n_envs: int, length: float, resets: float = 0.0) -> None:
        self._n_envs, self._length, self._resets = n_envs, length, resets
        self._first: tuple[int, float] | None = None
        self.timesteps, self.seconds = 0, 0.0

    def note(self, timesteps: int, seconds: float) -> None:
        """Record the total of timesteps at a time, in seconds since the start of the round."""
        if timesteps <= self.timesteps:
            return
        self.timesteps, self.seconds = timesteps, seconds
        if self._first is None:
            self._first = timesteps, seconds

    def ends(self, seconds: float, window: float, most: float = 0.0) -> bool:
        """Return whether the round ends: its window is over, and each environment had time for a timestep.

        Args:
            seconds: Seconds since the start.
            window: Planned seconds of the round, without the first resets.
            most: Longest duration for the sake of a reliable rate, without the first resets.
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
        """Whether another round would confirm the rate."""
        return self.timesteps >= _MANY * self._n_envs

    @property
    def rate(self) -> float:
        """Timesteps per second; 0 without timesteps."""
        if self._first is None:
            return 0.0
        plain = self.timesteps / max(self.seconds, 1e-9)
        first, until_first = self._first
        later = self.timesteps - first
        if later < _MANY * self._n_envs:
            return plain
        stepped = min(1.0, later / (self._n_envs * self._length))
        return max(plain, later / (self.seconds - until_first + stepped * until_first))
