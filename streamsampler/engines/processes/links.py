"""This process's ends of what it shares with one worker process: pipes and, for samplers, an arena."""

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
from typing import Any

from streamsampler.core.serialization import Payload, Place
from streamsampler.engines.base import Event
from streamsampler.engines.launch.child import END_SECONDS, Main
from streamsampler.engines.launch.descriptors import close_fd, own_fd, pipe_between
from streamsampler.engines.launch.start import launch
from streamsampler.engines.linked import AnswerReader, EngineLink, Link
from streamsampler.engines.processes.shared_memory import ArenaReader, ArenaWriter, Region, anonymous_file, read_only
from streamsampler.engines.processes.stacks import stacks_of
from streamsampler.engines.processes.wire import (
    FORKED_COPY,
    GarbageError,
    MessageReader,
    Stored,
    flattened,
    pack,
    send,
    unpack,
    unpack_answer,
)
from streamsampler.protocol.messages import Answer, Message
from streamsampler.workers.board import StatusBoard, board_bytes

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
        OSError: There are no processes or descriptors left; see `launch` for `WatchdogLostError`, too.
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

    def await_start(self) -> None:
        """Wait until the worker runs, and register it at the selector; see `WorkerChild.await_start` for errors."""
        self.child.await_start()
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
