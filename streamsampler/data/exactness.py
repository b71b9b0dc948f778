"""Find numbers that an array of another dtype cannot hold."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["changed", "may_change"]


@cache
def may_change(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return whether `changed` can find any values of one dtype that are cast to another."""
    if target.kind not in "fc" or source.kind not in "iuf":
        return False
    limits = np.finfo(target)
    if source.kind == "f":
        theirs = np.finfo(source)
        return bool(theirs.nmant > limits.nmant or theirs.maxexp > limits.maxexp)
    return bool(max(abs(int(np.iinfo(source).min)), int(np.iinfo(source).max)) > 2 ** (limits.nmant + 1))


def changed(values: NDArray[Any], target: np.dtype[Any]) -> NDArray[np.bool_]:
    """Find the numbers that a cast changes by more than rounding.

    Args:
        values: Booleans, integers or floats.
        target: The dtype that they are cast to, which they go into in range and kind.

    Returns:
        Where an integer or a float of integral value becomes another number, or a finite value becomes infinite.
    """
    if not may_change(values.dtype, target):
        return np.zeros(values.shape, dtype=np.bool_)
    with np.errstate(all="ignore"):
        cast = values.astype(np.finfo(target).dtype)  # of a complex dtype its parts'
        if values.dtype.kind == "f":
            back = cast.astype(values.dtype)
            other = np.isfinite(values) & (back != values)
            return np.asarray(other & ((values == np.trunc(values)) | np.isinf(back)))
        limits = np.iinfo(values.dtype)
        # A float is an integer of this dtype from the lowest one up to below a power of two, which floats hold exactly.
        inside = (cast >= float(limits.min)) & (cast < float(limits.max + 1))
        return np.asarray(~inside | (np.where(inside, cast, 0).astype(values.dtype) != values))
