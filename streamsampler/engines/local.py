"""The engine of this process: workers take turns inside `wait`."""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable
from typing import Any

from streamsampler.core.errors import SerializationError
from streamsampler.core.serialization import Payload, loads
from streamsampler.core.timing import not_measuring
from streamsampler.engines.base import Answered, Engine, Event, Logged
from streamsampler.protocol.messages import Answer, Exit, Message, Start
from streamsampler.workers.base import Worker, WorkerContext
from streamsampler.workers.board import StatusBoard, board_bytes
from streamsampler.workers.generators import preserved_generators
from streamsampler.workers.loop import WorkerLoop
from streamsampler.workers.threads import ThreadLimit


class LocalChannel:
    """A worker's connection to a sampler in the same thread."""

    interruptible = True
    descriptor = None

    def __init__(self, worker: int, events: deque[Event], threads: ThreadLimit) -> None:
        self._worker = worker
        self._threads = threads
        self._events = events
        self.messages: deque[Message] = deque()

    def receive(self, *, wait: bool) -> Message | None:
        del wait  # the sampler is in this thread: no message can come meanwhile
        self._threads.hold()
        return self.messages.popleft() if self.messages else None

    def load(self, payload: Payload) -> Any:
        """Unpickle a new object."""
        loaded = loads(payload)
        self._threads.hold()  # torch may have been imported with it
        return loaded

    def answer(self, answer: Answer, contents: Any = None) -> None:
        """Leave an answer for the sampler."""
        if not isinstance(contents, BaseException):
            try:
                contents = copy.deepcopy(contents)  # the recorder uses its memory again for the next ticket
            except Exception as error:
                raise SerializationError(f"the rollouts cannot be copied: {type(error).__name__}: {error}") from error
        self._events.append(Answered(self._worker, answer, contents))


class LocalEngine(Engine):
    """Runs workers in this process and thread; the reference for other engines.

    Agents and environments are pickled as for processes, so later changes of the user's objects have no effect.
    """

    concurrent = False

    def __init__(
        self,
        n_workers: int,
        make_worker: Callable[[WorkerContext], Worker],
        seed: int,
        *,
        threads: int | None = None,
    ) -> None:
        self.n_workers = n_workers
        self._threads = ThreadLimit(threads, os.environ)
        self._make_worker = make_worker
        self._seed = seed
        self.board = StatusBoard(memoryview(bytearray(board_bytes(n_workers))))
        self._events: deque[Event] = deque()
        self._channels = [self._channel(worker, self._events, self._threads) for worker in range(n_workers)]
        self._loops = [self._loop(worker) for worker in range(n_workers)]
        self._told_to_end: set[int] = set()
        self._next = 0

    def _channel(self, worker: int, events: deque[Event], threads: ThreadLimit) -> LocalChannel:
        return LocalChannel(worker, events, threads)

    def _loop(self, worker: int) -> WorkerLoop:
        context = WorkerContext(self.board.row(worker), worker, self._seed)
        return WorkerLoop(self._channels[worker], self._make_worker, context)

    def send(self, worker: int, message: Message) -> None:
        if isinstance(message, Start):
            self.board.lower_flag(worker)
        self._channels[worker].messages.append(message)

    def wait(self, timeout: float | None) -> list[Event]:
        """Let workers take turns until a worker has answered."""
        del timeout  # a rollout in this thread cannot be interrupted
        outside = not_measuring()
        with preserved_generators(), self._threads.held(), outside, outside:
            turns_without_event = 0
            while not self._events and turns_without_event < 2 * self.n_workers:
                loop = self._loops[self._next]
                self._next = (self._next + 1) % self.n_workers
                loop.turn(wait=False)
                turns_without_event += 1
        events = list(self._events)
        self._events.clear()
        return events

    def restart(self, worker: int) -> None:
        """Replace a worker; never needed, since these workers do not die."""
        self._channels[worker].messages.clear()
        self._told_to_end.discard(worker)
        self._loops[worker] = self._loop(worker)

    def kill(self) -> None:
        """Let workers abandon their rollouts."""
        self.board.abandon_all()

    def close(self, *, read_answers: bool = True) -> list[Answered | Logged]:
        del read_answers
        self.board.abandon_all()
        outside = not_measuring()
        with self._threads.held(), outside, outside:
            for worker, (channel, loop) in enumerate(zip(self._channels, self._loops, strict=True)):
                if worker in self._told_to_end:
                    continue  # closed before an interrupt
                self._told_to_end.add(worker)
                channel.messages.clear()
                channel.messages.append(Exit())
                loop.turn(wait=False)
        last_words = [event for event in self._events if isinstance(event, Answered | Logged)]
        self._events.clear()
        return last_words
