"""Copy values of a space into growing buffers, once per environment step: observations and actions.

After the rollout's own loop this is the package's hottest code, so a recorder is a few closures over local variables:
for an array that fits, a shape check, a dtype check, and a copy.
"""

from __future__ import annotations

import operator
import struct
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces as gym_spaces

from streamsampler.core.errors import DataError, ObservationError
from streamsampler.data.leaf_rows import Leaf
from streamsampler.data.spaces import AnySpace, AnyTuple, misfit, short
from streamsampler.data.trees import Array, Tree, object_array, snapshot

Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], Array]

# The first size of a buffer of large rows; `np.empty` touches no memory before it is written.
_FIRST_BYTES = 1 << 20
_FEWEST_ROWS = 16
_SMALL_BYTES = 4096
# Equals no observation's dtype. None would not do: NumPy treats it as float64.
_NO_DTYPE = np.dtype("V")


@dataclass(frozen=True, slots=True)
class Recorder:
    """Growing rows of a space.

    Attributes:
        record: Appends a copy of a value; raises the recorder's error if it does not fit. Of a nested value the parts
            before the misfit remain recorded: truncate before continuing.
        truncate: Discards all rows after the first n, and keeps the memory.
        view: Returns the rows from start to stop as a tree. Large rows are views, valid until they are overwritten.
        count: Returns the number of rows.
        integers: The rows if they are Python integers: a loop may append such itself.
        encoded: The rows if they are bytes: a loop may append `value.tobytes()` itself if `value.dtype == dtype` and
            `value.shape == shape`.
        dtype: The dtype for `encoded`; otherwise no observation has it.
        shape: The shape for `encoded`.
        renew: Releases borrowed memory, with all rows.
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

    def clear(self) -> None:
        self.truncate(0)


def make_recorder(
    space: AnySpace, path: str, error: type[DataError] = ObservationError, allocate: Allocate = np.empty
) -> Recorder:
    """Make a recorder for values of a space; NaN and values outside a Box's bounds are recorded unchanged.

    Args:
        space: The space.
        path: The values' name in errors, such as `observation`.
        error: The class of errors for values that do not fit.
        allocate: Makes an uninitialised array for the rows of large leaves.
    """
    match space:
        case gym_spaces.Dict():
            return _dict_recorder(space, path, error, allocate)
        case gym_spaces.Tuple():
            return _tuple_recorder(space, path, error, allocate)
        case gym_spaces.Text():
            return _object_recorder(path, error, str)
    leaf = Leaf(space, path, error)
    if leaf.dtype.hasobject:
        return _object_recorder(path, error, None)
    if isinstance(space, gym_spaces.Discrete):
        return _discrete_recorder(leaf)
    return _small_recorder(leaf) if leaf.row_bytes <= _SMALL_BYTES else _LargeRows(leaf, allocate).recorder()


def _small_recorder(leaf: Leaf) -> Recorder:
    """Store rows as bytes, which takes a third of the time of assigning a small row in NumPy.

    Floats of another dtype are stored unchanged and cast in `view`: all at once, at a tenth of the cost.
    """
    shape, dtype, convert = leaf.shape, leaf.dtype, leaf.convert
    takes_floats_of, ndarray = leaf.takes_floats_of, np.ndarray
    rows: list[bytes] = []
    others = _OtherDtypes()
    append, add_dtype = rows.append, others.add

    def record(value: Any) -> None:
        if value.__class__ is not ndarray or value.shape != shape:
            value = convert(value)
        # Arrays made from unpickled arrays have an equal dtype, but not the same object.
        elif value.dtype is not dtype and value.dtype != dtype:
            if takes_floats_of(value.dtype):
                add_dtype(len(rows), value.dtype)
            else:
                value = convert(value)
        append(value.tobytes())

    def truncate(length: int) -> None:
        del rows[length:]
        others.truncate(length)

    def view(start: int, stop: int) -> Array:
        kept = rows[start:stop]
        if others.numbers and (all_cast := others.cast(leaf, kept, start)) is not None:
            return all_cast
        return _joined(leaf, kept, start)

    return Recorder(record, truncate, view, rows.__len__, encoded=rows, dtype=dtype, shape=shape)


def _joined(leaf: Leaf, rows: list[bytes], start: int) -> Array:
    # A bytearray, because arrays over bytes are read-only.
    joined = bytearray().join(rows)
    if len(joined) != len(rows) * leaf.row_bytes:  # a loop appended a value of another size
        for number, row in enumerate(rows, start):
            if len(row) != leaf.row_bytes:
                _convert_row(leaf, number, np.frombuffer(row, leaf.dtype))
    return np.ndarray((len(rows), *leaf.shape), leaf.dtype, joined)


class _OtherDtypes:
    """The rising numbers and the dtypes of encoded floats of another dtype than their leaf's."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._dtypes: list[np.dtype[Any]] = []

    def add(self, number: int, dtype: np.dtype[Any]) -> None:
        self.numbers.append(number)
        self._dtypes.append(dtype)

    def truncate(self, length: int) -> None:
        first = bisect_left(self.numbers, length)
        del self.numbers[first:], self._dtypes[first:]

    def cast(self, leaf: Leaf, rows: list[bytes], start: int) -> Array | None:
        """Cast such rows to the leaf's dtype; the first of `rows` has number `start`.

        Return all rows, cast at once, if all have the same other dtype; otherwise replace those of another dtype, and
        return None. An error's `row` is the number of the first row that would change.
        """
        bounds = bisect_left(self.numbers, start), bisect_left(self.numbers, start + len(rows))
        positions = [number - start for number in self.numbers[slice(*bounds)]]
        dtypes = self._dtypes[slice(*bounds)]
        for first, last in _runs(dtypes):
            of_one = positions[first:last]
            joined = b"".join([rows[position] for position in of_one])
            try:
                made = leaf.cast_rows(np.ndarray((len(of_one), *leaf.shape), dtypes[first], joined))
            except DataError as error:
                error.row = start + of_one[error.row or 0]
                raise
            if len(of_one) == len(rows):
                return made
            for position, row in zip(of_one, made, strict=True):
                rows[position] = row.tobytes()
        return None


