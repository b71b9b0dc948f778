"""Collect infos that come in batches, under Gymnasium's vector convention.

Infos of equal form are in growing arrays, until an info of another form comes; then all of them become pieces.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

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
    name_of,
)
from streamsampler.data.infos import InfoRecorder, info_value, places_of
from streamsampler.data.trees import Array
from streamsampler.workers.vec.growing_column import GrowingColumn


def info_of_row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the info of a single row of a batch's infos; see `BatchInfos.record`."""
    found = {}
    for key, value in infos.items():
        mask = _mask(infos.get(f"_{key}"))
        if _is_mask(key, value, infos) or not (mask is None or mask[row]):
            continue
        found[key] = info_of_row(value, row) if isinstance(value, Mapping) else value[row]
    return found


class _InfoPiece(NamedTuple):
    steps: NDArray[np.int64]
    values: Array | list[Any]


class _Form(NamedTuple):
    """An array that all infos of a constant form have under a key; `shape` is that of a row."""

    key: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    column: GrowingColumn


class BatchInfos:
    """Collects copies of dicts of arrays; a dict has the infos of several steps.

    As long as all infos have the same keys, dtypes and shapes, each key is an array that grows: a third of the time of
    pieces, which are joined at the end.

    Args:
        path: The name of the infos in errors, such as `agent_infos`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pieces: dict[KeyPath, list[_InfoPiece]] = {}
        self._forms: tuple[_Form, ...] = ()
        # The arrays have the steps from `_first` up to `_next`.
        self._first = self._next = 0

    def record_next(
        self, first: int, n: int, infos: Mapping[str, Any], rows: NDArray[np.int64] | None, n_rows: int
    ) -> None:
        """Record the infos of the n steps from `first` on, which follow the steps recorded last; see `record`."""
        if not self._forms and not self._pieces:
            self._forms, self._first, self._next = _forms_of(infos, n_rows), first, first
        arrays = self._arrays_of(infos, n_rows) if self._forms and first == self._next else None
        if arrays is None:
            if rows is not None and not _has_rows(infos, n_rows):
                BatchInfos(self._path).record(np.arange(n_rows), infos)  # raises, unless the values can become rows
            self.record(np.arange(first, first + n), infos, rows)
            return
        place = first - self._first
        for form, values in zip(self._forms, arrays, strict=True):
            form.column.extend(place, values if rows is None else values.take(rows, 0))
        self._next = first + n

    def _arrays_of(self, infos: Mapping[str, Any], n_rows: int) -> list[Array] | None:
        """Return the arrays of infos with the form of all earlier ones; None for others."""
        if infos.__class__ is not dict or len(infos) != len(self._forms):
            return None
        arrays = []
        for key, dtype, shape, _ in self._forms:
            values = infos.get(key)
            if (
                values.__class__ is not np.ndarray
                or (values.dtype is not dtype and values.dtype != dtype)
                or values.shape != (n_rows, *shape)
            ):
                return None
            arrays.append(values)
        return arrays

    def _break_up(self) -> None:
        """Make pieces of the arrays, before infos of another form."""
        if self._next > self._first:
            numbers = np.arange(self._first, self._next)
            for form in self._forms:
                self._pieces[form.key,] = [_InfoPiece(numbers, form.column.gather(numbers - self._first))]
        self._forms = ()

    def record(self, steps: NDArray[np.int64], infos: Mapping[str, Any], rows: Array | None = None) -> None:
        """Record the infos of some steps.

        Args:
            steps: (n,) the steps' numbers.
            infos: Arrays of (n, ...), or lists of n values; next to `key` a boolean mask `_key` of (n,) may mark the
                rows with the key. Dicts nest.
            rows: The row of the arrays for each step; None for all rows.

        Raises:
            DataError: A key is no string, or a value has another number of rows than steps.
        """
        if not isinstance(infos, Mapping):
            raise DataError(f"{self._path}: the infos of a batch must be a dict, got {type(infos).__name__}")
        if self._forms:
            self._break_up()
        self._record((), steps, infos, rows, None)

    def _record(
        self, prefix: KeyPath, steps: NDArray[np.int64], infos: Mapping[str, Any], rows: Array | None,
        outer: Array | None,
    ) -> None:  # fmt: skip
        """Record infos; `outer` is the mask of the dict that holds them."""
        for key, value in infos.items():
            if not isinstance(key, str):
                raise DataError(
                    f"{name_of(self._path, (*prefix, key))}: the keys of infos are strings, and this is {key!r}"
                )
            path = (*prefix, key)
            mask = _mask(infos.get(f"_{key}"))
            if outer is not None:
                mask = outer if mask is None else mask & outer
            if isinstance(value, Mapping):
                self._record(path, steps, value, rows, mask)
            elif not _is_mask(key, value, infos):
                self._append(path, steps, value, mask, rows)

    def _append(
        self, path: KeyPath, steps: NDArray[np.int64], value: Any, mask: Array | None, rows: Array | None
    ) -> None:
        values = value if isinstance(value, np.ndarray | list | tuple) else np.asarray(info_value(value))
        if isinstance(values, np.ndarray):
            if rows is not None and values.ndim:
                values = values[rows]
        elif rows is not None:
            values = [values[row] for row in rows]
        if mask is not None and rows is not None:
            mask = mask[rows]
        n_values = values.shape[:1] if isinstance(values, np.ndarray) else (len(values),)
        if n_values != steps.shape or (mask is not None and mask.shape != steps.shape):
            shape = values.shape if isinstance(values, np.ndarray) else n_values
            raise DataError(
                f"{name_of(self._path, path)} has the shape {shape}, and should have one row for each of {len(steps)} "
                "environments"
            )
        if mask is not None and not mask.all():
            present = np.flatnonzero(mask)
            steps = steps[present]
            values = values[present] if isinstance(values, np.ndarray) else [values[row] for row in present]
        if len(steps):
            self._pieces.setdefault(path, []).append(_InfoPiece(steps, _copied(values)))

    def clear(self) -> None:
        self._pieces.clear()
        self._forms = ()

    def discard_before(self, step: int) -> None:
        """Forget the steps before this step, which becomes number 0."""
        if self._forms:
            begun = max(step, self._first)
            for form in self._forms:
                form.column.discard_before(begun - self._first, self._next - self._first)
            self._first, self._next = begun - step, self._next - step
        for path, pieces in self._pieces.items():
            first = next((place for place, piece in enumerate(pieces) if piece.steps[-1] >= step), len(pieces))
            self._pieces[path] = [_InfoPiece(piece.steps - step, piece.values) for piece in pieces[first:]]

    def select(self, numbers: NDArray[np.int64], owners: Owners) -> InfoColumns:
        if self._forms:
            return self._selected(numbers, owners)
        found = {path: _column(pieces, numbers) for path, pieces in self._pieces.items() if pieces}
        columns = {path: column for path, column in found.items() if len(column.values)}
        check_names(columns, self._path, owners)
        return InfoColumns(len(numbers), columns)

    def _selected(self, numbers: NDArray[np.int64], owners: Owners) -> InfoColumns:
        places, present = places_of(range(self._first, self._next), numbers)
        columns: dict[KeyPath, InfoColumn] = {}
        if len(places):
            columns = {(form.key,): InfoColumn(present, form.column.gather(places)) for form in self._forms}
        check_names(columns, self._path, owners)
        return InfoColumns(len(numbers), columns)


def _has_rows(infos: Any, n_rows: int) -> bool:
    return isinstance(infos, Mapping) and all(
        len(value) == n_rows
        if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim)
        else _has_rows(value, n_rows)
        for value in infos.values()
    )


def _forms_of(infos: Mapping[str, Any], n_rows: int) -> tuple[_Form, ...]:
    """Return the form of infos that are unmasked arrays of so many rows; () for others."""
    forms = []
    for key, values in infos.items() if infos.__class__ is dict else ():
        if (
            key.__class__ is not str
            or values.__class__ is not np.ndarray
            or not (is_typed(values.dtype) and values.dtype.isnative)
            or values.shape[:1] != (n_rows,)
            or _is_mask(key, values, infos)
        ):
            return ()
        shape = values.shape[1:]
        forms.append(_Form(key, values.dtype, shape, GrowingColumn(1, values.dtype, shape)))
    return tuple(forms)


def _mask(value: Any) -> Array | None:
    return value if isinstance(value, np.ndarray) and value.dtype == np.bool_ else None


def _is_mask(key: str, value: Any, infos: Mapping[str, Any]) -> bool:
    return key[:1] == "_" and key[1:] in infos and _mask(value) is not None


def _copied(values: Any) -> Array | list[Any]:
    if isinstance(values, np.ndarray) and is_typed(values.dtype):
        return values.copy()
    return [info_value(value) for value in values]


def _column(pieces: list[_InfoPiece], numbers: NDArray[np.int64]) -> InfoColumn:
    steps = np.concatenate([piece.steps for piece in pieces])
    order = np.arange(0) if bool((steps[1:] > steps[:-1]).all()) else np.argsort(steps, kind="stable")
    places, present = places_of(steps[order] if len(order) else steps, numbers)
    places = order[places] if len(order) else places
    arrays = [piece.values for piece in pieces if isinstance(piece.values, np.ndarray)]
    if len(arrays) == len(pieces) and len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
        return InfoColumn(present, np.concatenate(arrays)[places])
    singles = [value for piece in pieces for value in piece.values]
    return column_of(present, [singles[place] for place in places.tolist()])


class InfosInAnyOrder(InfoRecorder):
    """Collects infos in any order, several for a step maybe; keeps the dicts themselves, unchecked."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._infos: dict[int, list[dict[str, Any]]] = {}

    def record(self, step: int, info: dict[str, Any]) -> None:
        self._infos.setdefault(step, []).append(info)

    def select(self, numbers: NDArray[np.int64], owners: Owners) -> InfoColumns:
        recorder = InfoRecorder(self._path)
        for position, number in enumerate(numbers.tolist()):
            for info in self._infos.get(number, ()):
                recorder.record(position, info)
        return recorder.finish(len(numbers), owners)

    def keep(self, numbers: Collection[int]) -> None:
        self._infos = {number: infos for number, infos in self._infos.items() if number in numbers}

    def discard_before(self, step: int) -> None:
        self._infos = {number - step: infos for number, infos in self._infos.items() if number >= step}

    def clear(self) -> None:
        self._infos.clear()
