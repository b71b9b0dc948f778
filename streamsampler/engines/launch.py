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
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from streamsampler.engines.child import STATUS, Main, run_as_child
from streamsampler.engines.fork_server import serve
from streamsampler.errors import SamplerError, UsageError

__all__ = ["START_METHODS", "Child", "StartMethod", "close_fd", "default_start_method", "launch", "own_fd"]

StartMethod = Literal["fork", "spawn", "forkserver"]
START_METHODS: tuple[StartMethod, ...] = ("fork", "spawn", "forkserver")

# Descriptors of this process's ends. A forked child closes them: a copy of a pipe's end there would keep workers from
# noticing that this process is gone.
_own_fds: set[int] = set()


def own_fd(fd: int) -> int:
    """Take note that `fd` belongs to this process alone, and return it."""
    _own_fds.add(fd)
    return fd


def close_fd(fd: int) -> None:
    """Close a descriptor that `own_fd` took note of."""
    if fd in _own_fds:
        _own_fds.discard(fd)
        os.close(fd)


def _close_own_fds_after_fork() -> None:
    for fd in _own_fds:
        with contextlib.suppress(OSError):
            os.close(fd)
    _own_fds.clear()


os.register_at_fork(after_in_child=_close_own_fds_after_fork)


def default_start_method() -> StartMethod:
    """The fork server: safe beside threads, and quick. On macOS spawn, because system libraries do not survive fork."""
    return "spawn" if sys.platform == "darwin" else "forkserver"


def check_start_method(method: str | None) -> StartMethod:
    """Return a valid start method; None is the default one.

    Raises:
        UsageError: There is no such method.
    """
    if method is None:
        return default_start_method()
    for known in START_METHODS:
        if method == known:
            return known
    raise UsageError(f"start_method must be one of {', '.join(START_METHODS)}, got {method!r}")


class Child(ABC):
    """A running worker process.

    Attributes:
        pid: Its process id.
    """

    pid: int

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor that becomes readable when the process ends."""

    @abstractmethod
    def wait(self) -> int | None:
        """Wait for the end and return the exit code: negative for a signal, None if nobody knows."""

    def ended(self, timeout: float) -> bool:
        """Whether the process ends within `timeout` seconds."""
        poller = select.poll()
        poller.register(self.fileno(), select.POLLIN)
        return bool(poller.poll(max(0, int(timeout * 1000))))

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal; nothing happens if the process is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal_number)

    def close(self) -> None:
        """Close the descriptor."""
        close_fd(self.fileno())


class _DirectChild(Child):
    """A child of this process, by fork or spawn.

    Its end is told by the kernel where that is possible. Otherwise it is the end of a pipe, which the child's own
    children, if it forks any, keep open beyond its death.
    """

    def __init__(self, pid: int, end_of_life: int, process: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self._fd = end_of_life
        self._process = process
        self._exitcode: int | None = None
        self._waited = False
        if hasattr(os, "pidfd_open"):
            try:
                self._fd = own_fd(os.pidfd_open(pid))
            except OSError:
                self.kill()
                self.wait()
                raise
            finally:
                close_fd(end_of_life)

    def fileno(self) -> int:
        return self._fd

    def wait(self) -> int | None:
        if not self._waited:
            self._exitcode = self._process.wait() if self._process is not None else _wait_for(self.pid)
            self._waited = True
        return self._exitcode

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        # Once waited for, the number may be somebody else's.
        if not self._waited:
            super().kill(signal_number)


def _wait_for(pid: int) -> int | None:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None  # somebody else in this process waited for all children


def _end_of_life() -> tuple[int, int]:
    """Return a pipe that tells of a child's end: it alone holds the second descriptor."""
    read_end, write_end = os.pipe()
    return own_fd(read_end), write_end


