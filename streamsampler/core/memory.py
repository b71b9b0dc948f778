"""Use memory again: lent arrays, and a pool of large blocks.

Memory that was touched before costs no page faults, which for arrays of megabytes are half the cost of a copy.
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
# A block so many times larger than needed is freed, so that one large batch does not bind memory for ever.
_LARGEST_SURPLUS = 4


class _LentMemory:
    """What a lent array, and every view of it, has as its base: it lives as long as they do."""

    def __init__(self, array: NDArray[Any], returned: Callable[[], None]) -> None:
        self._array = array  # keeps the memory mapped
        self._returned = returned
        self.__array_interface__: dict[str, Any] = array.__array_interface__

    def __del__(self) -> None:
        self._returned()


def lend(array: NDArray[Any], returned: Callable[[], None]) -> NDArray[Any]:
    """Return an array over the memory of `array`.

    Args:
        array: A contiguous array that is not used otherwise meanwhile.
        returned: Called once, when the returned array and all views of it are gone.
    """
    return np.asarray(_LentMemory(array, returned))


class Pool:
    """Blocks of memory for arrays, each used again when its last array is gone.

    The pool keeps one free block: a program that collects one batch after the other uses one block, or two while the
    second is being filled.
    """

    def __init__(self) -> None:
        self._free: mmap.mmap | None = None

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Make an uninitialised array."""
        n_bytes = math.prod(shape) * dtype.itemsize
        if n_bytes < _SMALL_BYTES or dtype.hasobject:
            return np.empty(shape, dtype)
        block, self._free = self._free, None
        if block is None or not n_bytes <= len(block) <= _LARGEST_SURPLUS * n_bytes:
            block = _new_block(n_bytes)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                block.madvise(mmap.MADV_HUGEPAGE)
        array: NDArray[Any] = np.ndarray(shape, dtype, block)
        pool = weakref.ref(self)  # which the arrays may outlive
        return lend(array, lambda: _give_back(pool, block))


def _new_block(n_bytes: int) -> mmap.mmap:
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, n_bytes)
    # Not shared, as it is by default: a forked copy of this process would see it used again.
    return mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _give_back(reference: weakref.ref[Pool], block: mmap.mmap) -> None:
    pool = reference()
    if pool is not None and (pool._free is None or len(pool._free) < len(block)):
        pool._free = block
