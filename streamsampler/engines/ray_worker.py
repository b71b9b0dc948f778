"""A worker that is an actor of Ray: what runs on a node of the cluster. Needs Ray: `pip install ray`."""

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
from streamsampler.engines.worker_side import MemoryReporter, WorkerChannel
from streamsampler.protocol.messages import Answer, Continue, Exit, Message, Start
from streamsampler.protocol.states import CAPACITY
from streamsampler.workers.base import WorkerContext
from streamsampler.workers.board import StatusBoard, board_bytes
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.loop import run_worker
from streamsampler.workers.threads import VARIABLES, ThreadLimit

GROUPS = {"talk": CAPACITY + 3, "board": 1}
"""The actor's groups of threads besides the worker's own one, and how many each has.

A call in "talk" lasts until its tickets are answered: the protocol allows so many messages under way, two `Stop` and an
`Exit` among them. A call in "board" is short.
"""

F = TypeVar("F", bound=Callable[..., Any])

_COMPARED = ("cloudpickle", "gymnasium", "numpy")

Said = tuple[bytes, Answer | None, Any, list[Any]]
"""What a worker says at once: its log records, the answer, the pickled contents and their arrays as bytes."""


def versions() -> dict[str, str]:
    """Return the versions, in this process, of what decides about trajectories and pickles, by name."""
    found = {"python": platform.python_version(), "streamsampler": __version__}
    return found | {name: metadata.version(name) for name in _COMPARED}


@dataclass(frozen=True)
class Hello:
    """The first thing that a worker says.

    Attributes:
        versions: See `versions`.
        host: The name of that machine.
        pid: Its process id there.
    """

    versions: dict[str, str]
    host: str
    pid: int


@dataclass(frozen=True, eq=False)
class Published:
    """The handle of a payload that lies in the object store.

    Attributes:
        ref: The reference to its data and buffers.
    """

    ref: Any


@dataclass(frozen=True, eq=False)
class SentAlong:
    """The handle of an object that travels in messages, unpickled.

    Attributes:
        contents: The object.
    """

    contents: Any


@dataclass(frozen=True)
class RaySetup:
    """What all workers of a sampler are given.

    Attributes:
        make_worker: A pickled callable that makes a worker from its context.
        seed: The sampler's seed.
        threads: How many threads libraries compute on; None for no limit.
        path: The sampler's `sys.path`.
        settings: The settings of the sampler's process, pickled.
        variables: The environment variables about threads that are set in the sampler's process.
        report_memory: Whether workers write their memory to the board.
    """

    make_worker: Payload
    seed: int
    threads: int | None
    path: list[str]
    settings: Payload
    variables: dict[str, str]
    report_memory: bool

    @classmethod
    def of_this_process(
        cls, make_worker: Payload, seed: int, threads: int | None, *, report_memory: bool = False
    ) -> Self:
        """Return the setup of workers that are to find what this process finds; the arguments are as in the class."""
        variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        settings = dumps(ProcessSettings.of_this_process(), "the settings of this process").owned()
        return cls(make_worker.owned(), seed, threads, list(sys.path), settings, variables, report_memory)

    def apply(self) -> tuple[ThreadLimit, SettingsInForce]:
        """Let this process find the sampler's modules; return what keeps its threads and settings as they are there."""
        # Its own ones first: on another machine the folders of the same name may be others.
        sys.path += [folder for folder in self.path if folder not in sys.path and os.path.isdir(folder or ".")]
        for name in VARIABLES if self.threads is not None else ():
            os.environ[name] = self.variables.get(name, str(self.threads))  # Ray has set some to the actor's CPUs
        settings = SettingsInForce(portable=True)
        settings.apply(loads(self.settings))
        return ThreadLimit(self.threads, self.variables), settings


class _Reply:
    """What a call waits for.

    Args:
        n_tickets: How many tickets of its message are to be answered.
    """

    def __init__(self, n_tickets: int) -> None:
        self.missing = n_tickets
        self.said: list[Said] = []
        self.complete = threading.Event()


