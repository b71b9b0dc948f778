"""Tell values apart by a number: arrays, and objects of any kind, also those that came through a pickle."""

from __future__ import annotations

import re
import struct
import types
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

_Within: TypeAlias = tuple[int, ...]
"""The ids of the values that one is part of: it may hold them itself."""


def digest(value: Any, so_far: int = 0) -> int:
    """Return a number that is another one if a value is another one, as `trees.same` compares them.

    Instances of other classes than Python's and NumPy's are told apart by what a pickle of them would hold.

    Args:
        value: The value. Of an array its bytes count, of what holds arrays their dtypes and shapes, too.
        so_far: The digest of the values before this one, which the result covers, too.
    """
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return zlib.crc32(np.ascontiguousarray(value), so_far)  # type: ignore[arg-type]
    return _of_any(value, so_far, ())


def _of_any(value: Any, so_far: int, within: _Within) -> int:
    so_far = zlib.crc32(type(value).__qualname__.encode(), so_far)
    if id(value) in within:
        return so_far
    for kind, function in _BY_KIND:
        if isinstance(value, kind):
            return function(value, so_far, (*within, id(value)))
    return _of_instance(value, so_far, (*within, id(value)))


def _of_array(array: Any, so_far: int, within: _Within) -> int:
    so_far = zlib.crc32(f"{array.dtype.str}{array.shape}".encode(), so_far)
    if array.dtype.hasobject:
        return _of_sequence(array.ravel().tolist(), so_far, within)
    return zlib.crc32(np.ascontiguousarray(array), so_far)  # type: ignore[arg-type]


def _of_float(value: float, so_far: int, _: _Within) -> int:
    return zlib.crc32(struct.pack("<d", value), so_far)


def _of_sequence(values: Any, so_far: int, within: _Within) -> int:
    for value in values:
        so_far = _of_any(value, so_far, within)
    return zlib.crc32(b"%d" % len(values), so_far)


def _of_mapping(values: Any, so_far: int, within: _Within) -> int:
    """Return the digest of pairs, whatever their order."""
    pairs = (_of_any(value, _of_any(key, 0, within), within) for key, value in values.items())
    return zlib.crc32(b"%d" % sum(pairs), so_far)


def _of_set(values: Any, so_far: int, within: _Within) -> int:
    return zlib.crc32(b"%d" % sum(_of_any(value, 0, within) for value in values), so_far)


def _of_name(value: Any, so_far: int, _: _Within) -> int:
    return zlib.crc32(f"{value.__module__}.{value.__qualname__}".encode(), so_far)


def _of_words(value: Any, so_far: int, _: _Within = ()) -> int:
    return zlib.crc32(repr(value).encode(errors="replace"), so_far)


_PLACE = re.compile(" at 0x[0-9a-f]+", re.IGNORECASE)


def _of_instance(value: Any, so_far: int, within: _Within) -> int:
    try:
        parts = value.__reduce_ex__(4)
        if not isinstance(parts, tuple):
            return zlib.crc32(str(parts).encode(), so_far)  # its name
        # After what makes an instance: its arguments, its state, the items of a list, those of a dict.
        arguments, state, items, pairs = (*parts[1:5], None, None, None)[:4]
        held = arguments, state, None if items is None else list(items), None if pairs is None else dict(pairs)
    except Exception:  # anything: it is user code
        # Without the place in memory that Python writes for objects that say nothing of themselves.
        return zlib.crc32(_PLACE.sub("", repr(value)).encode(errors="replace"), so_far)
    return _of_sequence(held, so_far, within)


_BY_KIND: tuple[tuple[type | tuple[type, ...], Callable[[Any, int, _Within], int]], ...] = (
    ((np.ndarray, np.generic), _of_array),
    ((str, bytes, int, complex, type(None)), _of_words),
    (float, _of_float),
    ((list, tuple), _of_sequence),
    (Mapping, _of_mapping),
    ((set, frozenset), _of_set),
    ((type, types.FunctionType, types.BuiltinFunctionType), _of_name),
)
