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
    """Open a regular file, or a link to a regular file, for reading.

    Other kinds are refused: opening a named pipe blocks until a writer comes, and a device may have no end.

    Args:
        path: The file.

    Raises:
        StorageError: The path is not a regular file; names its kind.
        OSError: The file cannot be opened.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = next((text for is_of, text in _KINDS if is_of(mode)), "something else")
        raise StorageError(f"{path} is {kind}, and no regular file: only those are read")
    return path.open("rb")


def read_regular(path: Path) -> bytes:
    """Return the contents of a regular file; raises as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()
