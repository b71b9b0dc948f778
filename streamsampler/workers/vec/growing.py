"""Arrays that grow, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.copying import Allocate
from streamsampler.data.trees import Array

_FIRST_BYTES = 1 << 16
_FEWEST_STEPS = 16


class GrowingColumn:
    """An array of (steps, n_rows, ...) that grows; what is in it is unchecked, and its user counts the steps.

    Args:
        n_rows: How many values a step has.
        dtype: Their dtype.
        shape: The shape of one.
        buffer: The array to begin with; None for a new one.
    """

    def __init__(
        self, n_rows: int, dtype: np.dtype[Any], shape: tuple[int, ...] = (), buffer: Array | None = None
    ) -> None:
        if buffer is None:
            step_bytes = max(1, n_rows * dtype.itemsize * int(np.prod(shape, dtype=np.int64)))
            buffer = np.empty((max(_FIRST_BYTES // step_bytes, _FEWEST_STEPS), n_rows, *shape), dtype)
        self._buffer: Array = buffer

    def at(self, step: int) -> Array:
        """Return the (n_rows, ...) values of a step to write to, a view, after making room for them.

        What is written to an older view after that may be lost.
        """
        try:
            return self._buffer[step]  # type: ignore[no-any-return]
        except IndexError:
            shorter = self._buffer
            self._buffer = np.empty((2 * step, *shorter.shape[1:]), shorter.dtype)
            self._buffer[:step] = shorter[:step]
            return self._buffer[step]  # type: ignore[no-any-return]

    def copy(self, step: int, values: Array) -> None:
        """Copy the (n_rows, ...) values of a step, of a dtype that the column's holds."""
        if step < len(self._buffer):
            self._buffer[step] = values
        else:
            self.at(step)[...] = values

    def extend(self, step: int, values: Array) -> None:
        """Copy values, (k, ...) of the column's dtype, to as many steps from one on; there is one row."""
        stop = step + len(values)
        if stop > len(self._buffer):
            shorter = self._buffer
            self._buffer = np.empty((2 * stop, *shorter.shape[1:]), shorter.dtype)
            self._buffer[:step] = shorter[:step]
        self._buffer[step:stop, 0] = values

    def gather(self, numbers: NDArray[np.int64], allocate: Allocate | None = None) -> Array:
        """Return the values of some numbers, in their order.

        Args:
            numbers: (k,) numbers, `step * n_rows + row`, of steps that were written.
            allocate: Makes the array for values that are no objects; None for a new one.

        Returns:
            (k, ...), a copy.
        """
        n_steps, n_rows, *shape = self._buffer.shape
        values = self._buffer.reshape(n_steps * n_rows, *shape)
        if allocate is None or values.dtype.hasobject:
            return values.take(numbers, axis=0)
        # With the mode "raise" it would be written elsewhere first.
        return values.take(numbers, 0, allocate((len(numbers), *shape), values.dtype), "clip")

    def forget_before(self, step: int, n_steps: int) -> None:
        """Move what was written from a step on, of `n_steps` steps, to the front: that step has the number 0 then."""
        self._buffer[: n_steps - step] = self._buffer[step:n_steps]
