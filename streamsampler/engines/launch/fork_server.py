"""Serve requests for workers: fork a watchdog for each, and through it the worker.

The server imports the package for all workers, has a single thread and no state of the user's, so forking it is safe
and cheap. It talks to its parent over an unnamed socket pair, and ends when the parent's end closes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import os
import selectors
import signal
import socket

import setproctitle

from streamsampler.engines.launch.child import (
    PARENT_FD,
    STATUS,
    Main,
    ignore_terminal,
    own_group,
    run_as_child,
    write_status,
)
from streamsampler.engines.launch.descriptor_limit import allow_all, lower_limit
from streamsampler.engines.launch.watchdog import watch_over

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
            write_status(status_fd, -(error.errno or 1))
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