class Mailbox:
    """What came for the worker, and who waits for answers.

    Args:
        board: The worker's own status board.

    Attributes:
        last: What the worker said after its last ticket.
        descriptor: Of a pipe that can be read when a message has come, or the board is to be looked at.
    """

    def __init__(self, board: StatusBoard) -> None:
        self._board = board
        self._messages: SimpleQueue[tuple[Message, _Reply]] = SimpleQueue()
        self._early: dict[int, tuple[Message, _Reply]] = {}  # by place: they came before those in front of them
        self._place = 0
        self._replies: deque[_Reply] = deque()
        self._lock = threading.Lock()
        self._ended = False
        self.descriptor, self._wake_fd = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._wake_fd, False)
        self.last: list[Said] = []

    def put(self, place: int, message: Message) -> list[Said]:
        """Put a message into its place in the order; wait until its tickets are answered, or an `Exit` is received.

        Calls in several threads keep no order.

        Args:
            place: How many messages come before.
            message: The message.

        Returns:
            The answers; those that a worker which has ended did not give are missing.
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
        return reply.said

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
        """Let a worker look that waits for environments."""
        with contextlib.suppress(BlockingIOError):  # it is full: the worker has not looked for long, and will
            os.write(self._wake_fd, b".")

    def get(self, *, wait: bool) -> Message | None:
        """Return the next message; None if there is none, and `wait` is false."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 1 << 12)  # before the look, or what comes now would be overlooked
        try:
            message, reply = self._messages.get(wait)
        except Empty:
            return None
        if isinstance(message, Exit):
            reply.complete.set()
        return message

    def answer(self, said: Said) -> None:
        """Answer the ticket that has waited longest; what is no answer to a ticket is kept to the end."""
        answer = said[1]
        if answer is None or answer.ticket is None:
            self.last.append(said)
            return
        with self._lock:
            reply = self._replies[0]
            reply.said.append(said)
            reply.missing -= 1
            if not reply.missing:
                self._replies.popleft()
                reply.complete.set()

    def end(self) -> None:
        """Let no call wait any longer: the worker has ended."""
        with self._lock:
            self._ended = True
            for reply in (*self._replies, *(reply for _, reply in self._early.values())):
                reply.complete.set()


class RayChannel(WorkerChannel):
    """A worker's connection to a sampler anywhere in the cluster.

    Args:
        mailbox: Where messages come, and answers go.
        keeper: Keeps log records until they are sent.
        threads: How many threads libraries compute on.
        settings: The settings of the sampler's process that this one has.
        report_memory: Called before each answer, if the sampler asks for the worker's memory.
    """

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
        # An array, which Ray leaves outside its own pickle. It reads it later, in another thread, when the recorder
        # uses its memory again: so it is a copy.
        return np.frombuffer(buffer, np.uint8).copy()

    def _send(self, records: bytes, answer: Answer | None, contents: Contents | None, parts: list[Any]) -> None:
        if self._report_memory is not None:
            self._report_memory()
        self._mailbox.answer((records, answer, contents, parts))


def _in_group(name: str) -> Callable[[F], F]:
    """Let a method of the actor be called in the threads of a group."""
    mark: Callable[[F], F] = ray.method(concurrency_group=name)
    return mark


class RayWorker:
    """A worker as an actor.

    Args:
        number: The worker number.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._board = StatusBoard(memoryview(bytearray(board_bytes(1))))
        self._mailbox = Mailbox(self._board)

    @_in_group("board")
    def hello(self) -> Hello:
        """Say who this is, before anything is unpickled that another version may not understand."""
        return Hello(versions(), socket.gethostname(), os.getpid())

    def run(self, setup: RaySetup) -> tuple[bytes, list[Said]]:
        """Run the worker until it is to exit.

        This call lasts as long as the worker: its end tells the sampler of the worker's end, whatever brought that.

        Returns:
            The last row of the board, and what was said after the last ticket.
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
    def talk(self, place: int, message: Message) -> tuple[bytes, list[Said]]:
        """Give the worker a message; see `Mailbox.put`.

        Returns:
            The worker's row of the board, and the answers.
        """
        said = self._mailbox.put(place, message)
        return self.look(), said

    @_in_group("board")
    def look(self) -> bytes:
        """Return the worker's row of the board."""
        return self._board.row_bytes(0)

    @_in_group("board")
    def abandon_older(self, version: int) -> None:
        """Let the worker abandon rollouts of versions older than `version` at its next timestep."""
        self._board.abandon_older(version)
        self._mailbox.wake()

    @_in_group("board")
    def request_progress(self) -> None:
        """Ask the worker to show each timestep."""
        self._board.request_progress(0)

    @_in_group("board")
    def stacks(self) -> str:
        """Return the Python stacks of all threads."""
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read().decode(errors="replace")
