"""The engine of this machine: a process for each worker.

::

                         board: oldest version wanted ─▶        ◀─ progress of each worker
              ┌─────────┐                                                         ┌──────────┐
              │         │─── commands: Start, Continue, Stop, Exit (pipe) ───────▶│          │
              │ sampler │─── arena of updates, written once for all ─────────────▶│ worker w │
              │         │◀── answers: one a ticket (pipe) ────────────────────────│          │
              └─────────┘◀── arena of w's rollouts, read where they lie ──────────└──────────┘

Each worker has pipes and memory of its own, made before it starts, and each end is held by one process only. So the
death of a worker, at any instant, breaks nothing that another one uses, and is seen at once. There are no locks, no
threads, and no names in any file system.
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
from streamsampler.engines.launch.child import (
    END_SECONDS,
    Main,
    close_fd,
    make_room,
    own_fd,
    pipe_between,
    readable_within,
)
from streamsampler.engines.launch.start import WatchdogLostError, launch
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

# ----------------------------------------------------------------------
# This process's ends of what it shares with one worker process: pipes and, for samplers, an arena.


# ----------------------------------------------------------------------
# What all workers of a pool share: their setup, the status board, the pipe for stacks and published payloads.


class SharedFiles:
    """Files that all workers of a pool share: their setup, the status board, and a pipe for stacks.

    Args:
        setup: What workers are given at their start; it can be pickled.
        n_workers: How many workers there are.

    Attributes:
        board: The status board.
        stacks_fd: Where workers' stacks are read; never blocking.
        fds: What workers are given: the setup, the board, the pipe for stacks, and what a subclass adds.
    """

    def __init__(self, setup: Any, n_workers: int) -> None:
        with contextlib.ExitStack() as self._opened:
            self._setup_fd = self.own(anonymous_file("streamsampler-setup", pickle.dumps(setup, protocol=5)))
            board_fd = self.own(anonymous_file("streamsampler-board", bytes(board_bytes(n_workers))))
            self.stacks_fd, stacks_write_fd = map(self.own, os.pipe())
            os.set_blocking(self.stacks_fd, False)
            self.board = StatusBoard(memoryview(self._opened.enter_context(mmap(board_fd, 0))))
            self._opened.callback(self.board.release)
            # Read-only: what one worker wrote there by mistake, all others would read.
            self.fds = [self.own(read_only(self._setup_fd)), board_fd, stacks_write_fd]
            self._open()
            self._opened = self._opened.pop_all()

    def _open(self) -> None:
        """Open what a subclass adds."""

    def own(self, fd: int) -> int:
        """Close a descriptor together with the others; return it."""
        self._opened.callback(close_fd, own_fd(fd))
        return fd

    def set_up(self, setup: Any) -> None:
        """Let workers that are started from now on have another setup; all others have read theirs."""
        os.ftruncate(self._setup_fd, 0)
        with open(self._setup_fd, "wb", closefd=False) as file:
            file.seek(0)
            file.write(pickle.dumps(setup, protocol=5))

    def close(self) -> None:
        """Close all of them; may be repeated."""
        self._opened.close()


class PublishedFiles(SharedFiles):
    """What the workers of a sampler share: payloads, too, which are written once for all of them.

    Args:
        setup: As above.
        n_workers: As above.
        inline_limit: Bytes up to which a report travels in the message itself.

    Attributes:
        inline_limit: As above.
        updates_fd: Where workers read payloads.
    """

    def __init__(self, setup: Any, n_workers: int, inline_limit: int) -> None:
        self.inline_limit = inline_limit
        super().__init__(setup, n_workers)

    def _open(self) -> None:
        updates_fd = self.own(anonymous_file("streamsampler-updates"))
        self.updates_fd = self.own(read_only(updates_fd))
        self.fds.append(self.updates_fd)
        self._writer = ArenaWriter(updates_fd)
        self._reader = ArenaReader(self.updates_fd)
        self._opened.callback(self._reader.close)

    def write(self, payload: Payload) -> Stored:
        """Write a payload once, where all workers can read it."""
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
        """Free the memory of a payload."""
        if stored.region is not None:
            self._writer.give_back(stored.region)


# ----------------------------------------------------------------------


CAME_BACK = (
    "called os.fork(), and the copy came back into the worker's own code: what is forked in an environment or an agent "
    "must end by os._exit(), and was stopped"
)

SAYS, ENDED, HAS_ROOM = range(3)
"""What a selector reports: a worker has said something, has ended, or has room for what it is to be told."""

_RELEASES_PER_MESSAGE = 64  # keeps a message below PIPE_BUF; an answer has a few regions, and every ticket a message


@dataclass(frozen=True)
class WorkerStart:
    """How the workers of one pool are started.

    Attributes:
        main: What a worker runs.
        threads: How many threads libraries compute on; None for no limit.
        shared: What all workers share.
        selector: Reports what it sees of a worker as `(link, SAYS)`, `(link, ENDED)` or `(link, HAS_ROOM)`.
    """

    main: Main
    threads: int | None
    shared: SharedFiles
    selector: selectors.BaseSelector


class PipeLink(Link):
    """A worker process, a pipe there and one back; it starts the worker, and does not wait until that one runs.

    Args:
        start: How the worker is started.
        number: The worker number.
        fds: Descriptors that the worker gets besides, in this order.

    Attributes:
        child: The process.
        commands_fd: Where messages are written; never blocking.
        answers_fd: Where answers are read; never blocking.

    Raises:
        OSError: There are no processes or descriptors left.
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
        """Return the events of the messages that are there; None if the worker has closed its end.

        Raises:
            GarbageError: There is something that is no message; nothing after it can be trusted.
        """

    def flush(self) -> None:
        """Send what the pipe had no room for, which is nothing where the protocol bounds the messages under way."""

    def runs(self) -> bool:
        """Wait until the worker runs, and register it at the selector; see `WorkerChild.await_start` for errors.

        Returns:
            False if what was to start it was lost, and that is known from another worker. If it was not, `lost` says
            so, and the link is closed.
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
        """Let the selector report nothing more of this worker."""
        for fd in (self.answers_fd, *self.child.filenos()):
            if fd in self._start.selector.get_map():
                self._start.selector.unregister(fd)

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self.child.pid

    def ends_within(self, timeout: float) -> bool:
        """Return whether the worker ends within `timeout` seconds."""
        return self.child.ended(timeout)

    def kill(self, *, gently: bool = False) -> None:
        """Kill the worker; gently by SIGTERM."""
        self.child.kill(signal.SIGTERM if gently else signal.SIGKILL)

    def stacks(self) -> str:
        """Return the worker's Python stacks."""
        return stacks_of(self.child, self._start.shared.stacks_fd)

    def close(self, timeout: float) -> None:
        """Kill the worker if it lives, and close all descriptors."""
        self.ended = True
        if not self._closed:  # or the numbers of its descriptors may belong to other files
            self.unregister()
            self.child.discard(timeout)
            self._ours.close()
            self._closed = True


