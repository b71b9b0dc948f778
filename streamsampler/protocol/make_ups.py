"""Choose the trajectories that take the places of those left out, where only some may: those of the same task. Pure.

A call for `n_of_task` trajectories of each task runs the indices of all tasks, one task after the other: a *round*. The
next round has as many indices after those, in the same order, and so on. Of each task the call returns the first
`n_of_task` that are not left out; of later rounds only what is needed for that is run. So the indices of a batch follow
from which trajectories are left out, and from nothing else.
"""

from __future__ import annotations

from collections import Counter, deque


class MakeUps:
    """Whose turn it is, round by round.

    A round has `limit` indices, the first one from `first` on; `n_of_task` consecutive ones of them have the same task.
    """

    def __init__(self, first: int, limit: int, n_of_task: int) -> None:
        self._first = first
        self._limit = limit
        self._n_of_task = n_of_task
        self._base = first  # of this round
        self._turns = deque([range(first, first + limit)])
        self._lacking: Counter[int] = Counter()  # by task: how many the rounds before lack
        self._missing: Counter[int] = Counter()  # by task: how many will be lacking after this round
        self._left_out_now: Counter[int] = Counter()  # by task, in this round
        self._left_out: Counter[int] = Counter()  # by task, in all rounds
        self._new: list[range] = []

    def leave_out(self, index: int) -> tuple[int, int]:
        """Leave out the trajectory whose turn it is; return how many of its task were left out, and kept, so far."""
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
        """Return the index whose turn it is when `index` follows the last one; a round may end before it."""
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
        """Return, once, the indices of later rounds that have turned out to be needed."""
        new, self._new = self._new, []
        return new
