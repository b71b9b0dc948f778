"""Worker processes as the sampler's process sees them: how they end, and what of them is left."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import threading
from abc import ABC, abstractmethod

from streamsampler.engines.descriptors import close_fd, own_fd, readable_within

__all__ = ["END_SECONDS", "Child", "DirectChild", "bury_strays", "end_of_life_pipe"]

END_SECONDS = 5.0
"""How long a killed process may take to be gone. One that hangs in the kernel, by a file system perhaps that does not
answer, is deaf even to SIGKILL until it comes back; nobody waits for it any longer than this."""


class Child(ABC):
    """A running worker process.

    Its end is told by the kernel where that is possible, else by a pipe or socket.

    Args:
        pid: Its process id.
        fd: Becomes readable when the process ends, as far as anybody but the kernel can tell.

    Attributes:
        pid: Its process id.
    """

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self._fd = fd
        self._pidfd = _pidfd(pid)
        self._exitcode: int | None = None
        self._waited = False
        self._given_up = False
        self._closed = False

    def fileno(self) -> int:
        """A descriptor that becomes readable when the process ends."""
        return self._fd if self._pidfd is None else self._pidfd

    def wait(self, timeout: float) -> int | None:
        """Wait for the end, and return the exit code: negative for a signal, None if nobody knows.

        Args:
            timeout: Seconds. A process that has not ended by then is given up, and not waited for again.
        """
        if not self._waited and not self._given_up:
            self._exitcode, self._waited = self._end(timeout)
            self._given_up = not self._waited
        return self._exitcode

    @abstractmethod
    def _end(self, timeout: float) -> tuple[int | None, bool]:
        """Wait for the end; return the exit code, and whether the process is known to have ended."""

    def ended(self, timeout: float) -> bool:
        """Whether the process ends within `timeout` seconds."""
        return readable_within(self.fileno(), timeout)

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal; nothing happens if the process is gone, or was waited for or given up and closed."""
        # Once waited for, the number may be somebody else's; once closed, the descriptor may.
        if self._waited or self._closed:
            return
        try:
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, signal_number)
            else:
                os.kill(self.pid, signal_number)
        except OSError as error:
            if error.errno not in (errno.ESRCH, errno.EBADF):  # gone, or closed by another thread just now
                raise

    def discard(self, timeout: float) -> None:
        """Let nothing be left of it; if it hangs in the kernel, nothing but that. May be repeated."""
        self.kill()
        self.wait(timeout)
        self.close()

    def close(self) -> None:
        """Close the descriptors."""
        self._closed = True
        close_fd(self._fd)
        if self._pidfd is not None and self._pidfd != self._fd:
            close_fd(self._pidfd)


def _pidfd(pid: int) -> int | None:
    """Return a descriptor of a process; None where the kernel has or allows no such thing, or the process is gone."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return own_fd(os.pidfd_open(pid))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM, errno.ESRCH):
            return None
        raise


class DirectChild(Child):
    """A child of this process, by fork or spawn.

    Args:
        pid: Its process id.
        end_of_life: A pipe whose other end it alone holds; and its own children, if it forks any, beyond its death.
        process: What started it, if it was spawned.
    """

    def __init__(self, pid: int, end_of_life: int, process: subprocess.Popen[bytes] | None = None) -> None:
        self._process = process
        try:
            super().__init__(pid, end_of_life)
        except OSError:
            close_fd(end_of_life)
            os.kill(pid, signal.SIGKILL)
            _strays.append(self)
            raise
        if self._pidfd is not None:
            close_fd(end_of_life)
            self._fd = self._pidfd

    def _end(self, timeout: float) -> tuple[int | None, bool]:
        if self._pidfd is not None:
            self.ended(timeout)
            # Not there yet, all the same, where a debugger holds what is left of it.
            return self._reap(os.WNOHANG)
        # The pipe says little: the process may have closed it and live, or its own children may hold it. Who waits for
        # a process is who wants its end.
        self.kill()
        found: list[tuple[int | None, bool]] = []
        reaper = threading.Thread(target=lambda: found.append(self._reap(0)), daemon=True)
        try:
            reaper.start()
        except RuntimeError:  # there are no threads left; or, in Python 3.12, the interpreter is about to end
            return self._reap(0 if self.ended(timeout) else os.WNOHANG)
        reaper.join(timeout)
        return found[0] if found else (None, False)

    def _reap(self, options: int) -> tuple[int | None, bool]:
        if self._process is not None:
            exitcode = self._process.poll() if options else self._process.wait()
            return exitcode, exitcode is not None
        try:
            ended, status = os.waitpid(self.pid, options)
        except ChildProcessError:
            return None, True  # somebody else in this process waited for all children
        return (os.waitstatus_to_exitcode(status), True) if ended else (None, False)

    def close(self) -> None:
        """Close the descriptors; one that was given up is remembered, see `bury_strays`."""
        super().close()
        if not self._waited and self not in _strays:
            _strays.append(self)

    def is_stray(self) -> bool:
        """Whether a process that was given up is there still."""
        return not self._reap(os.WNOHANG)[1]


# Given up before they ended.
_strays: list[DirectChild] = []


def end_of_life_pipe() -> tuple[int, int]:
    """Return a pipe that tells of a child's end: it alone holds the second descriptor."""
    read_end, write_end = os.pipe()
    return own_fd(read_end), write_end


def bury_strays() -> None:
    """See whether processes that were given up have ended since, so that none stays a zombie."""
    for child in list(_strays):
        if not child.is_stray():
            with contextlib.suppress(ValueError):  # another thread was quicker
                _strays.remove(child)
