"""Decide whether a silent worker hangs. Pure.

A worker hangs when it has work and its row of the board does not change for too long. Only the time that the sampler
spent waiting for workers counts: while the sampler is busy itself, suspended or starved, it cannot tell. A worker
writes its row at least once in 10 ms, or once in a timestep that takes longer, as far as that can be foreseen; so a row
that does not change is only a suspicion. A suspect is asked, by a flag, to write each timestep and each action; it
hangs when its row does not change for the whole limit from then on.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

_LOOKS = 8
"""Looks at the board within one time limit: a hang is noticed after the limit and at most three eighths of it more."""

_LATE = 2.0
_LATE_SECONDS = 1.0
"""A wait that took more than `_LATE` times its limit, and `_LATE_SECONDS` more, does not count: the machine was
suspended, or so short of processors that no worker had a chance either."""


@dataclass(slots=True)
class Stillness:
    """For how long one worker's row of the board has not changed."""

    row: Hashable = None  # at the last look
    seconds: float | None = None  # for how long it has not changed since the worker became a suspect; None of others

    def reset(self) -> None:
        """Clear a worker of suspicion that answered, or was given work."""
        self.row = self.seconds = None


class Watch:
    """Find the workers without progress for so many seconds, by their phase."""

    def __init__(self, limits: Mapping[Hashable, float]) -> None:
        self.interval = min(limits.values()) / _LOOKS  # seconds between two looks; no wait is to be longer
        self._limits = dict(limits)
        self._waited = 0.0  # since the last look

    def is_due(self, limit: float, elapsed: float) -> bool:
        """Add a wait of the sampler, of at most `limit` seconds; return whether it is time to look at the board."""
        if elapsed <= _LATE * limit + _LATE_SECONDS:
            # No more than the limit: the machine took the rest, and workers lacked it, too.
            self._waited += min(limit, elapsed)
        return self._waited >= self.interval

    def look(self, rows: Mapping[int, tuple[Stillness, Hashable, Hashable]]) -> tuple[list[int], dict[int, float]]:
        """Compare the board with the last look at it; return the new suspects, and for how many seconds others hang.

        `rows` has, for each worker that has work, its row before, its row now, and which of the limits holds.
        """
        waited, self._waited = self._waited, 0.0
        suspects: list[int] = []
        hung: dict[int, float] = {}
        for worker, (still, row, doing) in rows.items():
            if row != still.row:
                still.row, still.seconds = row, None
            elif still.seconds is None:
                still.seconds = 0.0
                suspects.append(worker)
            else:
                still.seconds += waited
                if still.seconds >= self._limits[doing]:
                    hung[worker] = still.seconds
        return suspects, hung
