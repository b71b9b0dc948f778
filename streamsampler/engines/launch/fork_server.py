"""Serve requests for workers: fork a watchdog for each, and through it the worker.

The server imports the package for all workers, has a single thread and no state of the user's, so forking it is safe
and cheap. It talks to its parent over an unnamed socket pair, and ends when the parent's end closes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import inspect
import os
import select
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import setproctitle

from streamsampler.engines.launch.child import (
    END_SECONDS,
    PARENT_FD,
    STATUS,
    Main,
    allow_all,
    close_all_but,
    end_with_parent,
    ignore_terminal,
    lower_limit,
    own_group,
    run_as_child,
    tell_status,
)

# The watchdog of a worker is its parent, a small process that ends whatever the worker leaves.
#
# ::
#
#     sampler's process ─── fork server ─┬─ watchdog ─── worker 0 ─── processes of its environment
#             ▲                          └─ watchdog ─── worker 1 ─── …
#             └── a pipe for each worker: its process id, and its exit code when all its processes have ended
#
# An environment may start processes: a simulator, a browser. They must end with their worker, however it ends. So
# each worker leads a process group, and its parent only waits for it. When the worker has ended, the watchdog sends
# SIGTERM to the rest of the group, SIGKILL a second later, reports to the sampler's process, and ends. It does so
# before it reaps the worker: until then no other process group can have the worker's number.
#
# The watchdog is a child subreaper: it adopts, and ends, processes of the worker that left the group or became
# daemons. A common watchdog could not know which worker has started an adopted process, so each worker has its own.
# Without /proc, only the group can be found; it is killed at once.
#
# When the sampler's process is gone, the kernel kills the worker.


TERM_SECONDS = 1.0
"""Seconds from SIGTERM to SIGKILL for the processes a worker leaves."""

_TERM = (signal.SIGTERM, signal.SIGCONT)  # a stopped process receives SIGTERM only after SIGCONT
_KILL = (signal.SIGKILL,)
_PHASES: tuple[tuple[Sequence[int], float], ...] = ((_TERM, TERM_SECONDS), (_KILL, END_SECONDS))
_LOOKS = 3  # searches without result, where it is unknown whether children are left

Wait = Callable[[float], None]
"""Sleeps until a child of this process ends, for at most so many seconds."""


def can_find_descendants() -> bool:
    """Whether /proc is there, and belongs to this process's namespace."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def end_descendants(worker: int, wait: Wait) -> None:
    """End all descendants of this process, and the group of `worker`, which has ended but is not reaped."""
    for numbers, seconds in _PHASES:
        deadline = time.monotonic() + seconds
        signalled: set[int] = set()
        found_none = 0
        while _has_other_children(worker) and found_none < _LOOKS:
            rest = _descendants(worker)
            if not rest:  # its parent has just ended, and the next search finds it; or it was dead
                found_none += 1
                continue
            if not signalled:
                _signal_group(worker, numbers)
            for pid, (_, group) in rest.items():
                if pid not in signalled and (signalled or group != worker):
                    _signal(pid, numbers, rest)
            signalled |= rest.keys()
            left = deadline - time.monotonic()
            if left <= 0:
                break
            wait(left)
        else:
            return


def _signal_group(leader: int, numbers: Sequence[int]) -> None:
    if leader > 1 and leader != os.getpgrp():  # never all processes, nor this process's own group
        with contextlib.suppress(OSError):
            for number in numbers:
                os.killpg(leader, number)


def _signal(pid: int, numbers: Sequence[int], known: dict[int, tuple[int, int]]) -> None:
    """Signal a process, unless its number belongs to another process by now."""
    with contextlib.suppress(OSError):
        if known[pid][0] == os.getpid():
            for number in numbers:
                os.kill(pid, number)  # a child of this process keeps its number until it is reaped
            return
        fd = os.pidfd_open(pid)
        try:
            stat = stat_of(pid)
            if stat is not None and (stat.parent in known or stat.parent == os.getpid()):
                for number in numbers:
                    signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def _has_other_children(worker: int) -> bool:
    """Whether this process has children besides the worker, or that is unknown; reads one small file."""
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", "rb") as file:
            return file.read().split() not in ([], [b"%d" % worker])
    except OSError:
        return True