def _runs(values: list[Any]) -> Iterator[tuple[int, int]]:
    first = 0
    for position in range(1, len(values) + 1):
        if position == len(values) or values[position] != values[first]:
            yield first, position
            first = position


def _convert_row(leaf: Leaf, row: int, value: Any) -> Array:
    """Convert a recorded value; an error has its number as `row`."""
    try:
        return leaf.convert(value)
    except DataError as error:
        error.row = row
        raise


class _LargeRows:
    """Rows of a large array, each copied once."""

    def __init__(self, leaf: Leaf, allocate: Allocate) -> None:
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
        # Tickets of a sampler are alike: this ticket's size is a good guess for the next.
        self._capacity = max(self._count, 1)
        return self._buffer[start : min(stop, self._count)]

    def _renew(self) -> None:
        if self._allocate is not np.empty:
            self._buffer = None  # the sampler may still be reading it


def _discrete_recorder(leaf: Leaf) -> Recorder:
    dtype, convert = leaf.dtype, leaf.convert
    code = "Q" if dtype.kind == "u" else "q"
    rows: list[int] = []
    append = rows.append

    def record_int64(value: Any) -> None:
        try:
            # Accepts whatever can be an index: all integers, and nothing else.
            number = operator.index(value)
        except TypeError:
            number = convert(value).item()
        append(number if -(1 << 63) <= number < 1 << 63 else convert(number).item())

    def truncate(length: int) -> None:
        del rows[length:]

    def view(start: int, stop: int) -> Array:
        kept = rows[start:stop]
        try:
            # Takes a third of the time of `np.array`.
            packed = bytearray(struct.pack(f"{len(kept)}{code}", *kept))
        except struct.error:
            found = [_convert_row(leaf, start + number, value) for number, value in enumerate(kept)]
            packed = bytearray(np.array(found, code))
        return np.ndarray((len(kept),), code, packed).astype(dtype, copy=False)

    if dtype == np.int64:
        return Recorder(record_int64, truncate, view, rows.__len__, integers=rows)
    return Recorder(lambda value: append(convert(value).item()), truncate, view, rows.__len__)


def _dict_recorder(space: gym_spaces.Dict, path: str, error: type[DataError], allocate: Allocate) -> Recorder:
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

    return _nested_recorder(
        children.values(), record, lambda start, stop: {key: child.view(start, stop) for key, child in children.items()}
    )


def _tuple_recorder(space: AnyTuple, path: str, error: type[DataError], allocate: Allocate) -> Recorder:
    children = [make_recorder(child, f"{path}[{i}]", error, allocate) for i, child in enumerate(space.spaces)]
    records = [child.record for child in children]
    n_children = len(records)

    def record(value: Any) -> None:
        parts = value if value.__class__ is tuple else _as_tuple(value)
        if parts is None or len(parts) != n_children:
            raise misfit(value, space, path, error)
        for record_child, part in zip(records, parts, strict=True):
            record_child(part)

    return _nested_recorder(children, record, lambda start, stop: tuple(child.view(start, stop) for child in children))


def _nested_recorder(
    children: Collection[Recorder], record: Callable[[Any], None], view: Callable[[int, int], Tree]
) -> Recorder:
    def truncate(length: int) -> None:
        for child in children:
            child.truncate(length)

    def renew() -> None:
        for child in children:
            child.renew()

    return Recorder(record, truncate, view, lambda: max((it.count() for it in children), default=0), renew=renew)


def _object_recorder(path: str, error: type[DataError], kind: type | None) -> Recorder:
    values: list[Any] = []

    def record(value: Any) -> None:
        if kind is not None and not isinstance(value, kind):
            raise error(f"{path} should be a {kind.__name__}, not {short(value)}")
        values.append(snapshot(value))

    def truncate(length: int) -> None:
        del values[length:]

    return Recorder(record, truncate, lambda start, stop: object_array(values[start:stop]), lambda: len(values))


def _as_tuple(value: Any) -> tuple[Any, ...] | None:
    # An array stands for the tuple of its rows: environments with several discrete parts return such.
    is_sequence = isinstance(value, (tuple, list)) or (isinstance(value, np.ndarray) and value.ndim > 0)
    return tuple(value) if is_sequence else None


def empty(space: AnySpace) -> Tree:
    return make_recorder(space, "").view(0, 0)
