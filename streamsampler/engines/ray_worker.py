"""Run a worker as an actor of Ray, on a node of the cluster. Needs Ray: `pip install ray`."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import platform
import socket
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

import numpy as np
import ray

from streamsampler.core.serialization import Contents, Payload, dumps, loads
from streamsampler.core.settings import ProcessSettings, SettingsInForce
from streamsampler.core.version import __version__
from streamsampler.engines.worker_channel import WorkerChannel
from streamsampler.engines.worker_memory import MemoryReporter
from streamsampler.protocol.messages import Answer, Continue, Exit, Message, Start
from streamsampler.protocol.states import CAPACITY
from streamsampler.workers.base import WorkerContext
from streamsampler.workers.board import StatusBoard, board_bytes
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.loop import run_worker
from streamsampler.workers.threads import VARIABLES, ThreadLimit

GROUPS = {"talk": CAPACITY + 3, "board": 1}
"""The actor's groups of threads besides the worker's own thread, with their sizes.

A call in "talk" lasts until its tickets are answered: the protocol allows so many messages under way, including two
`Stop` and an `Exit`. A call in "board" is short.
"""

F = TypeVar("F", bound=Callable[..., Any])

_COMPARED = ("cloudpickle", "gymnasium", "numpy")

AnswerParts = tuple[bytes, Answer | None, Any, list[Any]]
"""A worker's message: its log records, the answer, the pickled contents and their arrays as bytes."""


def versions() -> dict[str, str]:
    """Return this process's versions of software that affects trajectories and pickles, by name."""
    found = {"python": platform.python_version(), "streamsampler": __version__}
    return found | {name: metadata.version(name) for name in _COMPARED}


@dataclass(frozen=True)
class Hello:
    """A worker's first message."""

    versions: dict[str, str]  # see `versions`
    host: str  # the name of its machine
    pid: int  # its process id there


@dataclass(frozen=True, eq=False)
class Published:
    """The handle of a payload in the object store."""

    ref: Any


@dataclass(frozen=True, eq=False)
class SentAlong:
    """The handle of an object inside messages, unpickled."""

    contents: Any


@dataclass(frozen=True)
class RaySetup:
    """The settings of the sampler's process, which an actor receives at its start."""

    make_worker: Payload
    seed: int
    threads: int | None
    path: list[str]  # `sys.path`
    settings: Payload
    variables: dict[str, str]  # environment variables about threads
    report_memory: bool

    @classmethod
    def of_this_process(
        cls, make_worker: Payload, seed: int, threads: int | None, *, report_memory: bool = False
    ) -> Self:
        """Return the setup of workers with this process's settings."""
        variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        settings = dumps(ProcessSettings.of_this_process(), "the settings of this process").owned()
        return cls(make_worker.owned(), seed, threads, list(sys.path), settings, variables, report_memory)

    def apply(self) -> tuple[ThreadLimit, SettingsInForce]:
        """Give this process the sampler's settings and modules; return the objects to preserve them."""
        # Its own folders first: another machine may have other folders of the same name.
        sys.path += [folder for folder in self.path if folder not in sys.path and os.path.isdir(folder or ".")]
        for name in VARIABLES if self.threads is not None else ():
            os.environ[name] = self.variables.get(name, str(self.threads))  # Ray has set some to the actor's CPUs
        settings = SettingsInForce(portable=True)
        settings.apply(loads(self.settings))
        return ThreadLimit(self.threads, self.variables), settings


class _Reply:
    """The answers to a message with `n_tickets` tickets, for a waiting call."""

    def __init__(self, n_tickets: int) -> None:
        self.missing = n_tickets
        self.answers: list[AnswerParts] = []
        self.complete = threading.Event()


