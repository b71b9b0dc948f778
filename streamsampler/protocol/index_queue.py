"""Cut a queue of trajectory indices into tickets of whole blocks. Pure."""

from __future__ import annotations

import math
from bisect import insort

_FEWEST_FIRST, _FIRST_TRAJECTORIES = 6, 1536
_MOST_DOUBLED = 4


def block_at(position: int, block: int) -> range:
    """Return the positions of the block that a position of a queue is in, where blocks get longer within the queue.

    The first 6 blocks, or as many as have 1,536 trajectories, have `block` trajectories each. Where that makes n
    blocks, n / 2 have twice as many, n / 2 four times, n / 2 eight times, and all others 16 times. So blocks are as
    long as a batch allows: a block has at most a third of as many as come before it, so that there are several to
    share, and little is run in vain where a batch ends in the middle of its last one; and there are few ends, at which
    environments wait for the longest trajectory. The position alone decides, because a trajectory must not depend on
    the number of workers, and how many a batch needs is known when it is there.
    """
    size = block << _doublings(position, block)
    start = position // size * size
    return range(start, start + size)


def _doublings(position: int, block: int) -> int:
    return min(_MOST_DOUBLED, (position // _n_first(block)).bit_length())


def _n_first(block: int) -> int:
    """Return how many trajectories the first blocks have together: an even number of blocks."""
    return max(_FEWEST_FIRST, _FIRST_TRAJECTORIES // (2 * block) * 2) * block


def _latest_first(indices: range) -> int:
    return -indices[0]


class IndexQueue:
    """Assign indices in order, in tickets of whole blocks. Blocks are cut from the start of the queue.

    The blocks of a ticket are all of one size; only the last one may have fewer indices. Blocks get longer than the
    first ones where the queue `lengthens` and workers run such blocks: see `block_at`. Until that is certain only the
    first blocks are assigned, which are the same either way.
    """

    def __init__(self, own: range, block: int = 1, *, lengthens: bool = False) -> None:
        self.own = own
        self.block = block
        self.lengthens = lengthens
        self.is_certain = not lengthens
        self._cursor = 0
        self._returned: list[range] = []

    def block_of(self, indices: range) -> int:
        """Return how many indices each block of a ticket has."""
        if not self.lengthens:
            return self.block
        return len(self.block_at((indices[0] - self.own.start) // self.own.step))

    @property
    def next_block(self) -> int:
        """How many indices the next new block has."""
        return len(self.block_at(self._cursor)) if self.lengthens else self.block

    def block_at(self, position: int) -> range:
        """Return the positions of the block that a position of the queue is in, all of which the queue may not have."""
        if self.lengthens:
            return block_at(position, self.block)
        start = position // self.block * self.block
        return range(start, start + self.block)

    def blocks_of(self, indices: range) -> list[range]:
        """Return the blocks of a ticket."""
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
            stop = min(stop, _n_first(self.block) << doublings)  # where longer ones begin
        taken = own[cursor:stop]
        self._cursor += len(taken)
        return taken

    def has_at(self, position: int, indices: range, *, may_extend: bool) -> bool:
        """Return whether a ticket could be cut at a position of the queue, which may become longer for it or not."""
        extended = may_extend and self.block == 1
        own = self._extended(indices) if extended else self.own
        stop = position + len(indices)
        if own[position:stop] != indices:
            return False
        first, last = self.block_at(position), self.block_at(stop - 1)
        return first.start == position and len(first) == len(last) and stop in (len(own), last.stop)

    def skip(self, indices: range) -> None:
        """Record that the next indices were assigned, which `has_at` has; the queue becomes longer if it must."""
        self.own = self._extended(indices)
        self._cursor += len(indices)

    def _extended(self, indices: range) -> range:
        return range(self.own.start, max(self.own.stop, indices[-1] + 1), self.own.step)

    def take_returned(self, size: int, end: int) -> range:
        """Assign about `size` indices that were put back, unless the first of them comes after `end`."""
        if not self._returned or self._returned[-1][0] > end:
            return range(0)
        indices = self._returned.pop()
        block = self.block_of(indices)
        size = max(1, size // block) * block
        if len(indices) > size:
            self._returned.append(indices[size:])
        return indices[:size]

    def put_back(self, indices: range) -> None:
        """Put back a ticket, to be assigned before new indices."""
        insort(self._returned, indices, key=_latest_first)
