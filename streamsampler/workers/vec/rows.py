"""Check and keep rows of a space that come in batches or one by one: those of a step of several environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.data.conversion import Leaf
from streamsampler.data.copying import Recorder, empty, make_recorder
from streamsampler.data.spaces import AnySpace, AnyTuple, misfit, row_spec, short
from streamsampler.data.trees import Array, Tree, concatenate, map_tree, object_array, snapshot, take
from streamsampler.errors import DataError

__all__ = ["BatchRows", "copied", "in_order", "row_of"]

Take: TypeAlias = Callable[[Any, int], tuple[Tree, list[Any]]]
"""From a batch and its number of rows to a copy of the batch as it is stored, and the single values."""


class BatchRows:
    """Values of one space, growing by batches or by single values: by one of the two only, until the next `clear`.

    Args:
        space: The space of a single value.
        path: What a value is called in errors, such as `action`.
        error: What is raised for a value that does not fit.

    Attributes:
        record: Appends a copy of a single value.
        encoded: Where a loop may append the bytes of a value of just this shape and dtype; None where it may not.
        shape: The shape of such values.
        dtype: Their dtype; where there are none, one that no value has.
    """

    def __init__(self, space: AnySpace, path: str, error: type[DataError]) -> None:
        self._space = space
        self._batches: list[Tree] = []
        self._singles = make_recorder(space, path, error)
        self._take = _taker(space, path, error)
        self.record: Callable[[Any], None] = self._singles.record
        self.encoded: list[bytes] | None = self._singles.encoded
        self.shape, self.dtype = row_spec(space)[0], self._singles.dtype

    def take(self, batch: Any, n_rows: int) -> tuple[Tree, list[Any]]:
        """Check a batch and append a copy of it.

        Args:
            batch: Leaves of shape (n, ...); where the space is no leaf, a sequence of n values will do.
            n_rows: The number of its rows, n.

        Returns:
            The copy, of the dtypes of the space; and the n single values.

        Raises:
            DataError: It does not fit; says both shapes. An attribute `row` of the error tells the row, if it is one
                row's fault.
        """
        rows, singles = self._take(batch, n_rows)
        self._batches.append(rows)
        return rows, singles

    def keep(self, rows: Tree) -> None:
        """Append rows as they are: they are a copy already, of the dtypes of the space."""
        self._batches.append(rows)

    def checked(self, batch: Any, n_rows: int) -> Tree:
        """Return what `take` returns, and append nothing."""
        return self._take(batch, n_rows)[0]

    def rows(self, start: int, stop: int) -> Tree:
        """Return the single values from start to stop, in arrays of their own."""
        rows = self._singles.view(start, stop)
        return _own(rows) if rows.__class__ is np.ndarray else map_tree(_own, rows)

    def in_order(self, n_rows: int, order: NDArray[np.int64]) -> Tree:
        """Return some of all `n_rows` rows in order; see the function `in_order`."""
        if self._batches:
            return take(concatenate(self._batches), order)
        return in_order(self._singles.view, n_rows, order) if n_rows else empty(self._space)

    def clear(self) -> None:
        """Forget everything."""
        self._batches.clear()
        self._singles.clear()


def in_order(view: Callable[[int, int], Tree], n_rows: int, order: NDArray[np.int64]) -> Tree:
    """Return some of a recorder's rows in order, whatever is wrong with the others.

    Args:
        view: The recorder's method.
        n_rows: How many rows it has.
        order: The numbers of these rows.

    Raises:
        DataError: One of those does not fit; the error's attribute `row` is its position in `order`.
    """
    try:
        return take(view(0, n_rows), order)
    except DataError:
        rows = [view(0, 0)]
        for position, row in enumerate(order.tolist()):
            try:
                rows.append(view(row, row + 1))
            except DataError as error:
                error.row = position
                raise
        return concatenate(rows)


def _own(array: Array) -> Array:
    if array.dtype.hasobject:
        return object_array([snapshot(value) for value in array])
    base: Any = array.base
    return array if base is None or isinstance(base, bytearray) else array.copy()


def row_of(tree: Any, row: int) -> Any:
    """Return one value of a batch."""
    if isinstance(tree, dict):
        return {key: row_of(child, row) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(row_of(child, row) for child in tree)
    return tree[row]


def copied(batch: Any) -> Any:
    """Return a copy of a batch of values, of any form that `BatchRows.take` takes."""
    if isinstance(batch, Mapping):
        return {key: copied(child) for key, child in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map(copied, batch))
    return list(map(copied, batch)) if isinstance(batch, list) else snapshot(batch)


@singledispatch
def _taker(space: AnySpace, path: str, error: type[DataError]) -> Take:
    recorder = make_recorder(space, path, error)

    def take(batch: Any, n_rows: int) -> tuple[Tree, list[Any]]:
        singles = _values(batch, n_rows, path, error)
        return _one_by_one(recorder, singles), singles

    return take


@_taker.register(gym_spaces.Box)
@_taker.register(gym_spaces.Discrete)
@_taker.register(gym_spaces.MultiDiscrete)
@_taker.register(gym_spaces.MultiBinary)
def _(space: AnySpace, path: str, error: type[DataError]) -> Take:
    leaf, recorder = Leaf(space, path, error), make_recorder(space, path, error)
    shape, dtype = leaf.shape, leaf.dtype

    def take(batch: Any, n_rows: int) -> tuple[Tree, list[Any]]:
        array = batch if batch.__class__ is np.ndarray else _as_array(batch, path, error)
        if array.shape != (n_rows, *shape):
            raise error(
                f"a batch of {n_rows} has the shape {array.shape}, and should have {(n_rows, *shape)}: "
                f"{path} has the shape {shape} in its space"
            )
        # Integers stay NumPy's, as the space itself draws them: Gymnasium checks those faster than Python's.
        singles = list(array)
        if array.dtype is dtype or array.dtype == dtype:
            return array.astype(dtype), singles
        if leaf.takes_floats_of(array.dtype):
            return leaf.cast_rows(array), singles
        return _one_by_one(recorder, singles), singles

    return take


def _as_array(batch: Any, path: str, error: type[DataError]) -> Array:
    try:
        return np.asarray(batch)
    except (TypeError, ValueError, RuntimeError) as reason:
        raise error(f"a batch for {path} is no array: {reason}; it is {short(batch)}") from reason


@_taker.register
def _(space: gym_spaces.Dict, path: str, error: type[DataError]) -> Take:
    children = {key: _taker(child, f"{path}[{key!r}]", error) for key, child in space.spaces.items()}
    recorder = make_recorder(space, path, error)

    def take(batch: Any, n_rows: int) -> tuple[Tree, list[Any]]:
        if not isinstance(batch, Mapping):
            singles = _values(batch, n_rows, path, error)
            return _one_by_one(recorder, singles), singles
        if batch.keys() != children.keys():
            raise misfit(batch, space, path, error)
        taken = {key: child(batch[key], n_rows) for key, child in children.items()}
        parts = zip(*(singles for _, singles in taken.values()), strict=True)
        values = [dict(zip(taken, part, strict=True)) for part in parts] if taken else [{} for _ in range(n_rows)]
        return {key: rows for key, (rows, _) in taken.items()}, values

    return take


@_taker.register(gym_spaces.Tuple)
def _(space: AnyTuple, path: str, error: type[DataError]) -> Take:
    children = [_taker(child, f"{path}[{i}]", error) for i, child in enumerate(space.spaces)]
    recorder = make_recorder(space, path, error)

    def take(batch: Any, n_rows: int) -> tuple[Tree, list[Any]]:
        if not isinstance(batch, tuple):
            singles = _values(batch, n_rows, path, error)
            return _one_by_one(recorder, singles), singles
        if len(batch) != len(children):
            raise misfit(batch, space, path, error)
        taken = [child(part, n_rows) for child, part in zip(children, batch, strict=True)]
        parts = zip(*(singles for _, singles in taken), strict=True)
        return tuple(rows for rows, _ in taken), list(parts) if taken else [() for _ in range(n_rows)]

    return take


def _values(batch: Any, n_rows: int, path: str, error: type[DataError]) -> list[Any]:
    if not isinstance(batch, list | tuple | np.ndarray) or len(batch) != n_rows:
        raise error(f"a batch for {path} should be a sequence of {n_rows} values, and is {short(batch)}")
    return list(batch)


def _one_by_one(recorder: Recorder, values: list[Any]) -> Tree:
    recorder.clear()
    for row, value in enumerate(values):
        try:
            recorder.record(value)
        except DataError as error:
            error.row = row
            raise
    return map_tree(_own, recorder.view(0, len(values)))
