"""Open files for reading that somebody else may have made: regular files only."""

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
    """Open a regular file for reading; a link to one, too.

    Opening a named pipe waits until something writes to it, and reading a device may have no end.

    Args:
        path: The file.

    Raises:
        StorageError: It is something else; says what.
        OSError: It cannot be opened.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = next((text for is_of, text in _KINDS if is_of(mode)), "something else")
        raise StorageError(f"{path} is {kind}, and no regular file: only those are read")
    return path.open("rb")


def read_regular(path: Path) -> bytes:
    """Return what a regular file holds; see `open_regular` for what is raised."""
    with open_regular(path) as file:
        return file.read()
