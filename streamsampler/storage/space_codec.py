"""Gymnasium spaces as JSON, exactly; of other spaces what JSON can hold.

Each is an object whose key `space` names its kind; `storage` describes them.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from functools import singledispatch
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.spaces import Space

from streamsampler.data.opaque import OpaqueSpace, Unwritten
from streamsampler.data.spaces import AnySpace, row_spec
from streamsampler.errors import StorageError
from streamsampler.storage.json_codec import decode, encode

__all__ = ["check_writable", "decode_space", "encode_space"]


@singledispatch
def encode_space(space: AnySpace, path: str) -> Any:
    """Make JSON of a space.

    Of a space that is not Gymnasium's it has the class's name, and the attributes as far as JSON can hold them.
    """
    return {
        "space": "custom",
        "class": _name_of(type(space)),
        "shape": None if space.shape is None else list(space.shape),
        "dtype": None if space.dtype is None else np.dtype(space.dtype).str,
        "attributes": {
            name: _encode_attribute(value, f"{path}.{name}")
            for name, value in vars(space).items()
            if name not in _OF_EVERY_SPACE
        },
    }


_OF_EVERY_SPACE = ("_shape", "dtype", "_np_random")
_DEEPEST = 50


def _encode_attribute(value: Any, path: str, depth: int = 0) -> Any:
    """Make JSON of what a space has; what cannot be written becomes its name."""
    if isinstance(value, Space):
        return {"$": "space", "description": encode_space(value, path)}
    if depth < _DEEPEST and type(value) in (list, tuple):
        items = [_encode_attribute(item, f"{path}[{position}]", depth + 1) for position, item in enumerate(value)]
        return items if type(value) is list else {"$": "tuple", "items": items}
    try:
        if depth < _DEEPEST and type(value) is dict:
            pairs = [(encode(key, path), item) for key, item in value.items()]
            return {"$": "dict", "items": [[key, _encode_attribute(item, path, depth + 1)] for key, item in pairs]}
        return encode(value, path)
    except (StorageError, RecursionError):
        named = value if callable(value) and hasattr(value, "__qualname__") else None
        return {"$": "unwritten", "type": _name_of(type(value)), "name": None if named is None else _name_of(named)}


def _name_of(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def check_writable(space: AnySpace, path: str) -> None:
    """Check that values of a space can be written, by some that it samples, before there are any.

    Args:
        space: The space; its own generator stays as it is.
        path: What it is called in errors.

    Raises:
        StorageError: They cannot be written; names the part of the space.
    """
    encode_space(space, path)
    for where, leaf in _leaves(space, path):
        if row_spec(leaf)[1].hasobject:
            try:
                value = copy.deepcopy(leaf).sample()
            except Exception:  # noqa: S112 - a space that cannot sample may have values that can be written
                continue
            encode(value, where)


def _leaves(space: AnySpace, path: str) -> Iterator[tuple[str, AnySpace]]:
    if isinstance(space, gym_spaces.Dict):
        for key, child in space.spaces.items():
            yield from _leaves(child, f"{path}[{key!r}]")
    elif isinstance(space, gym_spaces.Tuple):
        for position, child in enumerate(space.spaces):
            yield from _leaves(child, f"{path}[{position}]")
    else:
        yield path, space


@encode_space.register
def _(space: gym_spaces.Box, path: str) -> Any:
    return {"space": "Box", "low": encode(space.low, path), "high": encode(space.high, path)}


@encode_space.register
def _(space: gym_spaces.Discrete, _path: str) -> Any:
    return {"space": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": np.dtype(space.dtype).str}


@encode_space.register
def _(space: gym_spaces.MultiDiscrete, path: str) -> Any:
    arrays = {"nvec": encode(space.nvec, path), "start": encode(space.start, path)}
    return {"space": "MultiDiscrete", **arrays, "dtype": np.dtype(space.dtype).str}


@encode_space.register
def _(space: gym_spaces.MultiBinary, _path: str) -> Any:
    return {"space": "MultiBinary", "n": np.array(space.n).tolist()}


@encode_space.register
def _(space: gym_spaces.Text, _path: str) -> Any:
    return {"space": "Text", "lengths": [space.min_length, space.max_length], "characters": space.characters}


@encode_space.register
def _(space: gym_spaces.Dict, path: str) -> Any:
    children = [[encode(key, path), encode_space(child, f"{path}[{key!r}]")] for key, child in space.spaces.items()]
    return {"space": "Dict", "spaces": children}


@encode_space.register(gym_spaces.Tuple)
def _(space: Any, path: str) -> Any:
    return {"space": "Tuple", "spaces": [encode_space(part, f"{path}[{i}]") for i, part in enumerate(space.spaces)]}


@encode_space.register
def _(space: gym_spaces.Sequence, path: str) -> Any:
    return {"space": "Sequence", "of": encode_space(space.feature_space, path), "stack": bool(space.stack)}


@encode_space.register
def _(space: gym_spaces.Graph, path: str) -> Any:
    edges = None if space.edge_space is None else encode_space(space.edge_space, path)
    return {"space": "Graph", "nodes": encode_space(space.node_space, path), "edges": edges}


@encode_space.register(gym_spaces.OneOf)
def _(space: Any, path: str) -> Any:
    return {"space": "OneOf", "spaces": [encode_space(part, f"{path}[{i}]") for i, part in enumerate(space.spaces)]}


@encode_space.register
def _(space: OpaqueSpace, _path: str) -> Any:
    return space.record


def decode_space(value: dict[str, Any]) -> AnySpace:
    """The space that `encode_space` made this of.

    A space that is not Gymnasium's is one of its own class where this process has imported that and the JSON has all
    that the space had; else it is an `OpaqueSpace`. Nothing is imported.
    """
    return _SPACE_DECODERS[value["space"]](value)


def _decode_box(value: dict[str, Any]) -> AnySpace:
    low, high = decode(value["low"]), decode(value["high"])
    return gym_spaces.Box(low, high, low.shape, low.dtype.type)


def _decode_text(value: dict[str, Any]) -> AnySpace:
    shortest, longest = value["lengths"]
    return gym_spaces.Text(longest, min_length=shortest, charset=value["characters"])


def _decode_discrete(value: dict[str, Any]) -> AnySpace:
    # Early releases of Gymnasium 1 have no such argument, and no other dtype.
    dtype = {} if np.dtype(value["dtype"]) == np.int64 else {"dtype": np.dtype(value["dtype"]).type}
    return gym_spaces.Discrete(value["n"], start=value["start"], **dtype)


def _decode_multi_discrete(value: dict[str, Any]) -> AnySpace:
    return gym_spaces.MultiDiscrete(decode(value["nvec"]), np.dtype(value["dtype"]).type, start=decode(value["start"]))


def _decode_graph(value: dict[str, Any]) -> AnySpace:
    edges = None if value["edges"] is None else decode_space(value["edges"])
    return gym_spaces.Graph(decode_space(value["nodes"]), edges)


def _decode_custom(value: dict[str, Any]) -> AnySpace:
    attributes = {name: _decode_attribute(item) for name, item in value["attributes"].items()}
    opaque = OpaqueSpace(value, attributes)
    kind = _imported(opaque.class_name)
    if kind is None:
        return opaque
    space: AnySpace = object.__new__(kind)
    vars(space).update(_shape=opaque.shape, dtype=opaque.dtype, _np_random=None, **attributes)
    try:
        return space if encode_space(space, "") == value else opaque
    except Exception:  # its class has changed since
        return opaque


def _imported(class_name: str) -> type[AnySpace] | None:
    """Return a space's class if it is there, without importing anything."""
    parts = class_name.split(".")
    for n in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:n]))
        for name in parts[n:]:
            found = vars(found).get(name) if isinstance(found, type | ModuleType) else None
        if isinstance(found, type) and issubclass(found, Space):
            return found
    return None