def launch(method: StartMethod, main: Main, number: int, fds: Sequence[int]) -> Child:
    """Start a worker process.

    Args:
        method: How.
        main: What it runs: a function of a module, called with the number and the descriptors.
        number: The worker number.
        fds: Descriptors that it gets, in this order; the caller may close them afterwards.

    Raises:
        OSError: There are no processes or descriptors left.
    """
    match method:
        case "fork":
            return _fork(main, number, fds)
        case "spawn":
            return _spawn(main, number, fds)
        case "forkserver":
            try:
                return _fork_server(main).launch(number, fds)
            except (ConnectionError, _ServerEndedError):
                # Killed, perhaps, and not waited for yet: another one takes its place, once.
                return _fork_server(main, afresh=True).launch(number, fds)


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
        end_of_life, held_by_child = _end_of_life()
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
    return _DirectChild(pid, end_of_life)


def _python(code: str) -> list[str]:
    """Return the command that runs `code` in a fresh interpreter which finds the modules that this one finds."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    path = [entry for entry in sys.path if isinstance(entry, str)]
    return [sys.executable, *flags, "-c", f"import sys; sys.path[:] = {path!r}; {code}"]


def _import(function: Callable[..., None]) -> str:
    return f"from {function.__module__} import {function.__name__}"


def _spawn(main: Main, number: int, fds: Sequence[int]) -> Child:
    end_of_life, held_by_child = _end_of_life()
    try:
        with _interrupts_held_back():
            process = subprocess.Popen(
                _python(f"{_import(main)}; {main.__name__}({number}, {list(fds)})"),
                stdin=subprocess.DEVNULL,
                pass_fds=[*fds, held_by_child],
            )
    except BaseException:
        close_fd(end_of_life)
        raise
    finally:
        os.close(held_by_child)
    return _DirectChild(process.pid, end_of_life, process)


class _ServerEndedError(SamplerError):
    """The fork server is gone."""


class _ServedChild(Child):
    """A child of the fork server, which tells its process id and, at the end, its exit code."""

    def __init__(self, status_fd: int) -> None:
        self._fd = status_fd
        self._exitcode: int | None = None
        self._waited = False
        pid = os.read(status_fd, STATUS.size)
        if len(pid) < STATUS.size:
            close_fd(status_fd)
            raise _ServerEndedError("the fork server ended before it could start a worker")
        (self.pid,) = STATUS.unpack(pid)

    def fileno(self) -> int:
        return self._fd

    def wait(self) -> int | None:
        if not self._waited:
            status = os.read(self._fd, STATUS.size)
            self._waited = True
            if len(status) == STATUS.size:
                self._exitcode = os.waitstatus_to_exitcode(STATUS.unpack(status)[0])
        return self._exitcode

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        if not self._waited:
            super().kill(signal_number)


class _ForkServer:
    """The fork server of this process: started with the first worker, gone when this process is."""

    def __init__(self, main: Main) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with ours, theirs, _interrupts_held_back():
            process = self._process = subprocess.Popen(
                _python(f"{_import(main)}; {_import(serve)}; {serve.__name__}({main.__name__}, {theirs.fileno()})"),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
            self._fd = own_fd(ours.detach())
        # Finalizers run in reverse order: at exit, the samplers that were made later are closed before.
        weakref.finalize(self, _close_server, self._fd, process, self._owner)

    def alive(self) -> bool:
        return self._owner == os.getpid() and self._process.poll() is None

    def launch(self, number: int, fds: Sequence[int]) -> Child:
        status_read, status_write = os.pipe()
        own_fd(status_read)
        try:
            with self._lock, socket.socket(fileno=os.dup(self._fd)) as connection:
                socket.send_fds(connection, [STATUS.pack(number)], [*fds, status_write])
        except BaseException:
            close_fd(status_read)
            raise
        finally:
            os.close(status_write)
        return _ServedChild(status_read)


def _close_server(fd: int, process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        close_fd(fd)
        process.wait()


_server: _ForkServer | None = None
_server_lock = threading.Lock()


def _fork_server(main: Main, *, afresh: bool = False) -> _ForkServer:
    global _server
    with _server_lock:
        if afresh or _server is None or not _server.alive():
            _server = _ForkServer(main)
        return _server
