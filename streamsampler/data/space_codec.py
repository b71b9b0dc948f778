"""Encode Gymnasium's spaces as JSON, exactly, and custom spaces as far as JSON can hold them.

Each space is an object with its kind under the key `space`; `streamsampler/docs/storage-and-formats.md` describes them.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.spaces import Space

from streamsampler.core.errors import UsageError
from streamsampler.data.codec import decode, encode
from streamsampler.data.spaces import AnySpace, row_spec


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
