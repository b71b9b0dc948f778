"""Record infos step by step, store them as columns, and return them as dicts of arrays.

Users receive Gymnasium's vector convention: `{key: array of (T, ...)}`, and for a key missing in some of the T steps
`_key`, a boolean mask of (T,); where it is false the array holds zeros, False or None. A key present in all steps has
no mask; a key absent from all steps does not appear. A nested dict is a nested dict of the same form; empty dicts leave
no trace.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import DataError
from streamsampler.data.info_columns import (
    InfoColumn,
    InfoColumns,
    KeyPath,
    Owners,
    check_names,
    column_of,
    is_typed,
    merge,
    name_of,
)
from streamsampler.data.spaces import short
from streamsampler.data.trees import Array, snapshot

Infos: TypeAlias = dict[str, Any]  # arrays, and dicts of arrays

_COMMON = frozenset((bool, int, float, str, bytes, NoneType, np.bool_, *np.sctypeDict.values())) - {np.void, np.object_}
"""Immutable classes of most infos: values need no copy."""
_Packing: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""Dtype and shape of arrays stored as bytes."""
_RowKey: TypeAlias = tuple[str, Any, np.dtype[Any] | None, tuple[int, ...]]
"""A key and its value's class; for arrays also dtype and shape."""


class _Key:
    """The recorded values of a key, and their steps.

    Arrays of equal dtype and shape, given by `packing`, are stored as bytes, which are joined in a fifth of the time.
    """

    __slots__ = ("packing", "steps", "values")

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[Any] = []
        self.packing: _Packing | None = None

    def extend(self, steps: list[int], values: list[Any], packing: _Packing | None) -> None:
        """Append values; `packing` is None unless they are bytes."""
        if packing != self.packing:
            if not self.values:
                self.packing = packing
            else:
                self._unpack()
                values = values if packing is None else list(_joined(values, packing))
        self.steps.extend(steps)
        self.values.extend(values)

    def append(self, step: int, value: Any) -> None:
        packing = _packing_of(value)
        if packing is not None and (packing == self.packing or not self.values):
            self.packing = packing
            value = value.tobytes()
        else:
            self._unpack()
            value = value if value.__class__ in _COMMON else info_value(value)
        self.steps.append(step)
        self.values.append(value)

    def _unpack(self) -> None:
        if self.packing is not None:
            self.values, self.packing = list(_joined(self.values, self.packing)), None

    def column(self, steps: NDArray[np.int64] | None, values: list[Any]) -> InfoColumn:
        if self.packing is None:
            return column_of(steps, values)
        return InfoColumn(steps, _joined(values, self.packing))


def _joined(values: list[bytes], packing: _Packing) -> Array:
    dtype, shape = packing
    return np.frombuffer(bytearray().join(values), dtype).reshape(len(values), *shape)


def _packing_of(value: Any) -> _Packing | None:
    """Return dtype and shape of an array for storage as bytes."""
    if value.__class__ is not np.ndarray or not value.size or not is_typed(value.dtype):
        return None
    return value.dtype, value.shape


