"""Buffers that values of a space are recorded into, one per environment step.

This is the hottest code of the package beside the rollout's own loop, so a recorder is a few closures over local
variables: for an array that fits, one look at its shape, one at its dtype, and one copy.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces as gym_spaces

from .errors import DataError, ObservationError
from .spaces import AnySpace, AnyTuple, misfit, row_spec, short
from .trees import Array, Tree, object_array, snapshot

__all__ = ["Allocate", "Recorder", "empty", "make_recorder"]

Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], Array]

# A buffer of large rows starts with about this many bytes; `np.empty` touches none of them before they are written.
_FIRST_BYTES = 1 << 20
_FEWEST_ROWS = 16
_SMALL_BYTES = 4096
# Of no bytes. None would not do: to NumPy it equals float64.
_NO_DTYPE = np.dtype("V")


@dataclass(frozen=True, slots=True)
class Recorder:
    """Rows of one space, growing.

    Attributes:
        record: Copies one value behind the rows so far; raises the recorder's error where it does not fit. The part of
            a nested value that came before the misfit stays recorded: truncate before going on.
        truncate: Rewinds to the first n rows, and keeps the memory for the next ones.
        view: The rows from start to stop, as a tree. Large rows are views, good until the rows are recorded anew.
        count: The number of rows.
        integers: The rows, where they are integers of Python: a loop may append those itself, and nothing else.
        encoded: The rows, where they are kept as bytes: a loop may append `value.tobytes()` itself where
            `value.dtype == dtype` and `value.shape == shape`.
        dtype: The dtype of such rows; where there are none, one that no observation has.
        shape: The shape of such rows.
        renew: Lets go of memory that is not this recorder's own, with all rows.
    """

    record: Callable[[Any], None]
    truncate: Callable[[int], None]
    view: Callable[[int, int], Tree]
    count: Callable[[], int]
    integers: list[int] | None = None
    encoded: list[bytes] | None = None
    dtype: np.dtype[Any] = _NO_DTYPE
    shape: tuple[int, ...] = ()
    renew: Callable[[], None] = lambda: None

    @property
    def length(self) -> int:
        """The number of rows."""
        return self.count()

    def clear(self) -> None:
        """Forget all rows, and keep the memory."""
        self.truncate(0)


@singledispatch
def make_recorder(
    space: AnySpace,  # noqa: ARG001 - what it is dispatched on
    path: str,
    error: type[DataError] = ObservationError,
    allocate: Allocate = np.empty,  # noqa: ARG001 - objects live where Python puts them
) -> Recorder:
    """Make a recorder for values of a space.

    Args:
        space: The space. NaN and values outside a Box's bounds are recorded as they are.
        path: What the values are called in errors, such as `observation`.
        error: What is raised for a value that does not fit.
        allocate: Makes an uninitialised array of a shape and dtype, for the rows of large leaves.
    """
    return _object_recorder(path, error, None)


@make_recorder.register
def _(
    _space: gym_spaces.Text, path: str, error: type[DataError] = ObservationError, _allocate: Allocate = np.empty
) -> Recorder:
    return _object_recorder(path, error, str)


@make_recorder.register(gym_spaces.Box)
@make_recorder.register(gym_spaces.MultiDiscrete)
@make_recorder.register(gym_spaces.MultiBinary)
def _(space: AnySpace, path: str, error: type[DataError] = ObservationError, allocate: Allocate = np.empty) -> Recorder:
    leaf = _Leaf(space, path, error)
    return _small_recorder(leaf) if leaf.row_bytes <= _SMALL_BYTES else _LargeRows(leaf, allocate).recorder()


def _small_recorder(leaf: _Leaf) -> Recorder:
    """Rows as bytes: making those takes a third of the time that NumPy takes to assign a small row."""
    shape, dtype, convert, cast, ndarray = leaf.shape, leaf.dtype, leaf.convert, leaf.cast, np.ndarray
    rows: list[bytes] = []
    append = rows.append

    def record(value: Any) -> None:
        if value.__class__ is not ndarray or value.shape != shape:
            value = convert(value)
        # What is made from an unpickled array has an equal dtype, and not the same object.
        elif value.dtype is not dtype and value.dtype != dtype:
            value = cast(value)
        append(value.tobytes())

    def truncate(length: int) -> None:
        del rows[length:]

    def view(start: int, stop: int) -> Array:
        return _joined(leaf, rows[start:stop], start)

    return Recorder(record, truncate, view, rows.__len__, encoded=rows, dtype=dtype, shape=shape)


def _joined(leaf: _Leaf, rows: list[bytes], first: int) -> Array:
    """Make an array of encoded rows, of which the first is row number `first`."""
    # A bytearray, because arrays over bytes cannot be written to.
    joined = bytearray().join(rows)
    # Sizes that make up for each other would pass, unlike everything else; a look at each size costs as much again
    # as all that is done here.
    if len(joined) != len(rows) * leaf.row_bytes:
        for number, row in enumerate(rows, first):
            if len(row) != leaf.row_bytes:
                _convert_row(leaf, number, np.frombuffer(row, leaf.dtype))
    return np.ndarray((len(rows), *leaf.shape), leaf.dtype, joined)


def _convert_row(leaf: _Leaf, row: int, value: Any) -> Array:
    """Convert what was recorded as row number `row`; an error has that number as its attribute `row`."""
    try:
        return leaf.convert(value)
    except DataError as error:
        error.row = row  # type: ignore[attr-defined]
        raise


class _LargeRows:
    """Rows of an array, copied once."""

    def __init__(self, leaf: _Leaf, allocate: Allocate) -> None:
        self._leaf, self._allocate = leaf, allocate
        self._buffer: Array | None = None
        self._capacity = max(_FIRST_BYTES // leaf.row_bytes, _FEWEST_ROWS)
        self._count = 0

    def recorder(self) -> Recorder:
        leaf, ndarray = self._leaf, np.ndarray
        shape, dtype, convert, cast = leaf.shape, leaf.dtype, leaf.convert, leaf.cast

        def record(value: Any) -> None:
            if value.__class__ is not ndarray or value.shape != shape:
                value = convert(value)
            elif value.dtype is not dtype and value.dtype != dtype:
                value = cast(value)
            buffer, count = self._buffer, self._count
            if buffer is None or count == len(buffer):
                buffer = self._make_room()
            buffer[count] = value
            self._count = count + 1

        return Recorder(record, self._truncate, self._view, lambda: self._count, renew=self._renew)

    def _make_room(self) -> Array:
        shorter = self._buffer
        if shorter is not None:
            self._capacity = 2 * len(shorter)
        buffer = self._buffer = self._allocate((self._capacity, *self._leaf.shape), self._leaf.dtype)
        if shorter is not None:
            buffer[: self._count] = shorter[: self._count]
        return buffer

    def _truncate(self, length: int) -> None:
        self._count = min(self._count, length)

    def _view(self, start: int, stop: int) -> Array:
        if self._buffer is None:
            return np.empty((0, *self._leaf.shape), self._leaf.dtype)
        # Tickets of one sampler are much alike: what this one took is a good guess for the next.
        self._capacity = max(self._count, 1)
        return self._buffer[start : min(stop, self._count)]

    def _renew(self) -> None:
        if self._allocate is not np.empty:
            self._buffer = None  # it may be on its way to the sampler


@make_recorder.register
def _(
    space: gym_spaces.Discrete, path: str, error: type[DataError] = ObservationError, _allocate: Allocate = np.empty
) -> Recorder:
    leaf = _Leaf(space, path, error)
    dtype, convert = leaf.dtype, leaf.convert
    code = "Q" if dtype.kind == "u" else "q"
    rows: list[int] = []
    append = rows.append

    def record_int64(value: Any) -> None:
        try:
            # Takes what can be an index, which is every integer and nothing else.
            number = operator.index(value)
        except TypeError:
            number = convert(value).item()
        append(number if -(1 << 63) <= number < 1 << 63 else convert(number).item())

    def truncate(length: int) -> None:
        del rows[length:]

    def view(start: int, stop: int) -> Array:
        kept = rows[start:stop]
        try:
            # A third of the time that `np.array` takes.
            packed = bytearray(struct.pack(f"{len(kept)}{code}", *kept))
        except struct.error:
            found = [_convert_row(leaf, start + number, value) for number, value in enumerate(kept)]
            packed = bytearray(np.array(found, code))
        return np.ndarray((len(kept),), code, packed).astype(dtype, copy=False)

    if dtype == np.int64:
        return Recorder(record_int64, truncate, view, rows.__len__, integers=rows)
    return Recorder(lambda value: append(convert(value).item()), truncate, view, rows.__len__)


@make_recorder.register
def _(
    space: gym_spaces.Dict, path: str, error: type[DataError] = ObservationError, allocate: Allocate = np.empty
) -> Recorder:
    children = {key: make_recorder(child, f"{path}[{key!r}]", error, allocate) for key, child in space.spaces.items()}
    records = [(key, child.record) for key, child in children.items()]
    n_keys = len(records)

    def record(value: Any) -> None:
        if (value.__class__ is not dict and not isinstance(value, Mapping)) or len(value) != n_keys:
            raise misfit(value, space, path, error)
        for key, record_child in records:
            if key not in value:
                raise misfit(value, space, path, error)
            record_child(value[key])

    return Recorder(
        record,
        lambda length: _truncate_all(children.values(), length),
        lambda start, stop: {key: child.view(start, stop) for key, child in children.items()},
        lambda: max((child.count() for child in children.values()), default=0),
        renew=lambda: _renew_all(children.values()),
    )


@make_recorder.register(gym_spaces.Tuple)
def _(space: AnyTuple, path: str, error: type[DataError] = ObservationError, allocate: Allocate = np.empty) -> Recorder:
    children = [make_recorder(child, f"{path}[{i}]", error, allocate) for i, child in enumerate(space.spaces)]
    records = [child.record for child in children]
    n_children = len(records)

    def record(value: Any) -> None:
        parts = value if value.__class__ is tuple else _as_tuple(value)
        if parts is None or len(parts) != n_children:
            raise misfit(value, space, path, error)
        for record_child, part in zip(records, parts, strict=True):
            record_child(part)

    return Recorder(
        record,
        lambda length: _truncate_all(children, length),
        lambda start, stop: tuple(child.view(start, stop) for child in children),
        lambda: max((child.count() for child in children), default=0),
        renew=lambda: _renew_all(children),
    )


class _Leaf:
    """How one leaf's rows look, and the slow way to make one."""

    def __init__(self, space: AnySpace, path: str, error: type[DataError]) -> None:
        self.shape, self.dtype = row_spec(space)
        self.row_bytes = self.dtype.itemsize * math.prod(self.shape)
        self.path, self.error = path, error

    def convert(self, value: Any) -> Array:
        """Make a row of a value that is not one yet: a list, a number, an array of another dtype."""
        try:
            row = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as reason:
            raise self.error(
                f"{self.path} is no array of shape {self.shape}: {reason}; it is {short(value)}"
            ) from reason
        if row.dtype.kind not in "biufc":
            raise self.error(f"{self.path} should be numbers of {self.dtype}, and is {short(value)}")
        if row.shape != self.shape:
            raise self.error(f"{self.path} has the shape {row.shape}, and its space has the shape {self.shape}")
        if not _fits(row, self.dtype):
            raise self.error(
                f"{self.path} has the dtype {row.dtype}, its space has {self.dtype}, "
                f"and the one does not go into the other without loss: {short(value)}"
            )
        with np.errstate(over="ignore"):
            return row.astype(self.dtype)

    def cast(self, value: Array) -> Array:
        """Make a row of an array of its shape and of another dtype."""
        if value.dtype.kind == "f" == self.dtype.kind:
            # `errstate`, which `convert` needs, takes 2 µs: ten times as long as the cast.
            try:
                return value.astype(self.dtype)
            except (RuntimeWarning, FloatingPointError):
                pass  # where those are errors; infinity is as good a row as any
        return self.convert(value)


