"""Cut a queue of trajectory indices into tickets of whole blocks. Pure."""

from __future__ import annotations

import math
from bisect import insort

_FEWEST_FIRST, _FIRST_TRAJECTORIES = 6, 1536
_MOST_DOUBLED = 4


def block_at(position: int, block: int) -> range:
    """Return the positions of the block around a queue position, for blocks growing along the queue.

    The first 6 blocks, or as many as have 1,536 trajectories, have `block` trajectories each. If these are n blocks, n
    / 2 have twice as many, n / 2 four times, n / 2 eight times, and all others 16 times. Long blocks seldom wait for
    their longest trajectory; but no block has more than a third of all trajectories before it, so several remain to
    share. The position alone decides: the number of workers must not matter.
    """
    size = block << _doublings(position, block)
    start = position // size * size
    return range(start, start + size)


def _doublings(position: int, block: int) -> int:
    return min(_MOST_DOUBLED, (position // _n_first(block)).bit_length())


def _n_first(block: int) -> int:
    return max(_FEWEST_FIRST, _FIRST_TRAJECTORIES // (2 * block) * 2) * block


def _latest_first(indices: range) -> int:
    return -indices[0]


class IndexQueue:
    """Assigns indices in order, in tickets of whole blocks cut from the start of the queue.

    The blocks of a ticket have equal size, except a shorter last block. If the queue `lengthens`, later blocks are
    longer; until workers are known to run these, only first blocks are assigned.
    """

    def __init__(self, own: range, block: int = 1, *, lengthens: bool = False) -> None:
        self.own = own
        self.block = block
        self.lengthens = lengthens
        self.is_certain = not lengthens
        self._cursor = 0
        self._returned: list[range] = []

    def block_of(self, indices: range) -> int:
        if not self.lengthens:
            return self.block
        return len(self.block_at((indices[0] - self.own.start) // self.own.step))

    @property
    def next_block(self) -> int:
        return len(self.block_at(self._cursor)) if self.lengthens else self.block

    def block_at(self, position: int) -> range:
        """Return the positions of a position's block; the queue may end within it."""
        if self.lengthens:
            return block_at(position, self.block)
        start = position // self.block * self.block
        return range(start, start + self.block)

    def blocks_of(self, indices: range) -> list[range]:
        block = self.block_of(indices)
        return [indices[start : start + block] for start in range(0, len(indices), block)]

    def take_new(self, size: int, horizon: int) -> range:
        """Assign about `size` new indices below `horizon`, in whole blocks."""
        own, cursor = self.own, self._cursor
        in_sight = len(range(own.start, min(own.stop, horizon), own.step)) - cursor
        if in_sight <= 0:
            return range(0)
        block = self.next_block
        if block > self.block and not self.is_certain:
            return range(0)
        stop = cursor + max(1, math.ceil(min(size, in_sight) / block)) * block
        if self.lengthens and (doublings := _doublings(cursor, self.block)) < _MOST_DOUBLED:
            stop = min(stop, _n_first(self.block) << doublings)  # start of longer blocks
        taken = own[cursor:stop]
        self._cursor += len(taken)
        return taken

    def has_at(self, position: int, indices: range, *, may_extend: bool) -> bool:
        """Return whether a ticket could be cut at a position, after extending the queue if allowed."""
        extended = may_extend and self.block == 1
        own = self._extended(indices) if extended else self.own
        stop = position + len(indices)
        if own[position:stop] != indices:
            return False
        first, last = self.block_at(position), self.block_at(stop - 1)
        return first.start == position and len(first) == len(last) and stop in (len(own), last.stop)

    def skip(self, indices: range) -> None:
        self.own = self._extended(indices)
        self._cursor += len(indices)

    def _extended(self, indices: range) -> range:
        return range(self.own.start, max(self.own.stop, indices[-1] + 1), self.own.step)

    def take_returned(self, size: int, end: int) -> range:
        """Assign about `size` returned indices, unless the first comes after `end`."""
        if not self._returned or self._returned[-1][0] > end:
            return range(0)
        indices = self._returned.pop()
        block = self.block_of(indices)
        size = max(1, size // block) * block
        if len(indices) > size:
            self._returned.append(indices[size:])
        return indices[:size]

    def put_back(self, indices: range) -> None:
        insort(self._returned, indices, key=_latest_first)
