"""Replace dropped trajectories by further trajectories of the same task. Pure.

A call for `n_of_task` trajectories of each task runs the indices of all tasks in order: a *round*. Later rounds follow,
and run only the indices needed for `n_of_task` trajectories that are not dropped. So the dropped trajectories alone
decide the indices of a batch.
"""

from __future__ import annotations

from collections import Counter, deque


class Replacements:
    """Computes the next index of a call, for rounds of `limit` indices, `n_of_task` in a row for each task."""

    def __init__(self, first: int, limit: int, n_of_task: int) -> None:
        self._first = first
        self._limit = limit
        self._n_of_task = n_of_task
        self._base = first  # of this round
        self._turns = deque([range(first, first + limit)])
        self._lacking: Counter[int] = Counter()  # by task: trajectories missing before this round
        self._missing: Counter[int] = Counter()  # by task: trajectories missing after this round
        self._left_out_now: Counter[int] = Counter()  # by task, in this round
        self._left_out: Counter[int] = Counter()  # by task, in all rounds
        self._new: list[range] = []

    def leave_out(self, index: int) -> tuple[int, int]:
        """Drop the current trajectory; return the numbers dropped and kept of its task."""
        task = (index - self._first) % self._limit // self._n_of_task
        start = self._base + task * self._n_of_task
        kept = index - start - self._left_out_now[task]
        if self._base > self._first:
            kept += self._n_of_task - self._lacking[task]
        self._left_out_now[task] += 1
        self._left_out[task] += 1
        turn = self._turns[0]
        if self._base > self._first and turn.stop < start + self._n_of_task:
            self._turns[0] = range(turn.start, turn.stop + 1)
            self._new.append(range(turn.stop, turn.stop + 1))
        else:
            self._missing[task] += 1
        return self._left_out[task], kept

    def turn_after(self, index: int) -> int:
        """Return the next index to run: `index`, or a later index at the end of a turn or round."""
        while index == self._turns[0].stop:
            self._turns.popleft()
            if not self._turns:
                self._begin_round()
            index = self._turns[0].start
        return index

    def _begin_round(self) -> None:
        self._base += self._limit
        self._lacking, self._missing = self._missing, Counter()
        self._left_out_now.clear()
        for task, n in sorted(self._lacking.items()):
            start = self._base + task * self._n_of_task
            self._turns.append(range(start, start + n))
        self._new.extend(self._turns)

    def pop_new(self) -> list[range]:
        """Return, once, newly needed indices of later rounds."""
        new, self._new = self._new, []
        return new
