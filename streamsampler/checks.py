"""Checks of arguments that several parts of the package take."""

from __future__ import annotations

import operator
from typing import Any

from streamsampler.errors import UsageError

__all__ = ["positive"]


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
