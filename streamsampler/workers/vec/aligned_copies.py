"""Copy batches to aligned memory: where a batch lies may show in the last bits of a network's results."""

from __future__ import annotations

import sys

import numpy as np

from streamsampler.data.trees import Array, Tree, map_tree, object_array, snapshot

_ALIGNMENT = 64
"""Bytes."""


class AlignedCopies:
    """Copies batches to memory aligned for vector instructions, the same memory each time.

    The alignment may show in the last bits of a network's results. While the last copy is in use, the next gets new
    memory.
    """

    def __init__(self) -> None:
        self._arrays: list[Array] = []

    def copy(self, batch: Tree) -> Tree:
        """Return a copy of a batch; each call has the same form, shapes and dtypes."""
        if batch.__class__ is np.ndarray:
            return self._copied(0, batch)
        numbers = iter(range(sys.maxsize))
        return map_tree(lambda rows: self._copied(next(numbers), rows), batch)

    def _copied(self, number: int, rows: Array) -> Array:
        if rows.dtype.hasobject:
            return object_array([snapshot(value) for value in rows])
        while number >= len(self._arrays):
            self._arrays.append(_aligned(rows))
        if _references(self._arrays, number) > _FREE:
            self._arrays[number] = _aligned(rows)
        array = self._arrays[number]
        array[...] = rows
        return array


def _references(arrays: list[Array], number: int) -> int:
    return sys.getrefcount(arrays[number])


_FREE = _references([np.empty(0)], 0)
"""The references to an array that only a list holds; the number depends on the interpreter."""


def _aligned(like: Array) -> Array:
    memory = np.empty(like.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + like.nbytes].view(like.dtype).reshape(like.shape)
