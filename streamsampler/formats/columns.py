"""Columns for formats of other libraries: which ones a source has, and their values in each batch.

What a column holds is decided once, over all batches of a source, so that it does not depend on how the trajectories
are spread over files. A column holds numbers of one dtype and shape; or text; or where values are neither, JSON as
`streamsampler.storage.npz` describes it under "Values".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.data.info_columns import InfoColumn, KeyPath
from streamsampler.data.infos import Infos, columns_of
from streamsampler.data.spaces import AnySpace, row_spec
from streamsampler.data.trees import Array
from streamsampler.storage.json_codec import encode

__all__ = ["Column", "InfoSurvey", "Values", "info_values", "leaf_column", "leaf_values", "space_columns"]

Values: TypeAlias = tuple[Array, NDArray[np.bool_] | None]
"""The rows of a column, and which of them are there; None where all are."""

_NUMBERS = frozenset("biuf")
_OBJECT = np.dtype(object)


@dataclass(frozen=True)
class Column:
    """What a column holds.

    Attributes:
        kind: "numbers"; "text", or "json", whose rows are Python strings.
        dtype: The dtype of its numbers; that of objects otherwise.
        shape: The shape of a row of numbers.
        always: Whether all rows are there.
    """

    kind: Literal["numbers", "text", "json"]
    dtype: np.dtype[Any] = _OBJECT
    shape: tuple[int, ...] = ()
    always: bool = True


class InfoSurvey:
    """Finds out which columns some infos have.

    Args:
        name: What the infos are called in errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._kinds: dict[KeyPath, set[Column]] = {}
        self._largest: dict[KeyPath, int] = {}
        self._present: dict[KeyPath, int] = {}
        self._length = 0

    def add(self, infos: Infos, length: int) -> None:
        """Look at the infos of so many rows.

        Raises:
            DataError: They are no such infos.
        """
        self._length += length
        for path, column in columns_of(infos, length, self._name).columns.items():
            self._kinds.setdefault(path, set()).add(_column_of(column.values))
            self._largest[path] = max(self._largest.get(path, 0), _largest_integer(column.values))
            self._present[path] = self._present.get(path, 0) + len(column.values)

    def columns(self) -> dict[KeyPath, Column]:
        """Return the columns that hold all of them, by path."""
        found = {}
        for path, kinds in self._kinds.items():
            column = _common(kinds, self._largest[path])
            always = self._present[path] == self._length
            found[path] = Column(column.kind, column.dtype, column.shape, always)
        return found


def _column_of(values: Array) -> Column:
    if values.dtype.kind in _NUMBERS and values.dtype.itemsize <= 8:
        return Column("numbers", values.dtype.newbyteorder("="), values.shape[1:])
    is_text = values.dtype.kind == "U" and values.ndim == 1
    is_text = is_text or (values.dtype == _OBJECT and all(isinstance(value, str) for value in values))
    return Column("text" if is_text else "json")


def _largest_integer(values: Array) -> int:
    """Return the largest integer among some values, without its sign; 0 where they are no integers."""
    if values.dtype.kind not in "iu" or not values.size:
        return 0
    return max(abs(int(values.min())), abs(int(values.max())))


def _common(kinds: set[Column], largest: int) -> Column:
    """Return the column that holds what several columns do; JSON where it would change an integer."""
    if len(kinds) == 1:
        return next(iter(kinds))
    if any(column.kind != "numbers" for column in kinds) or len({column.shape for column in kinds}) > 1:
        return Column("json")
    dtype = np.result_type(*sorted((column.dtype for column in kinds), key=lambda dtype: dtype.str))
    if dtype.kind == "f" and largest > 2 ** (np.finfo(dtype).nmant + 1):
        return Column("json")
    return Column("numbers", dtype, next(iter(kinds)).shape)


def info_values(
    infos: Infos, length: int, columns: dict[KeyPath, Column], name: str
) -> Iterator[tuple[KeyPath, Values]]:
    """Yield the rows of each column, also of those that these infos lack.

    Args:
        infos: The infos.
        length: How many rows they have.
        columns: Which columns there are.
        name: What the infos are called in errors.

    Raises:
        StorageError: A value cannot be written; names it.
    """
    found = columns_of(infos, length, name).columns
    for path, column in columns.items():
        yield path, _filled(column, found.get(path), length, f"{name}{''.join(f'[{key!r}]' for key in path)}")


def _filled(column: Column, found: InfoColumn | None, length: int, path: str) -> Values:
    if found is not None and found.steps is None:
        return leaf_values(column, found.values, path), None
    rows = np.zeros((length, *column.shape), column.dtype)
    if column.kind != "numbers":
        rows[:] = None
    mask = np.zeros(length, np.bool_)
    if found is not None and found.steps is not None:
        rows[found.steps] = leaf_values(column, found.values, path)
        mask[found.steps] = True
    return rows, mask


def leaf_column(space: AnySpace) -> Column:
    """Return the column that holds the values of a space without children."""
    shape, dtype = row_spec(space)
    if dtype.kind in _NUMBERS and dtype.itemsize <= 8:
        return Column("numbers", dtype.newbyteorder("="), shape)
    return Column("text" if isinstance(space, gym_spaces.Text) else "json")


def leaf_values(column: Column, rows: Array, path: str) -> Array:
    """Return rows as their column holds them.

    Raises:
        StorageError: A value cannot be written; names it.
    """
    if column.kind == "numbers":
        return rows.astype(column.dtype, copy=False)
    values = np.empty(len(rows), _OBJECT)
    plain = rows.ndim == 1 and rows.dtype.kind in _NUMBERS and rows.dtype.itemsize <= 8
    for i, value in enumerate(rows.tolist() if plain else rows):
        values[i] = str(value) if column.kind == "text" else json.dumps(encode(value, f"{path}[{i}]"))
    return values


def space_columns(space: AnySpace, tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], AnySpace, Any]]:
    """Yield the path, the space and the rows of each leaf; the rows are None where the tree is."""
    if isinstance(space, gym_spaces.Dict):
        for key, child in space.spaces.items():
            yield from space_columns(child, None if tree is None else tree[key], (*path, str(key)))
    elif isinstance(space, gym_spaces.Tuple):
        for position, child in enumerate(space.spaces):
            yield from space_columns(child, None if tree is None else tree[position], (*path, str(position)))
    else:
        yield path, space, tree
