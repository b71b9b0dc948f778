"""Cut queues of indices into blocks that are run together, and hand out tickets of whole blocks. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from streamsampler.errors import UsageError

__all__ = ["Blocks", "IndexQueue"]

_EACH = 4
_FOREVER = 2**62


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a queue is cut into blocks of consecutive trajectories, from its start, whatever a call needs of it.

    The first four blocks have `size` trajectories, the next four twice as many, then three times, up to `rounds` times.
    So workers share a few long trajectories in small blocks, and many short ones in larger blocks, at whose ends less
    is lost. The last block has about the square root of all trajectories, which is optimal if the loss at a block's end
    weighs as much as the wait at a call's end.

    Attributes:
        size: Trajectories of the first blocks.
        rounds: How many times as long blocks become.

    Raises:
        UsageError: One of the two is not positive.
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
    """Hand out indices in order, in tickets of whole blocks of one size.

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
        """The size of the next new block."""
        return self._blocks.span(self._cursor)[0]

    def size_of(self, indices: range) -> int:
        """Return the size of each block of a ticket; the last one may be shorter where the queue ends."""
        return self._blocks.span(self.own.index(indices[0]))[0]

    def blocks_of(self, indices: range) -> list[range]:
        """Return the blocks of a ticket."""
        size = self.size_of(indices)
        return [indices[start : start + size] for start in range(0, len(indices), size)]

    def take_new(self, size: int, horizon: int) -> range:
        """Hand out about `size` new indices below `horizon`, in whole blocks."""
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
        """Return the first ticket that was put back; None if there is none."""
        return self._returned[-1] if self._returned else None

    def take_returned(self, size: int) -> range:
        """Hand out about `size` indices that were put back."""
        indices = self._returned.pop()
        block = self.size_of(indices)
        size = max(1, size // block) * block
        if len(indices) > size:
            self._returned.append(indices[size:])
        return indices[:size]

    def put_back(self, indices: range) -> None:
        """Put back a ticket, to be handed out before new indices."""
        self._returned.append(indices)
        self._returned.sort(key=lambda lost: -lost[0])

    def put_back_rest(self, indices: range, n_done: int) -> int:
        """Put back the rest of a ticket that was stopped early, from the start of the block that was stopped.

        The rest is handed out before new indices; it is new itself if no later indices were handed out.

        Returns:
            How many of that block's trajectories arrived.
        """
        first = self.own.index(indices[0])
        start = self._blocks.at(first + n_done).start
        rest = indices[start - first :]
        if first + len(indices) == self._cursor:
            self._cursor = start
        else:
            self.put_back(rest)
        return first + n_done - start
