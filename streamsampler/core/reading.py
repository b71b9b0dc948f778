"""Open files of unknown origin for reading: regular files only."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from streamsampler.core.errors import StorageError

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or a link to it, for reading.

    A named pipe or a device raises StorageError: opening it could block, or reading it never end.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = next((text for is_of, text in _KINDS if is_of(mode)), "something else")
        raise StorageError(f"{path} is {kind}, not a regular file: only regular files can be read")
    return path.open("rb")


def read_regular(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()
