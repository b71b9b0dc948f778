"""Convert values of a leaf of a space to rows: lists, numbers, and arrays of another dtype."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streamsampler.core.errors import DataError
from streamsampler.data.casting import changed, may_change
from streamsampler.data.spaces import AnySpace, row_spec, short
from streamsampler.data.trees import Array


class Leaf:
    """The row format of a leaf of a space, and the slow conversion of other values: lists, numbers, foreign dtypes.

    Floats are rounded to the space's dtype as in NumPy. Other changes of value are errors: an integer (or float of
    integral value) outside the dtype, and a finite value that would become infinite.
    """

    def __init__(self, space: AnySpace, path: str, error: type[DataError]) -> None:
        self.shape, self.dtype = row_spec(space)
        self.row_bytes = self.dtype.itemsize * math.prod(self.shape)
        self._path, self._error = path, error
        # Above this, a float of this dtype may differ from the integer it was converted from.
        self._exact = float(2 ** (np.finfo(self.dtype).nmant + 1)) if self.dtype.kind == "f" else math.inf

    def convert(self, value: Any) -> Array:
        """Convert any value to a row, or raise an error with both shapes or values."""
        try:
            row = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as reason:
            raise self._error(
                f"{self._path} should be an array of shape {self.shape}, not {short(value)}: {reason}"
            ) from reason
        if row.dtype.kind not in "biufc":
            raise self._error(f"{self._path} should be numbers of {self.dtype}, not {short(value)}")
        if row.shape != self.shape:
            raise self._error(f"{self._path} has the shape {row.shape}, but its space has the shape {self.shape}")
        if not _fits(row, self.dtype):
            raise self._error(
                f"{self._path} has the dtype {row.dtype}, but its space has {self.dtype}, and the conversion would "
                f"lose information: {short(value)}"
            )
        return self._cast_one(row)

    def takes_floats_of(self, dtype: np.dtype[Any]) -> bool:
        """Whether `cast` and `cast_rows` suffice for arrays of this dtype and the right shape."""
        return dtype.kind == "f" == self.dtype.kind

    def cast(self, value: Array) -> Array:
        """Convert an array of the right shape but another dtype."""
        return self._cast_one(value) if self.takes_floats_of(value.dtype) else self.convert(value)

    def _cast_one(self, row: Array) -> Array:
        try:
            made: Array = self.cast_rows(row[np.newaxis])[0]
        except DataError as error:
            error.row = None  # the caller has a single row
            raise
        return made

    def cast_rows(self, values: Array) -> Array:
        """Cast (n, ...) rows of a compatible dtype in new memory; an error's `row` is the first row it would change."""
        with np.errstate(all="ignore"):
            rows = values.astype(self.dtype)
        if not may_change(values.dtype, self.dtype) or not rows.size:
            return rows
        # NaN fails this comparison and takes the slow path.
        if rows.dtype.kind == "f" and rows.max() < self._exact and rows.min() > -self._exact:
            return rows
        lost = changed(values, self.dtype)
        if lost.any():
            first = np.unravel_index(int(lost.argmax()), lost.shape)
            raise self._error(
                f"{self._path} holds {values[first].item()!r} as {values.dtype}, which would become "
                f"{rows[first].item()!r} in its space's dtype, {self.dtype}",
                row=int(first[0]),
            )
        return rows


def _fits(row: Array, dtype: np.dtype[Any]) -> bool:
    if row.dtype.kind == "f" == dtype.kind or row.size == 0 or np.can_cast(row.dtype, dtype, "safe"):
        return True
    if row.dtype.kind not in "biu":
        return np.can_cast(row.dtype, dtype, "same_kind")
    if dtype.kind not in "biu":
        return True
    lowest, highest = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return lowest <= int(row.min()) and int(row.max()) <= highest