def _decode_attribute(value: Any) -> Any:
    """The value that `_encode_attribute` made this of."""
    if type(value) is list:
        return [_decode_attribute(item) for item in value]
    match value:
        case {"$": "space", "description": description}:
            return decode_space(description)
        case {"$": "unwritten", "type": kind, "name": name}:
            return Unwritten(kind, name)
        case {"$": "tuple", "items": items}:
            return tuple(_decode_attribute(item) for item in items)
        case {"$": "dict", "items": items}:
            return {decode(key): _decode_attribute(item) for key, item in items}
    return decode(value)


_SPACE_DECODERS: dict[str, Callable[[dict[str, Any]], AnySpace]] = {
    "Box": _decode_box,
    "Discrete": _decode_discrete,
    "MultiDiscrete": _decode_multi_discrete,
    "MultiBinary": lambda value: gym_spaces.MultiBinary(value["n"]),
    "Text": _decode_text,
    "Dict": lambda value: gym_spaces.Dict([(decode(key), decode_space(child)) for key, child in value["spaces"]]),
    "Tuple": lambda value: gym_spaces.Tuple([decode_space(child) for child in value["spaces"]]),
    "Sequence": lambda value: gym_spaces.Sequence(decode_space(value["of"]), stack=value["stack"]),
    "Graph": _decode_graph,
    "OneOf": lambda value: gym_spaces.OneOf([decode_space(child) for child in value["spaces"]]),
    "custom": _decode_custom,
}
