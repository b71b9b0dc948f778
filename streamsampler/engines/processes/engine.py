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

import pickle
from functools import partial
from typing import Any

from streamsampler.core.serialization import Payload, Place
from streamsampler.engines.base import Event
from streamsampler.engines.launch.descriptor_limit import make_room
from streamsampler.engines.launch.descriptors import close_fd, own_fd
from streamsampler.engines.linked import AnswerReader, EngineLink, LinkedEngine
from streamsampler.engines.process_setup import ProcessSetup
from streamsampler.engines.processes.pool import CAME_BACK, PipeLink, PipeStart, ProcessPool
from streamsampler.engines.processes.shared_files import PublishedFiles
from streamsampler.engines.processes.shared_memory import ArenaReader, Region, anonymous_file
from streamsampler.engines.processes.wire import (
    FORKED_COPY,
    INLINE_LIMIT,
    GarbageError,
    MessageReader,
    Stored,
    flattened,
    send,
    unpack_answer,
)
from streamsampler.engines.processes.worker_main import main
from streamsampler.protocol.messages import Answer, Message

_RELEASES_PER_MESSAGE = 64  # keeps a message below PIPE_BUF; an answer has a few regions, and every ticket a message


class ArenaLink(PipeLink, EngineLink):
    """The sampler's ends of a worker's pipes and arena."""

    def __init__(self, start: PipeStart, number: int, shared: PublishedFiles, answers: AnswerReader) -> None:
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
