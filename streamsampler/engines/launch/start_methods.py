"""Which start methods there are, and whether this system has worker processes. Imports nothing that only POSIX has."""

from __future__ import annotations

import os
import sys
from typing import Literal

from streamsampler.errors import UsageError

__all__ = [
    "START_METHODS",
    "StartMethod",
    "check_start_method",
    "default_start_method",
    "has_processes",
]

StartMethod = Literal["fork", "spawn", "forkserver"]
START_METHODS: tuple[StartMethod, ...] = ("fork", "spawn", "forkserver")


def has_processes() -> bool:
    """Whether this system has what processes need that are started by other means than `multiprocessing`."""
    return hasattr(os, "fork")


def default_start_method() -> StartMethod:
    """Return "forkserver", safe with threads and quick; on macOS, whose libraries do not survive a fork, "spawn".

    On Windows, where there is no other, "spawn" as well.
    """
    return "spawn" if sys.platform == "darwin" or not has_processes() else "forkserver"


def check_start_method(method: str | None) -> StartMethod:
    """Return a valid start method; None is the default one.

    Raises:
        UsageError: There is no such method.
    """
    if method is None:
        return default_start_method()
    for known in START_METHODS:
        if method == known:
            return known
    raise UsageError(f"start_method must be one of {', '.join(START_METHODS)}, got {method!r}")