def _fits(row: Array, dtype: np.dtype[Any]) -> bool:
    if row.dtype.kind == "f" == dtype.kind:
        return True
    if row.size == 0 or np.can_cast(row.dtype, dtype, "safe"):
        return True
    if row.dtype.kind in "biu":
        if dtype.kind in "biu":
            lowest, highest = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
            return lowest <= int(row.min()) and int(row.max()) <= highest
        return True
    return np.can_cast(row.dtype, dtype, "same_kind")


def _object_recorder(path: str, error: type[DataError], kind: type | None) -> Recorder:
    values: list[Any] = []

    def record(value: Any) -> None:
        if kind is not None and not isinstance(value, kind):
            raise error(f"{path} should be a {kind.__name__}, and is {short(value)}")
        values.append(snapshot(value))

    def truncate(length: int) -> None:
        del values[length:]

    return Recorder(record, truncate, lambda start, stop: object_array(values[start:stop]), lambda: len(values))


def _as_tuple(value: Any) -> tuple[Any, ...] | None:
    # An array stands for the tuple of its rows: environments of several discrete parts hand out such.
    is_sequence = isinstance(value, (tuple, list)) or (isinstance(value, np.ndarray) and value.ndim > 0)
    return tuple(value) if is_sequence else None


def _truncate_all(recorders: Iterable[Recorder], length: int) -> None:
    for recorder in recorders:
        recorder.truncate(length)


def _renew_all(recorders: Iterable[Recorder]) -> None:
    for recorder in recorders:
        recorder.renew()


def empty(space: AnySpace) -> Tree:
    """The structure of a space with no rows."""
    return make_recorder(space, "").view(0, 0)
