"""Decide whether a silent worker hangs. Pure.

A worker hangs if it has tickets and its row of the progress board stays unchanged for too long, counted in waiting time
of the sampler: a busy or suspended sampler cannot judge. Workers write their rows about every 10 ms, or once in a
longer timestep. So an unchanged row only raises suspicion: the suspect is asked, by a flag, to write each timestep and
action, and has the whole limit again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

_LOOKS = 8
"""Samples of the board within a time limit: a hang is noticed at most three eighths of the limit late."""

_LATE = 2.0
_LATE_SECONDS = 1.0
"""Waits longer than `_LATE` times their limit plus `_LATE_SECONDS` do not count: the machine was suspended, or so short
of processors that workers had no chance either.
"""


@dataclass(slots=True)
class Stillness:
    """How long a worker's row has been unchanged."""

    row: Hashable = None  # at the last reading
    seconds: float | None = None  # unchanged since it became a suspect; None without suspicion

    def reset(self) -> None:
        self.row = self.seconds = None


class HangWatch:
    """Finds workers without progress for longer than the limit of their phase."""

    def __init__(self, limits: Mapping[Hashable, float]) -> None:
        self.interval = min(limits.values()) / _LOOKS  # seconds between two readings; no wait may be longer
        self._limits = dict(limits)
        self._waited = 0.0  # since the last reading

    def is_due(self, limit: float, elapsed: float) -> bool:
        """Add a wait of `elapsed` seconds, planned for `limit`; return whether to read the board."""
        if elapsed <= _LATE * limit + _LATE_SECONDS:
            # At most the limit: in the rest of the time workers lacked the machine, too.
            self._waited += min(limit, elapsed)
        return self._waited >= self.interval

    def look(self, rows: Mapping[int, tuple[Stillness, Hashable, Hashable]]) -> tuple[list[int], dict[int, float]]:
        """Compare the board with its last reading; return new suspects, and the seconds of hung workers.

        `rows` has, for each worker with tickets, its `Stillness`, its row, and the name of its limit.
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
