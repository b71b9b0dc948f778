"""Spaces of classes that a reader of a file need not have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Space

from streamsampler.errors import UsageError

__all__ = ["OpaqueSpace", "Unwritten"]


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
