"""What the processes of a worker do first, whatever started them, and the descriptors that they have."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from streamsampler.core.errors import ResourceLimitError

# ----------------------------------------------------------------------
# Descriptors of this process that forked children close.


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


# ----------------------------------------------------------------------


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


Main = Callable[[int, Sequence[int]], None]
"""What a worker process runs: a function of a module, called with the worker number and descriptors."""

STATUS = struct.Struct("<q")
"""How a worker number is sent to the fork server, and a process id and an exit code to the sampler's process."""

PARENT_FD = 2
"""The place, among a worker's descriptors, of the pipe whose other end only the sampler's process holds."""


END_SECONDS = 5.0
"""How long a killed process may take to be gone. One that hangs in the kernel, by a file system perhaps that does not
answer, does not take SIGKILL either until that returns; it is not waited for any longer than this."""


def ignore_terminal() -> None:
    """Ignore what the terminal sends, in a child: the sampler's process decides what Ctrl-C means.

    A process outside the terminal's foreground group would be stopped by SIGTTOU or SIGTTIN when it uses the terminal.
    """
    for name in ("SIGINT", "SIGTTIN", "SIGTTOU"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block SIGINT: a child starts with it blocked, and unblocks it once it ignores it.

    The terminal sends Ctrl-C to the whole process group; a child that is still importing would print a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def own_group(pid: int = 0) -> None:
    """Make a process, this one or a child, the leader of a process group."""
    with contextlib.suppress(OSError, AttributeError):  # a child that was quicker, or has ended, or leads a session
        os.setpgid(pid, pid)


def can_kill_at_end() -> bool:
    """Whether `kill_at_end_of` does anything on this system."""
    return hasattr(fcntl, "F_SETSIG")


def kill_at_end_of(fd: int, pid: int) -> None:
    """Let the kernel kill process `pid` when the last writing end of a pipe closes, whatever the process is doing then.

    A thread would not run while native code holds the interpreter's lock, and PR_SET_PDEATHSIG is about the thread
    that forked. Nothing is ever written to such a pipe, so that its only event is its end.

    Where the system cannot do that, nothing happens: Linux can.

    Args:
        fd: The pipe's reading end, of which a copy stays open in any process.
        pid: The process.
    """
    if not can_kill_at_end():
        return
    fcntl.fcntl(fd, fcntl.F_SETOWN, pid)
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


def end_with_parent(fd: int) -> None:
    """Let this process end with the sampler's process: at once if that one is gone already."""
    kill_at_end_of(fd, os.getpid())
    if readable_within(fd, 0):
        os._exit(1)


def tell_status(fd: int, number: int) -> None:
    """Write a process id, an exit code or a negative errno for the sampler's process, which may be gone."""
    with contextlib.suppress(BrokenPipeError):
        os.write(fd, STATUS.pack(number))


def close_all_but(kept: Iterable[int]) -> None:
    """Close all descriptors of this process from 3 on, except `kept`."""
    first = 3
    for fd in sorted(fd for fd in kept if fd >= first):
        os.closerange(first, fd)
        first = fd + 1
    with contextlib.suppress(OSError):
        os.closerange(first, 1 + max(map(int, os.listdir("/dev/fd"))))


def run_as_child(main: Callable[[], None]) -> None:
    """Run `main`, and end this process: it does not return into code of its parent's, nor wait for threads."""
    status = 1
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        main()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(status)


# ----------------------------------------------------------------------
# Wait for the ends of processes.


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor of a process; None if it is gone."""
    try:
        return own_fd(os.pidfd_open(pid))
    except ProcessLookupError:
        return None


_strays: list[subprocess.Popen[bytes]] = []  # servers that were given up


def reap_strays() -> None:
    """Reap servers that were given up and have ended since, so that none stays a zombie."""
    for process in list(_strays):
        if process.poll() is not None:
            with contextlib.suppress(ValueError):  # another thread was quicker
                _strays.remove(process)


def end_server(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the end of a server; kill it if it takes too long. If it hangs in the kernel, it is reaped later.

    Args:
        process: The server.
        seconds: How long it may take.
    """
    for patience in (seconds, END_SECONDS):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return
        process.kill()
    _strays.append(process)
