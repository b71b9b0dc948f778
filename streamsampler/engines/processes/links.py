"""This process's ends of what it shares with one worker process: pipes and, for samplers, an arena."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from streamsampler.engines.base import Answered, Event, Logged
from streamsampler.engines.known_spaces import KnownSpaces
from streamsampler.engines.launch.child import END_SECONDS, Main
from streamsampler.engines.launch.descriptors import close_fd, own_fd, pipe_between
from streamsampler.engines.launch.start import launch
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.linked import EngineLink, Link
from streamsampler.engines.processes.shared import PublishedFiles, SharedFiles
from streamsampler.engines.processes.shared_memory import ArenaReader, Region, anonymous_file
from streamsampler.engines.processes.stacks import stacks_of
from streamsampler.engines.processes.wire import (
    FORKED_COPY,
    GarbageError,
    MessageReader,
    flattened,
    send,
    unpack_answer,
)
from streamsampler.protocol.messages import Answer, Message
from streamsampler.serialization import Place

__all__ = ["CAME_BACK", "ENDED", "HAS_ROOM", "SAYS", "ArenaLink", "PipeLink", "WorkerStart"]

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
        method: How processes are started.
        main: What a worker runs.
        threads: How many threads libraries compute on; None for no limit.
        shared: What all workers share.
        selector: Reports what it sees of a worker as `(link, SAYS)`, `(link, ENDED)` or `(link, HAS_ROOM)`.
    """

    method: StartMethod
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
            self.child = launch(start.method, start.main, number, given, start.threads)
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
        wanted: Returns the oldest agent version whose contents are unpickled.
        known_spaces: The spaces of all workers.
    """

    def __init__(
        self,
        start: WorkerStart,
        number: int,
        shared: PublishedFiles,
        wanted: Callable[[], int],
        known_spaces: KnownSpaces,
    ) -> None:
        arena_fd = own_fd(anonymous_file(f"streamsampler-worker-{number}"))
        try:
            super().__init__(start, number, [arena_fd])
        except BaseException:
            close_fd(arena_fd)
            raise
        self._ours.callback(close_fd, arena_fd)
        self._wanted, self._known_spaces = wanted, known_spaces
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
            if records:
                events.append(Logged(self.number, records))
            if answer is None:
                self._released.extend(regions)
                continue
            if contents is not None:
                answer, contents = self.unpickled(answer, contents, places, self._wanted(), self._known_spaces)
            if contents is None:
                self._released.extend(regions)
                events.append(Answered(self.number, answer))
            else:
                events.append(Answered(self.number, answer, contents, partial(self._released.extend, regions)))
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
