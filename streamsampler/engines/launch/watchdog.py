"""The watchdog of a worker: a small process that is its parent, and ends what the worker leaves.

::

    sampler's process ─── fork server ─┬─ watchdog ─── worker 0 ─── what its environment started
            ▲                          └─ watchdog ─── worker 1 ─── …
            └── a pipe for each worker: its process id, and its exit code when nothing of it is left

An environment may start processes: a simulator, a browser. They are to end with their worker, however it ends. So
each worker leads a process group, and its parent does nothing but wait for it. When the worker has ended, the watchdog
sends SIGTERM to the rest of the group, a second later SIGKILL, then reports to the sampler's process, and ends. It
does so before it reaps the worker, so that no other group can have the number.

On Linux the watchdog is a child subreaper: a process of the worker's that left the group, or became a daemon, is
adopted by it, and ended as well. Therefore each worker has a watchdog of its own: one watchdog for all could
not know which worker has started an adopted process.

When the sampler's process is gone, the kernel kills the worker, or, where it cannot, the watchdog does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

from streamsampler.engines.launch.child import (
    close_all_but,
    end_with_parent,
    own_group,
    run_as_child,
    tell_status,
)
from streamsampler.engines.launch.leftovers import can_find_descendants, end_descendants, end_group

__all__ = ["prepare_watchdogs", "watch_over"]

_PR_SET_CHILD_SUBREAPER = 36
_prctl: Any = None  # the system's function, where there is one

_IGNORED = {
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
}
"""A watchdog ends after its worker, and for no other reason: sent to a whole job, these signals end the worker, too."""


def prepare_watchdogs() -> None:
    """Load what a watchdog needs, in the process that is going to fork it."""
    global _prctl
    if sys.platform == "linux" and _prctl is None:
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            _prctl = ctypes.CDLL(None).prctl


def watch_over(number: int, run: Callable[[], None], parent_fd: int, status_fd: int) -> None:
    """Fork worker `number`, and return when nothing of it is left; in a process that does nothing else.

    Args:
        number: The worker number.
        run: What the worker does.
        parent_fd: The pipe whose other end only the sampler's process holds.
        status_fd: Where the worker's process id and its exit code are written.
    """
    own_group()
    adopts = _become_subreaper() and can_find_descendants() and hasattr(os, "waitid")
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    try:
        worker = os.fork()
    except OSError as error:
        tell_status(status_fd, -(error.errno or 1))
        return
    if worker == 0:

        def begin() -> None:
            own_group()
            end_with_parent(parent_fd)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (wake_read, wake_write, status_fd):
                os.close(fd)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            run()

        run_as_child(begin)
    own_group(worker)
    _Watchdog(worker, parent_fd, status_fd, wake_read, adopts=adopts).begin(number, blocked, wake_write)


class _Watchdog:
    def __init__(self, worker: int, parent_fd: int, status_fd: int, wake_fd: int, *, adopts: bool) -> None:
        self._worker = worker
        self._parent_fd = parent_fd
        self._status_fd = status_fd
        self._wake_fd = wake_fd
        self._adopts = adopts
        self._poller = select.poll()
        self._poller.register(parent_fd, select.POLLIN)  # nothing is ever written there
        self._poller.register(wake_fd, select.POLLIN)

    def begin(self, number: int, blocked: set[int], wake_write: int) -> None:
        tell_status(self._status_fd, self._worker)
        for ignored in _IGNORED:
            signal.signal(ignored, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked - _IGNORED)
        _close_others({self._parent_fd, self._status_fd, self._wake_fd, wake_write})
        _set_title(f"streamsampler: watchdog of worker {number}")
        exitcode = self._await_end()
        if self._adopts:
            end_descendants(self._worker, self._wait)
            tell_status(self._status_fd, exitcode)
            os.waitpid(self._worker, 0)
        else:
            end_group(self._worker)
            tell_status(self._status_fd, exitcode)

    def _await_end(self) -> int:
        while (exitcode := self._exitcode()) is None:
            for fd, _ in self._poller.poll():
                if fd == self._wake_fd:
                    self._drain()
                else:  # the sampler's process is gone
                    self._poller.unregister(fd)
                    os.kill(self._worker, signal.SIGKILL)
        return exitcode

    def _exitcode(self) -> int | None:
        """Return the worker's exit code, None while it lives; where something may be adopted, it is not reaped."""
        if not self._adopts:
            ended, status = os.waitpid(self._worker, os.WNOHANG)
            return os.waitstatus_to_exitcode(status) if ended else None
        while (end := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if end.si_pid == self._worker:
                return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
            os.waitpid(end.si_pid, os.WNOHANG)  # a daemon of the worker's, which this process has adopted
        return None

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(KeyError):
            self._poller.unregister(self._parent_fd)
        if self._poller.poll(1000 * seconds):
            self._drain()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_fd, 4096):
                pass


def _become_subreaper() -> bool:
    """Let orphans among this process's descendants become its children; return whether the system can do that."""
    return _prctl is not None and bool(_prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def _close_others(kept: set[int]) -> None:
    """Close all descriptors but `kept`: a pipe that this process held open would have no end for its reader."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    close_all_but(kept)


def _set_title(title: str) -> None:
    if sys.platform == "linux":  # elsewhere that may call libraries which do not survive a fork
        import setproctitle

        setproctitle.setproctitle(title)
