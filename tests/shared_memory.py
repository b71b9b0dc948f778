"""What is named in the shared memory of this machine, and may have been left behind."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["shared_memory"]

_FOLDER = Path("/dev/shm")
_OF_MULTIPROCESSING = "pym-"


def shared_memory() -> frozenset[str]:
    """Return the names that lie there, but for what other programs that run have there for a moment.

    Semaphores come and go, and this package has none. Python's own `multiprocessing` names its memory for a moment,
    after the process that makes it, also in tests that run next to this one.
    """
    found = (name for name in os.listdir(_FOLDER) if not name.startswith("sem."))
    # Looked at again: what is made and unlinked at once is gone, even where its process has ended meanwhile.
    return frozenset(name for name in found if not _may_be_unlinked(name) and (_FOLDER / name).exists())


def _may_be_unlinked(name: str) -> bool:
    """Tell whether a process that runs made this, and may be about to unlink it."""
    if not name.startswith(_OF_MULTIPROCESSING):
        return False
    pid = name.split("-")[1]
    return pid != str(os.getpid()) and Path("/proc", pid).exists()
