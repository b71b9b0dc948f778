"""Descriptors of this process that forked children close."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Sequence

__all__ = ["close_fd", "own_fd", "pipe_between", "readable_within"]

# Descriptors of this process's ends. A forked child closes them: a copy of a pipe's end there would keep workers from
# noticing that this process is gone.
_own_fds: set[int] = set()


def own_fd(fd: int) -> int:
    """Let forked children close `fd`, and return it."""
    _own_fds.add(fd)
    return fd


def close_fd(fd: int) -> None:
    """Close a descriptor of `own_fd`."""
    with contextlib.suppress(KeyError):
        _own_fds.remove(fd)  # only one of two threads gets past this
        os.close(fd)


def _close_own_fds_after_fork() -> None:
    for fd in _own_fds:
        with contextlib.suppress(OSError):
            os.close(fd)
    _own_fds.clear()


os.register_at_fork(after_in_child=_close_own_fds_after_fork)


def readable_within(fd: int, timeout: float) -> bool:
    """Whether a descriptor can be read from, or its end noticed, within `timeout` seconds."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(max(0, int(timeout * 1000))))


def pipe_between(theirs: contextlib.ExitStack, ours: contextlib.ExitStack, *, ours_is: int) -> Sequence[int]:
    """Return a pipe whose end `ours_is` (0 reads, 1 writes) is kept; the other one is closed when `theirs` is left."""
    ends = os.pipe()
    theirs.callback(os.close, ends[1 - ours_is])
    ours.callback(close_fd, own_fd(ends[ours_is]))
    return ends