def _descendants(worker: int) -> dict[int, tuple[int, int]]:
    """Return parent and group of each living descendant but the worker; reap dead children."""
    me = os.getpid()
    children: dict[int, list[tuple[int, str, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := stat_of(int(name))) is not None:
            state, parent, group = stat
            children.setdefault(parent, []).append((int(name), state, group))
    found: dict[int, tuple[int, int]] = {}
    parents = [me]
    while parents:
        parent = parents.pop()
        for pid, state, group in children.get(parent, ()):
            if pid == worker:
                continue
            if state not in ("Z", "X"):
                found[pid] = parent, group
                parents.append(pid)
            elif parent == me:
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)
    return found


class Stat(NamedTuple):
    """The kernel's entry for a process: a letter for its state, its parent and its group."""

    state: str
    parent: int
    group: int


def stat_of(pid: int) -> Stat | None:
    """Return the kernel's entry for a process; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return Stat(fields[0].decode(), int(fields[1]), int(fields[2]))
    except (OSError, IndexError, ValueError):
        return None


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
    tell_status(status_fd, worker)
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
        _signal_group(worker, _KILL)
    tell_status(status_fd, exitcode)
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
        """Sleep until a child of this process ends."""
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


_MAX_FDS = 16
_CLOSE_ON_EXEC = socket.MSG_CMSG_CLOEXEC  # programs started by an environment inherit nothing


def serve(module: str, name: str, socket_fd: int) -> None:
    """Serve until the parent is gone; workers are copies of this process that run a function of `module`.

    A request is a worker number and the worker's descriptors; the last is for the watchdog, to write the worker's
    process id and, later, its exit code.
    """
    ignore_terminal()  # workers inherit this
    own_group()  # neither Ctrl-Z nor a closing terminal ends or stops it
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    import streamsampler.workers.default  # with numpy and gymnasium
    import streamsampler.workers.factory  # a worker is unpickled with it
    import streamsampler.workers.vec.worker  # noqa: F401
    from streamsampler.workers.threads import fingerprint, libraries

    # Found once here for all workers.
    libraries()
    fingerprint()
    inspect.signature(object)  # Python compiles long patterns for the first class without a constructor of its own
    main: Main = getattr(importlib.import_module(module), name)
    setproctitle.setproctitle("streamsampler: fork server")
    # Imported objects stay shared between all workers: a collection in a worker must not touch them.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=socket_fd) as connection:
        _Server(main, connection).serve()


class _Server:
    def __init__(self, main: Main, connection: socket.socket) -> None:
        self._main = main
        self._connection = connection
        self._status_fds: dict[int, int] = {}  # by the watchdog's process id
        self._limit = allow_all()  # of descriptors: the server has a pipe for each worker
        # Never blocking, or the ends of many children could fill the pipe, and the server hang in its handler.
        self._wake_fds = os.pipe()
        for fd in self._wake_fds:
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_fds[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ, self._request)
            selector.register(self._wake_fds[0], selectors.EVENT_READ, self._reap)
            going = True
            while going:
                going = all(key.data() for key, _ in selector.select())

    def _request(self) -> bool:
        """Fork a watchdog; return False if the parent is gone."""
        try:
            message, fds, _, _ = socket.recv_fds(self._connection, STATUS.size, _MAX_FDS, _CLOSE_ON_EXEC)
        except ConnectionError:
            return False
        if not message:
            return False
        (number,) = STATUS.unpack(message)
        *worker_fds, status_fd = fds
        try:
            pid = os.fork()
        except OSError as error:
            tell_status(status_fd, -(error.errno or 1))
            os.close(status_fd)
        else:
            if pid == 0:
                run_as_child(lambda: self._become_watchdog(number, worker_fds, status_fd))
            # Closed when the watchdog has ended, so the parent notices when nothing is left.
            self._status_fds[pid] = status_fd
        for fd in worker_fds:
            os.close(fd)
        return True

    def _become_watchdog(self, number: int, fds: list[int], status_fd: int) -> None:
        self._connection.close()
        for fd in (*self._wake_fds, *self._status_fds.values()):
            os.close(fd)

        def run() -> None:
            lower_limit(self._limit)
            self._main(number, fds)

        watch_over(number, run, fds[PARENT_FD], status_fd)

    def _reap(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_fds[0], 4096)
        while self._status_fds:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid in self._status_fds:
                os.close(self._status_fds.pop(pid))
        return True
