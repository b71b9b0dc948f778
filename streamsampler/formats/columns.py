"""Columns for the formats of other libraries: their types, and their values in each shard.

A column's type is decided once, over all shards of a source, so it does not depend on how files divide the
trajectories. A column holds numbers of equal dtype and shape, or text, or else JSON
(`streamsampler/docs/storage-and-formats.md`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.data.codec import encode
from streamsampler.data.info_columns import KeyPath
from streamsampler.data.infos import Infos, columns_of
from streamsampler.data.spaces import AnySpace, row_spec
from streamsampler.data.trees import Array

_NUMBERS = frozenset("biuf")
_OBJECT = np.dtype(object)


@dataclass(frozen=True)
class Column:
    """The type of a column: the dtype and shape of its numbers, or Python strings; `always` excludes missing rows."""

    kind: Literal["numbers", "text", "json"]
    dtype: np.dtype[Any] = _OBJECT
    shape: tuple[int, ...] = ()
    always: bool = True


class ColumnRows(NamedTuple):
    """The rows of a column in a shard, by path from the outermost key inwards.

    Missing rows have any value, and are false in `present`, (N,) bool, which is None if no row is missing.
    """

    path: KeyPath
    column: Column
    rows: Array
    present: NDArray[np.bool_] | None = None


class InfoSurvey:
    """Collects the columns of infos."""

    def __init__(self) -> None:
        self._found: defaultdict[KeyPath, list[tuple[Column, int, int]]] = defaultdict(list)
        self._length = 0

    def add(self, infos: Infos, length: int, name: str) -> None:
        self._length += length
        for path, column in columns_of(infos, length, name).columns.items():
            rows = column.values
            self._found[path].append((_column_of(rows), _largest_integer(rows), len(rows)))

    def columns(self) -> dict[KeyPath, Column]:
        """Return the columns that fit all shards, by path."""
        columns = {}
        for path, found in self._found.items():
            common = _common({column for column, _, _ in found}, max(largest for _, largest, _ in found))
            columns[path] = replace(common, always=sum(n for _, _, n in found) == self._length)
        return columns


def _column_of(values: Array) -> Column:
    if values.dtype.kind in _NUMBERS and values.dtype.itemsize <= 8:
        return Column("numbers", values.dtype.newbyteorder("="), values.shape[1:])
    is_text = values.dtype.kind == "U" and values.ndim == 1
    is_text = is_text or (values.dtype == _OBJECT and all(isinstance(value, str) for value in values))
    return Column("text" if is_text else "json")


def _largest_integer(values: Array) -> int:
    if values.dtype.kind not in "iu" or not values.size:
        return 0
    return max(abs(int(values.min())), abs(int(values.max())))


def _common(kinds: set[Column], largest: int) -> Column:
    """Return the column that fits several columns; JSON if it would change an integer."""
    if len(kinds) == 1:
        return next(iter(kinds))
    if any(column.kind != "numbers" for column in kinds) or len({column.shape for column in kinds}) > 1:
        return Column("json")
    dtype = np.result_type(*sorted((column.dtype for column in kinds), key=lambda dtype: dtype.str))
    if dtype.kind == "f" and largest > 2 ** (np.finfo(dtype).nmant + 1):
        return Column("json")
    return Column("numbers", dtype, next(iter(kinds)).shape)


def info_rows(
    infos: Infos, length: int, columns: Mapping[KeyPath, Column], name: str, root: KeyPath = ()
) -> Iterator[ColumnRows]:
    """Yield the rows of each column, even if these infos lack it, under paths prefixed by `root`."""
    found = columns_of(infos, length, name).columns
    for path, column in columns.items():
        name_of_key = f"{name}{''.join(f'[{key!r}]' for key in path)}"
        info = found.get(path)
        if info is not None and info.steps is None:
            yield ColumnRows((*root, *path), column, leaf_values(column, info.values, name_of_key))
            continue
        rows = np.full((length, *column.shape), 0 if column.kind == "numbers" else None, column.dtype)
        present = np.zeros(length, np.bool_)
        if info is not None:
            rows[info.steps] = leaf_values(column, info.values, name_of_key)
            present[info.steps] = True
        yield ColumnRows((*root, *path), column, rows, present)


def leaf_column(space: AnySpace) -> Column:
    shape, dtype = row_spec(space)
    if dtype.kind in _NUMBERS and dtype.itemsize <= 8:
        return Column("numbers", dtype.newbyteorder("="), shape)
    return Column("text" if isinstance(space, gym_spaces.Text) else "json")


def leaf_values(column: Column, rows: Array, path: str) -> Array:
    """Convert rows to their column's type; a `StorageError` names a value without JSON."""
    if column.kind == "numbers":
        return rows.astype(column.dtype, copy=False)
    values = np.empty(len(rows), _OBJECT)
    plain = rows.ndim == 1 and rows.dtype.kind in _NUMBERS and rows.dtype.itemsize <= 8
    for i, value in enumerate(rows.tolist() if plain else rows):
        values[i] = str(value) if column.kind == "text" else json.dumps(encode(value, f"{path}[{i}]"))
    return values


def space_columns(space: AnySpace, tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], AnySpace, Any]]:
    """Yield the path, space and rows of each leaf; rows are None without a tree."""
    if isinstance(space, gym_spaces.Dict):
        for key, child in space.spaces.items():
            yield from space_columns(child, None if tree is None else tree[key], (*path, str(key)))
    elif isinstance(space, gym_spaces.Tuple):
        for position, child in enumerate(space.spaces):
            yield from space_columns(child, None if tree is None else tree[position], (*path, str(position)))
    else:
        yield path, space, tree