class InfoRecorder:
    """Collects an info dict for each step, and copies values that the environment may change later.

    With a large agent, every list that a step appends to has left the processor's caches since the last step, and costs
    a microsecond instead of a tenth. So infos with the same keys, and with plain values or arrays of the same dtypes
    and shapes, go as rows into a single list; the rows become columns when an info of another form arrives, or at the
    end.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._columns: dict[KeyPath, _Key] = {}
        # The same columns of top-level keys by plain key: a lookup builds no tuple.
        self._plain: dict[str, _Key] = {}
        # Rows of steps after those in the columns, and the form of the next row: the last info's, or empty if its
        # values do not fit into rows.
        self._row: tuple[_RowKey, ...] = ()
        self._steps: list[int] = []
        self._values: list[Any] = []

    def record(self, step: int, info: dict[str, Any]) -> None:
        """Record the info of a step; steps rise from call to call. A `DataError` has the step as its `row`."""
        if self._row and info.__class__ is dict and len(info) == len(self._row):
            values: list[Any] = []
            for key, kind, dtype, shape in self._row:
                value: Any = info.get(key, self)
                if dtype is not None:
                    if (
                        value.__class__ is not kind
                        or (value.dtype is not dtype and value.dtype != dtype)
                        or value.shape != shape
                    ):
                        break
                    value = value.tobytes()
                elif value.__class__ is not kind and value.__class__ not in _COMMON:
                    break
                values.append(value)
            else:
                self._steps.append(step)
                self._values.extend(values)
                return
        self._record_other(step, info)

    def _record_other(self, step: int, info: dict[str, Any]) -> None:
        self._rows_to_columns()
        try:
            items = info.items()
        except AttributeError:
            raise DataError(f"{self._path}: an info must be a dict, got {short(info)}", row=step) from None
        row: list[_RowKey] = []
        for key, value in items:
            column = self._plain.get(key)
            if value.__class__ in _COMMON:
                row.append((key, value.__class__, None, ()))
                if column is not None and column.packing is None:
                    column.steps.append(step)
                    column.values.append(value)
                    continue
            elif (packing := _packing_of(value)) is not None:
                row.append((key, np.ndarray, *packing))
            self._record_slowly(step, (key,), value)
        self._row = tuple(row) if len(row) == len(info) else ()

    def _rows_to_columns(self) -> None:
        if not self._steps:
            return
        for number, (key, _, dtype, shape) in enumerate(self._row):
            packing = None if dtype is None else (dtype, shape)
            self._column((key,)).extend(self._steps, self._values[number :: len(self._row)], packing)
        self._steps.clear()
        self._values.clear()

    def _record_slowly(self, step: int, path: KeyPath, value: Any) -> None:
        if not isinstance(path[-1], str):
            raise DataError(
                f"{name_of(self._path, path)}: the keys of infos must be strings, not {path[-1]!r}", row=step
            )
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            for key, child in value.items():
                self._record_slowly(step, (*path, key), child)
            return
        (self._columns.get(path) or self._column(path)).append(step, value)

    def _column(self, path: KeyPath) -> _Key:
        column = self._columns.get(path)
        if column is None:
            column = self._columns[path] = _Key()
            if len(path) == 1:
                self._plain[path[0]] = column
        return column

    def truncate(self, step: int) -> None:
        self._rows_to_columns()
        for it in self._columns.values():
            first = bisect_left(it.steps, step)
            del it.steps[first:], it.values[first:]

    def discard_before(self, step: int) -> None:
        """Discard all steps before a step, which becomes step 0."""
        self._rows_to_columns()
        for it in self._columns.values():
            first = bisect_left(it.steps, step)
            it.steps[:] = [each - step for each in it.steps[first:]]
            del it.values[:first]

    def select(self, numbers: NDArray[np.int64], owners: Owners) -> InfoColumns:
        """Return the infos of (k,) steps in the given order, as columns independent of the recorder's lists."""
        self._rows_to_columns()
        columns = {}
        for path, it in self._columns.items():
            places, present = places_of(it.steps, numbers)
            if len(places):
                columns[path] = it.column(present, [it.values[place] for place in places.tolist()])
        check_names(columns, self._path, owners)
        return InfoColumns(len(numbers), columns)

    def clear(self) -> None:
        for everything in (self._columns, self._plain, self._steps, self._values):
            everything.clear()

    def finish(self, length: int, owners: Owners | None = None) -> InfoColumns:
        """Return the infos of steps 0 to length - 1, as columns independent of the recorder's lists."""
        self._rows_to_columns()
        columns = {}
        for path, it in self._columns.items():
            n_present = bisect_left(it.steps, length)
            if n_present:
                present = None if n_present == length else np.array(it.steps[:n_present], dtype=np.int64)
                columns[path] = it.column(present, it.values[:n_present])
        check_names(columns, self._path, owners)
        return InfoColumns(length, columns)


