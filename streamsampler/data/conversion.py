"""Making rows of what is not one yet: lists, numbers, arrays of another dtype."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streamsampler.data.exactness import changed, may_change
from streamsampler.data.spaces import AnySpace, row_spec, short
from streamsampler.data.trees import Array
from streamsampler.errors import DataError

__all__ = ["Leaf"]


class Leaf:
    """One leaf of a space: how its rows look, and the slow way to make one.

    Floats are rounded to the space's dtype as NumPy does it. What would become another number altogether is an error:
    an integer, or a float of integral value, that the dtype does not hold; a finite value that would be infinite.

    Args:
        space: The leaf's space.
        path: What its values are called in errors.
        error: What is raised for a value that does not fit.

    Attributes:
        shape: The shape of a row.
        dtype: The dtype of a row.
        row_bytes: The bytes of a row.
    """

    def __init__(self, space: AnySpace, path: str, error: type[DataError]) -> None:
        self.shape, self.dtype = row_spec(space)
        self.row_bytes = self.dtype.itemsize * math.prod(self.shape)
        self._path, self._error = path, error
        # Beyond this a float of this dtype need not be the integer that it was made of.
        self._exact = float(2 ** (np.finfo(self.dtype).nmant + 1)) if self.dtype.kind == "f" else math.inf

    def convert(self, value: Any) -> Array:
        """Make a row of any value.

        Raises:
            DataError: The value has another shape, is no number, or would become another one; says both.
        """
        try:
            row = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as reason:
            raise self._error(
                f"{self._path} is no array of shape {self.shape}: {reason}; it is {short(value)}"
            ) from reason
        if row.dtype.kind not in "biufc":
            raise self._error(f"{self._path} should be numbers of {self.dtype}, and is {short(value)}")
        if row.shape != self.shape:
            raise self._error(f"{self._path} has the shape {row.shape}, and its space has the shape {self.shape}")
        if not _fits(row, self.dtype):
            raise self._error(
                f"{self._path} has the dtype {row.dtype}, its space has {self.dtype}, "
                f"and the one does not go into the other without loss: {short(value)}"
            )
        return self._cast_one(row)

    def takes_floats_of(self, dtype: np.dtype[Any]) -> bool:
        """Whether `cast` and `cast_rows` are all that an array of this dtype and of the right shape needs."""
        return dtype.kind == "f" == self.dtype.kind

    def cast(self, value: Array) -> Array:
        """Make a row of an array of its shape and of another dtype.

        Raises:
            DataError: See `convert`.
        """
        return self._cast_one(value) if self.takes_floats_of(value.dtype) else self.convert(value)

    def _cast_one(self, row: Array) -> Array:
        try:
            made: Array = self.cast_rows(row[np.newaxis])[0]
        except DataError as error:
            error.row = None  # the caller has one row only
            raise
        return made

    def cast_rows(self, values: Array) -> Array:
        """Cast rows of another dtype, whose kind the leaf's dtype takes.

        Args:
            values: (n, ...) of the leaf's shape.

        Returns:
            The same of the leaf's dtype, in memory of its own.

        Raises:
            DataError: A number would become another one; `row` is the position of the first such row.
        """
        with np.errstate(all="ignore"):
            rows = values.astype(self.dtype)
        if not may_change(values.dtype, self.dtype) or not rows.size:
            return rows
        # NaN goes the slow way, too.
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
