"""Find a trajectory that is far longer than the whole batch needs, while it still runs. Pure.

Such a trajectory may never end, and the call with it. Workers' progress is looked at a few times, after times that
double: a call that takes long is not woken at a fixed rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_TIMES = 10
"""A trajectory of more than so many times the timesteps that a batch needs is reported."""

_FIRST_LOOK = 1.0
"""Seconds after a call's beginning at which it is looked for first; each look comes after twice that time."""


class LengthWatch:
    """Find the first trajectory that is too long, in any call of a sampler; only one is reported."""

    def __init__(self) -> None:
        self.next_look = math.inf  # a time; infinite where there is nothing to look for
        self.needed = 0  # timesteps, for the call's batch
        self._has_reported = False
        self._seconds = _FIRST_LOOK
        self._most = 0
        self._seen: dict[int, tuple[int, int]] = {}  # by worker: a trajectory, and the timesteps when it was first seen

    def begin(self, needed: int | None, side_by_side: int, now: float) -> None:
        """Begin a call whose batch needs so many timesteps; None if it does not count timesteps.

        A worker shows the timesteps of its `side_by_side` trajectories together.
        """
        self._seen = {}
        self._seconds = _FIRST_LOOK
        self.needed = needed or 0
        self._most = _TIMES * self.needed * side_by_side
        self.next_look = math.inf if needed is None or self._has_reported else now + self._seconds

    def look(self, shown: Mapping[int, tuple[int, int]], now: float) -> tuple[int, int] | None:
        """Return the worker and the index of a trajectory that is too long; None if there is none, or it is no time.

        `shown` has, for each worker with a trajectory in hand, its index and the worker's timesteps. Only what was seen
        to be added to one trajectory counts: a ticket's timesteps may be those of many.
        """
        if now < self.next_look:
            return None
        self._seconds *= 2.0
        self.next_look = now + self._seconds
        before, self._seen = self._seen, {}
        for worker, (trajectory, timesteps) in shown.items():
            seen = before.get(worker)
            if seen is None or seen[0] != trajectory or seen[1] > timesteps:
                seen = trajectory, timesteps
            self._seen[worker] = seen
            if timesteps - seen[1] > self._most:
                self._has_reported, self.next_look = True, math.inf
                return worker, trajectory
        return None
