"""Encode values and Gymnasium's spaces as JSON, exactly; custom spaces as far as JSON can hold them.

Each space is an object with its kind under the key `space`; `streamsampler/docs/storage-and-formats.md` describes them.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import math
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.spaces import GraphInstance, Space

from streamsampler.core.errors import StorageError, UsageError
from streamsampler.core.version import __version__
from streamsampler.data.spaces import AnySpace, row_spec, short

# Decoded values have the same types and the same bits. None, booleans, integers, finite floats, strings and lists are
# encoded as themselves, every other value as an object with its kind under the key `$`.
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


LARGEST = 2**62
"""The upper bound of all counts in files: sums of a few such numbers still fit into 64-bit integers."""


@contextlib.contextmanager
def damage_raised(path: Path, what: str = "is damaged: {}", error: type[StorageError] = StorageError) -> Iterator[None]:
    """Raise `error` for any exception that a file's contents cause: the file may have been changed in any way.

    `what` is the message after the file's name, with `{}` for the exception. Errors of the system, memory errors and
    `StorageError` pass through.
    """
    try:
        yield
    except (StorageError, OSError, MemoryError):
        raise
    except Exception as reason:
        raise error(f"{path} {what.format(f'{type(reason).__name__}: {reason}')}") from reason


def read_facts(path: Path, data: bytes, what: str, facts_format: str, version: int) -> dict[str, Any]:
    """Return the object in JSON of this package; raise a `StorageError` for another format or a newer version.

    Args:
        path: The JSON's file, for errors.
        data: The JSON.
        what: The expected kind of file, for errors.
        facts_format: The expected `format`.
        version: The newest readable `format_version`.
    """
    try:
        facts = json.loads(data)
        found = short(facts)
    except (ValueError, RecursionError) as reason:
        raise StorageError(f"{path} is no {what}: it is not JSON ({reason})") from None
    if not isinstance(facts, dict) or facts.get("format") != facts_format:
        raise StorageError(f"{path} is no {what}: it holds {found}")
    there = facts.get("format_version")
    if type(there) is not int or not 1 <= there <= version:
        raise StorageError(
            f"{path} has format version {there if type(there) is int else short(there)}, but streamsampler "
            f"{__version__} reads up to {version}: it was written by streamsampler {facts.get('package_version')!s:.40}"
        )
    return facts


def integer(facts: dict[str, Any], name: str, least: int = 0) -> int:
    """Return an integer from a JSON object; raise an exception if it is missing, no integer, or out of range."""
    value = facts[name]
    if type(value) is not int or not least <= value < LARGEST:
        raise ValueError(f"{name} is {short(value)}, but should be an integer of at least {least}")
    return value


@dataclass(frozen=True)
class Unwritten:
    """A placeholder for a value that a file cannot hold, such as a function.

    Attributes:
        kind: Its class, such as `builtins.function`.
        name: Its qualified name, such as `minigrid.envs.empty.EmptyEnv._gen_mission`, or None.
    """

    kind: str
    name: str | None

    def __repr__(self) -> str:
        return f"<{self.kind}>" if self.name is None else f"<{self.kind} {self.name}>"


class OpaqueSpace(Space[Any]):
    """A placeholder for a custom space, as a file describes it.

    The batch holds the space's values unchanged. An opaque space names the class, equals another with the same
    description, and is saved again byte for byte. It cannot sample or check membership.

    Attributes:
        class_name: The class, such as `minigrid.core.mission.MissionSpace`.
        attributes: The space's attributes by name, `Unwritten` if a file cannot hold them.
        record: The space's JSON in the file.
    """

    def __init__(self, record: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        shape, dtype = record["shape"], record["dtype"]
        super().__init__(
            None if shape is None else tuple(int(length) for length in shape),
            None if dtype is None else np.dtype(dtype),
        )
        if not isinstance(record["class"], str):
            raise TypeError(f"the class of a space should be a string, not {record['class']!r}")
        self.class_name = record["class"]
        self.attributes = dict(attributes)
        self.record = dict(record)

    def sample(self, *_: Any, **__: Any) -> Any:
        """Raise a `UsageError`."""
        raise self._unknown("cannot sample")

    def contains(self, x: Any) -> bool:  # noqa: ARG002 - the signature is Gymnasium's
        """Raise a `UsageError`."""
        raise self._unknown("cannot check membership")

    def _unknown(self, what: str) -> UsageError:
        return UsageError(
            f"this space {what}: it stands for a {self.class_name} that a file describes. Use the environment's own "
            "space instead"
        )

    @property
    def is_np_flattenable(self) -> bool:
        """False: the structure of its values is unknown."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueSpace) and self._text() == other._text()

    def __hash__(self) -> int:
        return hash(self._text())

    def _text(self) -> str:
        return json.dumps(self.record)

    def __repr__(self) -> str:
        attributes = "".join(f", {name}={value!r}" for name, value in self.attributes.items())
        return f"OpaqueSpace({self.class_name}{attributes})"


def encode_space(space: AnySpace, path: str) -> Any:
    """Encode a space as JSON; a custom space as its class's name and its attributes, as far as JSON can hold them."""
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
    """Return the space encoded by `encode_space`; wrong JSON raises any exception.

    A custom space gets its own class if this process has imported that class and the JSON has all attributes; otherwise
    it becomes an `OpaqueSpace`. Nothing is imported.
    """
    if value["space"] == "custom":
        return _decode_custom(value)
    _, fields, make = _KINDS[value["space"]]
    return make(*(codec.decode(value[name]) for name, (_, codec) in fields.items()))


class _Codec(NamedTuple):
    """The encoder and decoder of a space's attribute."""

    encode: Callable[[Any, str], Any]
    decode: Callable[[Any], Any]


def _encode_pairs(spaces: dict[Any, AnySpace], path: str) -> list[Any]:
    return [[encode(key, path), encode_space(child, f"{path}[{key!r}]")] for key, child in spaces.items()]


def _discrete(n: int, start: int, dtype: np.dtype[Any]) -> AnySpace:
    # In early releases of Gymnasium 1 the dtype is always int64, and no argument.
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

# For each kind: its class; the JSON's keys, each with the encoded attributes and their codec; and the constructor for
# decoded values.
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
    """Return a placeholder for a value that JSON cannot hold."""
    name = _name_of(value) if callable(value) and hasattr(value, "__qualname__") else None
    return {"$": "unwritten", "type": _name_of(type(value)), "name": name}


def _name_of(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _decode_other(value: dict[str, Any]) -> Any:
    if value["$"] == "space":
        return decode_space(value["description"])
    if value["$"] == "unwritten":
        return Unwritten(value["type"], value["name"])
    raise ValueError(f"unknown kind of attributes: {value['$']!r:.80}")


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
    except Exception:  # its class has changed since the file was written
        return opaque


def _imported(class_name: str) -> type[AnySpace] | None:
    parts = class_name.split(".")
    for n in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:n]))
        for name in parts[n:]:
            found = vars(found).get(name) if isinstance(found, type | ModuleType) else None
        if isinstance(found, type) and issubclass(found, Space):
            return found
    return None


def check_writable(space: AnySpace, path: str) -> None:
    """Encode a space and some samples; a `StorageError` names the part of the space."""
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
