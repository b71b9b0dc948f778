"""Starting worker processes: by fork, by spawn, or through a fork server.

Not `multiprocessing.Process`, because its children import the user's main script (an unguarded script runs itself
again, and a session on standard input has none), its fork server leaves a socket in the temporary folder when the
parent is killed, and a daemonic process may not have children at all. What is needed is little: hand over some
descriptors, notice the end, and learn the exit code.

Here a child gets a worker number and descriptors; everything else it reads from one of them (see `worker_process`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence

from streamsampler.engines.child import STATUS, Main, run_as_child
from streamsampler.engines.children import END_SECONDS, Child, DirectChild, bury_strays, end_of_life_pipe
from streamsampler.engines.descriptors import close_fd, own_fd, readable_within
from streamsampler.engines.fork_server import serve
from streamsampler.engines.import_path import import_path
from streamsampler.engines.start_methods import StartMethod
from streamsampler.errors import SamplerError
from streamsampler.threads import set_unset

__all__ = ["ForkServerLostError", "launch"]

_CLOSE_SECONDS = 1.0  # for the fork server to notice that nobody needs it any more
_TOLD_SECONDS = 2.0  # from a worker's end until the fork server tells of it
_TOLD_AGAIN_SECONDS = 0.05  # after it did not
_ANSWER_SECONDS = 120.0  # for a fork server's answer to its first request, too: after its imports


def launch(method: StartMethod, main: Main, number: int, fds: Sequence[int], threads: int | None = None) -> Child:
    """Start a worker process.

    Args:
        method: How.
        main: What it runs: a function of a module, called with the number and the descriptors.
        number: The worker number.
        fds: Descriptors that it gets, in this order; the caller may close them afterwards.
        threads: How many threads the libraries are to compute on that are loaded in a fresh interpreter; see
            `streamsampler.threads`.

    Raises:
        OSError: There are no processes or descriptors left.
        ForkServerLostError: There is no knowing whether the fork server started the worker. Another one is there for
            the next attempt, which must not hand over the same descriptors: they may be somebody's already.
    """
    bury_strays()
    match method:
        case "fork":
            return _fork(main, number, fds)
        case "spawn":
            return _spawn(main, number, fds, threads)
        case "forkserver":
            return _fork_server(main, threads).launch(number, fds)


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Block SIGINT: a child starts with it blocked, and unblocks it when it has learned to ignore it.

    The terminal sends Ctrl-C to everybody; a child that is still importing would print a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork(main: Main, number: int, fds: Sequence[int]) -> Child:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()  # or the child would print what is buffered once more
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as childs:
        end_of_life, held_by_child = end_of_life_pipe()
        ours.callback(close_fd, end_of_life)
        childs.callback(os.close, held_by_child)
        # Copies, because the child closes what belongs to this process.
        copies = []
        for fd in fds:
            copies.append(os.dup(fd))
            childs.callback(os.close, copies[-1])
        with _interrupts_held_back():
            pid = os.fork()
            if pid == 0:
                run_as_child(lambda: main(number, copies))
        ours.pop_all()
    return DirectChild(pid, end_of_life)


def _python(code: str, main: Main) -> list[str]:
    """Return the command that runs `code` in a fresh interpreter which finds the modules that this one finds."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    path = import_path(main.__module__)
    # -P: `-c` puts the current directory first, where a file may be called like one of the modules imported here.
    return [sys.executable, *flags, "-P", "-c", f"import sys; sys.path[:] = {path!r}; {code}"]


def _import(function: Callable[..., None]) -> str:
    return f"from {function.__module__} import {function.__name__}"


def _spawn(main: Main, number: int, fds: Sequence[int], threads: int | None) -> Child:
    return _start(f"{_import(main)}; {main.__name__}({number}, {list(fds)})", fds, main, threads)


def _start(code: str, fds: Sequence[int], main: Main, threads: int | None) -> Child:
    """Start a fresh interpreter that runs `code`, with these descriptors, and finds `main`."""
    environ = dict(os.environ)
    set_unset(environ, threads)
    end_of_life, held_by_child = end_of_life_pipe()
    try:
        with _interrupts_held_back():
            process = subprocess.Popen(
                _python(code, main), stdin=subprocess.DEVNULL, pass_fds=[*fds, held_by_child], env=environ
            )
    except BaseException:
        close_fd(end_of_life)
        raise
    finally:
        os.close(held_by_child)
    return DirectChild(process.pid, end_of_life, process)


