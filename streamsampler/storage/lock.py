"""The lock on a folder that is being written: it ends with its process, and leaves no file."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from streamsampler.errors import StorageError

__all__ = ["check_locks", "lock_folder", "unlock_folder"]

_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def check_locks() -> None:
    """Check that the system has locks on folders.

    Raises:
        StorageError: It has none.
    """
    try:
        import fcntl  # noqa: F401
    except ImportError:
        raise StorageError("writing a folder of shards needs Linux or macOS, for the lock on the folder") from None


def lock_folder(path: Path) -> int:
    """Open a folder and lock it for this process; return the descriptor.

    File systems without locks have none: there nobody is kept out.

    Raises:
        StorageError: Another process holds the lock.
    """
    import fcntl

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StorageError(f"{path} is being written by another process") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
    return descriptor


def unlock_folder(descriptor: int) -> None:
    """Unlock a folder, and close its descriptor."""
    import fcntl

    with contextlib.suppress(OSError):  # there was no lock
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
