"""The spaces of a manager's environments, which may differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

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
    """

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        self.observation, self.action = (
            tuple(each[0] if space == each[0] else space for space in each) for each in zip(*pairs, strict=True)
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