class ForkServerLostError(SamplerError):
    """The fork server was killed, or stopped."""


class _ServedChild(Child):
    """A child of the fork server.

    Args:
        status_fd: Tells its process id, which is waited for, and at the end its exit code. Owned by the child from here
            on, unless this raises.
        silent: Set while the server does not tell of its children's ends: one of them waits long for that, not each.

    Raises:
        ForkServerLostError: The server does not tell.
    """

    def __init__(self, status_fd: int, silent: threading.Event) -> None:
        self._silent = silent
        answered = readable_within(status_fd, _ANSWER_SECONDS)
        pid = os.read(status_fd, STATUS.size) if answered else b""
        if len(pid) < STATUS.size:
            raise ForkServerLostError("it ended" if answered else f"it did not answer within {_ANSWER_SECONDS:g} s")
        super().__init__(STATUS.unpack(pid)[0], status_fd)
        # It may be gone already, and its number somebody else's: the server has said so then.
        if self._pidfd is not None and readable_within(status_fd, 0):
            close_fd(self._pidfd)
            self._pidfd = None

    def _end(self, timeout: float) -> tuple[int | None, bool]:
        ended = self.ended(timeout)
        patience = 0.0 if not ended else _TOLD_AGAIN_SECONDS if self._silent.is_set() else _TOLD_SECONDS
        if not readable_within(self._fd, min(timeout, patience)):
            if ended:
                self._silent.set()  # the server is stopped: the end is known, and the exit code is not
            return None, ended
        self._silent.clear()
        status = os.read(self._fd, STATUS.size)
        if len(status) < STATUS.size:
            return None, ended and self._pidfd is not None  # the server's end, which is not the process's
        return os.waitstatus_to_exitcode(STATUS.unpack(status)[0]), True


class _ForkServer:
    """A fork server of this process: started with the first worker, gone when this process is.

    Args:
        main: What its workers run.
        threads: How many threads the libraries compute on that it has loaded.
    """

    def __init__(self, main: Main, threads: int | None) -> None:
        self._silent = threading.Event()
        self._owner = os.getpid()
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            code = f"{_import(main)}; {_import(serve)}; {serve.__name__}({main.__name__}, {theirs.fileno()})"
            self._process = _start(code, [theirs.fileno()], main, threads)
            self._fd = own_fd(ours.detach())
        # Finalizers run in reverse order: at exit, the samplers that were made later are closed before.
        weakref.finalize(self, _close_server, self._fd, self._process, self._owner)

    def alive(self) -> bool:
        return self._owner == os.getpid() and not self._process.ended(0)

    def launch(self, number: int, fds: Sequence[int]) -> Child:
        status_read, status_write = os.pipe()
        own_fd(status_read)
        try:
            try:
                with self._lock, socket.socket(fileno=os.dup(self._fd)) as connection:
                    socket.send_fds(connection, [STATUS.pack(number)], [*fds, status_write])
            finally:
                os.close(status_write)
            return _ServedChild(status_read, self._silent)
        except BaseException as error:
            close_fd(status_read)
            if isinstance(error, (ConnectionError, ForkServerLostError)):
                _forget(self)
                raise ForkServerLostError(f"the fork server was lost: {error}") from error
            raise


def _close_server(fd: int, process: Child, owner: int) -> None:
    if os.getpid() == owner:
        close_fd(fd)
        if not process.ended(_CLOSE_SECONDS):
            process.kill()  # stopped, or hung
        process.wait(END_SECONDS)
        process.close()


_servers: dict[int | None, _ForkServer] = {}  # by their number of threads: hardly ever more than one
_server_lock = threading.Lock()


def _fork_server(main: Main, threads: int | None) -> _ForkServer:
    with _server_lock:
        server = _servers.get(threads)
        if server is None or not server.alive():
            server = _servers[threads] = _ForkServer(main, threads)
        return server


def _forget(server: _ForkServer) -> None:
    """Let the next worker be started by another fork server than this one."""
    with _server_lock:
        for threads, known in list(_servers.items()):
            if known is server:
                del _servers[threads]
