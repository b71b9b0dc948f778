"""A process of `multiprocessing` with a pair of queues. Imports nothing that only POSIX has.

Unlike `multiprocessing` by default, it does not import the user's main script, since agents and environments defined
there travel by value; and it is not ended before environments are closed.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import multiprocessing.process
import multiprocessing.spawn
import os
import queue
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from streamsampler.engines.launch.child import END_SECONDS, interrupts_blocked
from streamsampler.engines.launch.watched import WatchedMain
from streamsampler.engines.linked import Link, shown_stacks
from streamsampler.engines.queue_worker import WorkerEnds

_STACKS_SECONDS = 1.0

_UNREPORTED = 255
"""Exit code of `multiprocessing` after the loss of a fork server, which reports the codes of its children."""

_links: weakref.WeakSet[QueueProcessLink] = weakref.WeakSet()


@dataclass(frozen=True)
class QueueStart:
    """How the workers of a pool are started."""

    context: BaseContext  # starts processes
    main: Callable[..., None]  # of a module; see `queue_worker.main`
    setup: Any  # for workers; it can be pickled
    board: Any  # the status board's memory
    most_commands: int = 0  # messages under way; 0 for any number
    # Answers under way: a thread writes them, and the worker never waits. None for a queue with the room of a pipe,
    # written by the worker itself.
    most_answers: int | None = None


class QueueProcessLink(Link):
    """A worker process and this process's ends of its queues; its constructor starts the process.

    A thread reads the worker's answers: a worker that stops in the middle of an answer blocks only its own thread. Each
    end is open in a single process, so reading ends with the worker's death. Raises an OSError if no processes or
    descriptors are left.
    """

    def __init__(self, start: QueueStart, number: int) -> None:
        super().__init__(number)
        context = start.context
        self._gone = self._closed = False
        self._has_server = context.get_start_method() == "forkserver"
        self._reader: threading.Thread | None = None
        self._commands = context.Queue(start.most_commands)
        self._answers: Any = context.SimpleQueue() if start.most_answers is None else context.Queue(start.most_answers)
        self._commands.cancel_join_thread()  # an unread message must not delay the end of this process
        for one in (self._commands, self._answers):
            one._ignore_epipe = True  # type: ignore[union-attr]  # the death of the other end is noticed elsewhere
        alive, self._alive = context.Pipe(duplex=False)
        stacks, self._stacks = context.Pipe()
        theirs = WorkerEnds(self._commands, self._answers, alive, stacks)
        make: Callable[..., BaseProcess] = context.Process  # type: ignore[attr-defined]
        arguments = number, theirs, start.setup, start.board
        target = WatchedMain(start.main.__module__, start.main.__name__, alive)
        how = {"forked": context.get_start_method() != "spawn"}
        self.process = make(target=target, args=arguments, kwargs=how, name=f"streamsampler worker {number}")
        _links.add(self)  # now: a forked worker closes these ends
        try:
            if self._has_server:
                _let_server_clean_up()
            with interrupts_blocked(), _main_module_left_out():
                self.process.start()
                multiprocessing.process._children.discard(self.process)  # type: ignore[attr-defined]
        except (EOFError, ConnectionError):
            # If the process does run, it ends with these ends.
            self.lost, self._gone = "was lost, because it, or the fork server of multiprocessing, ended,", True
            self._close_ends()
        except BaseException:
            self._close_ends()
            raise
        finally:
            theirs.close()

    def read(self, post: Callable[[Any, Any], None]) -> None:
        """Start a thread that posts the link and each answer, then an exception, if any, then None."""
        name = f"streamsampler-reader-{self.number}"
        self._reader = threading.Thread(target=self._read, args=(post,), name=name, daemon=True)
        try:
            self._reader.start()
        except RuntimeError as error:
            self._reader = None
            raise OSError(errno.EAGAIN, f"no thread can be started: {error}") from error

    def _read(self, post: Callable[[Any, Any], None]) -> None:
        reader, sentinel = self._answers._reader, self.process.sentinel
        try:
            # Also the end of the process: something else may hold the worker's end of the queue.
            while reader in wait([reader, sentinel]):
                post(self, self._answers.get())
        except (EOFError, OSError):  # OSError: the end in the middle of a message
            pass
        except Exception as error:
            post(self, error)
        post(self, None)

    def _put(self, data: bytes) -> None:
        """Send a message, without ever waiting."""
        try:
            self._commands.put_nowait(data)
        except queue.Full:  # the messages under way leave room: it has died, or its queue is broken
            self.kill()

    def stacks(self) -> str:
        with contextlib.suppress(EOFError, OSError):
            self._stacks.send_bytes(b"?")
            if self._stacks.poll(_STACKS_SECONDS):
                return shown_stacks(self._stacks.recv_bytes().decode(errors="replace"), ["/multiprocessing/"])
        return "(it did not answer: it is stopped, or native code holds the interpreter's lock)"

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    def ends_within(self, timeout: float) -> bool:
        """Return whether the worker ends within `timeout` seconds; kill the rest of its group."""
        if not self._gone:
            self.process.join(max(0.0, timeout))
            self._gone = self.process.exitcode is not None
            # At once: while the group has members, no new process gets its number.
            if self._gone and hasattr(os, "killpg"):
                with contextlib.suppress(OSError):
                    os.killpg(self.pid, signal.SIGKILL)
        return self._gone

    def end(self) -> tuple[int | None, str]:
        """Return the exit code of an ended worker; or None, and a description."""
        exitcode = self.process.exitcode
        if self._has_server and exitcode == _UNREPORTED:
            # Without its server the worker ends with the ends of its queues.
            return None, f"ended with exit code {exitcode}, or lost the fork server of multiprocessing,"
        return exitcode, ""

    def kill(self, *, gently: bool = False) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # gone, or closed by another thread just now
            if gently:
                self.process.terminate()
            else:
                self.process.kill()

    def close(self, timeout: float) -> None:
        """Kill the worker if it lives, and close all ends; a worker that hangs in the kernel keeps them."""
        self.ended = True
        if self._closed:
            return
        self.kill()
        if not self.ends_within(timeout):
            return
        if self._reader is not None:
            self._reader.join(END_SECONDS)
        self._commands.close()
        feeder = self._commands._thread  # type: ignore[attr-defined]
        if feeder is not None:
            feeder.join(END_SECONDS)
        self._closed = True
        self._close_ends()
        self.process.close()

    def _close_ends(self) -> None:
        for end in (self._commands._writer, self._answers._reader, self._alive, self._stacks):  # type: ignore[attr-defined]
            end.close()


def _close_copies() -> None:
    """Close copies of the ends in a forked process: open there, they would hide the end of this process."""
    for link in list(_links):
        link._close_ends()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)


def _let_server_clean_up() -> None:
    """Let this process's next fork server remove the file of its socket; see `queue_server`."""
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    module = "streamsampler.engines.queue_server"
    if module not in server._preload_modules:
        multiprocessing.set_forkserver_preload([*server._preload_modules, module])


@contextlib.contextmanager
def _main_module_left_out() -> Iterator[None]:
    """Exclude the main module from the preparation of processes started by this thread."""
    prepare, starter = multiprocessing.spawn.get_preparation_data, threading.get_ident()

    def without_main(name: str) -> dict[str, Any]:
        data: dict[str, Any] = prepare(name)
        if threading.get_ident() == starter:
            data.pop("init_main_from_name", None)
            data.pop("init_main_from_path", None)
        return data

    multiprocessing.spawn.get_preparation_data = without_main
    try:
        yield
    finally:
        multiprocessing.spawn.get_preparation_data = prepare
