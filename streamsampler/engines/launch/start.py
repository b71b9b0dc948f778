"""Start worker processes, through a fork server.

Not `multiprocessing.Process`, because its children import the user's main script (an unguarded script runs itself
again, and a session on standard input has none), its fork server leaves a socket in the temporary folder when the
parent is killed, and a daemonic process may not have children at all. What is needed is little: hand over some
descriptors, notice the end, and get the exit code.

Here a child gets a worker number and descriptors; everything else it reads from one of them (see
`processes.worker_main`). Each has a parent of its own, which ends what the worker leaves (see `watchdog`). Engine
`queues` is `multiprocessing.Process`, for other systems and for other start methods.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence

from streamsampler.engines.launch.child import (
    STATUS,
    Main,
    end_server,
    interrupts_blocked,
    kill_at_end_of,
    reap_strays,
)
from streamsampler.engines.launch.descriptors import close_fd, own_fd, pipe_between
from streamsampler.engines.launch.fork_server import serve
from streamsampler.engines.launch.start_methods import import_path
from streamsampler.engines.launch.worker_child import WatchdogLostError, WorkerChild
from streamsampler.workers.threads import set_unset

_CLOSE_SECONDS = 1.0  # for a server to notice that it is no longer needed


def launch(main: Main, number: int, fds: Sequence[int], threads: int | None = None) -> WorkerChild:
    """Begin to start a worker process; see `WorkerChild.await_start`.

    Args:
        main: What the process runs: a function of a module, called with the number and the descriptors.
        number: The worker number.
        fds: Descriptors that the process gets, in this order; the caller may close them afterwards. That at
            `PARENT_FD` is the reading end of a pipe whose other end only this process holds.
        threads: How many threads libraries compute on that the fork server loads; see `streamsampler.workers.threads`.

    Raises:
        OSError: There are no processes or descriptors left.
        WatchdogLostError: It is not known whether the worker was started; `await_start` raises this, too. The next
            attempt has another server, and needs new descriptors: a worker may have those of this attempt.
    """
    reap_strays()
    return _server(main, threads).launch(number, fds)


def _python(code: str, main: Main) -> list[str]:
    """Return the command that runs `code` in a fresh interpreter which finds the modules that this one finds."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    path = import_path(main.__module__)
    # -P: `-c` puts the current directory first, where a file may be called like one of the modules imported here.
    return [sys.executable, *flags, "-P", "-c", f"import sys; sys.path[:] = {path!r}; {code}"]


class _Server:
    """A fork server of this process: started with the first worker, gone when this process is.

    Args:
        main: What its workers run.
        threads: How many threads the libraries compute on that the server has loaded.

    Attributes:
        lost: Whether the server has ended or hangs: it starts no other worker, and its answers are not waited for.
    """

    def __init__(self, main: Main, threads: int | None) -> None:
        self.lost = False
        self._owner = os.getpid()
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with ours, theirs, contextlib.ExitStack() as kept, contextlib.ExitStack() as handed_over:
            fd = theirs.fileno()
            code = f"from {serve.__module__} import serve; serve({main.__module__!r}, {main.__name__!r}, {fd})"
            alive = pipe_between(handed_over, kept, ours_is=1)
            self._process = _start(_python(code, main), [fd, alive[0]], threads)
            # From its start, also while it imports. The server holds this end of the pipe, and does nothing with it.
            kill_at_end_of(alive[0], self._process.pid)
            self._fds = own_fd(ours.detach()), alive[1]
            kept.pop_all()
        # Finalizers run in reverse order: at exit, the samplers that were made later are closed before.
        weakref.finalize(self, _close_server, self._fds, self._process, self._owner)

    def alive(self) -> bool:
        return self._owner == os.getpid() and self._process.poll() is None

    def launch(self, number: int, fds: Sequence[int]) -> WorkerChild:
        status_read, status_write = os.pipe()
        own_fd(status_read)
        try:
            try:
                with self._lock, socket.socket(fileno=os.dup(self._fds[0])) as connection:
                    socket.send_fds(connection, [STATUS.pack(number)], [*fds, status_write])
            finally:
                os.close(status_write)
            return WorkerChild(status_read, starter=self)
        except BaseException as error:
            close_fd(status_read)
            if isinstance(error, ConnectionError):
                self.forget()
                raise WatchdogLostError(f"the fork server was lost: {error}") from error
            raise

    def forget(self) -> None:
        """Let another server start the next worker, because this one is lost."""
        self.lost = True
        with _servers_lock:
            for key, known in list(_servers.items()):
                if known is self:
                    del _servers[key]


def _start(command: Sequence[str], fds: Sequence[int], threads: int | None) -> subprocess.Popen[bytes]:
    environ = dict(os.environ)
    set_unset(environ, threads)
    with interrupts_blocked():
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds, env=environ)


def _close_server(fds: Sequence[int], process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:
        return
    # At the end of the program a second Ctrl-C would be printed as an exception that nothing catches.
    with interrupts_blocked():
        for fd in fds:
            close_fd(fd)
        end_server(process, _CLOSE_SECONDS)  # killed, if it is stopped or hangs


_servers: dict[tuple[int | None, Main], _Server] = {}  # with their number of threads: hardly ever several
_servers_lock = threading.Lock()


def _server(main: Main, threads: int | None) -> _Server:
    with _servers_lock:
        server = _servers.get((threads, main))
        if server is None or not server.alive():
            server = _servers[threads, main] = _Server(main, threads)
        return server
