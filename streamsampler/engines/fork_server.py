"""The fork server: a process with the package imported, which forks a worker for every request.

It has one thread and no state of the user's, so that forking it is safe and cheap. It talks to its parent over an
unnamed socket pair: nothing of it is ever in a file system. When the parent's end closes, it ends.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket

from streamsampler.engines.child import STATUS, Main, ignore_interrupts, run_as_child
from streamsampler.engines.descriptor_limits import allow_all, lower_limit

__all__ = ["serve"]

_MAX_FDS = 16
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # programs that an environment runs inherit nothing


def serve(main: Main, socket_fd: int) -> None:
    """Serve until the parent is gone.

    Args:
        main: What workers run.
        socket_fd: This end of the socket pair. A request is a worker number and the worker's descriptors, the last of
            which is where its process id and, later, its wait status are written.
    """
    ignore_interrupts()  # workers inherit this
    _preload()
    with socket.socket(fileno=socket_fd) as connection:
        _Server(main, connection).serve()


def _preload() -> None:
    import setproctitle

    import streamsampler.workers.default  # numpy and gymnasium with it
    import streamsampler.workers.vec  # noqa: F401

    setproctitle.setproctitle("streamsampler: fork server")
    # What is imported now stays shared between all workers: a collection in one of them must not touch it.
    gc.collect()
    gc.freeze()


class _Server:
    def __init__(self, main: Main, connection: socket.socket) -> None:
        self._main = main
        self._connection = connection
        self._status_fds: dict[int, int] = {}  # by process id
        self._limit = allow_all()  # there is one for each worker
        # Never blocking, or a burst of children's ends could fill the pipe and hang the server in its own handler.
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ, self._request)
            selector.register(self._wake_read, selectors.EVENT_READ, self._reap)
            going = True
            while going:
                going = all(key.data() for key, _ in selector.select())

    def _request(self) -> bool:
        """Fork a worker. False means that the parent is gone."""
        try:
            message, fds, _, _ = socket.recv_fds(self._connection, STATUS.size, _MAX_FDS, _CLOSE_ON_EXEC)
        except ConnectionError:
            return False
        if not message:
            return False
        (number,) = STATUS.unpack(message)
        *worker_fds, status_fd = fds
        pid = os.fork()
        if pid == 0:
            run_as_child(lambda: self._become_worker(number, worker_fds, status_fd))
        for fd in worker_fds:
            os.close(fd)
        self._status_fds[pid] = status_fd
        self._tell(status_fd, pid)
        return True

    def _become_worker(self, number: int, fds: list[int], status_fd: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._connection.close()
        for fd in (self._wake_read, self._wake_write, status_fd, *self._status_fds.values()):
            os.close(fd)
        lower_limit(self._limit)
        self._main(number, fds)

    def _reap(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        while self._status_fds:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            status_fd = self._status_fds.pop(pid)
            self._tell(status_fd, status)
            os.close(status_fd)
        return True

    @staticmethod
    def _tell(status_fd: int, number: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
            os.write(status_fd, STATUS.pack(number))
