"""Write files that appear whole or not at all, also when the process is killed or the power fails."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

__all__ = ["is_leftover", "sync_directory", "temporary_beside", "write_whole"]

_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")


def temporary_beside(target: Path) -> Path:
    """Return a temporary name for a file in the same directory."""
    return target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")


def is_leftover(name: str) -> bool:
    """Return whether a name is that of a file that was being written when its process was killed."""
    return _LEFTOVER.fullmatch(name) is not None


def write_whole(target: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under a temporary name, wait until it is on the disk, and give it its name.

    Args:
        target: The file; one that is there is replaced.
        write: Writes the contents.

    Raises:
        OSError: The file cannot be written; names the file. Then, and whatever else is raised, nothing is left of it.
    """
    temporary = temporary_beside(target)
    try:
        # Not tempfile: its files are readable for their owner only, and this one keeps its permissions.
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = str(target)
        raise
    sync_directory(target.parent)


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on the disk, where the system can open directories."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
