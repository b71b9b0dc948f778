"""Copy values of a space into buffers, one per environment step: observations and actions.

Next to the rollout's own loop this is the hottest code of the package, so a recorder is a few closures over local
variables: for an array that fits, one check of the shape, one of the dtype, and one copy.
"""

from __future__ import annotations

import math
import operator
import struct
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces as gym_spaces

from streamsampler.core.errors import DataError, ObservationError
from streamsampler.data.spaces import AnySpace, AnyTuple, changed, may_change, misfit, row_spec, short
from streamsampler.data.trees import Array, Tree, object_array, snapshot

# ----------------------------------------------------------------------
# Making rows of what is not one yet: lists, numbers, arrays of another dtype.


class Leaf:
    """One leaf of a space: how its rows look, and the slow way to make one.

    Floats are rounded to the space's dtype as NumPy does it. What would become another number altogether is an error:
    an integer, or a float of integral value, that the dtype does not hold; a finite value that would be infinite.

    Args:
        space: The leaf's space.
        path: What its values are called in errors.
        error: What is raised for a value that does not fit.

    Attributes:
        shape: The shape of a row.
        dtype: The dtype of a row.
        row_bytes: The bytes of a row.
    """

    def __init__(self, space: AnySpace, path: str, error: type[DataError]) -> None:
        self.shape, self.dtype = row_spec(space)
        self.row_bytes = self.dtype.itemsize * math.prod(self.shape)
        self._path, self._error = path, error
        # Beyond this a float of this dtype need not be the integer that it was made of.
        self._exact = float(2 ** (np.finfo(self.dtype).nmant + 1)) if self.dtype.kind == "f" else math.inf

    def convert(self, value: Any) -> Array:
        """Make a row of any value.

        Raises:
            DataError: The value has another shape, is no number, or would become another one; says both.
        """
        try:
            row = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as reason:
            raise self._error(
                f"{self._path} is no array of shape {self.shape}: {reason}; it is {short(value)}"
            ) from reason
        if row.dtype.kind not in "biufc":
            raise self._error(f"{self._path} should be numbers of {self.dtype}, and is {short(value)}")
        if row.shape != self.shape:
            raise self._error(f"{self._path} has the shape {row.shape}, and its space has the shape {self.shape}")
        if not _fits(row, self.dtype):
            raise self._error(
                f"{self._path} has the dtype {row.dtype}, its space has {self.dtype}, "
                f"and the one does not go into the other without loss: {short(value)}"
            )
        return self._cast_one(row)

    def takes_floats_of(self, dtype: np.dtype[Any]) -> bool:
        """Whether `cast` and `cast_rows` are all that an array of this dtype and of the right shape needs."""
        return dtype.kind == "f" == self.dtype.kind

    def cast(self, value: Array) -> Array:
        """Make a row of an array of its shape and of another dtype.

        Raises:
            DataError: See `convert`.
        """
        return self._cast_one(value) if self.takes_floats_of(value.dtype) else self.convert(value)

    def _cast_one(self, row: Array) -> Array:
        try:
            made: Array = self.cast_rows(row[np.newaxis])[0]
        except DataError as error:
            error.row = None  # the caller has one row only
            raise
        return made

    def cast_rows(self, values: Array) -> Array:
        """Cast rows of another dtype, whose kind the leaf's dtype takes.

        Args:
            values: (n, ...) of the leaf's shape.

        Returns:
            The same of the leaf's dtype, in memory of its own.

        Raises:
            DataError: A number would become another one; `row` is the position of the first such row.
        """
        with np.errstate(all="ignore"):
            rows = values.astype(self.dtype)
        if not may_change(values.dtype, self.dtype) or not rows.size:
            return rows
        # NaN goes the slow way, too.
        if rows.dtype.kind == "f" and rows.max() < self._exact and rows.min() > -self._exact:
            return rows
        lost = changed(values, self.dtype)
        if lost.any():
            first = np.unravel_index(int(lost.argmax()), lost.shape)
            raise self._error(
                f"{self._path} holds {values[first].item()!r} as {values.dtype}, which would become "
                f"{rows[first].item()!r} in its space's dtype, {self.dtype}",
                row=int(first[0]),
            )
        return rows


def _fits(row: Array, dtype: np.dtype[Any]) -> bool:
    if row.dtype.kind == "f" == dtype.kind or row.size == 0 or np.can_cast(row.dtype, dtype, "safe"):
        return True
    if row.dtype.kind not in "biu":
        return np.can_cast(row.dtype, dtype, "same_kind")
    if dtype.kind not in "biu":
        return True
    lowest, highest = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return lowest <= int(row.min()) and int(row.max()) <= highest


