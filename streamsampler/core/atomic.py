"""Write files that appear whole or not at all, also when the process is killed or the power fails."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from streamsampler.core.errors import StorageError

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


# ----------------------------------------------------------------------
# The lock on a folder or a file that is being written. The lock ends with its process, and leaves no file.


_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def check_locks() -> None:
    """Check that the system has locks on folders.

    Raises:
        StorageError: It has none.
    """
    try:
        import fcntl  # noqa: F401
    except ImportError:
        raise StorageError(
            "writing a folder of shards needs Linux or macOS, for the lock on the folder: write single files instead"
        ) from None


class PathLock:
    """Locks a file or a folder for this process. File systems without locks keep no other process out.

    Args:
        path: The file or the folder.

    Raises:
        StorageError: Another process holds the lock.
        ImportError: The system has no such locks.
        OSError: The path cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        import fcntl

        self._descriptor: int | None = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.drop()
            raise StorageError(f"{path} is being written by another process") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                self.drop()
                raise
        _locks.add(self)

    def close(self) -> None:
        """Unlock it; may be called twice."""
        import fcntl

        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # there was no lock
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.drop()

    def drop(self) -> None:
        """Close this process's descriptor; the lock stays while another process has a copy of it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


_locks: weakref.WeakSet[PathLock] = weakref.WeakSet()


def _drop_all() -> None:
    for lock in _locks:
        lock.drop()


if hasattr(os, "register_at_fork"):
    # A forked worker would share the lock, and may live a moment longer than this process.
    os.register_at_fork(after_in_child=_drop_all)
