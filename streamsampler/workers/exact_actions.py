"""Make of an agent's action what its environment gets: a copy, and where that is asked for of the space's dtypes.

An environment may change its action, such as clip it in place. Were that the agent's own array, trajectories would
depend on those that the worker ran before.

Where an agent returns floats of 64 bits, and the space has 32, an environment that gets the former does something that
the recorded actions alone cannot repeat: an episode of fragments that is lost with its worker could not be restored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gym_spaces

from streamsampler.core.errors import ActionError
from streamsampler.data.copying import Leaf
from streamsampler.data.spaces import AnySpace
from streamsampler.data.trees import snapshot

Round = Callable[[Any], Any]


def _unchanged(action: Any) -> Any:
    return action


class Rounding(NamedTuple):
    """How actions get the floats of their space.

    Attributes:
        dtype: What has this dtype need not be looked at; None where nothing need be.
        round: Returns an action with the dtypes of the space: the same object where it has them.
    """

    dtype: np.dtype[Any] | None
    round: Round


AS_GIVEN = Rounding(None, _unchanged)
"""Leaves actions as the agent returned them."""


def action_for_env(action: Any) -> Any:
    """Return a copy of an action, which the environment may keep and change."""
    kind = action.__class__
    if kind is np.ndarray and not action.dtype.hasobject:
        return action.copy()
    if isinstance(action, np.generic | int):
        return action
    if kind is dict:
        return {key: action_for_env(part) for key, part in action.items()}
    if kind is tuple:
        return tuple([action_for_env(part) for part in action])
    return snapshot(action)


def rounding_for(space: AnySpace) -> Rounding:
    """Return how actions of a space get its floats; `AS_GIVEN` where the space has none."""
    function = _function_for(space, "action")
    if function is None:
        return AS_GIVEN
    # What was unpickled may have a dtype of its own, which actions do not have. And none has the dtype of no bytes.
    return Rounding(np.dtype(space.dtype.type if isinstance(space, gym_spaces.Box) else "V"), function)


def _function_for(space: AnySpace, path: str) -> Round | None:
    if isinstance(space, gym_spaces.Box) and space.dtype.kind == "f":
        return _of_floats(Leaf(space, path, ActionError))
    if isinstance(space, gym_spaces.Dict):
        of_keys = {key: _function_for(child, f"{path}[{key!r}]") for key, child in space.spaces.items()}
        functions: dict[Any, Round] = {key: function for key, function in of_keys.items() if function is not None}
    elif isinstance(space, gym_spaces.Tuple):
        of_parts = [_function_for(child, f"{path}[{number}]") for number, child in enumerate(space.spaces)]
        functions = {number: function for number, function in enumerate(of_parts) if function is not None}
    else:
        return None
    return _of_parts(functions) if functions else None


def _of_floats(leaf: Leaf) -> Round:
    dtype, shape, generic = leaf.dtype, leaf.shape, leaf.dtype.type

    def rounded(value: Any) -> Any:
        if value.__class__ is np.ndarray:
            if value.dtype == dtype:
                return value
            if shape and value.shape == shape and value.dtype.kind == "f":
                # What is too large becomes infinite here; the recorder has it as it was, and raises.
                return value.astype(dtype)
        elif value.__class__ is generic:
            return value
        return leaf.convert(value)[()]

    return rounded


def _of_parts(functions: Mapping[Any, Round]) -> Round:
    """Return what changes the parts of a Dict or Tuple that have floats."""

    def rounded(action: Any) -> Any:
        parts = {key: function(action[key]) for key, function in functions.items()}
        if all(part is action[key] for key, part in parts.items()):
            return action
        if isinstance(action, Mapping):
            return {**action, **parts}
        return tuple(parts.get(number, part) for number, part in enumerate(action))

    return rounded
