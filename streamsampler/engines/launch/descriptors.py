"""Open, watch and close descriptors of this process, and hide its ends of pipes from forked children."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterable, Sequence

# Ends of pipes in this process. Forked children close them: a copy of a pipe's end would keep workers from noticing the
# end of this process.
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


if hasattr(os, "register_at_fork"):  # not on Windows, where `queues` imports this module, too
    os.register_at_fork(after_in_child=_close_own_fds_after_fork)


def readable_within(fd: int, timeout: float) -> bool:
    """Whether a descriptor has data, or its end closes, within `timeout` seconds."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(max(0, int(timeout * 1000))))


def pipe_between(theirs: contextlib.ExitStack, ours: contextlib.ExitStack, *, ours_is: int) -> Sequence[int]:
    """Return a pipe; `ours` closes end `ours_is` (0 reads, 1 writes), `theirs` the other."""
    ends = os.pipe()
    theirs.callback(os.close, ends[1 - ours_is])
    ours.callback(close_fd, own_fd(ends[ours_is]))
    return ends


def close_all_but(kept: Iterable[int]) -> None:
    """Close all descriptors of this process from 3 on, except `kept`."""
    first = 3
    for fd in sorted(fd for fd in kept if fd >= first):
        os.closerange(first, fd)
        first = fd + 1
    with contextlib.suppress(OSError):
        os.closerange(first, 1 + max(map(int, os.listdir("/dev/fd"))))


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor of a process; None if it is gone."""
    try:
        return own_fd(os.pidfd_open(pid))
    except ProcessLookupError:
        return None
