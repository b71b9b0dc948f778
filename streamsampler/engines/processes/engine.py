"""The engine of this machine: a process for each worker.

::

                         board: oldest version wanted ─▶        ◀─ progress of each worker
              ┌─────────┐                                                         ┌──────────┐
              │         │─── commands: Start, Continue, Stop, Exit (pipe) ───────▶│          │
              │ sampler │─── arena of updates, written once for all ─────────────▶│ worker w │
              │         │◀── answers: one a ticket (pipe) ────────────────────────│          │
              └─────────┘◀── arena of w's rollouts, read in place ────────────────└──────────┘

Each worker has pipes and memory of its own, made before it starts, and each end is open in a single process. So the
death of a worker, at any instant, breaks nothing of another worker, and is noticed at once, without locks or threads.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from mmap import mmap
from typing import Any, TypeVar

from streamsampler.core.serialization import Payload, Place
from streamsampler.engines.base import Died, Event
from streamsampler.engines.launch.child import END_SECONDS, Main
from streamsampler.engines.launch.descriptor_limit import make_room
from streamsampler.engines.launch.descriptors import close_fd, own_fd, pipe_between, readable_within
from streamsampler.engines.launch.start import launch
from streamsampler.engines.launch.worker_child import WatchdogLostError
from streamsampler.engines.linked import GRACE_SECONDS, AnswerReader, EngineLink, Link, LinkedEngine, LinkedWorkers
from streamsampler.engines.processes.shared_memory import ArenaReader, ArenaWriter, Region, anonymous_file, read_only
from streamsampler.engines.processes.stacks import stacks_of
from streamsampler.engines.processes.wire import (
    FORKED_COPY,
    INLINE_LIMIT,
    GarbageError,
    MessageReader,
    Stored,
    flattened,
    pack,
    send,
    unpack,
    unpack_answer,
)
from streamsampler.engines.processes.worker_main import main
from streamsampler.engines.worker_side import ProcessSetup
from streamsampler.protocol.messages import Answer, Message
from streamsampler.workers.board import StatusBoard, board_bytes


class SharedFiles:
    """Files shared by all workers of a pool, closed together."""

    def __init__(self, setup: Any, n_workers: int) -> None:
        with contextlib.ExitStack() as self._opened:
            self._setup_fd = self.own(anonymous_file("streamsampler-setup", pickle.dumps(setup, protocol=5)))
            board_fd = self.own(anonymous_file("streamsampler-board", bytes(board_bytes(n_workers))))
            self.stacks_fd, stacks_write_fd = map(self.own, os.pipe())  # for workers' stacks
            os.set_blocking(self.stacks_fd, False)
            self.board = StatusBoard(memoryview(self._opened.enter_context(mmap(board_fd, 0))))
            self._opened.callback(self.board.release)
            # Read-only: a worker's mistake must not reach all others.
            self.fds = [self.own(read_only(self._setup_fd)), board_fd, stacks_write_fd]
            self._open()
            self._opened = self._opened.pop_all()

    def _open(self) -> None:
        """Open a subclass's files."""

    def own(self, fd: int) -> int:
        """Close a descriptor together with the others; return it."""
        self._opened.callback(close_fd, own_fd(fd))
        return fd

    def set_up(self, setup: Any) -> None:
        """Change the setup of workers started from now on; all others have read theirs."""
        os.ftruncate(self._setup_fd, 0)
        with open(self._setup_fd, "wb", closefd=False) as file:
            file.seek(0)
            file.write(pickle.dumps(setup, protocol=5))

    def close(self) -> None:
        self._opened.close()


class PublishedFiles(SharedFiles):
    """Adds an arena for payloads, written once for all workers."""

    def __init__(self, setup: Any, n_workers: int, inline_limit: int) -> None:
        self.inline_limit = inline_limit  # bytes up to which a report travels in the message itself
        super().__init__(setup, n_workers)

    def _open(self) -> None:
        updates_fd = self.own(anonymous_file("streamsampler-updates"))
        self.updates_fd = self.own(read_only(updates_fd))
        self.fds.append(self.updates_fd)
        self._writer = ArenaWriter(updates_fd)
        self._reader = ArenaReader(self.updates_fd)
        self._opened.callback(self._reader.close)

    def write(self, payload: Payload) -> Stored:
        """Write a payload once, for all workers."""
        packed = pack(payload)
        if sum(view.nbytes for view in packed) <= self.inline_limit // 3:  # a message carries up to four
            return Stored(None, b"".join(packed))
        return Stored(self._writer.write(packed))

    def read(self, stored: Stored) -> Payload:
        """Return a copy of a payload."""
        packed = self._reader.read(stored.region) if stored.region is not None else stored.data or b""
        head, buffers = unpack(memoryview(packed))
        return Payload(bytes(head), tuple(bytes(buffer) for buffer in buffers))

    def free(self, stored: Stored) -> None:
        if stored.region is not None:
            self._writer.give_back(stored.region)


CAME_BACK = (
    "called os.fork(), and the forked process, which must end with os._exit(), returned into the worker's own code, "
    "and was stopped"
)