class ArenaLink(PipeLink, EngineLink):
    """The sampler's ends of two pipes and an arena.

    Args:
        start: How the worker is started.
        number: The worker number.
        shared: What all workers share.
        answers: Makes events of what the worker says.
    """

    def __init__(self, start: WorkerStart, number: int, shared: PublishedFiles, answers: AnswerReader) -> None:
        arena_fd = own_fd(anonymous_file(f"streamsampler-worker-{number}"))
        try:
            super().__init__(start, number, [arena_fd])
        except BaseException:
            close_fd(arena_fd)
            raise
        self._ours.callback(close_fd, arena_fd)
        self._answers = answers
        self._released: list[Region] = []  # free again, to be told with the next message
        self._reader = MessageReader(self.answers_fd, shared.inline_limit)
        self._arena = ArenaReader(arena_fd)
        self._ours.callback(self._arena.close)

    def send(self, message: Message) -> None:
        """Send a message, and which regions of the arena are free again."""
        released = list(map(tuple, self._released[:_RELEASES_PER_MESSAGE]))
        del self._released[:_RELEASES_PER_MESSAGE]  # in place: releases append to this list
        try:
            send(self.commands_fd, pickle.dumps((flattened(message), released), protocol=5))
        except BrokenPipeError:
            pass  # the death is seen elsewhere
        except BlockingIOError:  # the messages under way leave room: other code has written to the pipe
            self.child.kill()

    def read(self) -> list[Event] | None:
        """Return the events of the answers that are there; None if the worker has closed its end."""
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
        except (OSError, MemoryError):  # this process lacks something
            raise
        except Exception as error:
            raise GarbageError(f"sent what is no answer ({type(error).__name__}: {error})") from error


