"""Which trajectories are run together, and what of a queue was handed out: pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from streamsampler.errors import UsageError

__all__ = ["Blocks", "IndexQueue"]

_EACH = 4
_FOREVER = 2**62


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a queue is cut into blocks of consecutive trajectories, from its start, whatever is wanted of it.

    The first four blocks have `size` trajectories, the next four twice as many, then three times, up to `rounds` times.
    Few and long trajectories are then shared among workers in small blocks; where there are many, blocks are larger,
    and less is lost where they end. Blocks that grow like this come to about the square root of what there is, which is
    the best there is where what is lost at a block's end and what workers wait at a call's end weigh the same.

    Attributes:
        size: Trajectories of the first blocks.
        rounds: How many times as long blocks become.

    Raises:
        UsageError: They are not positive.
    """

    size: int = 1
    rounds: int = 1

    def __post_init__(self) -> None:
        if self.size < 1 or self.rounds < 1:
            raise UsageError(f"blocks must have at least one trajectory, got size {self.size} and {self.rounds} rounds")

    def at(self, position: int) -> range:
        """Return the positions of the block that holds `position`."""
        begin, size, _ = self._run(position)
        start = begin + (position - begin) // size * size
        return range(start, start + size)

    def span(self, position: int) -> tuple[int, int]:
        """Return the size of the block that holds `position`, and where blocks of that size end."""
        return self._run(position)[1:]

    def _run(self, position: int) -> tuple[int, int, int]:
        begin = 0
        for rounds in range(1, self.rounds):
            end = begin + _EACH * rounds * self.size
            if position < end:
                return begin, rounds * self.size, end
            begin = end
        return begin, self.rounds * self.size, _FOREVER


class IndexQueue:
    """Indices that are handed out in order, in tickets of whole blocks of one size.

    Args:
        own: The indices.
        blocks: How they are cut.
    """

    def __init__(self, own: range, blocks: Blocks) -> None:
        self.own = own
        self._blocks = blocks
        self._cursor = 0
        self._returned: list[range] = []

    @property
    def position(self) -> int:
        """How many indices were handed out."""
        return self._cursor

    @property
    def next_size(self) -> int:
        """The size of the next block that nobody had."""
        return self._blocks.span(self._cursor)[0]

    def size_of(self, indices: range) -> int:
        """The size of each block of a ticket; its last one may be shorter, where the queue ends."""
        return self._blocks.span(self.own.index(indices[0]))[0]

    def blocks_of(self, indices: range) -> list[range]:
        """Return the blocks of a ticket."""
        size = self.size_of(indices)
        return [indices[start : start + size] for start in range(0, len(indices), size)]

    def take_new(self, size: int, horizon: int) -> range:
        """Hand out up to about `size` indices below `horizon` that nobody had; the last block of them is whole."""
        own, cursor = self.own, self._cursor
        in_sight = len(range(own.start, min(own.stop, horizon), own.step))
        if in_sight <= cursor:
            return range(0)
        block, end = self._blocks.span(cursor)
        n_blocks = max(1, math.ceil(min(size, in_sight - cursor) / block))
        taken = own[cursor : min(cursor + n_blocks * block, end)]
        self._cursor += len(taken)
        return taken

    def first_returned(self) -> range | None:
        """The first ticket that was given back; None if there is none."""
        return self._returned[-1] if self._returned else None

    def take_returned(self, size: int) -> range:
        """Hand out up to about `size` indices that were given back."""
        indices = self._returned.pop()
        block = self.size_of(indices)
        size = max(1, size // block) * block
        if len(indices) > size:
            self._returned.append(indices[size:])
        return indices[:size]

    def put_back(self, indices: range) -> None:
        """Take back a ticket: it is handed out again, before anything new."""
        self._returned.append(indices)
        self._returned.sort(key=lambda lost: -lost[0])

    def put_back_rest(self, indices: range, n_done: int) -> int:
        """Take back what is missing of a ticket: it is handed out again with the whole of the block that was cut short.

        It comes before anything new where later indices were handed out; otherwise it counts as new.

        Returns:
            How many of the block's trajectories are there already.
        """
        first = self.own.index(indices[0])
        start = self._blocks.at(first + n_done).start
        rest = indices[start - first :]
        if first + len(indices) == self._cursor:
            self._cursor = start
        else:
            self.put_back(rest)
        return first + n_done - start
