"""Collect infos that come in batches, under Gymnasium's vector convention, and select from columns."""

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
from streamsampler.workers.vec.growing import GrowingColumn


def info_of_row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the info of one row of a batch's infos; see `BatchInfos.record`."""
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
    """An array that infos of constant form have under a key.

    Attributes:
        key: The key.
        dtype: The dtype.
        shape: The shape of a row.
        column: The rows of all calls so far.
    """

    key: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    column: GrowingColumn


class BatchInfos:
    """Collects dicts of arrays, one dict for several steps; copies what is in them.

    As long as all infos have one form, the same keys with arrays of one dtype and shape, each key is one array that
    grows: that takes a third of the time of pieces, which are joined at the end.

    Args:
        path: What the infos are called in errors, such as `agent_infos`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pieces: dict[KeyPath, list[_InfoPiece]] = {}
        self._forms: tuple[_Form, ...] = ()
        # The steps that the arrays have, and the one after their last.
        self._first = self._next = 0

    def record_next(
        self, first: int, n: int, infos: Mapping[str, Any], rows: NDArray[np.int64] | None, n_rows: int
    ) -> None:
        """Record the infos of steps that follow those recorded last.

        Args:
            first: The first step's number.
            n: How many steps.
            infos: See `record`.
            rows: See `record`.
            n_rows: How many rows the arrays have.

        Raises:
            DataError: See `record`.
        """
        if not self._forms and not self._pieces:
            self._forms, self._first, self._next = _forms_of(infos, n_rows), first, first
        arrays = self._arrays_of(infos, n_rows) if self._forms and first == self._next else None
        if arrays is None:
            if rows is not None and not _has_rows(infos, n_rows):
                BatchInfos(self._path).record(np.arange(n_rows), infos)  # raises, unless it can make rows of it
            self.record(np.arange(first, first + n), infos, rows)
            return
        place = first - self._first
        for form, values in zip(self._forms, arrays, strict=True):
            form.column.extend(place, values if rows is None else values.take(rows, 0))
        self._next = first + n

    def _arrays_of(self, infos: Mapping[str, Any], n_rows: int) -> list[Array] | None:
        """Return the arrays of infos that have the form of those before; None for others."""
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
        """Make pieces of the arrays: infos of another form come."""
        if self._next > self._first:
            numbers = np.arange(self._first, self._next)
            for form in self._forms:
                self._pieces[form.key,] = [_InfoPiece(numbers, form.column.gather(numbers - self._first))]
        self._forms = ()

    def record(self, steps: NDArray[np.int64], infos: Mapping[str, Any], rows: Array | None = None) -> None:
        """Record the infos of some steps.

        Args:
            steps: (n,) the steps' numbers.
            infos: Arrays of (n, ...), or lists of n values; with `key` there may be `_key`, a boolean mask of (n,)
                that says in which rows it is there. Dicts nest.
            rows: Which rows of the arrays are those steps'; None for all of them.

        Raises:
            DataError: A key that is no string, or a value that has not one row for each step; says both.
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
        """Record infos, of which `outer` is the mask of the dict itself."""
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
        """Forget everything."""
        self._pieces.clear()
        self._forms = ()

    def forget_before(self, step: int) -> None:
        """Forget what was recorded before a step, which has the number 0 then."""
        if self._forms:
            begun = max(step, self._first)
            for form in self._forms:
                form.column.forget_before(begun - self._first, self._next - self._first)
            self._first, self._next = begun - step, self._next - step
        for path, pieces in self._pieces.items():
            first = next((place for place, piece in enumerate(pieces) if piece.steps[-1] >= step), len(pieces))
            self._pieces[path] = [_InfoPiece(piece.steps - step, piece.values) for piece in pieces[first:]]

    def select(self, numbers: NDArray[np.int64], owners: Owners) -> InfoColumns:
        """Return the infos of some steps; see `data.infos.InfoRecorder.select`."""
        if self._forms:
            return self._selected(numbers, owners)
        found = {path: _column(pieces, numbers) for path, pieces in self._pieces.items() if pieces}
        columns = {path: column for path, column in found.items() if len(column.values)}
        check_names(columns, self._path, owners)
        return InfoColumns(len(numbers), columns)

    def _selected(self, numbers: NDArray[np.int64], owners: Owners) -> InfoColumns:
        """Return the infos of some steps out of the arrays."""
        places, present = places_of(range(self._first, self._next), numbers)
        columns: dict[KeyPath, InfoColumn] = {}
        if len(places):
            columns = {(form.key,): InfoColumn(present, form.column.gather(places)) for form in self._forms}
        check_names(columns, self._path, owners)
        return InfoColumns(len(numbers), columns)


def _has_rows(infos: Any, n_rows: int) -> bool:
    """Whether infos are dicts of arrays, lists and tuples of so many rows."""
    return isinstance(infos, Mapping) and all(
        len(value) == n_rows
        if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim)
        else _has_rows(value, n_rows)
        for value in infos.values()
    )


def _forms_of(infos: Mapping[str, Any], n_rows: int) -> tuple[_Form, ...]:
    """Return the form of infos that are arrays of so many rows, without masks; none of others."""
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
    """Collects infos that come in no order, several for one step maybe; keeps the dicts themselves, unchecked."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._infos: dict[int, list[dict[str, Any]]] = {}

    def record(self, step: int, info: dict[str, Any]) -> None:
        """Record an info."""
        self._infos.setdefault(step, []).append(info)

    def select(self, numbers: NDArray[np.int64], owners: Owners) -> InfoColumns:
        """Return the infos of some steps; see `InfoRecorder.select`."""
        recorder = InfoRecorder(self._path)
        for position, number in enumerate(numbers.tolist()):
            for info in self._infos.get(number, ()):
                recorder.record(position, info)
        return recorder.finish(len(numbers), owners)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget what was recorded of other steps."""
        self._infos = {number: infos for number, infos in self._infos.items() if number in numbers}

    def forget_before(self, step: int) -> None:
        """Forget what was recorded before a step, which has the number 0 then."""
        self._infos = {number - step: infos for number, infos in self._infos.items() if number >= step}

    def clear(self) -> None:
        """Forget everything."""
        self._infos.clear()
