"""Say which trajectories workers run side by side, and hand out tickets of whole blocks of indices. Pure."""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass

from streamsampler.errors import UsageError

__all__ = ["IndexQueue", "Layout"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a worker runs the trajectories of consecutive indices.

    Attributes:
        rows: How many trajectories a worker runs side by side.
        block: How many consecutive trajectories may influence each other; 1 where each is a function of itself alone.

    Raises:
        UsageError: One of the two is not positive.
    """

    rows: int = 1
    block: int = 1

    def __post_init__(self) -> None:
        if self.rows < 1 or self.block < 1:
            raise UsageError(f"rows and blocks are at least 1, got {self.rows} rows and blocks of {self.block}")


def _latest_first(indices: range) -> int:
    return -indices[0]


class IndexQueue:
    """Hand out indices in order, in tickets of whole blocks. Blocks are cut from the start of the queue.

    Args:
        own: The indices.
        block: How many indices a block has; only the last one may have fewer.
    """

    def __init__(self, own: range, block: int = 1) -> None:
        self.own = own
        self.block = block
        self._cursor = 0
        self._returned: list[range] = []

    def blocks_of(self, indices: range) -> list[range]:
        """Return the blocks of a ticket."""
        return [indices[start : start + self.block] for start in range(0, len(indices), self.block)]

    def take_new(self, size: int, horizon: int) -> range:
        """Hand out about `size` new indices below `horizon`, in whole blocks."""
        own, cursor = self.own, self._cursor
        in_sight = len(range(own.start, min(own.stop, horizon), own.step)) - cursor
        if in_sight <= 0:
            return range(0)
        taken = own[cursor : cursor + self._whole(math.ceil(min(size, in_sight) / self.block))]
        self._cursor += len(taken)
        return taken

    def has_at(self, position: int, indices: range, *, may_extend: bool) -> bool:
        """Return whether a ticket could be cut at a position of the queue.

        Args:
            position: How many indices come before it.
            indices: The ticket.
            may_extend: Whether the queue may become longer for it.
        """
        extended = may_extend and self.block == 1
        own = self._extended(indices) if extended else self.own
        stop = position + len(indices)
        return own[position:stop] == indices and (len(indices) % self.block == 0 or stop == len(own))

    def skip(self, indices: range) -> None:
        """Note that the next indices were handed out, which `has_at` has; the queue becomes longer if it must."""
        self.own = self._extended(indices)
        self._cursor += len(indices)

    def _extended(self, indices: range) -> range:
        return range(self.own.start, max(self.own.stop, indices[-1] + 1), self.own.step)

    def first_returned(self) -> range | None:
        """Return the first ticket that was put back; None if there is none."""
        return self._returned[-1] if self._returned else None

    def take_returned(self, size: int) -> range:
        """Hand out about `size` indices that were put back."""
        indices = self._returned.pop()
        size = self._whole(size // self.block)
        if len(indices) > size:
            self._returned.append(indices[size:])
        return indices[:size]

    def _whole(self, n_blocks: int) -> int:
        return max(1, n_blocks) * self.block

    def put_back(self, indices: range) -> None:
        """Put back a ticket, to be handed out before new indices."""
        insort(self._returned, indices, key=_latest_first)
