"""Grow trees by rows, whose number is not known beforehand, without copying what is there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np

from streamsampler.data import trees
from streamsampler.data.copying import Allocate
from streamsampler.data.trees import Array, Tree

__all__ = ["GrowingRows", "copied", "is_large"]

_LARGE_ROW_BYTES = 4096
_MOST_AHEAD = 128
"""How many times as much memory as the first group takes may be asked for; what is not written to takes none."""


def is_large(leaf: Array) -> bool:
    """Return whether an array's rows are copied one report after the other, into memory that is used again."""
    return not leaf.dtype.hasobject and math.prod(leaf.shape[1:]) * leaf.itemsize >= _LARGE_ROW_BYTES


def copied(array: Array) -> Array:
    """Return a copy of an array, and of its objects: arrays among those may lie in memory that is used again."""
    return cast(Array, trees.owned(array)) if array.dtype == object else array.copy()


class GrowingRows:
    """A tree that grows by rows.

    Args:
        allocate: Makes an uninitialised array for leaves with large rows.
    """

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._buffers: list[Array] = []
        self._like: Tree | None = None

    def write(self, parts: Sequence[Tree], start: int, stop: int, expected: int) -> bool:
        """Write rows after the first `start` ones.

        Args:
            parts: Trees with the rows, in order.
            start: How many rows there are before them.
            stop: How many rows there are with them.
            expected: How many rows there will probably be in all.

        Returns:
            False if they are of another form than those before; then nothing was written.
        """
        if self._like is None:
            self._buffers = [self._first(leaf, stop, expected) for leaf in _leaves(parts[0])]
            # No view: it would keep alive a mapping that its arena has outgrown.
            self._like = trees.map_tree(lambda leaf: np.empty((0, *leaf.shape[1:]), leaf.dtype), parts[0])
        if (columns := _columns(parts, self._like)) is None:
            return False
        # Each by itself: those of large and of small rows begin with different lengths.
        self._buffers = [
            self._longer(buffer, start, stop) if stop > len(buffer) else buffer for buffer in self._buffers
        ]
        for buffer, column in zip(self._buffers, columns, strict=True):
            own = tuple(map(copied, column)) if buffer.dtype == object else column
            np.concatenate(own, out=buffer[start:stop])
        return True

    def _first(self, leaf: Array, stop: int, expected: int) -> Array:
        if is_large(leaf):
            return self._allocate((max(expected, stop), *leaf.shape[1:]), leaf.dtype)
        return np.empty((max(min(expected, _MOST_AHEAD * stop), stop), *leaf.shape[1:]), leaf.dtype)

    def _longer(self, buffer: Array, n_used: int, stop: int) -> Array:
        if buffer.flags.owndata:
            # The system moves the pages, not the bytes; and nothing looks into them yet.
            buffer.resize((stop, *buffer.shape[1:]), refcheck=False)
            return buffer
        longer = self._allocate((max(stop, 2 * len(buffer)), *buffer.shape[1:]), buffer.dtype)
        longer[:n_used] = buffer[:n_used]
        return longer

    def tree(self, n_rows: int) -> Tree:
        """Return the first `n_rows` rows, which are all; what they did not need is given back."""
        assert self._like is not None
        for buffer in self._buffers:
            if buffer.flags.owndata and len(buffer) > n_rows:
                buffer.resize((n_rows, *buffer.shape[1:]), refcheck=False)
        buffers = iter(self._buffers)

        def rows(_: Array) -> Array:
            buffer = next(buffers)
            return buffer if len(buffer) == n_rows else buffer[:n_rows]

        return trees.map_tree(rows, self._like)


def _leaves(tree: Tree) -> list[Array]:
    return [tree] if isinstance(tree, np.ndarray) else [leaf for _, leaf in trees.leaves(tree)]


def _columns(parts: Sequence[Tree], like: Tree) -> Iterable[Sequence[Array]] | None:
    """Return the arrays of each leaf, of all trees; None if a tree is of another form than `like`."""
    if isinstance(like, np.ndarray):
        # No function for each tree: with thousands of workers, a group of reports has thousands of them.
        shape, dtype = like.shape[1:], like.dtype
        alike = [it for it in parts if isinstance(it, np.ndarray) and it.shape[1:] == shape and it.dtype == dtype]
        return [alike] if len(alike) == len(parts) else None
    form = _form(like)
    return None if any(_form(part) != form for part in parts) else zip(*map(_leaves, parts), strict=True)


def _form(tree: Tree) -> Any:
    return [(path, leaf.shape[1:], leaf.dtype) for path, leaf in trees.leaves(tree)]
