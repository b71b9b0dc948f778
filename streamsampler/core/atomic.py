"""Write files atomically, so that neither a killed process nor a power failure leaves half a file; lock folders."""

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
    return target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")


def is_leftover(name: str) -> bool:
    """Return whether a name is a temporary file's, left by a killed writer."""
    return _LEFTOVER.fullmatch(name) is not None


def write_whole(target: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under a temporary name, sync it to disk, and rename it, replacing any file of that name.

    Raises:
        OSError: The file cannot be written; names the file. After any exception the temporary file is removed.
    """
    temporary = temporary_beside(target)
    try:
        # Not tempfile: only the owner could read its files, and this file keeps its permissions.
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
    """Sync a directory's entries to disk, where the system can open directories."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# The lock is on the folder or file itself: it ends with its process, and leaves no lock file.
_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def check_locks() -> None:
    try:
        import fcntl  # noqa: F401
    except ImportError:
        raise StorageError(
            "writing a folder of shards needs Linux or macOS, for the lock on the folder: write single files instead"
        ) from None


class PathLock:
    """Locks a file or folder for this process; has no effect on file systems without locks.

    Raises:
        StorageError: Another process holds the lock.
        ImportError: The system has no `fcntl`.
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
        """Unlock the path; may be called twice."""
        import fcntl

        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # the file system has no locks
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.drop()

    def drop(self) -> None:
        """Close this process's descriptor; a forked copy of the descriptor still holds the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


_locks: weakref.WeakSet[PathLock] = weakref.WeakSet()


def _drop_all() -> None:
    for lock in _locks:
        lock.drop()


if hasattr(os, "register_at_fork"):
    # A forked worker would share the lock, and may outlive this process for a moment.
    os.register_at_fork(after_in_child=_drop_all)
