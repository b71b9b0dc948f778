"""What batches, folders and samplers are generic in, for type checkers: observations and actions, arrays by default.

Where a space is a Dict or a Tuple, say so once: `MultiprocessingSampler[dict[str, NDArray[Any]]](agent, env)` returns
batches whose observations are dicts. At runtime the brackets mean nothing.
"""

from __future__ import annotations

from types import GenericAlias
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Type checkers know it without its being installed, and `typing` has no defaults before Python 3.13.
    from typing_extensions import TypeVar

    from streamsampler.data.trees import Array

    ActionsT = TypeVar("ActionsT", covariant=True, default=Array)
    ObservationsT = TypeVar("ObservationsT", covariant=True, default=Array)
    AnyActionsT = TypeVar("AnyActionsT", default=Array)
    AnyObservationsT = TypeVar("AnyObservationsT", default=Array)
else:
    from typing import TypeVar

    ActionsT = TypeVar("ActionsT", covariant=True)
    ObservationsT = TypeVar("ObservationsT", covariant=True)
    AnyActionsT = TypeVar("AnyActionsT")
    AnyObservationsT = TypeVar("AnyObservationsT")

__all__ = ["ActionsT", "AnyActionsT", "AnyObservationsT", "ObservationsT", "brackets"]


def brackets(cls: type, types: Any) -> GenericAlias:
    """Return a class with types in brackets: a generic class's `__class_getitem__`.

    Unlike `Generic`, it takes one type where there are two type variables: the other one has a default.
    """
    return GenericAlias(cls, types)
