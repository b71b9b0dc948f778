"""Digests of arrays and of any objects, stable across pickling."""

from __future__ import annotations

import re
import struct
import types
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

_Within: TypeAlias = tuple[int, ...]
"""The ids of the enclosing values, against infinite recursion."""


def digest(value: Any, so_far: int = 0) -> int:
    """Return a number that differs if a value differs, as `trees.same` compares; `so_far` covers earlier values.

    Instances of user classes are compared by their pickle's contents. An array counts by its bytes; inside a container
    also by dtype and shape.
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
            return zlib.crc32(str(parts).encode(), so_far)  # a global's name
        # After the constructor: its arguments, the state, a list's items, a dict's items.
        arguments, state, items, pairs = (*parts[1:5], None, None, None)[:4]
        held = arguments, state, None if items is None else list(items), None if pairs is None else dict(pairs)
    except Exception:  # user code may raise anything
        # Without the memory address in the default `repr`.
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
