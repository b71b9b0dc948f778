"""Encode Gymnasium's spaces as JSON, exactly, and of other spaces what JSON can hold.

Each space is an object whose key `space` names its kind; `storage.npz` describes them.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.spaces import Space

from streamsampler.data.opaque import OpaqueSpace, Unwritten
from streamsampler.data.spaces import AnySpace, row_spec
from streamsampler.storage.json_codec import decode, encode

__all__ = ["check_writable", "decode_space", "encode_space"]


def encode_space(space: AnySpace, path: str) -> Any:
    """Encode a space as JSON.

    Of a space that is not Gymnasium's, encode the class's name, and the attributes as far as JSON can hold them.

    Args:
        space: The space.
        path: The space's name in errors.

    Raises:
        StorageError: The space is Gymnasium's, and part of it cannot be encoded.
    """
    if isinstance(space, OpaqueSpace):
        return space.record
    for kind, (cls, fields, _) in _KINDS.items():
        if isinstance(space, cls):
            parts = {name: codec.encode(attrgetter(*of.split())(space), path) for name, (of, codec) in fields.items()}
            return {"space": kind, **parts}
    return {
        "space": "custom",
        "class": _name_of(type(space)),
        "shape": None if space.shape is None else list(space.shape),
        "dtype": None if space.dtype is None else np.dtype(space.dtype).str,
        "attributes": {
            name: _encode_attribute(value, f"{path}.{name}")
            for name, value in vars(space).items()
            if name not in ("_shape", "dtype", "_np_random")
        },
    }


def decode_space(value: dict[str, Any]) -> AnySpace:
    """Return the space that `encode_space` encoded.

    A space that is not Gymnasium's becomes one of its own class if this process has imported that class and the JSON
    has all of the space's attributes, else an `OpaqueSpace`. Nothing is imported.

    Raises:
        Exception: The JSON is none that `encode_space` returns.
    """
    if value["space"] == "custom":
        return _decode_custom(value)
    _, fields, make = _KINDS[value["space"]]
    return make(*(codec.decode(value[name]) for name, (_, codec) in fields.items()))


class _Codec(NamedTuple):
    """How an attribute of a space is encoded, at a path, and decoded."""

    encode: Callable[[Any, str], Any]
    decode: Callable[[Any], Any]


def _encode_pairs(spaces: dict[Any, AnySpace], path: str) -> list[Any]:
    return [[encode(key, path), encode_space(child, f"{path}[{key!r}]")] for key, child in spaces.items()]


def _discrete(n: int, start: int, dtype: np.dtype[Any]) -> AnySpace:
    # Early releases of Gymnasium 1 have no such argument, and no other dtype.
    options: Any = {} if dtype == np.int64 else {"dtype": dtype.type}
    space: AnySpace = gym_spaces.Discrete(n, start=start, **options)
    return space


_VALUE = _Codec(encode, decode)
_INTEGERS = _Codec(lambda value, _: np.array(value).tolist(), lambda value: value)
_PLAIN = _Codec(lambda value, _: value, lambda value: value)
_DTYPE = _Codec(lambda value, _: np.dtype(value).str, np.dtype)
_SPACE = _Codec(
    lambda space, path: None if space is None else encode_space(space, path),
    lambda value: None if value is None else decode_space(value),
)
_SPACES = _Codec(
    lambda spaces, path: [encode_space(space, f"{path}[{position}]") for position, space in enumerate(spaces)],
    lambda values: [decode_space(value) for value in values],
)
_PAIRS = _Codec(_encode_pairs, lambda pairs: [(decode(key), decode_space(child)) for key, child in pairs])

# For each kind its class, the keys of the JSON (each with the attributes that it encodes, and how), and what makes a
# space of the decoded values.
_KINDS: dict[str, tuple[type, dict[str, tuple[str, _Codec]], Callable[..., AnySpace]]] = {
    "Box": (
        gym_spaces.Box,
        {"low": ("low", _VALUE), "high": ("high", _VALUE)},
        lambda low, high: gym_spaces.Box(low, high, low.shape, low.dtype.type),
    ),
    "Discrete": (
        gym_spaces.Discrete,
        {"n": ("n", _INTEGERS), "start": ("start", _INTEGERS), "dtype": ("dtype", _DTYPE)},
        _discrete,
    ),
    "MultiDiscrete": (
        gym_spaces.MultiDiscrete,
        {"nvec": ("nvec", _VALUE), "start": ("start", _VALUE), "dtype": ("dtype", _DTYPE)},
        lambda nvec, start, dtype: gym_spaces.MultiDiscrete(nvec, dtype.type, start=start),
    ),
    "MultiBinary": (gym_spaces.MultiBinary, {"n": ("n", _INTEGERS)}, gym_spaces.MultiBinary),
    "Text": (
        gym_spaces.Text,
        {"lengths": ("min_length max_length", _INTEGERS), "characters": ("characters", _PLAIN)},
        lambda lengths, characters: gym_spaces.Text(lengths[1], min_length=lengths[0], charset=characters),
    ),
    "Dict": (gym_spaces.Dict, {"spaces": ("spaces", _PAIRS)}, gym_spaces.Dict),
    "Tuple": (gym_spaces.Tuple, {"spaces": ("spaces", _SPACES)}, gym_spaces.Tuple),
    "OneOf": (gym_spaces.OneOf, {"spaces": ("spaces", _SPACES)}, gym_spaces.OneOf),
    "Sequence": (
        gym_spaces.Sequence,
        {"of": ("feature_space", _SPACE), "stack": ("stack", _PLAIN)},
        lambda of, stack: gym_spaces.Sequence(of, stack=stack),
    ),
    "Graph": (
        gym_spaces.Graph,
        {"nodes": ("node_space", _SPACE), "edges": ("edge_space", _SPACE)},
        gym_spaces.Graph,
    ),
}


# ---------------------------------------------------------------------- spaces of other classes


def _encode_attribute(value: Any, path: str) -> Any:
    try:
        return encode(value, path, _encode_other)
    except RecursionError:
        return _unwritten(value)


def _encode_other(value: Any, path: str) -> Any:
    if isinstance(value, Space):
        return {"$": "space", "description": encode_space(value, path)}
    return _unwritten(value)


def _unwritten(value: Any) -> Any:
    """Return what stands for a value that JSON cannot hold: its class, and the name of a function."""
    name = _name_of(value) if callable(value) and hasattr(value, "__qualname__") else None
    return {"$": "unwritten", "type": _name_of(type(value)), "name": name}


def _name_of(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _decode_other(value: dict[str, Any]) -> Any:
    if value["$"] == "space":
        return decode_space(value["description"])
    if value["$"] == "unwritten":
        return Unwritten(value["type"], value["name"])
    raise ValueError(f"there is no kind {value['$']!r:.80} of attributes")


def _decode_custom(value: dict[str, Any]) -> AnySpace:
    attributes = {name: decode(item, _decode_other) for name, item in value["attributes"].items()}
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
    """Return the class of a space if this process has imported it."""
    parts = class_name.split(".")
    for n in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:n]))
        for name in parts[n:]:
            found = vars(found).get(name) if isinstance(found, type | ModuleType) else None
        if isinstance(found, type) and issubclass(found, Space):
            return found
    return None


# ---------------------------------------------------------------------- checked before there is any value


def check_writable(space: AnySpace, path: str) -> None:
    """Check that values of a space can be written, by sampling some.

    Args:
        space: The space; its own generator stays as it is.
        path: The space's name in errors.

    Raises:
        StorageError: A value cannot be written; names the part of the space.
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
    if isinstance(space, gym_spaces.Dict | gym_spaces.Tuple):
        items = space.items() if isinstance(space, gym_spaces.Dict) else enumerate(space.spaces)
        for key, child in items:
            yield from _leaves(child, f"{path}[{key!r}]")
    else:
        yield path, space