class Mailbox:
    """Messages for the worker, and calls waiting for its answers."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board
        self._messages: SimpleQueue[tuple[Message, _Reply]] = SimpleQueue()
        self._early: dict[int, tuple[Message, _Reply]] = {}  # by number: ahead of missing earlier messages
        self._place = 0
        self._replies: deque[_Reply] = deque()
        self._lock = threading.Lock()
        self._ended = False
        self.descriptor, self._wake_fd = os.pipe()  # readable after a new message or a change of the board
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._wake_fd, False)
        self.last: list[AnswerParts] = []  # messages after the last ticket

    def put(self, place: int, message: Message) -> list[AnswerParts]:
        """Enqueue message number `place`; wait until its tickets are answered, or an `Exit` is received.

        Calls in several threads arrive without order. Return the answers, as far as the worker gave them before its
        end.
        """
        reply = _Reply(len(message.tickets) if isinstance(message, Start | Continue) else 0)
        with self._lock:
            self._early[place] = message, reply
            while self._place in self._early:
                self._deliver(*self._early.pop(self._place))
                self._place += 1
            if self._ended:
                reply.complete.set()
        reply.complete.wait()
        return reply.answers

    def _deliver(self, message: Message, reply: _Reply) -> None:
        if reply.missing:
            self._replies.append(reply)
        elif not isinstance(message, Exit):
            reply.complete.set()
        if isinstance(message, Start):
            self._board.lower_flag(0)
        self._messages.put((message, reply))
        self.wake()

    def wake(self) -> None:
        """Wake a worker that waits for environments."""
        with contextlib.suppress(BlockingIOError):  # it is full: the worker will read it
            os.write(self._wake_fd, b".")

    def get(self, *, wait: bool) -> Message | None:
        """Return the next message; without `wait` None if none has arrived."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 1 << 12)  # before `get`, so that no later message is overlooked
        try:
            message, reply = self._messages.get(wait)
        except Empty:
            return None
        if isinstance(message, Exit):
            reply.complete.set()
        return message

    def answer(self, parts: AnswerParts) -> None:
        """Answer the longest waiting ticket; keep messages without a ticket to the end."""
        answer = parts[1]
        if answer is None or answer.ticket is None:
            self.last.append(parts)
            return
        with self._lock:
            reply = self._replies[0]
            reply.answers.append(parts)
            reply.missing -= 1
            if not reply.missing:
                self._replies.popleft()
                reply.complete.set()

    def end(self) -> None:
        """End all waiting calls after the worker's end."""
        with self._lock:
            self._ended = True
            for reply in (*self._replies, *(reply for _, reply in self._early.values())):
                reply.complete.set()


class RayChannel(WorkerChannel):
    """A worker's connection to a sampler anywhere in the cluster."""

    def __init__(
        self, mailbox: Mailbox, keeper: RecordKeeper, threads: ThreadLimit, settings: SettingsInForce,
        report_memory: Callable[[], None] | None,
    ) -> None:  # fmt: skip
        super().__init__(keeper, threads, settings)
        self._mailbox, self.descriptor = mailbox, mailbox.descriptor
        self._report_memory = report_memory

    def _next(self, *, wait: bool) -> Message | None:
        return self._mailbox.get(wait=wait)

    def _loaded(self, payload: Any) -> Any:
        if isinstance(payload, SentAlong):
            return payload.contents
        return loads(Payload(*ray.get(payload.ref)) if isinstance(payload, Published) else payload)

    def _part(self, buffer: Any) -> Any:
        # A copy, because Ray reads it later, in another thread, when the recorder uses its memory again; an array,
        # because Ray leaves arrays out of its own pickle.
        return np.frombuffer(buffer, np.uint8).copy()

    def _send(self, records: bytes, answer: Answer | None, contents: Contents | None, parts: list[Any]) -> None:
        if self._report_memory is not None:
            self._report_memory()
        self._mailbox.answer((records, answer, contents, parts))


def _in_group(name: str) -> Callable[[F], F]:
    """Mark a method of the actor for the threads of a group."""
    mark: Callable[[F], F] = ray.method(concurrency_group=name)
    return mark


class RayWorker:
    """A worker as an actor."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._board = StatusBoard(memoryview(bytearray(board_bytes(1))))
        self._mailbox = Mailbox(self._board)

    @_in_group("board")
    def hello(self) -> Hello:
        """Return versions and process, before unpickling anything another version may not understand."""
        return Hello(versions(), socket.gethostname(), os.getpid())

    def run(self, setup: RaySetup) -> tuple[bytes, list[AnswerParts]]:
        """Run the worker until `Exit`; return its last row of the board, and messages after the last ticket.

        This call lasts as long as the worker: its end reports the worker's end, whatever the cause.
        """
        keeper = RecordKeeper(self._number)
        keeper.install()
        row = self._board.row(0)
        report_memory = MemoryReporter(row) if setup.report_memory else None
        channel = RayChannel(self._mailbox, keeper, *setup.apply(), report_memory)
        try:
            run_worker(channel, loads(setup.make_worker), WorkerContext(row, self._number, setup.seed))
            channel.send_records()
        finally:
            self._mailbox.end()
        return self.look(), self._mailbox.last

    @_in_group("talk")
    def talk(self, place: int, message: Message) -> tuple[bytes, list[AnswerParts]]:
        """Send the worker a message; return its row of the board, and the answers."""
        answers = self._mailbox.put(place, message)
        return self.look(), answers

    @_in_group("board")
    def look(self) -> bytes:
        """Return the worker's row of the board."""
        return self._board.row_bytes(0)

    @_in_group("board")
    def abandon_older(self, version: int) -> None:
        self._board.abandon_older(version)
        self._mailbox.wake()

    @_in_group("board")
    def request_progress(self) -> None:
        self._board.request_progress(0)

    @_in_group("board")
    def stacks(self) -> str:
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read().decode(errors="replace")
