"""Encode Gymnasium's spaces as JSON, exactly, and of other spaces what JSON can hold.

Each space is an object whose key `space` names its kind; `data.npz` describes them.
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

# ----------------------------------------------------------------------
# Encode Python values as JSON, exactly: decoded values have the same types and the same bits.
#
# None, booleans, integers, finite floats, strings and lists are themselves; everything else is an object whose key
# `$` names its kind.


_AS_THEY_ARE = frozenset((type(None), bool, int, str))


def _refuse(value: Any, path: str) -> Any:
    raise StorageError(
        f"{path} holds a {type(value).__module__}.{type(value).__qualname__}: only numbers, strings, "
        f"arrays of them, and lists, tuples and dicts can be written to a file"
    )


def encode(value: Any, path: str, other: Callable[[Any, str], Any] = _refuse) -> Any:
    """Encode a value as JSON.

    Args:
        value: Numbers, strings, bytes, None, NumPy scalars and arrays of them, Gymnasium's graphs, and lists, tuples
            and dicts of such.
        path: The value's name in errors.
        other: Encodes values of other types, by default by raising.

    Raises:
        StorageError: The value holds an object of another type.
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
    """Return the value that `encode` encoded.

    Args:
        value: The JSON.
        other: Decodes objects of other kinds; None where there are none.

    Raises:
        Exception: The JSON is none that `encode` returns.
    """
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
        raise ValueError(f"there is no kind {kind!r:.80} of values")
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


# ----------------------------------------------------------------------
# Check what this package wrote: it may have been changed, and can then be wrong in every way.


LARGEST = 2**62
"""More than anything that is counted: sums of some such numbers still are 64-bit integers."""


@contextlib.contextmanager
def damage_raised(path: Path, what: str = "is damaged: {}", error: type[StorageError] = StorageError) -> Iterator[None]:
    """Raise `error` for whatever the contents of a file cause.

    Args:
        path: The file.
        what: What is wrong with it; `{}` stands for the exception.
        error: The class of the error.

    Raises:
        StorageError: Something went wrong; also one that came up by itself.
        OSError: The file cannot be read.
        MemoryError: What is really there is too large.
    """
    try:
        yield
    except (StorageError, OSError, MemoryError):
        raise
    except Exception as reason:
        raise error(f"{path} {what.format(f'{type(reason).__name__}: {reason}')}") from reason


def read_facts(path: Path, data: bytes, what: str, facts_format: str, version: int) -> dict[str, Any]:
    """Return the object that JSON of this package holds.

    Args:
        path: The file that it is from, for errors.
        data: The JSON.
        what: What the file should be, for errors.
        facts_format: What its `format` should be.
        version: The newest `format_version` that can be read.

    Raises:
        StorageError: It is no such JSON, or it is of a newer version.
    """
    try:
        facts = json.loads(data)
        found = short(facts)
    except (ValueError, RecursionError) as reason:
        raise StorageError(f"{path} is no {what}: it is no JSON ({reason})") from None
    if not isinstance(facts, dict) or facts.get("format") != facts_format:
        raise StorageError(f"{path} is no {what}: it holds {found}")
    there = facts.get("format_version")
    if type(there) is not int or not 1 <= there <= version:
        raise StorageError(
            f"{path} has format version {there if type(there) is int else short(there)}, and streamsampler "
            f"{__version__} reads up to {version}: it was written by streamsampler {facts.get('package_version')!s:.40}"
        )
    return facts


def integer(facts: dict[str, Any], name: str, least: int = 0) -> int:
    """Return an integer of some facts.

    Args:
        facts: The facts.
        name: Its name.
        least: What it is at least.

    Raises:
        KeyError: It is not there.
        ValueError: It is no integer, less than that, or larger than anything that is counted.
    """
    value = facts[name]
    if type(value) is not int or not least <= value < LARGEST:
        raise ValueError(f"{name} is {short(value)}, and should be an integer of at least {least}")
    return value


# ----------------------------------------------------------------------
# Spaces of classes that a reader of a file need not have.


@dataclass(frozen=True)
class Unwritten:
    """Stands for a value that a file does not hold, such as a function.

    Attributes:
        kind: Its class, such as `builtins.function`.
        name: Where it was defined, such as `minigrid.envs.empty.EmptyEnv._gen_mission`; None where it has no name.
    """

    kind: str
    name: str | None

    def __repr__(self) -> str:
        return f"<{self.kind}>" if self.name is None else f"<{self.kind} {self.name}>"


class OpaqueSpace(Space[Any]):
    """Stands for a space of a class that is not Gymnasium's, as a file describes it.

    The values of the space are in the batch as they were. What the class did is not known here: an opaque space says
    what it stands for, equals another one that stands for the same, and is saved again byte for byte. It can neither
    sample nor check what belongs to it.

    Attributes:
        class_name: The class, such as `minigrid.core.mission.MissionSpace`.
        attributes: The attributes that the space had, by name; `Unwritten` where a file cannot hold one.
        record: The JSON that the file has of the space.
    """

    def __init__(self, record: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        shape, dtype = record["shape"], record["dtype"]
        super().__init__(
            None if shape is None else tuple(int(length) for length in shape),
            None if dtype is None else np.dtype(dtype),
        )
        if not isinstance(record["class"], str):
            raise TypeError(f"the class of a space is {record['class']!r}")
        self.class_name = record["class"]
        self.attributes = dict(attributes)
        self.record = dict(record)

    def sample(self, *_: Any, **__: Any) -> Any:
        """Refuse.

        Raises:
            UsageError: Always.
        """
        raise self._unknown("cannot sample")

    def contains(self, x: Any) -> bool:  # noqa: ARG002 - the signature is Gymnasium's
        """Refuse.

        Raises:
            UsageError: Always.
        """
        raise self._unknown("cannot tell what belongs to it")

    def _unknown(self, what: str) -> UsageError:
        return UsageError(
            f"this space {what}: it stands for a {self.class_name} that a file describes. Take the environment's own "
            "space instead"
        )

    @property
    def is_np_flattenable(self) -> bool:
        """False: what its values are is not known."""
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


# ----------------------------------------------------------------------


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
