"""Wait for child processes of the sampler's process, and reap them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import threading
from typing import Protocol

from streamsampler.engines.launch.descriptors import close_fd, own_fd, readable_within

__all__ = ["ServerProcess", "end_of_life_pipe", "forget_or_reap", "open_pidfd", "reap_strays"]


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor of a process; None where the kernel has or allows no such thing, or the process is gone."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return own_fd(os.pidfd_open(pid))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM, errno.ESRCH):
            return None
        raise


def end_of_life_pipe() -> tuple[int, int]:
    """Return a pipe whose first descriptor reports the end of a child, which alone is to hold the second."""
    read_end, write_end = os.pipe()
    return own_fd(read_end), write_end


# ---------------------------------------------------------------------- children of this process that live on


class _Stray(Protocol):
    def is_stray(self) -> bool:
        """Whether a process that was given up still runs; reap it if it has ended."""


class _StrayWatchdog:
    def __init__(self, pid: int) -> None:
        self.pid = pid

    def is_stray(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == 0
        except ChildProcessError:
            return False  # other code of this process has waited for all children


# Processes that were given up before they ended.
_strays: list[_Stray] = []


def reap_strays() -> None:
    """Reap processes that were given up and have ended since, so that none stays a zombie."""
    for child in list(_strays):
        if not child.is_stray():
            with contextlib.suppress(ValueError):  # another thread was quicker
                _strays.remove(child)


def forget_or_reap(pid: int, *, ended: bool) -> None:
    """Reap a child of this process; if it has not ended, later.

    Args:
        pid: Its process id.
        ended: Whether it has ended, or is about to.
    """
    stray = _StrayWatchdog(pid)
    if ended:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    elif stray.is_stray():
        _strays.append(stray)


class ServerProcess:
    """A server that forks workers: a child of this process, started as a fresh interpreter.

    The kernel reports its end where that is possible, else a pipe does.

    Args:
        process: The process.
        end_of_life: The reading end of a pipe whose other end the process alone holds.

    Attributes:
        pid: Its process id.
    """

    def __init__(self, process: subprocess.Popen[bytes], end_of_life: int) -> None:
        self.pid = process.pid
        self._process = process
        self._closed = False
        self._fd = end_of_life
        try:
            pidfd = open_pidfd(self.pid)
        except OSError:
            close_fd(end_of_life)
            os.kill(self.pid, signal.SIGKILL)
            _strays.append(self)
            raise
        self._has_pidfd = pidfd is not None
        if pidfd is not None:
            close_fd(end_of_life)
            self._fd = pidfd

    def ended(self, timeout: float) -> bool:
        """Whether the process ends within `timeout` seconds."""
        return readable_within(self._fd, timeout)

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal; nothing happens if the process was waited for."""
        if not self._closed:
            self._process.send_signal(signal_number)  # knows whether it was reaped

    def discard(self, timeout: float) -> None:
        """Kill the process, wait for its end and close the descriptor; a process that hangs in the kernel is left."""
        self.kill()
        gone = not self.is_stray() if self._has_pidfd and self.ended(timeout) else self._reaped_within(timeout)
        self._closed = True
        close_fd(self._fd)
        if not gone:
            _strays.append(self)

    def _reaped_within(self, timeout: float) -> bool:
        """Wait for the end, in a thread where there can be one: `waitpid` has no time limit."""
        reaper = threading.Thread(target=self._process.wait, daemon=True)
        try:
            reaper.start()
        except RuntimeError:  # there are no threads left; or, in Python 3.12, the interpreter is about to end
            return not self.is_stray() if not self.ended(timeout) else self._process.wait() is not None
        reaper.join(timeout)
        return not reaper.is_alive()

    def is_stray(self) -> bool:
        """Whether the process still runs; reap it if it has ended."""
        return self._process.poll() is None