SAYS, ENDED, HAS_ROOM = range(3)
"""Events of a selector: a worker has sent a message, has ended, or has room for another message."""

_RELEASES_PER_MESSAGE = 64  # keeps a message below PIPE_BUF; an answer has a few regions, and every ticket a message


@dataclass(frozen=True)
class WorkerStart:
    """How the workers of a pool are started."""

    main: Main
    threads: int | None
    shared: SharedFiles
    selector: selectors.BaseSelector  # reports `(link, SAYS)`, `(link, ENDED)` or `(link, HAS_ROOM)`


class PipeLink(Link):
    """A worker process with two pipes; its constructor starts the process without waiting.

    `fds` are further descriptors of the worker. Raises an OSError if no processes or descriptors are left.
    """

    def __init__(self, start: WorkerStart, number: int, fds: Sequence[int] = ()) -> None:
        super().__init__(number)
        self._start = start
        self._closed = False
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            commands_read, self.commands_fd = pipe_between(theirs, ours, ours_is=1)
            self.answers_fd, answers_write = pipe_between(theirs, ours, ours_is=0)
            alive_read, _ = pipe_between(theirs, ours, ours_is=1)  # the worker ends when this closes
            for fd in (self.commands_fd, self.answers_fd):
                os.set_blocking(fd, False)
            given = [commands_read, answers_write, alive_read, *start.shared.fds, *fds]
            self.child = launch(start.main, number, given, start.threads)
            ours.callback(self.child.discard, END_SECONDS)
            self._ours = ours.pop_all()

    @abstractmethod
    def read(self) -> list[Any] | None:
        """Return the events of arrived messages; None if the worker has closed its end.

        Raises:
            GarbageError: Other data arrived.
        """

    def flush(self) -> None:
        """Send messages the pipe had no room for; none if the protocol bounds the messages under way."""

    def runs(self) -> bool:
        """Wait until the worker runs, and register it at the selector; see `WorkerChild.await_start` for errors.

        Return False if its server was lost, as an earlier worker has shown. If this worker is the first to show it,
        close the link and set `lost`.
        """
        was_lost = self.child.is_given_up
        try:
            self.child.await_start()
        except WatchdogLostError as error:
            if was_lost:
                return False
            self.lost = f"was lost, because {error},"
            self.close(0)
            return True
        self._register()
        return True

    def _register(self) -> None:
        self._start.selector.register(self.answers_fd, selectors.EVENT_READ, (self, SAYS))
        for fd in self.child.filenos():
            self._start.selector.register(fd, selectors.EVENT_READ, (self, ENDED))

    def unregister(self) -> None:
        """Stop the selector's events of this worker."""
        for fd in (self.answers_fd, *self.child.filenos()):
            if fd in self._start.selector.get_map():
                self._start.selector.unregister(fd)

    @property
    def pid(self) -> int:
        return self.child.pid

    def ends_within(self, timeout: float) -> bool:
        return self.child.ended(timeout)

    def kill(self, *, gently: bool = False) -> None:
        self.child.kill(signal.SIGTERM if gently else signal.SIGKILL)

    def stacks(self) -> str:
        return stacks_of(self.child, self._start.shared.stacks_fd)

    def close(self, timeout: float) -> None:
        self.ended = True
        if not self._closed:  # or the numbers of its descriptors may belong to other files
            self.unregister()
            self.child.discard(timeout)
            self._ours.close()
            self._closed = True


class ArenaLink(PipeLink, EngineLink):
    """The sampler's ends of a worker's pipes and arena."""

    def __init__(self, start: WorkerStart, number: int, shared: PublishedFiles, answers: AnswerReader) -> None:
        arena_fd = own_fd(anonymous_file(f"streamsampler-worker-{number}"))
        try:
            super().__init__(start, number, [arena_fd])
        except BaseException:
            close_fd(arena_fd)
            raise
        self._ours.callback(close_fd, arena_fd)
        self._answers = answers
        self._released: list[Region] = []  # free again, to be sent with the next message
        self._reader = MessageReader(self.answers_fd, shared.inline_limit)
        self._arena = ArenaReader(arena_fd)
        self._ours.callback(self._arena.close)

    def send(self, message: Message) -> None:
        """Send a message, with the regions of the arena that are free again."""
        released = list(map(tuple, self._released[:_RELEASES_PER_MESSAGE]))
        del self._released[:_RELEASES_PER_MESSAGE]  # in place: releases append to this list
        try:
            send(self.commands_fd, pickle.dumps((flattened(message), released), protocol=5))
        except BrokenPipeError:
            pass  # the death is noticed elsewhere
        except BlockingIOError:  # the messages under way leave room: other code has written to the pipe
            self.child.kill()

    def read(self) -> list[Event] | None:
        """Return the events of arrived answers; None if the worker has closed its end."""
        messages = self._reader.read()
        if messages is None:
            return None
        events: list[Event] = []
        for message in messages:
            records, answer, contents, places, regions = self._decoded(message)
            release = partial(self._released.extend, regions)
            events += self._answers.events(self, records, answer, contents, places, release)
        return events

    def _decoded(self, message: bytes) -> tuple[bytes, Answer | None, Any, list[Place], list[Region]]:
        if message == FORKED_COPY:
            raise GarbageError(CAME_BACK)
        try:
            return unpack_answer(message, self._arena.look)
        except (OSError, MemoryError):  # this process lacks resources
            raise
        except Exception as error:
            raise GarbageError(f"sent an invalid answer ({type(error).__name__}: {error})") from error