# ----------------------------------------------------------------------


# ----------------------------------------------------------------------
# Start processes with pipes, notice their ends, and read what they say until then; whatever their messages are.


_AT_ONCE = 8  # workers that start at a time; the kernel bounds how many descriptors may be on their way to a server

PipeLinkT = TypeVar("PipeLinkT", bound=PipeLink)


class ProcessPool(LinkedWorkers[PipeLinkT]):
    """Workers in processes with pipes.

    Each worker has pipes of its own, made before it starts, and each end is held by one process only. So the death of a
    worker, at any instant, breaks nothing that another one uses, and is seen at once. There are no locks, no threads,
    and no names in any file system.
    """

    _how: WorkerStart
    _selector: selectors.BaseSelector

    @abstractmethod
    def _new_link(self, number: int) -> PipeLinkT:
        """Begin to start a worker; return its link."""

    # ------------------------------------------------------------------ starting

    def _start(self, main: Main, threads: int | None, shared: SharedFiles) -> None:
        """Start the workers, several at a time: the start of a worker passes through several processes.

        If that fails, those that were started have ended, without closing environments: no worker has made one.

        Args:
            main: What a worker runs.
            threads: How many threads libraries compute on; None for no limit.
            shared: What all workers share; closed together with the pool.
        """
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
        """Wait until a worker runs, or is known never to run; return its link.

        One loss of a server is the loss of one worker: the others that it was to start are started by the next server.
        """
        try:
            while not link.runs():
                # A new link, with new pipes. If the server did start a worker, it ends with the old pipes.
                link.close(0)
                link = self._new_link(link.number)
        except BaseException:
            link.close(END_SECONDS)
            raise
        return link

    # ------------------------------------------------------------------ events

    def _events(self, timeout: float | None) -> list[Any]:
        return self._said(self._selector.select(timeout))

    def _said(self, ready: Sequence[tuple[selectors.SelectorKey, int]]) -> list[Any]:
        """Return the events of workers that the selector reported."""
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
        """Return what a worker said last, then its death. Of a message that it did not finish nothing is known."""
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
        """Kill a worker whose messages cannot be trusted any more; return its death."""
        link.ended = True
        self._killed.pop(link.number, None)
        link.child.kill_all()
        link.unregister()
        return Died(link.number, link.child.wait(END_SECONDS), why, hopeless=why == CAME_BACK)


# ----------------------------------------------------------------------


class ProcessEngine(ProcessPool[ArenaLink], LinkedEngine[ArenaLink]):
    """Workers in processes.

    Args:
        n_workers: How many workers there are.
        make_worker: A pickled callable that makes a worker from its context.
        seed: The sampler's seed.
        close_timeout: Seconds that all workers together may take to close their environments at the end.
        report_memory: Whether workers write to the status board how much memory they have.

    Raises:
        ResourceLimitError: The system does not allow this process the descriptors (an OSError).
        OSError: No process can be started; those that were started have ended.
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
        """Write a payload once, where all workers can read it."""
        return self._shared.write(payload)

    def published(self, handle: Stored) -> Payload:
        """Read a payload back."""
        return self._shared.read(handle)

    def unpublish(self, handle: Stored) -> None:
        """Free the memory of a payload."""
        self._shared.free(handle)
