"""Read the JSON objects in this package's files, which may have been changed in any way."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamsampler.core.errors import StorageError
from streamsampler.core.version import __version__
from streamsampler.data.spaces import short

LARGEST = 2**62
"""The upper bound of all counts in files: sums of a few such numbers still fit into 64-bit integers."""


@contextlib.contextmanager
def damage_raised(path: Path, what: str = "is damaged: {}", error: type[StorageError] = StorageError) -> Iterator[None]:
    """Raise `error` for any exception caused by a file's contents.

    `what` is the message after the file's name, with `{}` for the exception. Errors of the system, memory errors and
    `StorageError` pass through.
    """
    try:
        yield
    except (StorageError, OSError, MemoryError):
        raise
    except Exception as reason:
        raise error(f"{path} {what.format(f'{type(reason).__name__}: {reason}')}") from reason


def read_facts(path: Path, data: bytes, what: str, facts_format: str, version: int) -> dict[str, Any]:
    """Return the object in JSON of this package; raise a `StorageError` for another format or a newer version.

    Args:
        path: The JSON's file, for errors.
        data: The JSON.
        what: The expected kind of file, for errors.
        facts_format: The expected `format`.
        version: The newest readable `format_version`.
    """
    try:
        facts = json.loads(data)
        found = short(facts)
    except (ValueError, RecursionError) as reason:
        raise StorageError(f"{path} is no {what}: it is not JSON ({reason})") from None
    if not isinstance(facts, dict) or facts.get("format") != facts_format:
        raise StorageError(f"{path} is no {what}: it holds {found}")
    there = facts.get("format_version")
    if type(there) is not int or not 1 <= there <= version:
        raise StorageError(
            f"{path} has format version {there if type(there) is int else short(there)}, but streamsampler "
            f"{__version__} reads up to {version}: it was written by streamsampler {facts.get('package_version')!s:.40}"
        )
    return facts


def integer(facts: dict[str, Any], name: str, least: int = 0) -> int:
    """Return an integer from a JSON object; raise an exception if it is missing, no integer, or out of range."""
    value = facts[name]
    if type(value) is not int or not least <= value < LARGEST:
        raise ValueError(f"{name} is {short(value)}, but should be an integer of at least {least}")
    return value
