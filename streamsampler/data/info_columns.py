"""Columns of infos: the values of a key over many steps, and their join.

If all values share a dtype and shape, so does the column. Numbers of several dtypes and equal shape are promoted, if
promotion changes no integer. Every other column holds objects. This is decided over all values of a batch at once,
never piece by piece, so the result does not depend on how reports divide the trajectories. Joined batches may have
promoted columns already: objects may then be floats of the same value, which were integers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.by_position import by_position
from streamsampler.core.errors import DataError
from streamsampler.data.casting import changed, may_change
from streamsampler.data.trees import Array, object_array

KeyPath: TypeAlias = tuple[str, ...]
Owners: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.int64]]
# Dtype and shape of a value for an array; None for other values.
Kind: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]] | None

_TYPED = "biufcmM"
_NUMERIC = "biufc"
_PYTHON_NUMBERS: dict[type, np.dtype[Any]] = {
    bool: np.dtype(np.bool_),
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}
_INT64 = np.iinfo(np.int64)
# Type codes of `array`; NumPy's "q" may be another 64-bit dtype than int64.
_CODES = {float: "d", np.float64: "d", np.float32: "f", int: "q", np.int64: "q", np.int32: "i"}
_PACKED = {"d": np.float64, "f": np.float32, "q": np.int64, "i": np.int32}


@by_position
@dataclass(frozen=True, slots=True)
class InfoColumn:
    """The values of a key.

    Attributes:
        steps: (K,) int64, rising: the steps with the key; None for all steps.
        values: (K, ...): the values themselves, or (K,) objects.
        raw: Whether these are recorded values of several kinds, before the column's dtype is decided.
    """

    steps: NDArray[np.int64] | None
    values: Array
    raw: bool = False

    def of_rows(self, start: int, stop: int) -> Array:
        return self.values[_rows(self, start, stop)]


@by_position
@dataclass(slots=True)  # not frozen, as `Rollouts`
class InfoColumns:
    """The infos of `length` steps, by path: the keys from the outermost dict inwards."""

    length: int
    columns: dict[KeyPath, InfoColumn]


def _kind(value: Any) -> Kind:
    cls = value.__class__
    if cls is int:
        return (_PYTHON_NUMBERS[int], ()) if _INT64.min <= value <= _INT64.max else None
    if cls in _PYTHON_NUMBERS:
        return _PYTHON_NUMBERS[cls], ()
    if (cls is np.ndarray or isinstance(value, np.generic)) and is_typed(value.dtype):
        return value.dtype, value.shape
    return None


def is_typed(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in _TYPED


def column_of(steps: NDArray[np.int64] | None, values: list[Any]) -> InfoColumn:
    """Make a column of recorded values: an array, or raw if they are of several kinds."""
    if (packed := _packed(values)) is not None:
        return InfoColumn(steps, packed)
    kinds = set(map(_kind, values))
    if len(kinds) == 1 and (kind := next(iter(kinds))) is not None:
        return InfoColumn(steps, _stack(values, *kind))
    return InfoColumn(steps, object_array(values), raw=True)


def _packed(values: list[Any]) -> Array | None:
    """Return numbers of a common dtype as an array, in a tenth of the time of `_stack`; else None."""
    codes = {_CODES.get(kind) for kind in set(map(type, values))}
    code = codes.pop() if len(codes) == 1 else None
    if code is None:
        return None
    try:
        packed = array(code, values)
    except OverflowError:
        return None
    return np.frombuffer(packed, _PACKED[code])


def _stack(values: Sequence[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    # Row by row: `np.array` of a list of arrays would first search all of them for the shape.
    if not shape:
        return np.array([value if value.__class__ in _PYTHON_NUMBERS else value[()] for value in values], dtype=dtype)
    rows = np.empty((len(values), *shape), dtype=dtype)
    for position, value in enumerate(values):
        rows[position] = value
    return rows


def _plain_object(value: Any) -> Any:
    kind = _kind(value)
    return value.item() if kind is not None and not kind[1] and hasattr(value, "item") else value


Piece: TypeAlias = tuple[InfoColumns, int, int]
Rows: TypeAlias = tuple[InfoColumn, slice, int]
"""A column, a slice of its rows, and the shift of their steps."""


def merge(pieces: Sequence[Piece], path: str) -> InfoColumns:
    """Join ranges of steps of several columns in new arrays, and decide each column's dtype.

    Raises a `DataError` for a key `_x` next to a key `x`; `path` is the infos' name in it.
    """
    gathered, length = _gathered(pieces)
    merged = _fold({key: _merge_column(gathered[key], length) for key in sorted(gathered)}, length)
    check_names(merged, path)
    return InfoColumns(length, merged)


def join_undecided(pieces: Sequence[Piece]) -> InfoColumns:
    """Join ranges of steps of several columns; `merge` decides later on mixed columns."""
    gathered, length = _gathered(pieces)
    joined = {}
    for key, parts in gathered.items():
        values = [value for column, rows, _ in parts for value in column.values[rows]]
        joined[key] = column_of(_steps_of(parts, length), values)
    return InfoColumns(length, joined)


def _gathered(pieces: Sequence[Piece]) -> tuple[dict[KeyPath, list[Rows]], int]:
    gathered: dict[KeyPath, list[Rows]] = {}
    length = 0
    for columns, start, stop in pieces:
        for key, column in columns.columns.items():
            rows = _rows(column, start, stop)
            if rows.stop > rows.start:
                gathered.setdefault(key, []).append((column, rows, length - start))
        length += stop - start
    return gathered, length


def _rows(column: InfoColumn, start: int, stop: int) -> slice:
    if column.steps is None:
        return slice(start, stop)
    first, last = np.searchsorted(column.steps, (start, stop))
    return slice(int(first), int(last))


def _steps_of(pieces: list[Rows], length: int) -> NDArray[np.int64] | None:
    if sum(rows.stop - rows.start for _, rows, _ in pieces) == length:
        return None
    return np.concatenate([_steps(column, rows) + shift for column, rows, shift in pieces])


def _merge_column(pieces: list[Rows], length: int) -> InfoColumn:
    steps, kind = _steps_of(pieces, length), _common_kind(pieces)
    if kind is None or any(_loses_integers(column, rows, kind[0]) for column, rows, _ in pieces):
        values = [value for column, rows, _ in pieces for value in _objects(column, rows)]
        return InfoColumn(steps, object_array(values))
    parts = [
        _stack(column.values[rows].tolist(), *kind) if column.raw else column.values[rows] for column, rows, _ in pieces
    ]
    return InfoColumn(steps, np.concatenate(parts, dtype=kind[0]))


def _steps(column: InfoColumn, rows: slice) -> NDArray[np.int64]:
    return np.arange(rows.start, rows.stop, dtype=np.int64) if column.steps is None else column.steps[rows]


def _kinds(column: InfoColumn, rows: slice) -> set[Kind]:
    if column.raw:
        return set(map(_kind, column.values[rows]))
    return {None if column.values.dtype == object else (column.values.dtype, column.values.shape[1:])}


def are_uniform(parts: Iterable[InfoColumns]) -> bool:
    """Return whether each key has values of one kind in all parts, and no key has both dicts and other values.

    Then every range of steps gives the same columns. Names of masks are not checked.
    """
    kind_of: dict[KeyPath, Kind] = {}
    for part in parts:
        for path, column in part.columns.items():
            kinds = _kinds(column, slice(None))
            if len(kinds) > 1 or (kinds and kind_of.setdefault(path, next(iter(kinds))) not in kinds):
                return False
    return not any(path[:depth] in kind_of for path in kind_of for depth in range(1, len(path)))


def _common_kind(pieces: Iterable[Rows]) -> Kind:
    kinds = {kind for column, rows, _ in pieces for kind in _kinds(column, rows)}
    if len(kinds) == 1 or None in kinds:
        return None if None in kinds else kinds.pop()
    known = [kind for kind in kinds if kind is not None]
    dtypes, shapes = {dtype for dtype, _ in known}, {shape for _, shape in known}
    if len(shapes) > 1 or any(dtype.kind not in _NUMERIC for dtype in dtypes):
        return None
    # Promotion is not associative: only over all dtypes, in a fixed order, is it the same for every cut.
    return np.result_type(*sorted(dtypes, key=lambda dtype: dtype.str)), shapes.pop()


def _loses_integers(column: InfoColumn, rows: slice, dtype: np.dtype[Any]) -> bool:
    """Whether a dtype would change integers, as floats change those above 2**53."""
    values = column.values[rows]
    if not column.raw:
        return may_change(values.dtype, dtype) and bool(changed(values, dtype).any())
    of_one_kind: dict[Kind, list[Any]] = {}
    for value in values:
        of_one_kind.setdefault(_kind(value), []).append(value)
    return any(
        kind is not None and may_change(kind[0], dtype) and bool(changed(_stack(alike, *kind), dtype).any())
        for kind, alike in of_one_kind.items()
    )


def _objects(column: InfoColumn, rows: slice) -> list[Any]:
    values = column.values[rows]
    if column.raw:
        return [_plain_object(value) for value in values]
    return values.tolist() if values.ndim == 1 else [row.copy() for row in values]


def _fold(columns: dict[KeyPath, InfoColumn], length: int) -> dict[KeyPath, InfoColumn]:
    """Make a column of objects of a key that held dicts and other values."""
    children: dict[KeyPath, dict[KeyPath, InfoColumn]] = {}
    folded: dict[KeyPath, InfoColumn] = {}
    for path, column in columns.items():
        root = next((path[:depth] for depth in range(1, len(path)) if path[:depth] in columns), None)
        if root is None:
            folded[path] = column
        else:
            children.setdefault(root, {})[path[len(root) :]] = column
    for root, inner in children.items():
        folded[root] = _fold_children(columns[root], inner, length)
    return folded


def _fold_children(column: InfoColumn, children: dict[KeyPath, InfoColumn], length: int) -> InfoColumn:
    whole: dict[int, Any] = {}
    for path, child in children.items():
        rows = _rows(child, 0, length)
        for step, value in zip(_steps(child, rows).tolist(), _objects(child, rows), strict=True):
            inner = whole.setdefault(step, {})
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = value
    rows = _rows(column, 0, length)
    whole.update(zip(_steps(column, rows).tolist(), _objects(column, rows), strict=True))
    steps = sorted(whole)
    present = None if len(steps) == length else np.array(steps, dtype=np.int64)
    return InfoColumn(present, object_array([whole[step] for step in steps]))


def check_names(columns: dict[KeyPath, InfoColumn], path: str, owners: Owners | None = None) -> None:
    """Check that no key `_x`, the name of the mask of `x`, is next to a key `x`.

    With `owners`, which maps steps to trajectories, names clash only within a trajectory, because others may end up in
    another batch; the `DataError` has the trajectory's `position`.
    """
    named: dict[KeyPath, list[InfoColumn]] = {}
    for key, column in columns.items():
        for depth in range(1, len(key) + 1):
            named.setdefault(key[:depth], []).append(column)
    for name in sorted(named):
        mask = (*name[:-1], f"_{name[-1]}")
        if mask not in named:
            continue
        position = None
        if owners is not None:
            both = _owners_of(named[name], owners) & _owners_of(named[mask], owners)
            if not both:
                continue
            position = min(both)
        raise DataError(
            f"{name_of(path, name)} and {name_of(path, mask)} are both keys of an info, "
            f"but {mask[-1]!r} is the name of the mask of {name[-1]!r}: rename one of them",
            position=position,
        )


def _owners_of(columns: Iterable[InfoColumn], owners: Owners) -> set[int]:
    return {owner for it in columns for owner in owners(_steps(it, slice(0, len(it.values)))).tolist()}


def name_of(path: str, keys: KeyPath) -> str:
    return path + "".join(f"[{key!r}]" for key in keys)


LAST_VALUE = "last_value"
"""The key in `episode_infos` of the agent's values of last observations."""


def with_last_values(infos: InfoColumns, rows: list[int], values: list[float]) -> InfoColumns:
    """Add the agent's values of last observations to episode infos, as "last_value".

    `rows` are their trajectories, rising. A `DataError`, if infos have this name already, has the first as its
    `position`.
    """
    if (LAST_VALUE,) in infos.columns:
        raise DataError(
            f"episode_infos[{LAST_VALUE!r}] is reserved for the agent's values of last observations "
            "(batch.last_values), but an info of the environment's reset, or a metric of a hook, has this name: rename "
            "it",
            position=rows[0],
        )
    steps = None if len(rows) == infos.length else np.array(rows, dtype=np.int64)
    column = InfoColumn(steps, np.array(values, dtype=np.float64))
    return InfoColumns(infos.length, {**infos.columns, (LAST_VALUE,): column})
