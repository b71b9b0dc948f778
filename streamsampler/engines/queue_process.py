"""Start and watch processes of `multiprocessing`, each with a pair of queues.

For the engine `queues`, and for environments stepped from the parent. Unlike `multiprocessing` by default, a process
does not import the user's main script, since agents and environments defined there travel by value; and it is not ended
before environments are closed. Imports nothing that only POSIX has.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import multiprocessing
import multiprocessing.process
import multiprocessing.spawn
import os
import queue
import signal
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from streamsampler.core.errors import SamplerError
from streamsampler.core.settings import hash_seed, working_directory
from streamsampler.engines.base import Died
from streamsampler.engines.launch.child import END_SECONDS, interrupts_blocked
from streamsampler.engines.launch.descriptor_limit import make_room
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.launch.watched import WatchedMain
from streamsampler.engines.linked import GRACE_SECONDS, Link, LinkedWorkers, shown_stacks
from streamsampler.engines.queue_worker import WorkerEnds
from streamsampler.workers.board import StatusBoard, board_bytes

_STACKS_SECONDS = 1.0

_UNREPORTED = 255
"""Exit code of `multiprocessing` after the loss of a fork server, which reports the codes of its children."""

_links: weakref.WeakSet[QueueProcess] = weakref.WeakSet()
_start_lock = threading.Lock()


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


class QueueProcess(Link):
    """A worker process and this process's ends of its queues; its constructor starts the process.

    A thread reads the worker's answers: a worker that stops in the middle of an answer blocks only its own thread. Each
    end is open in a single process, so reading ends with the worker's death, even in the middle of a message. Raises an
    OSError if no processes or descriptors are left.
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


@contextlib.contextmanager
def _variables_of_workers() -> Iterator[None]:
    """Give started processes the hash seed of workers, and no modules of the current directory.

    After their start they have our `sys.path`, and `ProcessSetup` restores PYTHONSAFEPATH.
    """
    variables = {"PYTHONSAFEPATH": "1", "PYTHONHASHSEED": hash_seed()}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


QueueProcessT = TypeVar("QueueProcessT", bound=QueueProcess)


def check_startable(start_method: StartMethod) -> None:
    """Raise a SamplerError in a daemonic process, or if processes do not fork and the working directory is gone."""
    if multiprocessing.current_process().daemon:
        raise SamplerError(
            'engine="queues" cannot start workers in a daemonic process, because Python allows it no children: start '
            "that process with daemon=False, or use LocalSampler or SerialEnvManager, which return the same results"
        )
    if start_method != "fork" and working_directory() is None:
        raise SamplerError(
            f'engine="queues" cannot start workers with start_method="{start_method}": the working directory was '
            'removed. Call os.chdir("/") before, or use engine="processes" or start_method="fork"'
        )


class QueuedWorkers(LinkedWorkers[QueueProcessT]):
    """Runs workers in processes of `multiprocessing`, with a pair of queues for each."""

    _how: QueueStart

    @abstractmethod
    def _new_link(self, number: int) -> QueueProcessT:
        """Start a worker; return its link."""

    @abstractmethod
    def _heard(self, link: QueueProcessT, item: Any) -> list[Any]:
        """Return the events of a worker's message; `_untrusted` for any other object."""

    def _start(self, start_method: StartMethod, main: Callable[..., None], setup: Any, **most: int) -> None:
        """Start the workers; after an error all started workers have ended.

        Raises:
            ResourceLimitError: The system does not allow this process the descriptors (an OSError).
            OSError: No process can be started.
            SamplerError: See `check_startable`.
        """
        check_startable(start_method)
        make_room(self.n_workers)
        context = multiprocessing.get_context(start_method)
        memory: Any = context.RawArray(ctypes.c_char, board_bytes(self.n_workers))
        self._how = QueueStart(context, main, setup, memory, **most)
        self._inbox: list[tuple[QueueProcessT, Any]] = []  # messages read; while it has any, a wake-up is pending
        self._inbox_lock = threading.Lock()
        self.board = StatusBoard(memoryview(memory))
        woken, wake = context.Pipe(duplex=False)
        self._woken, self._wake = map(self._opened.enter_context, (woken, wake))
        with self._ended_at_errors():
            for number in range(self.n_workers):  # all, and then threads: a process with threads is not safe to fork
                self._links.append(self._prepared_link(number))
            for link in self._links:
                if not self._note_start(link).lost:
                    link.read(self._post)

    def _close_shared(self) -> None:
        super()._close_shared()
        self._how = replace(self._how, board=None)

    def _prepared_link(self, number: int) -> QueueProcessT:
        with _start_lock, _variables_of_workers():
            return self._new_link(number)

    def _started(self, number: int) -> QueueProcessT:
        link = self._prepared_link(number)
        if link.lost:
            return link
        try:
            link.read(self._post)
        except BaseException:
            link.close(END_SECONDS)
            raise
        return link

    def _post(self, link: QueueProcessT, item: Any) -> None:
        """Put a link's message into the inbox; called in its thread."""
        with self._inbox_lock, contextlib.suppress(OSError):  # closed just now
            self._inbox.append((link, item))
            if len(self._inbox) == 1:
                self._wake.send_bytes(b"!")

    def _sleep(self, timeout: float | None) -> bool:
        """Sleep until the inbox has something; return whether it has."""
        # The first wait lets the threads run that write messages. If an answer is a signal to this process, it comes
        # before the second wait, and is noticed; a signal just before a thread blocks is not.
        return bool(wait([self._woken], 0) or wait([self._woken], timeout))

    def _events(self, timeout: float | None) -> list[Any]:
        return self._read() if self._sleep(timeout) else []

    def _read(self) -> list[Any]:
        """Return the events of the inbox."""
        with self._inbox_lock:
            # In this order: an interrupt in between leaves a wake-up too many, not too few.
            items, self._inbox = self._inbox, []
            self._woken.recv_bytes()
        events: list[Any] = []
        for link, item in items:
            if link.ended:
                continue
            if item is None:
                events += self._take_in_death(link)
            elif isinstance(item, Exception):
                events += self._untrusted(link, item)
            else:
                events += self._heard(link, item)
        return events

    def _untrusted(self, link: QueueProcessT, error: Exception) -> list[Any]:
        """Kill a worker after an invalid message; return its death."""
        link.kill()
        return self._take_in_death(link, why=f"sent an invalid answer ({type(error).__name__}: {error})")

    def _take_in_death(self, link: QueueProcessT, *, given_up: bool = False, why: str = "") -> list[Any]:
        """Return the death of a worker, after all its messages."""
        link.ended = True
        self._killed.pop(link.number, None)
        if not link.ends_within(0 if given_up else GRACE_SECONDS):
            link.kill()
            link.ends_within(0 if given_up else END_SECONDS)
        exitcode, unknown = link.end()
        return [Died(link.number, exitcode, why or unknown)]