# ----------------------------------------------------------------------


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
        record: Copies one value after the rows so far; raises the recorder's error where it does not fit. The part of
            a nested value that came before the misfit stays recorded: truncate before going on.
        truncate: Rewinds to the first n rows, and keeps the memory for the next ones.
        view: The rows from start to stop, as a tree. Large rows are views, valid until the rows are recorded again.
        count: The number of rows.
        integers: The rows, where they are integers of Python: a loop may append those itself, and nothing else.
        encoded: The rows, where they are kept as bytes: a loop may append `value.tobytes()` itself where
            `value.dtype == dtype` and `value.shape == shape`.
        dtype: The dtype of such rows; where there are none, one that no observation has.
        shape: The shape of such rows.
        renew: Releases memory that is not this recorder's own, with all rows.
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
        """Forget all rows, and keep the memory."""
        self.truncate(0)


def make_recorder(
    space: AnySpace, path: str, error: type[DataError] = ObservationError, allocate: Allocate = np.empty
) -> Recorder:
    """Make a recorder for values of a space.

    Args:
        space: The space. NaN and values outside a Box's bounds are recorded as they are.
        path: What the values are called in errors, such as `observation`.
        error: The class of errors for values that do not fit.
        allocate: Makes an uninitialised array of a shape and dtype, for the rows of large leaves.
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
    """Rows as bytes: making those takes a third of the time that NumPy takes to assign a small row.

    Floats of another dtype are kept as they are, and cast when the rows are looked at: all at once costs a tenth.
    """
    shape, dtype, convert = leaf.shape, leaf.dtype, leaf.convert
    takes_floats_of, ndarray = leaf.takes_floats_of, np.ndarray
    rows: list[bytes] = []
    others = _OtherDtypes()
    append, note = rows.append, others.note

    def record(value: Any) -> None:
        if value.__class__ is not ndarray or value.shape != shape:
            value = convert(value)
        # What is made from an unpickled array has an equal dtype, and not the same object.
        elif value.dtype is not dtype and value.dtype != dtype:
            if takes_floats_of(value.dtype):
                note(len(rows), value.dtype)
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
    """Make an array of encoded rows, of which the first is row number `start`."""
    # A bytearray, because arrays over bytes cannot be written to.
    joined = bytearray().join(rows)
    if len(joined) != len(rows) * leaf.row_bytes:  # a loop appended what it may not
        for number, row in enumerate(rows, start):
            if len(row) != leaf.row_bytes:
                _convert_row(leaf, number, np.frombuffer(row, leaf.dtype))
    return np.ndarray((len(rows), *leaf.shape), leaf.dtype, joined)


class _OtherDtypes:
    """Which of the rows that are kept as bytes are floats of another dtype than their leaf's.

    Attributes:
        numbers: The numbers of those rows, rising.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._dtypes: list[np.dtype[Any]] = []

    def note(self, number: int, dtype: np.dtype[Any]) -> None:
        """Add the row of the highest number so far."""
        self.numbers.append(number)
        self._dtypes.append(dtype)

    def truncate(self, length: int) -> None:
        """Forget the rows from number `length` on."""
        first = bisect_left(self.numbers, length)
        del self.numbers[first:], self._dtypes[first:]

    def cast(self, leaf: Leaf, rows: list[bytes], start: int) -> Array | None:
        """Cast such rows to the leaf's dtype.

        Args:
            leaf: The leaf.
            rows: Some of the rows; those of another dtype are replaced.
            start: The number of the first one.

        Returns:
            All rows, where all are of one other dtype; then none was replaced.

        Raises:
            DataError: A number would become another one; `row` is the number of the first such row.
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
    """From where to where a list holds equal values."""
    first = 0
    for position in range(1, len(values) + 1):
        if position == len(values) or values[position] != values[first]:
            yield first, position
            first = position


def _convert_row(leaf: Leaf, row: int, value: Any) -> Array:
    """Convert what was recorded as row number `row`; an error has that number as `row`."""
    try:
        return leaf.convert(value)
    except DataError as error:
        error.row = row
        raise


class _LargeRows:
    """Rows of an array, copied once."""

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
        # Tickets of one sampler are much alike: what this one took is a good guess for the next.
        self._capacity = max(self._count, 1)
        return self._buffer[start : min(stop, self._count)]

    def _renew(self) -> None:
        if self._allocate is not np.empty:
            self._buffer = None  # it may be on its way to the sampler


def _discrete_recorder(leaf: Leaf) -> Recorder:
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
            raise error(f"{path} should be a {kind.__name__}, and is {short(value)}")
        values.append(snapshot(value))

    def truncate(length: int) -> None:
        del values[length:]

    return Recorder(record, truncate, lambda start, stop: object_array(values[start:stop]), lambda: len(values))


def _as_tuple(value: Any) -> tuple[Any, ...] | None:
    # An array stands for the tuple of its rows: environments of several discrete parts hand out such.
    is_sequence = isinstance(value, (tuple, list)) or (isinstance(value, np.ndarray) and value.ndim > 0)
    return tuple(value) if is_sequence else None


def empty(space: AnySpace) -> Tree:
    """Return the structure of a space with no rows."""
    return make_recorder(space, "").view(0, 0)
