"""Decide whether a silent worker hangs. Pure.

A worker hangs when it has work and its row of the board does not change for too long. Only time counts that
the sampler spent waiting for workers: while it is busy itself, suspended or starved, it cannot tell. A worker writes
its row at least once in 10 ms, or once in a timestep that takes longer, as far as it can foresee that; so a row that
stands still is only a suspicion. A suspect is asked, by a flag, to write each timestep and each action; it hangs
when its row stands still for the whole limit from then on.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

__all__ = ["Watch"]

_LOOKS = 8
"""Looks at the board within one time limit: a hang is noticed after the limit and at most three eighths of it more."""

_LATE = 2.0
_LATE_SECONDS = 1.0
"""A wait that took more than `_LATE` times as long as planned, and `_LATE_SECONDS` more, was no wait: the machine was
suspended, or so short of processors that no worker had a chance either."""


class Watch:
    """Who makes no progress.

    Args:
        step_timeout: Seconds without progress after which a worker hangs that runs trajectories.
        construction_timeout: The same for one that has not begun yet, is being updated, or sends what it recorded.
        n_workers: How many workers there are.

    Attributes:
        interval: Seconds between two looks at the board; no wait for workers is to be longer.
    """

    def __init__(self, step_timeout: float, construction_timeout: float, n_workers: int) -> None:
        self.interval = min(step_timeout, construction_timeout) / _LOOKS
        self._limits = {False: step_timeout, True: construction_timeout}
        self._awake = 0.0  # since the last look
        self._seen: list[Hashable] = [None] * n_workers
        self._still: list[float | None] = [None] * n_workers  # None: above suspicion

    def moved(self, worker: int) -> None:
        """Take note of progress that the board does not tell: an answer, or the beginning of work."""
        self._seen[worker] = None
        self._still[worker] = None

    def waited(self, planned: float, elapsed: float) -> bool:
        """Take note that the sampler waited for workers.

        Args:
            planned: Seconds that it would have waited at most.
            elapsed: Seconds that it did wait.

        Returns:
            Whether it is time for a look at the board.
        """
        if elapsed <= _LATE * planned + _LATE_SECONDS:
            # No more than was planned: what came on top of it was the machine's, and workers lacked it, too.
            self._awake += min(planned, elapsed)
        return self._awake >= self.interval

    def look(self, seen: Mapping[int, tuple[Hashable, bool]]) -> tuple[list[int], dict[int, float]]:
        """Compare the board with what it was at the last look.

        Args:
            seen: For each worker that has work: what its row says, and whether it is under construction.

        Returns:
            The new suspects; and those that hang, with the seconds for which their rows stood still.
        """
        awake, self._awake = self._awake, 0.0
        suspects: list[int] = []
        hung: dict[int, float] = {}
        for worker, (row, constructing) in seen.items():
            still = self._still[worker]
            if row != self._seen[worker]:
                self.moved(worker)
                self._seen[worker] = row
            elif still is None:
                self._still[worker] = 0.0
                suspects.append(worker)
            else:
                self._still[worker] = still = still + awake
                if still >= self._limits[constructing]:
                    hung[worker] = still
        return suspects, hung
