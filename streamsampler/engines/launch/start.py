"""Start worker processes through a fork server.

`multiprocessing.Process` would import the user's main script in each child (an unguarded script runs itself again, and
a session on standard input has none), leave a socket in the temporary folder when the parent is killed, and allow
daemonic processes no children.
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

from streamsampler.core.settings import hash_seed
from streamsampler.engines.launch.child import END_SECONDS, STATUS, Main, interrupts_blocked, kill_at_end_of
from streamsampler.engines.launch.descriptors import close_fd, own_fd, pipe_between
from streamsampler.engines.launch.fork_server import serve
from streamsampler.engines.launch.start_methods import import_path
from streamsampler.engines.launch.worker_child import WorkerChild
from streamsampler.workers.threads import set_unset

_CLOSE_SECONDS = 1.0  # for an unneeded server to end


def launch(main: Main, number: int, fds: Sequence[int], threads: int | None = None) -> WorkerChild:
    """Start a worker process with these descriptors, without waiting; see `WorkerChild.await_start`.

    The caller may close `fds` afterwards. Position `PARENT_FD` is the reading end of a pipe with only this process at
    the other end. Raises an OSError if no processes or descriptors are left.
    """
    _reap_strays()
    with _servers_lock:
        key = threads, main, hash_seed()
        server = _servers.get(key)
        if server is None or not server.alive():
            server = _servers[key] = _OwnServer(main, threads)
    return server.launch(number, fds)


def _python(code: str, main: Main) -> list[str]:
    """Return the command to run `code` in a fresh interpreter with this interpreter's modules."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    # The server needs PYTHONHASHSEED; `_start` removes the other variables that -E and -I exclude.
    flags = [flag for flag in flags if flag not in ("-E", "-I")] + ["-s"] * sys.flags.isolated
    path = import_path(main.__module__)
    # -P: `-c` puts the current directory first, where a file may be named like an imported module.
    return [sys.executable, *flags, "-P", "-c", f"import sys; sys.path[:] = {path!r}; {code}"]


class _OwnServer:
    """A fork server of this process, from its first worker to its end."""

    def __init__(self, main: Main, threads: int | None) -> None:
        self.lost = False  # whether it has ended or hangs: it starts no other worker, and is not awaited
        self._owner = os.getpid()
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with ours, theirs, contextlib.ExitStack() as kept, contextlib.ExitStack() as handed_over:
            fd = theirs.fileno()
            code = f"from {serve.__module__} import serve; serve({main.__module__!r}, {main.__name__!r}, {fd})"
            alive = pipe_between(handed_over, kept, ours_is=1)
            self._process = _start(_python(code, main), [fd, alive[0]], threads)
            # From its start, also during its imports. The server holds this end of the pipe without using it.
            kill_at_end_of(alive[0], self._process.pid)
            self._fds = own_fd(ours.detach()), alive[1]
            kept.pop_all()
        # Finalizers run in reverse order: at exit, samplers made later are closed before.
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
            except ConnectionError:
                self.forget()  # nothing has the writing end any more, as `await_start` notices
            finally:
                os.close(status_write)
            return WorkerChild(status_read, starter=self)
        except BaseException:
            close_fd(status_read)
            raise

    def forget(self) -> None:
        self.lost = True
        with _servers_lock:
            for key, known in list(_servers.items()):
                if known is self:
                    del _servers[key]


def _start(command: Sequence[str], fds: Sequence[int], threads: int | None) -> subprocess.Popen[bytes]:
    hidden = "PYTHON" if sys.flags.ignore_environment else "\0"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environ["PYTHONHASHSEED"] = hash_seed()
    set_unset(environ, threads)
    with interrupts_blocked():
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds, env=environ)


def _close_server(fds: Sequence[int], process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:
        return
    # At the end of the program a second Ctrl-C would be printed as an uncaught exception.
    with interrupts_blocked():
        for fd in fds:
            close_fd(fd)
        _end_server(process, _CLOSE_SECONDS)  # killed, if it is stopped or hangs


_strays: list[subprocess.Popen[bytes]] = []  # abandoned servers, still to reap


def _reap_strays() -> None:
    """Reap abandoned servers that have ended since."""
    for process in list(_strays):
        if process.poll() is not None:
            with contextlib.suppress(ValueError):  # another thread was faster
                _strays.remove(process)


def _end_server(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the end of a server; kill it after `seconds`. If it hangs in the kernel, it is reaped later."""
    for patience in (seconds, END_SECONDS):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return
        process.kill()
    _strays.append(process)


_servers: dict[tuple[int | None, Main, str], _OwnServer] = {}  # by threads, main function and hash seed: rarely several
_servers_lock = threading.Lock()
