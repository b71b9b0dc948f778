"""Find numbers that a cast to another dtype changes by more than rounding."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


@cache
def may_change(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return whether a cast can change any value as `changed` defines it."""
    if target.kind not in "fc" or source.kind not in "iuf":
        return False
    limits = np.finfo(target)
    if source.kind == "f":
        theirs = np.finfo(source)
        return bool(theirs.nmant > limits.nmant or theirs.maxexp > limits.maxexp)
    return bool(max(abs(int(np.iinfo(source).min)), int(np.iinfo(source).max)) > 2 ** (limits.nmant + 1))


def changed(values: NDArray[Any], target: np.dtype[Any]) -> NDArray[np.bool_]:
    """Return a mask of the numbers changed by a cast beyond rounding; `target` covers their range and kind.

    An integer or a float of integral value becomes another number, or a finite value becomes infinite.
    """
    if not may_change(values.dtype, target):
        return np.zeros(values.shape, dtype=np.bool_)
    with np.errstate(all="ignore"):
        cast = values.astype(np.finfo(target).dtype)  # for a complex dtype, that of its parts
        if values.dtype.kind == "f":
            back = cast.astype(values.dtype)
            other = np.isfinite(values) & (back != values)
            return np.asarray(other & ((values == np.trunc(values)) | np.isinf(back)))
        limits = np.iinfo(values.dtype)
        # The dtype's integers range from its minimum to below a power of two, and floats represent both bounds exactly.
        inside = (cast >= float(limits.min)) & (cast < float(limits.max + 1))
        return np.asarray(~inside | (np.where(inside, cast, 0).astype(values.dtype) != values))
