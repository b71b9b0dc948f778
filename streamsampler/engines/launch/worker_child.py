"""A worker process as its sampler's process sees it: a child of its watchdog."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from typing import Protocol

from streamsampler.core.errors import SamplerError
from streamsampler.engines.launch.child import STATUS
from streamsampler.engines.launch.descriptors import close_fd, open_pidfd, readable_within

_ANSWER_SECONDS = 120.0  # a fork server answers its first request after its imports
_REPORT_SECONDS = 2.0  # from a worker's end to its watchdog's report, after the end of all it left
_GONE_SECONDS = 0.25  # from this report until the watchdog has ended
_SIGNAL_GROUP = 4  # PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9


class WatchdogLostError(SamplerError):
    """A worker's watchdog, or the server to start it, was killed or stopped."""


class Starter(Protocol):
    """The server that starts a worker."""

    lost: bool

    def forget(self) -> None:
        """Let another server start the next worker, because this server is lost."""


class WorkerChild:
    """A worker process, perhaps not running before `await_start`.

    The kernel reports its end, or its watchdog if it ended before its start was known. Before `await_start` only `kill`
    and `discard` may be called.
    """

    def __init__(self, status_fd: int, starter: Starter) -> None:
        self.pid = 0  # before `await_start`
        self._fd = status_fd
        self._starter: Starter | None = starter
        self._pidfd: int | None = None
        self._exitcode: int | None = None
        self._waited = self._abandoned = self._closed = False

    @property
    def is_given_up(self) -> bool:
        """Whether its server is known to be lost."""
        return self._starter is not None and self._starter.lost

    def await_start(self) -> None:
        """Wait until the process runs.

        Raises:
            OSError: It could not be started.
            WatchdogLostError: It is unknown whether it started. The next attempt needs new descriptors: a worker may
                have those of this attempt.
        """
        starter, self._starter = self._starter, None  # a server ends with its last reference
        lost = self._read_pid(0.0 if starter is not None and starter.lost else _ANSWER_SECONDS)
        if lost is not None:
            if starter is not None:
                starter.forget()
            raise WatchdogLostError(f"the fork server or its watchdog {lost}")

    def _read_pid(self, timeout: float) -> str | None:
        """Wait for the process id; return the reason if it did not come."""
        if self.pid:
            return None
        answered = readable_within(self._fd, timeout)
        data = os.read(self._fd, STATUS.size) if answered else b""
        if len(data) < STATUS.size:
            return "ended" if answered else f"did not answer within {timeout:g} s"
        (pid,) = STATUS.unpack(data)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        self.pid = pid  # from here on it can be killed and waited for, whatever else fails
        self._pidfd = open_pidfd(pid)
        # If the process has ended and its number belongs to another, the watchdog has reported the end.
        if self._pidfd is not None and readable_within(self._fd, 0):
            close_fd(self._pidfd)
            self._pidfd = None
        return None

    def filenos(self) -> set[int]:
        """Return the descriptors to watch for the end of the process or its watchdog."""
        return {self._fd} if self._pidfd is None else {self._fd, self._pidfd}

    def ended(self, timeout: float) -> bool:
        """Whether the process ends within `timeout` seconds."""
        return readable_within(self._fd if self._pidfd is None else self._pidfd, timeout)

    def unwatched(self) -> bool:
        """Whether the watchdog is gone, or has reported the end."""
        return readable_within(self._fd, 0)

    def wait(self, timeout: float) -> int | None:
        """Wait for the end, once; return the exit code, negative for a signal, None if unknown."""
        if not self._waited and not self._abandoned:
            self._exitcode, self._waited = self._end(timeout)
            self._abandoned = not self._waited
        return self._exitcode

    def _end(self, timeout: float) -> tuple[int | None, bool]:
        """Wait for the end; return the exit code, and whether the process is known to have ended."""
        deadline = time.monotonic() + timeout
        ended = self.ended(timeout)
        patience = min(_REPORT_SECONDS, max(0.0, deadline - time.monotonic())) if ended else 0.0
        if not readable_within(self._fd, patience):
            return None, ended  # the watchdog is stopped
        status = os.read(self._fd, STATUS.size)
        if len(status) < STATUS.size:
            return None, ended and self._pidfd is not None  # the watchdog has ended, not the worker
        readable_within(self._fd, _GONE_SECONDS)  # the end of the pipe: the watchdog has ended
        return STATUS.unpack(status)[0], True

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal, unless the process is gone, waited for, or closed."""
        # Once waited for, the number may be another process's; once closed, the descriptor another file's.
        if self._waited or self._closed or not self.pid:
            return
        try:
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, signal_number)
            elif not self.unwatched():  # or the number may be another process's
                os.kill(self.pid, signal_number)
        except OSError as error:
            if error.errno not in (errno.ESRCH, errno.EBADF):  # gone, or closed by another thread just now
                raise

    def kill_all(self) -> None:
        """Kill the worker, and its process group if its watchdog is gone, as far as the system can."""
        # The group by the descriptor alone: its number may be another group's by now.
        if self._pidfd is not None and not self._waited and self.unwatched():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL, None, _SIGNAL_GROUP)
        self.kill()

    def discard(self, timeout: float) -> None:
        """Kill the process, wait for its end and close all descriptors; may be repeated."""
        deadline = time.monotonic() + timeout
        if not self._closed:
            with contextlib.suppress(OSError):  # it could not be started, or only its number is known
                self._read_pid(timeout)
        self.kill()
        if self.pid:
            self.wait(deadline - time.monotonic())
        self.close()

    def close(self) -> None:
        self._closed = True
        self._starter = None
        close_fd(self._fd)
        if self._pidfd is not None:
            close_fd(self._pidfd)
