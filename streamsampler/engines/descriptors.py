"""Descriptors that belong to this process alone, whoever it forks."""

from __future__ import annotations

import contextlib
import os
import select

__all__ = ["close_fd", "own_fd", "readable_within"]

# Descriptors of this process's ends. A forked child closes them: a copy of a pipe's end there would keep workers from
# noticing that this process is gone.
_own_fds: set[int] = set()


def own_fd(fd: int) -> int:
    """Take note that `fd` belongs to this process alone, and return it."""
    _own_fds.add(fd)
    return fd


def close_fd(fd: int) -> None:
    """Close a descriptor that `own_fd` took note of."""
    if fd in _own_fds:
        _own_fds.discard(fd)
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
