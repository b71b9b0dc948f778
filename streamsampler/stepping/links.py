"""Worker processes with environments: the parent's ends of what it shares with them."""

from __future__ import annotations

import os
import select
import selectors
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from streamsampler.core.errors import WorkerError
from streamsampler.engines.launch.child import END_SECONDS, make_room
from streamsampler.engines.processes.engine import CAME_BACK, HAS_ROOM, PipeLink, ProcessPool, SharedFiles, WorkerStart
from streamsampler.engines.processes.shared_memory import anonymous_file
from streamsampler.engines.processes.wire import GarbageError
from streamsampler.protocol.restarts import Stillness
from streamsampler.stepping.transport import COPY, FrameReader, pickle_frame
from streamsampler.stepping.worker_main import main

_SELECTABLE = 1024
"""Descriptors below this can be selected."""


class Said(NamedTuple):
    """A message of a worker."""

    worker: int
    kind: int
    data: bytes


class EnvFiles(SharedFiles):
    """What the workers of a manager share: the rows of all environments, too.

    Attributes:
        rows_fd: The file of the rows; empty at first.
    """

    def _open(self) -> None:
        self.rows_fd = self.own(anonymous_file("streamsampler-rows"))
        self.fds.append(self.rows_fd)


class EnvLink(PipeLink):
    """A worker process with environments.

    Attributes:
        waiting: Environments whose requests have no answer yet.
        restoring: Environments that it is to restore, and has not.
        is_making: Whether the worker still makes its environments.
        spaces: Theirs, when it has made them, pickled.
        asked: Environments that are to carry out what is no step, and have not.
        answer: What the worker said to that last; None before.
        error: Why it was lost; None before.
        is_told: Whether its loss was handed out: before, no other worker is started in its place, since what that one
            was asked for would count as lost, too.
        stillness: For how long it has shown no progress.
        held: When it has ended, what the worker that is started in its place is to be told; None before.
        start_at: When that is, by the monotonic clock.
    """

    def __init__(self, start: WorkerStart, number: int) -> None:
        super().__init__(start, number)
        self.waiting: set[int] = set()
        self.restoring: set[int] = set()
        self.is_making = True
        self.spaces: Any = None
        self.asked: list[int] = []
        self.answer: tuple[Any, ...] | None = None
        self.error: WorkerError | None = None
        self.is_told = False
        self.stillness = Stillness()
        self.held: list[bytes] | None = None
        self.start_at = 0.0
        self._reader = FrameReader(self.answers_fd)
        self._unsent = bytearray()
        self._n_sent = 0

    @property
    def is_busy(self) -> bool:
        """Whether the worker has something to do."""
        return self.is_making or bool(self.waiting or self.restoring or self.asked)

    @property
    def n_moved(self) -> int:
        """How many bytes went through its pipes: a worker that reads or writes makes progress."""
        return self._n_sent + self._reader.n_read

    def read(self) -> list[Any] | None:
        """Return the messages that are whole."""
        messages = self._reader.read()
        if messages is None:
            return None
        if any(kind == COPY for kind, _ in messages):
            raise GarbageError(CAME_BACK)
        return [Said(self.number, *message) for message in messages]

    def write(self, data: bytes) -> None:
        """Send a message. Nothing is waited for: what the pipe has no room for is sent when it has."""
        if self.ended:
            if self.held is not None:
                self.held.append(data)
            return
        if not self.is_busy:
            self.stillness.reset()
        if self._unsent:
            self._unsent += data
            return
        sent = self._write(data)
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]
            self._start.selector.register(self.commands_fd, selectors.EVENT_WRITE, (self, HAS_ROOM))

    def flush(self) -> None:
        """Send what the pipe had no room for, as far as there is room now."""
        while self._unsent and (sent := self._write(self._unsent)):
            del self._unsent[:sent]
        if not self._unsent and self.commands_fd in self._start.selector.get_map():
            self._start.selector.unregister(self.commands_fd)

    def _write(self, data: bytes | bytearray) -> int:
        try:
            sent = os.write(self.commands_fd, data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return len(data)  # the worker's end is noticed where its answers are read
        self._n_sent += sent
        return sent

    def unregister(self) -> None:
        """Let the selector report nothing more of this worker."""
        self._unsent.clear()
        self.flush()
        super().unregister()

    def take_over(self, ended: EnvLink) -> None:
        """Do what a worker was to do that had ended, and in whose place this one is."""
        self.waiting, self.restoring, self.asked = ended.waiting, ended.restoring, ended.asked
        for data in ended.held or ():
            self.write(data)

    def forget(self) -> None:
        """Wait for nothing of it: the worker has ended."""
        self.is_making, self.asked, self.held = False, [], None
        self.waiting.clear()
        self.restoring.clear()


class EnvPool(ProcessPool[EnvLink]):
    """Worker processes with environments.

    Args:
        setup: What workers are given; see `worker_main.main`.
        n_workers: How many there are.
        threads: How many threads libraries compute on; None for no limit.
        close_timeout: Seconds that all workers together may take to close their environments.

    Attributes:
        files: What they share.
    """

    def __init__(self, setup: Any, n_workers: int, threads: int | None, close_timeout: float) -> None:
        super().__init__(n_workers, close_timeout)
        make_room(n_workers)
        self.files = EnvFiles(setup, n_workers)
        self._start(main, threads, self.files)

    def _new_link(self, number: int) -> EnvLink:
        return EnvLink(self._how, number)

    def _let_end(self, link: EnvLink) -> None:
        link.write(pickle_frame(("exit",)))

    def __getitem__(self, number: int) -> EnvLink:
        return self._links[number]

    def __iter__(self) -> Iterator[EnvLink]:
        return iter(self._links)

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that started the workers, and not a forked copy of it."""
        return self._is_ours()

    def sleep(self, timeout: float | None) -> Sequence[Any]:
        """Sleep until a worker says something, dies or is given up; return what `read` reads. May be interrupted."""
        return self._selector.select(self._within(timeout))

    def read(self, ready: Sequence[Any]) -> list[Any]:
        """Return what workers said: `Said`, and `Died`."""
        return self._with_given_up(self._said(ready))

    def nap(self, seconds: float) -> None:
        """Sleep until a worker says something or ends, for at most so many seconds: also for less than `sleep` can."""
        if self._unstarted:
            return
        fds = [key.fd for key in self._selector.get_map().values()]
        if max(fds, default=0) < _SELECTABLE:
            select.select(fds, [], [], seconds)

    def give_up(self, link: EnvLink) -> None:
        """Kill a worker, and take in nothing more of it."""
        link.close(END_SECONDS)
        link.forget()
        self._killed.pop(link.number, None)
