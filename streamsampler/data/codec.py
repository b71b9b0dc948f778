"""Encode values as JSON, exactly: decoded values have the same types and the same bits."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import GraphInstance

from streamsampler.core.errors import StorageError

# None, booleans, integers, finite floats, strings and lists are encoded as themselves, every other value as an object
# with its kind under the key `$`.
_AS_THEY_ARE = frozenset((type(None), bool, int, str))


def _refuse(value: Any, path: str) -> Any:
    raise StorageError(
        f"{path} holds a {type(value).__module__}.{type(value).__qualname__}: only numbers, strings, "
        f"arrays of them, and lists, tuples and dicts can be written to a file"
    )


def encode(value: Any, path: str, other: Callable[[Any, str], Any] = _refuse) -> Any:
    """Encode numbers, strings, bytes, None, NumPy's scalars and arrays, Gymnasium's graphs, lists, tuples and dicts.

    Args:
        value: The value.
        path: Its name in errors.
        other: Encodes values of other types; the default raises a `StorageError`.
    """
    kind = type(value)
    if kind in _AS_THEY_ARE or (kind is float and math.isfinite(value)):
        return value
    if kind is float:
        return {"$": "float", "bits": struct.pack(">d", value).hex()}
    if kind is bytes:
        return {"$": "bytes", "base64": _base64(value)}
    if kind is list or kind is tuple:
        items = [encode(item, f"{path}[{position}]", other) for position, item in enumerate(value)]
        return items if kind is list else {"$": "tuple", "items": items}
    if kind is dict:
        pairs = [[encode(key, path, other), encode(item, f"{path}[{key!r}]", other)] for key, item in value.items()]
        return {"$": "dict", "items": pairs}
    if kind is GraphInstance:
        parts = [encode(part, f"{path}.{name}", other) for name, part in value._asdict().items()]
        return {"$": "graph", "parts": parts}
    if (kind is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind not in "OV":
        return {
            "$": "array" if kind is np.ndarray else "scalar",
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "base64": _base64(value.tobytes()),
        }
    return other(value, path)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def decode(value: Any, other: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Return the value encoded by `encode`; `other` decodes objects of other kinds. Wrong JSON raises any exception."""
    if type(value) is list:
        return [decode(item, other) for item in value]
    if type(value) is not dict:
        return value
    kind = value["$"]
    if kind in _DECODERS:
        return _DECODERS[kind](value)
    if kind == "dict":
        return {decode(key, other): decode(item, other) for key, item in value["items"]}
    if kind == "tuple":
        return tuple(decode(value["items"], other))
    if other is None:
        raise ValueError(f"unknown kind of values: {kind!r:.80}")
    return other(value)


def _decode_array(value: dict[str, Any]) -> Any:
    flat = np.frombuffer(base64.b64decode(value["base64"]), dtype=np.dtype(value["dtype"]))
    return flat.reshape(value["shape"]).copy()


_DECODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "float": lambda value: struct.unpack(">d", bytes.fromhex(value["bits"]))[0],
    "bytes": lambda value: base64.b64decode(value["base64"]),
    "array": _decode_array,
    "scalar": lambda value: _decode_array(value)[()],
    "graph": lambda value: GraphInstance(*map(decode, value["parts"])),
}
