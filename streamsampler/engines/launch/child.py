"""What the processes of a worker do first, whatever started them. Imports nothing that only POSIX has."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from streamsampler.engines.launch.descriptors import own_fd

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


def kill_at_end_of(fd: int, pid: int) -> None:
    """Let the kernel kill process `pid` when the last writing end of a pipe closes, whatever the process is doing then.

    A thread would not run while native code holds the interpreter's lock, and PR_SET_PDEATHSIG is about the thread
    that forked. Nothing is ever written to such a pipe, so that its only event is its end.

    Where the system cannot do that, nothing happens: Linux can.

    Args:
        fd: The pipe's reading end, of which a copy stays open in any process.
        pid: The process.
    """
    if not hasattr(fcntl, "F_SETSIG"):
        return
    fcntl.fcntl(fd, fcntl.F_SETOWN, pid)
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


def end_with_parent(fd: int) -> None:
    """Let this process end with the sampler's process: at once if that one is gone already."""
    kill_at_end_of(fd, os.getpid())
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    if poller.poll(0):
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
