"""Check what this package wrote: it may have been changed, and can then be wrong in every way."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamsampler.data.spaces import short
from streamsampler.errors import StorageError
from streamsampler.version import __version__

__all__ = ["LARGEST", "damage_raised", "integer", "read_facts"]

LARGEST = 2**62
"""More than anything that is counted: sums of some such numbers still are 64-bit integers."""


@contextlib.contextmanager
def damage_raised(path: Path, what: str = "is damaged: {}", error: type[StorageError] = StorageError) -> Iterator[None]:
    """Raise `error` for whatever the contents of a file cause.

    Args:
        path: The file.
        what: What is wrong with it; `{}` stands for the exception.
        error: The class of the error.

    Raises:
        StorageError: Something went wrong; also one that came up by itself.
        OSError: The file cannot be read.
        MemoryError: What is really there is too large.
    """
    try:
        yield
    except (StorageError, OSError, MemoryError):
        raise
    except Exception as reason:
        raise error(f"{path} {what.format(f'{type(reason).__name__}: {reason}')}") from reason


def read_facts(path: Path, data: bytes, what: str, facts_format: str, version: int) -> dict[str, Any]:
    """Return the object that JSON of this package holds.

    Args:
        path: The file that it is from, for errors.
        data: The JSON.
        what: What the file should be, for errors.
        facts_format: What its `format` should be.
        version: The newest `format_version` that can be read.

    Raises:
        StorageError: It is no such JSON, or it is of a newer version.
    """
    try:
        facts = json.loads(data)
        found = short(facts)
    except (ValueError, RecursionError) as reason:
        raise StorageError(f"{path} is no {what}: it is no JSON ({reason})") from None
    if not isinstance(facts, dict) or facts.get("format") != facts_format:
        raise StorageError(f"{path} is no {what}: it holds {found}")
    there = facts.get("format_version")
    if type(there) is not int or not 1 <= there <= version:
        raise StorageError(
            f"{path} has format version {there if type(there) is int else short(there)}, and streamsampler "
            f"{__version__} reads up to {version}: it was written by streamsampler {facts.get('package_version')!s:.40}"
        )
    return facts


def integer(facts: dict[str, Any], name: str, least: int = 0) -> int:
    """Return an integer of some facts.

    Args:
        facts: The facts.
        name: Its name.
        least: What it is at least.

    Raises:
        KeyError: It is not there.
        ValueError: It is no integer, less than that, or larger than anything that is counted.
    """
    value = facts[name]
    if type(value) is not int or not least <= value < LARGEST:
        raise ValueError(f"{name} is {short(value)}, and should be an integer of at least {least}")
    return value
