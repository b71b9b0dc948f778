"""The fork server: a process that forks a watchdog, and through it a worker, for every request.

It has one thread and no state of the user's, so that forking it is safe and cheap. It talks to its parent over an
unnamed socket pair: nothing of it is ever in a file system. When the parent's end closes, it ends.

The package is imported in it, and a worker is a copy of it.
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

# ----------------------------------------------------------------------
# The watchdog of a worker: a small process that is its parent, and ends what the worker leaves.
#
# ::
#
#     sampler's process ─── fork server ─┬─ watchdog ─── worker 0 ─── what its environment started
#             ▲                          └─ watchdog ─── worker 1 ─── …
#             └── a pipe for each worker: its process id, and its exit code when nothing of it is left
#
# An environment may start processes: a simulator, a browser. They are to end with their worker, however it ends. So
# each worker leads a process group, and its parent does nothing but wait for it. When the worker has ended, the
# watchdog sends SIGTERM to the rest of the group, a second later SIGKILL, then reports to the sampler's process, and
# ends. It does so before it reaps the worker, so that no other group can have the number.
#
# The watchdog is a child subreaper: a process of the worker's that left the group, or became a daemon, is adopted by
# it, and ended as well. Therefore each worker has a watchdog of its own: one watchdog for all could not know which
# worker has started an adopted process.
#
# When the sampler's process is gone, the kernel kills the worker.


# ----------------------------------------------------------------------
# End the processes that the environment of a worker has started, after the worker has ended.
#
# A watchdog does it before it reaps its worker: until then no other process group can have the
# worker's process id for a number.
#
# A watchdog adopts all that its worker has started as soon as the processes in between are gone, so that whatever is
# left is a descendant of it, in the worker's group or not. Where /proc is not there, only the group can be found: it is
# killed at once.


TERM_SECONDS = 1.0
"""How long what a worker leaves may take to end after SIGTERM, before it is killed."""

_TERM = (signal.SIGTERM, signal.SIGCONT)  # a stopped process takes SIGTERM only when it goes on
_KILL = (signal.SIGKILL,)
_PHASES: tuple[tuple[Sequence[int], float], ...] = ((_TERM, TERM_SECONDS), (_KILL, END_SECONDS))
_LOOKS = 3  # without finding anything, where it is not known whether there are children

Wait = Callable[[float], None]
"""Sleeps until a child of this process ends, for so many seconds at most."""


def can_find_descendants() -> bool:
    """Whether /proc is there, and that of this process's own namespace."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def end_descendants(worker: int, wait: Wait) -> None:
    """End all descendants of this process but a worker that has ended and was not reaped: SIGTERM, later SIGKILL.

    Args:
        worker: The worker, a child of this process. Its group is signalled too.
        wait: Sleeps until a child of this process ends.
    """
    for numbers, seconds in _PHASES:
        deadline = time.monotonic() + seconds
        signalled: set[int] = set()
        found_none = 0
        while _has_other_children(worker) and found_none < _LOOKS:
            rest = _descendants(worker)
            if not rest:  # its parent has just ended, and the next look finds it; or it was dead
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
    """Signal a process group, if there is one."""
    if leader > 1 and leader != os.getpgrp():  # never all processes, nor this one's own group
        with contextlib.suppress(OSError):
            for number in numbers:
                os.killpg(leader, number)


def _signal(pid: int, numbers: Sequence[int], known: dict[int, tuple[int, int]]) -> None:
    """Signal a process, unless another process has its number by now."""
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
    """Whether this process has other children than the worker, or it is not known; reads one small file."""
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", "rb") as file:
            return file.read().split() not in ([], [b"%d" % worker])
    except OSError:
        return True


def _descendants(worker: int) -> dict[int, tuple[int, int]]:
    """Return the living descendants of this process but the worker, each with its parent and its group.

    Dead children of this process are reaped.
    """
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
    """What the kernel says of a process: a letter for what it is doing, its parent and its group."""

    state: str
    parent: int
    group: int


def stat_of(pid: int) -> Stat | None:
    """Return what the kernel says of a process; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return Stat(fields[0].decode(), int(fields[1]), int(fields[2]))
    except (OSError, IndexError, ValueError):
        return None


# ----------------------------------------------------------------------


_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None).prctl  # here, before anything is forked: a watchdog loads nothing

_IGNORED = {
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
}
"""A watchdog ends after its worker, and for no other reason: sent to a whole job, these signals end the worker, too."""


def watch_over(number: int, run: Callable[[], None], parent_fd: int, status_fd: int) -> None:
    """Fork worker `number`, and return when nothing of it is left; in a process that does nothing else.

    Args:
        number: The worker number.
        run: What the worker does.
        parent_fd: The pipe whose other end only the sampler's process holds.
        status_fd: Where the worker's process id and its exit code are written.
    """
    own_group()
    # A sandbox may forbid the first; the second is not there in every namespace.
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
        """Return the worker's exit code when it has ended; it is not reaped."""
        while (exitcode := self._exitcode()) is None:
            for fd, _ in self._poller.poll():
                if fd == self._wake_fd:
                    self._drain()
                else:  # the sampler's process is gone; the kernel kills the worker, too
                    self._poller.unregister(fd)
                    os.kill(self._worker, signal.SIGKILL)
        return exitcode

    def _exitcode(self) -> int | None:
        """Return the worker's exit code, None while it lives; the worker is not reaped."""
        while (end := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if end.si_pid == self._worker:
                return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
            os.waitpid(end.si_pid, os.WNOHANG)  # a daemon of the worker's, which this process has adopted
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
    """Close all descriptors but `kept`: a pipe that this process held open would have no end for its reader."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    close_all_but(kept)


# ----------------------------------------------------------------------


_MAX_FDS = 16
_CLOSE_ON_EXEC = socket.MSG_CMSG_CLOEXEC  # programs that an environment runs inherit nothing


def serve(module: str, name: str, socket_fd: int) -> None:
    """Serve until the parent is gone; workers are copies of this process.

    Args:
        module: The module of the function that workers run.
        name: The function.
        socket_fd: This end of the socket pair. A request is a worker number and the worker's descriptors, the last of
            which is where its watchdog writes the worker's process id and, later, its exit code.
    """
    ignore_terminal()  # workers inherit this
    own_group()  # neither Ctrl-Z nor a terminal that closes ends or stops it
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    import streamsampler.workers.default  # numpy and gymnasium with it
    import streamsampler.workers.factory  # a worker is unpickled with it
    import streamsampler.workers.vec.worker  # noqa: F401
    from streamsampler.workers.threads import fingerprint, libraries

    # What is found once here, each worker has from its start.
    libraries()
    fingerprint()
    inspect.signature(object)  # Python compiles long patterns for the first class that has no constructor of its own
    main: Main = getattr(importlib.import_module(module), name)
    setproctitle.setproctitle("streamsampler: fork server")
    # What is imported now stays shared between all workers: a collection in one of them must not touch it.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=socket_fd) as connection:
        _Server(main, connection).serve()


class _Server:
    def __init__(self, main: Main, connection: socket.socket) -> None:
        self._main = main
        self._connection = connection
        self._status_fds: dict[int, int] = {}  # by the watchdog's process id
        self._limit = allow_all()  # of descriptors: the server holds one for each worker
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
        """Fork a watchdog. False means that the parent is gone."""
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
            # Closed when the watchdog has ended: so the parent notices that nothing is left.
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
