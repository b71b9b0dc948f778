"""The lock on a folder that is being written. The lock ends with its process, and leaves no file."""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from pathlib import Path

from streamsampler.errors import StorageError

__all__ = ["FolderLock", "check_locks"]

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


class FolderLock:
    """Locks a folder for this process. File systems without locks keep no other process out.

    Args:
        path: The folder.

    Raises:
        StorageError: Another process holds the lock.
    """

    def __init__(self, path: Path) -> None:
        import fcntl

        self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
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
        """Unlock the folder; may be called twice."""
        import fcntl

        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # there was no lock
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.drop()

    def drop(self) -> None:
        """Close this process's descriptor; the folder stays locked while another process has a copy of it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _drop_all() -> None:
    for lock in _locks:
        lock.drop()


if hasattr(os, "register_at_fork"):
    # A forked worker would share the lock, and may live a moment longer than this process.
    os.register_at_fork(after_in_child=_drop_all)
