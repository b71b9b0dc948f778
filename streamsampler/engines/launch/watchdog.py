"""Watch over a worker as its parent, and end the processes it leaves.

::

    sampler's process ─── fork server ─┬─ watchdog ─── worker 0 ─── processes of its environment
            ▲                          └─ watchdog ─── worker 1 ─── …
            └── a pipe for each worker: its process id, and its exit code when all its processes have ended

An environment may start processes: a simulator, a browser. They must end with their worker, however it ends. So each
worker leads a process group. When it has ended, its watchdog ends the rest and reports before it reaps the worker:
until then no other group can have the worker's number. A common watchdog could not know which worker has started an
adopted process. When the sampler's process is gone, the kernel kills the worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
from collections.abc import Callable

import setproctitle

from streamsampler.engines.launch.child import end_with_parent, own_group, run_as_child, write_status
from streamsampler.engines.launch.descendants import KILL, can_find_descendants, end_descendants, signal_group
from streamsampler.engines.launch.descriptors import close_all_but

_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None).prctl  # here, before anything is forked: a watchdog loads nothing

_IGNORED = {
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
}
"""Signals to a whole job end the worker, and a watchdog ends only after its worker."""


def watch_over(number: int, run: Callable[[], None], parent_fd: int, status_fd: int) -> None:
    """Fork worker `number`; return when it and its processes have ended; in a process of its own."""
    own_group()
    # A sandbox may forbid the first; the second is missing in some namespaces.
    adopts = _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 and can_find_descendants()
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    try:
        worker = os.fork()
    except OSError as error:
        write_status(status_fd, -(error.errno or 1))
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
    write_status(status_fd, worker)
    for ignored in _IGNORED:
        signal.signal(ignored, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked - _IGNORED)
    _close_others({parent_fd, status_fd, wake_read, wake_write})
    setproctitle.setproctitle(f"streamsampler: watchdog of worker {number}")
    watchdog = _Watchdog(worker, parent_fd, wake_read)
    exitcode = watchdog.await_end()
    if adopts:
        end_descendants(worker, watchdog.wait)
    else:
        signal_group(worker, KILL)
    write_status(status_fd, exitcode)
    os.waitpid(worker, 0)


class _Watchdog:
    def __init__(self, worker: int, parent_fd: int, wake_fd: int) -> None:
        self._worker, self._parent_fd, self._wake_fd = worker, parent_fd, wake_fd
        self._poller = select.poll()
        self._poller.register(parent_fd, select.POLLIN)  # nothing is ever written there
        self._poller.register(wake_fd, select.POLLIN)

    def await_end(self) -> int:
        """Return the worker's exit code when it has ended; do not reap it."""
        while (exitcode := self._exitcode()) is None:
            for fd, _ in self._poller.poll():
                if fd == self._wake_fd:
                    self._drain()
                else:  # the sampler's process is gone; the kernel kills the worker, too
                    self._poller.unregister(fd)
                    os.kill(self._worker, signal.SIGKILL)
        return exitcode

    def _exitcode(self) -> int | None:
        """Return the worker's exit code, None while it lives; do not reap it."""
        while (end := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if end.si_pid == self._worker:
                return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
            os.waitpid(end.si_pid, os.WNOHANG)  # a daemon of the worker's, adopted by this process
        return None

    def wait(self, seconds: float) -> None:
        with contextlib.suppress(KeyError):
            self._poller.unregister(self._parent_fd)
        if self._poller.poll(1000 * seconds):
            self._drain()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_fd, 4096):
                pass


def _close_others(kept: set[int]) -> None:
    """Close all descriptors but `kept`: a pipe held open here would have no end for its reader."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    close_all_but(kept)
