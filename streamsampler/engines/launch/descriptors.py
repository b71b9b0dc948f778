"""Descriptors of this process that forked children close."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from collections.abc import Sequence

from streamsampler.core.errors import ResourceLimitError

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


if hasattr(os, "register_at_fork"):  # not on Windows, where `queues` imports this module, too
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


# ----------------------------------------------------------------------
# How many descriptors this process may have, and how many a sampler needs.
#
# Shells commonly allow 1,024 (`ulimit -n`), which some 145 workers use up; a process may raise that up to the
# system's limit, and the sampler's process does. Workers go back to the limit before: programs that they start may
# rely on it.


try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]


PER_WORKER = 7
"""Descriptors that the sampler's process has for each worker: three pipes, its memory (twice, when it is mapped), and
its end, reported by the kernel and by its watchdog."""

_SHARED = 40  # for all workers together, for the start of a worker, and some for other code

_original: int | None = None  # the limit before it was raised here
_raised: int | None = None  # what it was raised to


def make_room(n_workers: int) -> None:
    """Raise this process's limit if the descriptors of so many more workers need it; where there is none, do nothing.

    Raises:
        ResourceLimitError: The system does not allow it.
    """
    if not hasattr(resource, "getrlimit"):
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n_open = _n_open()
    needed = n_open + _SHARED + PER_WORKER * n_workers
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise _too_few(n_workers, needed, hard, n_open)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError):  # macOS has a limit of its own below that
        raise _too_few(n_workers, needed, soft, n_open) from None
    global _original, _raised
    # Other code may have changed it since it was last raised here.
    _original, _raised = _original if soft == _raised else soft, needed


def _n_open() -> int:
    """Return how many descriptors are open; 64 where it is not known."""
    with contextlib.suppress(OSError):
        return len(os.listdir("/dev/fd"))
    return 64


def _too_few(n_workers: int, needed: int, limit: int, n_open: int) -> ResourceLimitError:
    possible = max(0, (limit - n_open - _SHARED) // PER_WORKER)
    return ResourceLimitError(
        errno.EMFILE,
        f"{n_workers} workers need {needed:,} descriptors ({PER_WORKER} a worker, {n_open} are open already), and "
        f"this process may have {limit:,}: raise the limit before it starts, with `ulimit -n {needed}` or what your "
        f"system has for that, or use at most {possible} workers",
    )


def original_limit() -> int | None:
    """Return the limit before `make_room` raised it; None if it did not, or other code changed it since."""
    # Nothing was raised where there is no limit.
    return _original if _raised and resource.getrlimit(resource.RLIMIT_NOFILE)[0] == _raised else None


def lower_limit(limit: int | None) -> None:
    """Give this process, a worker, the limit that the sampler's process had; None leaves it as it is."""
    if limit is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def allow_all() -> int:
    """Raise this process's limit, a fork server's, as far as the system allows; return what it was before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft
