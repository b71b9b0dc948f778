"""An array that grows, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.copying import Allocate
from streamsampler.data.trees import Array

_FIRST_BYTES = 1 << 16
_FEWEST_STEPS = 16


class GrowingColumn:
    """An array of (steps, n_rows, *shape) that grows; it checks no values, and its owner counts the steps.

    The first array is `buffer`; None for a new array.
    """

    def __init__(
        self, n_rows: int, dtype: np.dtype[Any], shape: tuple[int, ...] = (), buffer: Array | None = None
    ) -> None:
        if buffer is None:
            step_bytes = max(1, n_rows * dtype.itemsize * int(np.prod(shape, dtype=np.int64)))
            buffer = np.empty((max(_FIRST_BYTES // step_bytes, _FEWEST_STEPS), n_rows, *shape), dtype)
        self._buffer: Array = buffer

    def at(self, step: int) -> Array:
        """Return a view of a step's (n_rows, ...) values to write to, after making room for them.

        This may move the values: older views do not write to the column then.
        """
        try:
            return self._buffer[step]  # type: ignore[no-any-return]
        except IndexError:
            shorter = self._buffer
            self._buffer = np.empty((2 * step, *shorter.shape[1:]), shorter.dtype)
            self._buffer[:step] = shorter[:step]
            return self._buffer[step]  # type: ignore[no-any-return]

    def copy(self, step: int, values: Array) -> None:
        """Write the (n_rows, ...) values of a step; the column's dtype holds theirs."""
        if step < len(self._buffer):
            self._buffer[step] = values
        else:
            self.at(step)[...] = values

    def extend(self, step: int, values: Array) -> None:
        """Write values, (k, ...) of the column's dtype, to k steps from this step on; `n_rows` is 1."""
        stop = step + len(values)
        if stop > len(self._buffer):
            shorter = self._buffer
            self._buffer = np.empty((2 * stop, *shorter.shape[1:]), shorter.dtype)
            self._buffer[:step] = shorter[:step]
        self._buffer[step:stop, 0] = values

    def gather(self, numbers: NDArray[np.int64], allocate: Allocate | None = None) -> Array:
        """Return a copy, (k, ...), of the values with some numbers, `step * n_rows + row`, in their order.

        `allocate` makes the array, unless values are objects.
        """
        n_steps, n_rows, *shape = self._buffer.shape
        values = self._buffer.reshape(n_steps * n_rows, *shape)
        if allocate is None or values.dtype.hasobject:
            return values.take(numbers, axis=0)
        # With the mode "raise" NumPy would write to a buffer first.
        return values.take(numbers, 0, allocate((len(numbers), *shape), values.dtype), "clip")

    def discard_before(self, step: int, n_steps: int) -> None:
        """Move the steps from `step` to `n_steps` to the front: `step` becomes number 0."""
        self._buffer[: n_steps - step] = self._buffer[step:n_steps]
