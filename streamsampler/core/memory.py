"""Reuse memory: lent arrays, and a pool of large blocks.

Memory that was touched before costs no page faults, which are half the cost of copying arrays of megabytes.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SMALL_BYTES = 1 << 20
# A block more than this many times larger than needed is freed, so that a large batch does not bind memory forever.
_LARGEST_SURPLUS = 4


class _LentMemory:
    """The base of a lent array and of all its views: it lives as long as they do."""

    def __init__(self, array: NDArray[Any], returned: Callable[[], None]) -> None:
        self._array = array  # keeps the memory mapped
        self._returned = returned
        self.__array_interface__: dict[str, Any] = array.__array_interface__

    def __del__(self) -> None:
        self._returned()


def lend(array: NDArray[Any], returned: Callable[[], None]) -> NDArray[Any]:
    """Return an array over the memory of `array`, which must be contiguous and otherwise unused.

    `returned` is called once, after the returned array and all its views are deleted.
    """
    return np.asarray(_LentMemory(array, returned))


class Pool:
    """Reuses blocks of memory for arrays, each after its last array is deleted; holds a single free block."""

    def __init__(self) -> None:
        self._free: mmap.mmap | None = None

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        n_bytes = math.prod(shape) * dtype.itemsize
        if n_bytes < _SMALL_BYTES or dtype.hasobject:
            return np.empty(shape, dtype)
        block, self._free = self._free, None
        if block is None or not n_bytes <= len(block) <= _LARGEST_SURPLUS * n_bytes:
            block = _new_block(n_bytes)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                block.madvise(mmap.MADV_HUGEPAGE)
        array: NDArray[Any] = np.ndarray(shape, dtype, block)
        pool = weakref.ref(self)  # the arrays may outlive the pool
        return lend(array, lambda: _give_back(pool, block))


def _new_block(n_bytes: int) -> mmap.mmap:
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, n_bytes)
    # Private, not shared as by default: a forked copy of this process would see the reused memory change.
    return mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _give_back(reference: weakref.ref[Pool], block: mmap.mmap) -> None:
    pool = reference()
    if pool is not None and (pool._free is None or len(pool._free) < len(block)):
        pool._free = block
