"""The base class of engines: where workers live.

An engine starts workers, carries the messages of the sampler to them and brings back their answers. It knows nothing of
calls, plans and batches. The guide is `streamsampler/docs/extending.md`.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from streamsampler.core.serialization import Payload, dumps
from streamsampler.protocol.messages import NEVER_AGAIN, Answer, Failure, Message, Phase
from streamsampler.protocol.progress import Progress
from streamsampler.protocol.tickets import SHORTEST_TICKET_SECONDS
from streamsampler.workers.board import StatusBoard

__all__ = ["Answered", "Died", "Engine", "EnvsRestored", "Event", "Logged", "unreadable"]


def _nothing() -> None:
    """Release nothing."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A worker answered.

    Attributes:
        worker: The worker number.
        answer: The report or failure.
        contents: With a report: `(rollouts, spaces or None)`, whose arrays are valid until `release` is called.
            With a failure: the exception itself, where it did not leave this process.
        release: Gives the memory of the contents back; to be called exactly once.
    """

    worker: int
    answer: Answer
    contents: Any = None
    release: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Died:
    """A worker ended; all events of what it had sent came before.

    Attributes:
        worker: The worker number.
        exitcode: Negative for a signal; None if unknown.
        why: Why the engine killed it, as the end of a sentence about the worker; empty if it ended by itself.
        hopeless: Whether a new worker in its place would do the same.
    """

    worker: int
    exitcode: int | None
    why: str = ""
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Logged:
    """A worker made log records; comes before the answer that they were sent with.

    Attributes:
        worker: The worker number.
        records: The records, for `workers.logs.handle_records`.
    """

    worker: int
    records: bytes


@dataclass(frozen=True, slots=True)
class EnvsRestored:
    """A process that a worker needs was lost and made again; the worker goes on.

    Attributes:
        worker: The worker number.
        hung: Whether it made no progress, and was killed.
    """

    worker: int
    hung: bool = False


Event = Answered | Died | Logged | EnvsRestored


class Engine(ABC):
    """Workers, and how to talk to them; see the module's docstring.

    Attributes:
        n_workers: How many workers there are.
        board: What the sampler and the workers share besides messages: in shared memory, or, where workers are in this
            process, `StatusBoard(memoryview(bytearray(board_bytes(n_workers))))`.
        concurrent: Whether workers run at the same time; otherwise they take turns.
        can_retire: Whether a worker that is sent `Exit` closes its environment and ends, so that another one can be
            started in its place. If not, its next `Start` brings a new agent and a new environment.
        has_own_settings: Whether workers have settings and loggers of their own: they are in other processes.
        shortest_ticket_seconds: Below this the last tickets of a call cost more than they are worth.
        clock: Returns seconds, from any beginning: by them tickets are sized and deadlines kept. A simulation has its
            own.
    """

    n_workers: int
    board: StatusBoard
    concurrent = True
    can_retire = False
    has_own_settings = False
    shortest_ticket_seconds = SHORTEST_TICKET_SECONDS
    clock: Callable[[], float] = staticmethod(perf_counter)

    # ------------------------------------------------------------------ to be written

    @abstractmethod
    def send(self, worker: int, message: Message) -> None:
        """Send a message without waiting; lower the worker's flag (`board.lower_flag`) before a `Start`.

        A message to a dead worker is dropped: `wait` reports the death.
        """

    @abstractmethod
    def wait(self, timeout: float | None) -> list[Event]:
        """Sleep until a worker answers or dies, for at most `timeout` seconds, and return the events."""

    @abstractmethod
    def restart(self, worker: int) -> None:
        """Start a new worker in the place of a dead one."""

    def can_restart(self, worker: int) -> bool:
        """Return whether a new worker can be started in the place of a dead one; `wait` returns when that changes."""
        del worker
        return True

    @abstractmethod
    def kill(self) -> None:
        """End all workers at once, from any thread: `wait`, in another thread, returns."""

    @abstractmethod
    def close(self, *, read_answers: bool = True) -> list[Answered | Logged]:
        """Let all workers close their environments and end, within a fixed time.

        Nothing but `abandon_older` and `ran_timesteps` may be called afterwards.

        Args:
            read_answers: Whether the workers' last answers are read. False where an interrupt may have left a message
                half read.

        Returns:
            The workers' last answers without contents (reports of abandoned rollouts, failures to close environments)
            and log records.
        """

    # ------------------------------------------------------------------ payloads

    def publish(self, payload: Payload) -> Any:
        """Return the handle that messages carry for a payload, to be loaded by any worker any number of times."""
        return payload.owned()

    def publish_table(self, table: Any) -> Any:
        """Return the handle of an object that has handles of payloads; it is loaded as a payload is."""
        return self.publish(dumps(table, "a table of payloads"))

    def published(self, handle: Any) -> Payload:
        """Return the payload of a handle."""
        payload: Payload = handle
        return payload

    def unpublish(self, handle: Any) -> None:  # noqa: B027 - to be overridden where memory is freed
        """Free a payload: all messages that carry its handle are answered, and no other will be sent."""

    # ------------------------------------------------------------------ the board

    def abandon_older(self, version: int) -> None:
        """Let workers abandon rollouts of versions older than `version` at their next timestep."""
        self.board.abandon_older(version)

    def progress(self, worker: int) -> Progress:
        """Return the last known progress of a worker."""
        return self.board.progress(worker)

    def request_progress(self, worker: int) -> None:
        """Ask a worker to show each timestep and each action in its progress, until its next `Start`."""
        self.board.request_progress(worker)

    def ran_timesteps(self, worker: int) -> int:
        """Return how many timesteps a worker has shown since its start; also after `close`."""
        return self.board.ran_timesteps(worker)

    def memory_bytes(self, worker: int) -> int:
        """Return the private memory of a worker at its last answer, in bytes; 0 where it is not known."""
        return self.board.memory_bytes(worker)

    def begin_end(self) -> None:
        """Let workers end as soon as they can, without waiting for it: all that comes is `close`, sooner or later."""
        self.abandon_older(NEVER_AGAIN)

    # ------------------------------------------------------------------ workers that die, hang or are replaced

    def kill_worker(self, worker: int) -> None:  # noqa: B027 - to be overridden where workers can be killed
        """Kill a worker; `wait` reports its death."""

    def stacks(self, worker: int) -> str:
        """Return the Python stacks of a worker that is about to be killed, or the reason why there are none."""
        del worker
        return ""

    def pids(self) -> list[int]:
        """Return the workers' process ids; none where workers are no processes."""
        return []


def unreadable(answer: Answer, error: Exception) -> Failure:
    """Return the failure of a report whose contents cannot be unpickled here."""
    text = "".join(traceback.format_exception(error)).rstrip()
    summary = f"what it recorded was pickled there, but cannot be unpickled here: {type(error).__name__}: {error}"
    return Failure(
        answer.ticket, Phase.SENDING, None, summary, text, lost_timesteps=answer.ran_timesteps,
        runs_lanes=answer.runs_lanes, runs_longer_blocks=answer.runs_longer_blocks,
    )  # fmt: skip
