"""Find a running trajectory far longer than its whole batch needs. Pure.

Such a trajectory may never end. Workers' progress is read at doubling intervals, so that long calls are not woken at a
fixed rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_TIMES = 10
"""A trajectory is reported above so many times the timesteps of its batch."""

_FIRST_LOOK = 1.0
"""Seconds from the start of a call to the first reading; each later interval is twice as long."""


class LengthWatch:
    """Finds the first trajectory too long over all calls of a sampler."""

    def __init__(self) -> None:
        self.next_reading = math.inf  # time; infinite when nothing is searched for
        self.needed = 0  # timesteps of the call's batch
        self._has_reported = False
        self._seconds = _FIRST_LOOK
        self._most = 0
        self._seen: dict[int, tuple[int, int]] = {}  # by worker: trajectory, and its timesteps when first seen

    def begin(self, needed: int | None, side_by_side: int, now: float) -> None:
        """Start a call for `needed` timesteps, with `side_by_side` trajectories counted together."""
        self._seen = {}
        self._seconds = _FIRST_LOOK
        self.needed = needed or 0
        self._most = _TIMES * self.needed * side_by_side
        self.next_reading = math.inf if needed is None or self._has_reported else now + self._seconds

    def find(self, shown: Mapping[int, tuple[int, int]], now: float) -> tuple[int, int] | None:
        """Return worker and index of a trajectory too long; or None.

        `shown` has workers' current trajectories and timesteps. Only timesteps added during the same trajectory count,
        since a ticket may have many.
        """
        if now < self.next_reading:
            return None
        self._seconds *= 2.0
        self.next_reading = now + self._seconds
        before, self._seen = self._seen, {}
        for worker, (trajectory, timesteps) in shown.items():
            seen = before.get(worker)
            if seen is None or seen[0] != trajectory or seen[1] > timesteps:
                seen = trajectory, timesteps
            self._seen[worker] = seen
            if timesteps - seen[1] > self._most:
                self._has_reported, self.next_reading = True, math.inf
                return worker, trajectory
        return None
