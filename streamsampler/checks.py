"""Checks of arguments that several parts of the package take."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any, Literal, TypeAlias

from streamsampler.errors import UsageError

__all__ = ["CheckMode", "check_mode", "positive", "positive_seconds", "refuse_two_numbers"]

CheckMode: TypeAlias = Literal["warn", "error"] | None
"""What is done about data that may be wrong: a warning, an error, or nothing."""


def check_mode(value: Any) -> CheckMode:
    """Return `value` as the argument `check` of a sampler.

    Raises:
        UsageError: It is none of "warn", "error" and None.
    """
    if value is None:
        return None
    if isinstance(value, str) and value in ("warn", "error"):
        return "warn" if value == "warn" else "error"
    raise UsageError(f'check must be "warn", "error" or None, got {value!r}')


def positive(name: str, value: Any, least: int = 1) -> int:
    """Return `value` as an int.

    Raises:
        UsageError: It is no integer, or less than `least`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} must be an integer, got {value!r}") from None
    if isinstance(value, bool) or number < least:
        raise UsageError(f"{name} must be at least {least}, got {value!r}")
    return number


def positive_seconds(name: str, value: Any) -> float:
    """Return `value` as a float.

    Raises:
        UsageError: It is no finite number, or not above 0.
    """
    try:
        seconds = float(value) if not isinstance(value, (bool, str)) else math.nan
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(f"{name} must be a number of seconds above 0, got {value!r}")
    return seconds


def refuse_two_numbers(method: str, name: str, amount: Any, agent_update: Any) -> None:
    """Refuse a call such as `obtain_samples(itr, num_samples)`, which other libraries' samplers take.

    Args:
        method: The method's name.
        name: What its first argument is called.
        amount: What was given for it.
        agent_update: What was given for the second argument.

    Raises:
        UsageError: The agent update is an integer, or a Python float.
    """
    if isinstance(agent_update, numbers.Integral) or type(agent_update) is float:
        raise UsageError(
            f"{method}({amount!r}, {agent_update!r}): the arguments are ({name}, agent_update=None, env_update=None, "
            f"progress=False). The second one updates the agent, which a number cannot, and none is an iteration "
            f"number: did you mean {method}({agent_update!r})? (A parameter that is a number goes into a tuple.)"
        )
