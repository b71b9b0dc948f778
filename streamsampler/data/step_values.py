"""Check what a timestep returns besides its observation: rewards are numbers, ends are true or false."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamsampler.data.exactness import changed
from streamsampler.data.spaces import short
from streamsampler.errors import DataError

__all__ = ["FLAGS", "check_rewards", "flag_of", "number_of", "reward_recorder"]

FLAGS = frozenset((bool, np.bool_))
"""The classes of what `terminated` and `truncated` should be; `flag_of` takes a little more."""

_EXACT = 2**53
_FLOAT64 = np.dtype(np.float64)


def flag_of(name: str, value: Any) -> bool:
    """Return `terminated` or `truncated` as a bool: a boolean, or a number that is 0 or 1, of Python, NumPy or torch.

    Args:
        name: What it is called in errors.
        value: What the environment returned.

    Raises:
        DataError: It is something else, such as None.
    """
    if value.__class__ in FLAGS:
        return bool(value)
    try:
        flag = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        flag = np.empty(0)
    if flag.shape != () or flag.dtype.kind not in "biuf" or flag.item() not in (0, 1):
        raise DataError(f"{name} should be True or False, and is {short(value)}")
    return bool(flag)


def number_of(reward: Any) -> float:
    """Return what is recorded of a reward.

    Raises:
        DataError: It is no number, has axes, or would become another number as float64.
    """
    if reward.__class__ is int and -_EXACT <= reward <= _EXACT:
        return float(reward)
    try:
        number = np.asarray(reward)
    except (TypeError, ValueError, RuntimeError) as reason:
        raise DataError(f"the reward should be a number, and is {short(reward)}") from reason
    if number.shape != ():
        raise DataError(
            f"the reward has the shape {number.shape}, and should have () (a vector of rewards, for several aims or "
            f"agents, needs a wrapper that makes one number of it): {short(reward)}"
        )
    if number.dtype.kind not in "biuf":
        raise DataError(f"the reward should be a number, and is {short(reward)}")
    try:
        check_rewards(number[np.newaxis])
    except DataError as error:
        error.row = None
        raise
    with np.errstate(over="ignore"):
        return float(number)


def check_rewards(rewards: np.ndarray[Any, Any]) -> None:
    """Check that no reward of an array of numbers, (n,), becomes another number as float64.

    Raises:
        DataError: One does; says both. `row` is its position.
    """
    lost = changed(rewards, _FLOAT64)
    if lost.any():
        position = int(lost.argmax())
        with np.errstate(over="ignore"):
            raise DataError(
                f"the reward is {rewards[position].item()!r} as {rewards.dtype}, which would become "
                f"{float(rewards[position])!r} as float64",
                row=position,
            )


def reward_recorder(rewards: list[float]) -> Callable[[Any], None]:
    """Return a function that appends a reward to a list, as a float; see `number_of`."""
    append, float64 = rewards.append, np.float64

    def record_reward(reward: Any) -> None:
        kind = reward.__class__
        append(float(reward) if kind is float or kind is float64 else number_of(reward))

    return record_reward