def places_of(
    steps: Sequence[int] | NDArray[np.int64], numbers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Return the places of numbers among rising steps, and which were found (None: all)."""
    if not len(steps):
        return np.arange(0), None
    first, last = int(steps[0]), int(steps[-1])
    places = numbers - first
    found = (places >= 0) & (numbers <= last)
    if last - first + 1 != len(steps):  # otherwise the steps have no gaps, and need no search
        place_of = np.full(last - first + 1, -1)
        place_of[np.asarray(steps) - first] = np.arange(len(steps))
        places = place_of.take(places, mode="clip")
        found &= places >= 0
    if found.all():
        return places, None
    return places[found], np.flatnonzero(found)


def info_value(value: Any) -> Any:
    """Return a copy of a value; torch tensors become arrays if NumPy has their dtype."""
    if value.__class__ is not np.ndarray and value.__class__.__module__.partition(".")[0] == "torch":
        try:
            return np.array(value.detach().cpu().numpy())
        except (AttributeError, TypeError, RuntimeError):
            pass  # no tensor, or a dtype such as bfloat16
    return snapshot(value)


def infos_of(columns: InfoColumns) -> Infos:
    """Return merged columns in the users' form."""
    infos: Infos = {}
    for path, column in columns.columns.items():
        inner = infos
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        if column.steps is None:
            inner[path[-1]] = column.values
            continue
        rows = np.zeros((columns.length, *column.values.shape[1:]), dtype=column.values.dtype)
        if rows.dtype == object:
            rows[:] = None
        rows[column.steps] = column.values
        mask = np.zeros(columns.length, dtype=np.bool_)
        mask[column.steps] = True
        inner[path[-1]], inner[f"_{path[-1]}"] = rows, mask
    return infos


def columns_of(infos: Infos, length: int, path: str) -> InfoColumns:
    """Return the columns of infos in the users' form, without copies; a `DataError` reports wrong shapes and masks."""
    columns = {
        key: InfoColumn(None, array) if mask is None else InfoColumn(np.flatnonzero(mask).astype(np.int64), array[mask])
        for key, array, mask in list(_checked(infos, length, path))  # checks all masks before the first is used
    }
    return InfoColumns(length, columns)


def validate_infos(infos: Infos, length: int, path: str) -> None:
    for _ in _checked(infos, length, path):
        pass


def _checked(
    infos: Infos, length: int, path: str, prefix: KeyPath = ()
) -> Iterator[tuple[KeyPath, Array, Array | None]]:
    if not isinstance(infos, dict):
        raise DataError(f"{name_of(path, prefix)} should be a dict of arrays, not a {type(infos).__name__}")
    for key, value in infos.items():
        where = (*prefix, key)
        if isinstance(value, dict):
            yield from _checked(value, length, path, where)
        elif is_mask(key, infos):
            if value.dtype != np.bool_ or value.shape != (length,):
                raise DataError(
                    f"{name_of(path, where)}, the mask of {key[1:]!r}, should be bool of shape {(length,)}, "
                    f"not {value.dtype} of shape {value.shape}"
                )
        elif not isinstance(value, np.ndarray) or value.shape[:1] != (length,):
            raise DataError(f"{name_of(path, where)} should be an array of {length} rows, but has {_shape(value)}")
        elif value.dtype == object and value.ndim != 1:
            raise DataError(
                f"{name_of(path, where)}, of objects, should have one axis, but has the shape {value.shape}"
            )
        else:
            mask = infos.get(f"_{key}")
            yield where, value, mask if isinstance(mask, np.ndarray) else None


def is_mask(key: str, infos: Mapping[str, Any]) -> bool:
    return key[:1] == "_" and key[1:] in infos and isinstance(infos[key], np.ndarray)


def _shape(value: Any) -> str:
    return f"the shape {value.shape}" if isinstance(value, np.ndarray) else f"the type {type(value).__name__}"


def take_infos(infos: Infos, index: slice | Array) -> Infos:
    """Select steps; keys absent from all of them disappear, and masks without absences."""
    taken: Infos = {}
    for key, value in infos.items():
        if isinstance(value, dict):
            if inner := take_infos(value, index):
                taken[key] = inner
        elif not is_mask(key, infos):
            rows, mask = value[index], infos.get(f"_{key}")
            present = mask[index] if isinstance(mask, np.ndarray) else None
            if n_present := len(rows) if present is None else np.count_nonzero(present):
                taken[key] = rows
                if n_present < len(rows):
                    taken[f"_{key}"] = present
    return taken


def concatenate_infos(parts: Sequence[tuple[Infos, int]], path: str) -> Infos:
    """Join infos in the users' form, each given with its number of steps."""
    if not any(infos for infos, _ in parts):
        return {}
    return infos_of(merge([(columns_of(infos, length, path), 0, length) for infos, length in parts], path))
