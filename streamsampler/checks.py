"""Checks of arguments that several parts of the package take."""

from __future__ import annotations

import math
import operator
from typing import Any

from streamsampler.errors import UsageError

__all__ = ["positive", "positive_seconds"]


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
