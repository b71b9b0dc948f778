"""Worker processes with environments, connected by pipes and shared memory: the engine `processes`."""

from __future__ import annotations

import math
import mmap
import os
import select
import selectors
from collections.abc import Sequence
from typing import Any

from streamsampler.core.serialization import Payload
from streamsampler.engines.launch.descriptor_limit import make_room
from streamsampler.engines.processes.pool import CAME_BACK, HAS_ROOM, PipeLink, PipeStart, ProcessPool
from streamsampler.engines.processes.shared_files import SharedFiles
from streamsampler.engines.processes.shared_memory import anonymous_file
from streamsampler.engines.processes.wire import GarbageError
from streamsampler.stepping.frames import COPY, FrameReader
from streamsampler.stepping.links import EnvLink, EnvPool, WorkerMessage, setup_of
from streamsampler.stepping.pipe_worker import main
from streamsampler.stepping.rows import EnvSpaces, Rows, buffer_rows, bytes_needed

_SELECTABLE = 1024
"""`select` accepts descriptors below this."""


class EnvFiles(SharedFiles):
    """The files shared with a pool's workers, including the file of all rows, empty at first."""

    def _open(self) -> None:
        self.rows_fd = self.own(anonymous_file("streamsampler-rows"))
        self.fds.append(self.rows_fd)


class PipeEnvLink(PipeLink, EnvLink):
    """A worker's two pipes."""

    def __init__(self, start: PipeStart, number: int) -> None:
        super().__init__(start, number)
        self._reader = FrameReader(self.answers_fd)
        self.unsent = bytearray()  # bytes for which the pipe was too full
        self._n_sent = 0
        self._poll = select.poll()

    @property
    def n_moved(self) -> int:
        return self._n_sent + self._reader.n_read

    def read(self) -> list[Any] | None:
        messages = self._reader.read()
        if messages is None:
            return None
        if any(kind == COPY for kind, _ in messages):
            raise GarbageError(CAME_BACK)
        return [WorkerMessage(self.number, *message) for message in messages]

    def _send(self, data: bytes) -> None:
        if self.unsent:
            self.unsent += data
            return
        sent = self._write(data)
        if sent < len(data):
            self.unsent += memoryview(data)[sent:]
            self._start.selector.register(self.commands_fd, selectors.EVENT_WRITE, (self, HAS_ROOM))

    def _register(self) -> None:
        super()._register()
        for fd in (self.answers_fd, *self.child.filenos()):
            self._poll.register(fd, select.POLLIN)

    def sleep(self, timeout: float | None) -> None:
        self._poll.poll(None if timeout is None else math.ceil(1000 * timeout))

    def flush(self) -> None:
        """Send as many unsent bytes as the pipe has room for."""
        while self.unsent and (sent := self._write(self.unsent)):
            del self.unsent[:sent]
        if not self.unsent and self.commands_fd in self._start.selector.get_map():
            self._start.selector.unregister(self.commands_fd)

    def _write(self, data: bytes | bytearray) -> int:
        try:
            sent = os.write(self.commands_fd, data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return len(data)  # the worker's end is found by reading its answers
        self._n_sent += sent
        return sent

    def unregister(self) -> None:
        self.unsent.clear()
        self.flush()
        super().unregister()


class PipeEnvPool(ProcessPool[PipeEnvLink], EnvPool[PipeEnvLink]):
    """Workers connected by pipes, with shared rows; see `NewPool`."""

    def __init__(self, given: Payload, n_workers: int, threads: int | None, close_timeout: float) -> None:
        super().__init__(n_workers, close_timeout)
        make_room(n_workers)
        self._threads = threads
        self._files = EnvFiles(setup_of(given, threads), n_workers)
        self._start(main, threads, self._files)

    def _new_link(self, number: int) -> PipeEnvLink:
        return PipeEnvLink(self._how, number)

    def set_up(self, given: Payload) -> None:
        self._files.set_up(setup_of(given, self._threads))

    def new_rows(self, spaces: EnvSpaces) -> Rows:
        size, fd = bytes_needed(spaces), self._files.rows_fd
        os.ftruncate(fd, size)
        os.posix_fallocate(fd, 0, size)  # without enough memory, an OSError here instead of a SIGBUS in a step
        return Rows(spaces, buffer_rows(mmap.mmap(fd, size)))

    def sleep(self, timeout: float | None, awaited: PipeEnvLink | None = None) -> Sequence[Any]:
        """If every worker ended the sleep, this process would take the core from the busy ones."""
        has_other_work = self._unstarted or self._killed or any(link.unsent for link in self._links)
        if awaited is None or awaited.ended or has_other_work:
            return self._selector.select(self._within(timeout))
        awaited.sleep(timeout)
        return self._selector.select(0)

    def read(self, ready: Sequence[Any]) -> list[Any]:
        return self._with_abandoned(self._said(ready))

    def nap(self, seconds: float) -> None:
        if self._unstarted:
            return
        fds = [key.fd for key in self._selector.get_map().values()]
        if max(fds, default=0) < _SELECTABLE:
            select.select(fds, [], [], seconds)
