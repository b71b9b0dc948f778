"""Set up a worker's processes after their start, and manage descriptors and limits of this process."""

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


# Shells commonly allow 1,024 descriptors (`ulimit -n`), enough for about 145 workers. The sampler's process raises this
# up to the system's limit. Workers return to the limit before: programs started in them may rely on it.


try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]


PER_WORKER = 7
"""Descriptors in the sampler's process for each worker: three pipes, its memory (twice, when mapped), and its end,
reported by the kernel and by its watchdog.
"""

_SHARED = 40  # for all workers together, the start of a worker, and other code

_original: int | None = None  # the limit before it was raised here
_raised: int | None = None  # the raised limit


def make_room(n_workers: int) -> None:
    """Raise this process's limit of descriptors if `n_workers` more workers need it.

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
    except (OSError, ValueError):  # macOS has a lower limit of its own
        raise _too_few(n_workers, needed, soft, n_open) from None
    global _original, _raised
    # Other code may have changed the limit since it was last raised here.
    _original, _raised = _original if soft == _raised else soft, needed


def _n_open() -> int:
    """Return the number of open descriptors; 64 if unknown."""
    with contextlib.suppress(OSError):
        return len(os.listdir("/dev/fd"))
    return 64


def _too_few(n_workers: int, needed: int, limit: int, n_open: int) -> ResourceLimitError:
    possible = max(0, (limit - n_open - _SHARED) // PER_WORKER)
    return ResourceLimitError(
        errno.EMFILE,
        f"{n_workers} workers need {needed:,} file descriptors ({PER_WORKER} for each worker, and {n_open} are open "
        f"already), but this process may open only {limit:,}: raise the limit before it starts (`ulimit -n {needed}`), "
        f"or use at most {possible} workers",
    )


def original_limit() -> int | None:
    """Return the limit before `make_room` raised it; None if nothing, or other code, changed it."""
    # Without a limit nothing was raised.
    return _original if _raised and resource.getrlimit(resource.RLIMIT_NOFILE)[0] == _raised else None


def lower_limit(limit: int | None) -> None:
    """Give this process, a worker, the sampler's original limit of descriptors; None changes nothing."""
    if limit is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def allow_all() -> int:
    """Raise this process's limit, a fork server's, to the system's; return the limit before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


Main = Callable[[int, Sequence[int]], None]
"""The main function of a worker process: of a module, called with the worker number and descriptors."""

STATUS = struct.Struct("<q")
"""Format of a worker number to the fork server, and of a process id and exit code to the sampler's process."""

PARENT_FD = 2
"""Position, among a worker's descriptors, of the pipe with the sampler's process at the other end."""


END_SECONDS = 5.0
"""Seconds for a killed process to be gone. A process that hangs in the kernel, for example in a file system without an
answer, does not react to SIGKILL before that returns, and is not waited for any longer.
"""


def ignore_terminal() -> None:
    """Ignore signals of the terminal, in a child: the sampler's process decides what Ctrl-C does.

    Outside the terminal's foreground group, using the terminal would stop a process by SIGTTOU or SIGTTIN.
    """
    for name in ("SIGINT", "SIGTTIN", "SIGTTOU"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in a new child until it ignores it.

    The terminal sends Ctrl-C to the whole process group; a child still importing would print a traceback.
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
    """Make a process, this or a child, the leader of a process group."""
    with contextlib.suppress(OSError, AttributeError):  # the child was faster, has ended, or leads a session
        os.setpgid(pid, pid)


def can_kill_at_end() -> bool:
    """Whether `kill_at_end_of` works on this system."""
    return hasattr(fcntl, "F_SETSIG")


def kill_at_end_of(fd: int, pid: int) -> None:
    """Let the kernel kill process `pid` when the last writing end of the pipe `fd` closes; only Linux can.

    A thread would not run while native code holds the interpreter's lock, and PR_SET_PDEATHSIG depends on the forking
    thread. Nothing is ever written to such a pipe. A copy of the reading end must stay open in some process.
    """
    if not can_kill_at_end():
        return
    fcntl.fcntl(fd, fcntl.F_SETOWN, pid)
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


def end_with_parent(fd: int) -> None:
    """End this process with the sampler's process, or at once if that is gone already."""
    kill_at_end_of(fd, os.getpid())
    if readable_within(fd, 0):
        os._exit(1)


def tell_status(fd: int, number: int) -> None:
    """Write a process id, an exit code or a negative errno to the sampler's process, if it lives."""
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
    """Run `main`, then end this process, without returning to its parent's code or waiting for threads."""
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


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor of a process; None if it is gone."""
    try:
        return own_fd(os.pidfd_open(pid))
    except ProcessLookupError:
        return None


_strays: list[subprocess.Popen[bytes]] = []  # abandoned servers, still to reap


def reap_strays() -> None:
    """Reap abandoned servers that have ended since."""
    for process in list(_strays):
        if process.poll() is not None:
            with contextlib.suppress(ValueError):  # another thread was faster
                _strays.remove(process)


def end_server(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the end of a server; kill it after `seconds`. If it hangs in the kernel, it is reaped later."""
    for patience in (seconds, END_SECONDS):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return
        process.kill()
    _strays.append(process)
