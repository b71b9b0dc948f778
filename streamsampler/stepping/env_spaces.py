"""The spaces of a manager's environments: they may differ in their bounds, and share one layout of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from gymnasium import spaces as gym_spaces

from streamsampler.data.spaces import row_spec
from streamsampler.errors import UsageError

__all__ = ["KINDS", "EnvSpaces"]

Kind: TypeAlias = Literal["observation", "action"]

KINDS: tuple[Kind, ...] = ("observation", "action")


class EnvSpaces:
    """The observation space and the action space of each environment.

    Args:
        pairs: (observation space, action space) of each environment.

    Attributes:
        observation: The observation space of each environment; the same object where spaces are equal to the first one.
        action: The action spaces, likewise.

    Raises:
        UsageError: The data of two environments cannot be stacked: their shapes, dtypes or kinds of space differ.
    """

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        self.observation, self.action = (
            tuple(each[0] if space == each[0] else space for space in each) for each in zip(*pairs, strict=True)
        )
        for kind, each in zip(KINDS, (self.observation, self.action), strict=True):
            wanted = _layout_of(each[0])
            for env_id, space in enumerate(each):
                if space is not each[0] and _layout_of(space) != wanted:
                    raise UsageError(
                        f"{_differs(kind, env_id, space, each[0])}: the {kind}s of one manager are stacked to arrays, "
                        "so that spaces may differ in their bounds only. Let wrappers bring them to one shape and "
                        "dtype, or use a manager for each"
                    )

    def common(self, kind: Kind) -> Any:
        """Return the space that all environments have.

        Args:
            kind: Which one.

        Raises:
            UsageError: Those of two environments differ; shows both.
        """
        each = self.observation if kind == "observation" else self.action
        first = each[0]
        for env_id, space in enumerate(each):
            if space is not first:
                raise UsageError(
                    f"{_differs(kind, env_id, space, first)}: here all environments must have the same {kind} space; "
                    f"{kind}_spaces of a manager has those of each"
                )
        return first


def _differs(kind: Kind, env_id: int, space: Any, first: Any) -> str:
    return f"the {kind} space of environment {env_id} is {space}, and that of environment 0 is {first}"


def _layout_of(space: Any) -> Any:
    """Return what the layout of rows depends on: of each part of a space its class, its shape and its dtype."""
    if isinstance(space, gym_spaces.Dict):
        return {key: _layout_of(child) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple(_layout_of(child) for child in space.spaces)
    return type(space), *row_spec(space)