_AT_ONCE = 8  # workers started together; the kernel bounds the descriptors on their way to a server

PipeLinkT = TypeVar("PipeLinkT", bound=PipeLink)


class ProcessPool(LinkedWorkers[PipeLinkT]):
    """Runs workers in processes with pipes."""

    _how: WorkerStart
    _selector: selectors.BaseSelector

    @abstractmethod
    def _new_link(self, number: int) -> PipeLinkT:
        """Start a worker without waiting; return its link."""

    def _start(self, main: Main, threads: int | None, shared: SharedFiles) -> None:
        """Start the workers, several at a time: the start of a worker passes through several processes."""
        self._opened.callback(shared.close)
        with self._ended_at_errors():
            self._selector = self._opened.enter_context(selectors.DefaultSelector())
            self.board = shared.board
            self._how = WorkerStart(main, threads, shared, self._selector)
            for number in range(self.n_workers + _AT_ONCE):
                first = number - _AT_ONCE
                if first >= 0:
                    self._links[first] = self._note_start(self._running(self._links[first]))
                if number < self.n_workers:
                    self._links.append(self._new_link(number))

    def _started(self, number: int) -> PipeLinkT:
        return self._running(self._new_link(number))

    def _running(self, link: PipeLinkT) -> PipeLinkT:
        """Wait until a worker runs, or will never run; return its link.

        The loss of a server is the loss of a single worker: the next server starts its other workers.
        """
        try:
            while not link.runs():
                # A new link, with new pipes: a worker started by the lost server ends with the old pipes.
                link.close(0)
                link = self._new_link(link.number)
        except BaseException:
            link.close(END_SECONDS)
            raise
        return link

    def _events(self, timeout: float | None) -> list[Any]:
        return self._said(self._selector.select(timeout))

    def _said(self, ready: Sequence[tuple[selectors.SelectorKey, int]]) -> list[Any]:
        """Return the events of workers reported by the selector."""
        events: list[Any] = []
        for key, _ in ready:
            link, what = key.data
            if what is HAS_ROOM:
                link.flush()
                continue
            if link.ended:
                continue
            try:
                # None: the worker has closed its end, and is about to end.
                said = None if what is ENDED else link.read()
                events += self._take_in_death(link) if said is None else said
            except GarbageError as error:
                events.append(self._kill_untrusted(link, str(error)))
        return events

    def _take_in_death(self, link: PipeLinkT, *, given_up: bool = False) -> list[Any]:
        """Return a worker's last events, then its death; an unfinished message is discarded."""
        self._killed.pop(link.number, None)
        if not given_up and link.child.unwatched() and not link.child.ended(0):
            return [self._kill_untrusted(link, "lost its watchdog process, and was killed,")]
        link.ended = True
        if not given_up and not link.child.ended(GRACE_SECONDS):
            link.kill()  # it has closed its pipe, and cannot answer any more
        last: list[Any] = []
        while readable_within(link.answers_fd, 0):
            try:
                said = link.read()
            except GarbageError as error:
                return [*last, self._kill_untrusted(link, str(error))]
            if said is None:
                break
            last += said
        link.unregister()
        return [*last, Died(link.number, link.child.wait(0 if given_up else END_SECONDS))]

    def _kill_untrusted(self, link: PipeLinkT, why: str) -> Died:
        """Kill a worker after untrustworthy messages; return its death."""
        link.ended = True
        self._killed.pop(link.number, None)
        link.child.kill_all()
        link.unregister()
        return Died(link.number, link.child.wait(END_SECONDS), why, hopeless=why == CAME_BACK)


class ProcessEngine(ProcessPool[ArenaLink], LinkedEngine[ArenaLink]):
    """Runs workers in processes of this machine.

    Raises:
        ResourceLimitError: The system does not allow this process the descriptors (an OSError).
        OSError: No process can be started; those started before have ended.
    """

    def __init__(
        self,
        n_workers: int,
        make_worker: Payload,
        seed: int,
        *,
        close_timeout: float,
        report_memory: bool = False,
        threads: int | None = None,
    ) -> None:
        super().__init__(n_workers, close_timeout)
        make_room(n_workers)
        setup = ProcessSetup.of_this_process(make_worker, seed, threads), INLINE_LIMIT, report_memory
        self._shared = PublishedFiles(setup, n_workers, INLINE_LIMIT)
        self._start(main, threads, self._shared)

    def _new_link(self, number: int) -> ArenaLink:
        return ArenaLink(self._how, number, self._shared, self._answers)

    def publish(self, payload: Payload) -> Stored:
        return self._shared.write(payload)

    def published(self, handle: Stored) -> Payload:
        return self._shared.read(handle)

    def unpublish(self, handle: Stored) -> None:
        self._shared.free(handle)
