"""Set up a child process."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Sequence

from streamsampler.engines.launch.descriptors import readable_within

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


Main = Callable[[int, Sequence[int]], None]
"""A worker process's main function, of a module, called with the worker number and descriptors."""

STATUS = struct.Struct("<q")
"""Format of a worker number to the fork server, and of a process id and exit code to the sampler's process."""

PARENT_FD = 2
"""Position, among a worker's descriptors, of the pipe with the sampler's process at the other end."""


END_SECONDS = 5.0
"""Seconds for a killed process to be gone. A process that hangs in the kernel, for example in a file system without an
answer, does not react to SIGKILL before that returns, and is not waited for any longer.
"""


def ignore_terminal() -> None:
    """Ignore signals of the terminal, in a child: the sampler's process decides about Ctrl-C."""
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
    thread. A copy of the reading end must stay open in some process.
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


def write_status(fd: int, number: int) -> None:
    """Write a process id, an exit code or a negative errno to the sampler's process, if it lives."""
    with contextlib.suppress(BrokenPipeError):
        os.write(fd, STATUS.pack(number))


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
