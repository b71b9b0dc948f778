"""Python values as JSON, exactly: what comes back is the same, type for type and bit for bit.

None, booleans, integers, finite floats, strings and lists are themselves; everything else is an object whose key `$`
names its kind.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import GraphInstance

from streamsampler.data.trees import object_array
from streamsampler.errors import StorageError

__all__ = ["decode", "encode"]

_AS_THEY_ARE = frozenset((type(None), bool, int, str))


def encode(value: Any, path: str) -> Any:
    """Make JSON of a value.

    Args:
        value: Numbers, strings, bytes, None, NumPy scalars and arrays, Gymnasium's graphs, and lists, tuples, sets and
            dicts of such.
        path: What it is called in errors.

    Raises:
        StorageError: It holds something else.
    """
    if type(value) in _AS_THEY_ARE:
        return value
    encoder = _ENCODERS.get(type(value), _encode_generic if isinstance(value, np.generic) else None)
    if encoder is None:
        raise StorageError(
            f"{path} holds a {type(value).__module__}.{type(value).__qualname__}: only numbers, strings, "
            f"arrays, and lists, tuples, sets and dicts of them can be written to a file"
        )
    return encoder(value, path)


def decode(value: Any) -> Any:
    """The value that `encode` made this of."""
    if type(value) is list:
        return [decode(item) for item in value]
    return _DECODERS[value["$"]](value) if type(value) is dict else value


def _encode_float(value: float, _path: str) -> Any:
    return value if math.isfinite(value) else {"$": "float", "bits": struct.pack(">d", value).hex()}


def _encode_complex(value: complex, path: str) -> Any:
    return {"$": "complex", "parts": [_encode_float(value.real, path), _encode_float(value.imag, path)]}


def _encode_bytes(value: bytes, _path: str) -> Any:
    return {"$": "bytes", "base64": base64.b64encode(value).decode("ascii")}


def _encode_items(value: Any, path: str) -> list[Any]:
    return [encode(item, f"{path}[{position}]") for position, item in enumerate(value)]


def _encode_unordered(value: Any, path: str) -> list[Any]:
    # Strings hash differently in each process, and equal batches are to make equal files.
    return sorted(_encode_items(value, path), key=json.dumps)


def _encode_dict(value: dict[Any, Any], path: str) -> Any:
    return {
        "$": "dict",
        "items": [[encode(key, path), encode(item, f"{path}[{key!r}]")] for key, item in value.items()],
    }


def _encode_array(value: Any, path: str) -> Any:
    if value.dtype == object:
        return {"$": "objects", "shape": list(value.shape), "items": _encode_items(value.ravel().tolist(), path)}
    if value.dtype.kind == "V":
        raise StorageError(f"{path} holds an array of {value.dtype}, which cannot be written to a file")
    data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
    return {"$": "array", "dtype": value.dtype.str, "shape": list(value.shape), "base64": data}


def _encode_generic(value: Any, path: str) -> Any:
    return _encode_array(np.asarray(value), path) | {"$": "scalar"}


def _encode_graph(value: Any, path: str) -> Any:
    return {"$": "graph", "parts": [encode(part, f"{path}.{name}") for name, part in value._asdict().items()]}


_ENCODERS: dict[type, Callable[[Any, str], Any]] = {
    float: _encode_float,
    complex: _encode_complex,
    bytes: _encode_bytes,
    list: _encode_items,
    tuple: lambda value, path: {"$": "tuple", "items": _encode_items(value, path)},
    set: lambda value, path: {"$": "set", "items": _encode_unordered(value, path)},
    frozenset: lambda value, path: {"$": "frozenset", "items": _encode_unordered(value, path)},
    dict: _encode_dict,
    np.ndarray: _encode_array,
    GraphInstance: _encode_graph,
}


def _decode_array(value: dict[str, Any]) -> Any:
    flat = np.frombuffer(base64.b64decode(value["base64"]), dtype=np.dtype(value["dtype"]))
    return flat.reshape(value["shape"]).copy()


_DECODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "float": lambda value: struct.unpack(">d", bytes.fromhex(value["bits"]))[0],
    "complex": lambda value: complex(*map(decode, value["parts"])),
    "bytes": lambda value: base64.b64decode(value["base64"]),
    "tuple": lambda value: tuple(decode(value["items"])),
    "set": lambda value: set(decode(value["items"])),
    "frozenset": lambda value: frozenset(decode(value["items"])),
    "dict": lambda value: {decode(key): decode(item) for key, item in value["items"]},
    "array": _decode_array,
    "objects": lambda value: object_array(decode(value["items"])).reshape(value["shape"]),
    "scalar": lambda value: _decode_array(value)[()],
    "graph": lambda value: GraphInstance(*map(decode, value["parts"])),
}
