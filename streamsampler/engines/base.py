"""Define the base class of engines.

An engine starts workers, sends them the sampler's messages and returns their answers. It knows nothing of calls, plans
and batches. The guide is `streamsampler/docs/extending.md`.
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


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class Answered:
    """A worker answered.

    Attributes:
        worker: The worker number.
        answer: The report or failure.
        contents: Of a report `(rollouts, spaces or None)`, with arrays valid until `release`; of a failure the
            exception itself, if it did not leave this process.
        release: Frees the memory of the contents; to be called exactly once.
    """

    worker: int
    answer: Answer
    contents: Any = None
    release: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Died:
    """A worker ended, after the events of all it had sent.

    Attributes:
        worker: The worker number.
        exitcode: Negative for a signal; None if unknown.
        why: The engine's reason to kill it, as the end of a sentence; empty if it ended by itself.
        hopeless: Whether a new worker would die as well.
    """

    worker: int
    exitcode: int | None
    why: str = ""
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Logged:
    """A worker sent log records; precedes the answer sent with them.

    Attributes:
        worker: The worker number.
        records: The records, for `workers.logs.handle_records`.
    """

    worker: int
    records: bytes


@dataclass(frozen=True, slots=True)
class EnvsRestored:
    """A process of a worker's environments was lost and replaced; the worker continues.

    Attributes:
        worker: The worker number.
        hung: Whether it was killed for lack of progress.
    """

    worker: int
    hung: bool = False


Event = Answered | Died | Logged | EnvsRestored


class Engine(ABC):
    """Runs workers, and carries messages to and from them.

    Attributes:
        n_workers: The number of workers.
        board: The status board, shared with the workers: in shared memory, or, for workers in this process,
            `StatusBoard(memoryview(bytearray(board_bytes(n_workers))))`.
        concurrent: Whether workers run at the same time; otherwise they take turns.
        can_retire: Whether a worker ends after `Exit`, so that another can start in its place. If not, its next `Start`
            brings a new agent and a new environment.
        has_own_settings: Whether workers have settings and loggers of their own, because they are in other processes.
        shortest_ticket_seconds: Least duration of a call's last tickets.
        clock: Returns seconds, from any origin, for sizes of tickets and deadlines. A simulation has its own.
    """

    n_workers: int
    board: StatusBoard
    concurrent = True
    can_retire = False
    has_own_settings = False
    shortest_ticket_seconds = SHORTEST_TICKET_SECONDS
    clock: Callable[[], float] = staticmethod(perf_counter)

    @abstractmethod
    def send(self, worker: int, message: Message) -> None:
        """Send a message without waiting; before a `Start`, lower the worker's flag (`board.lower_flag`).

        Drop a message to a dead worker: `wait` reports the death.
        """

    @abstractmethod
    def wait(self, timeout: float | None) -> list[Event]:
        """Sleep until a worker answers or dies, for at most `timeout` seconds; return the events."""

    @abstractmethod
    def restart(self, worker: int) -> None:
        """Start a new worker in the place of a dead worker."""

    def can_restart(self, worker: int) -> bool:
        """Return whether `restart` is possible now; `wait` returns when this changes."""
        del worker
        return True

    @abstractmethod
    def kill(self) -> None:
        """End all workers at once, from any thread; a `wait` in another thread returns."""

    @abstractmethod
    def close(self, *, read_answers: bool = True) -> list[Answered | Logged]:
        """Let all workers close their environments and end, within a fixed time.

        Only `abandon_older` and `ran_timesteps` may be called afterwards.

        Args:
            read_answers: Whether to read the workers' last answers; False after an interrupt in the middle of a
                message.

        Returns:
            The workers' last answers without contents (reports of abandoned rollouts, failures to close environments)
            and log records.
        """

    def publish(self, payload: Payload) -> Any:
        """Return the handle of a payload for messages; any worker can load it any number of times."""
        return payload.owned()

    def publish_table(self, table: Any) -> Any:
        """Return the handle of an object with handles of payloads, to be loaded like a payload."""
        return self.publish(dumps(table, "a table of payloads"))

    def published(self, handle: Any) -> Payload:
        """Return the payload of a handle."""
        payload: Payload = handle
        return payload

    def unpublish(self, handle: Any) -> None:  # noqa: B027 - to be overridden where memory is freed
        """Free a payload: all messages with its handle are answered, and none will follow."""

    def abandon_older(self, version: int) -> None:
        """Let workers abandon rollouts of versions older than `version` at their next timestep."""
        self.board.abandon_older(version)

    def progress(self, worker: int) -> Progress:
        """Return the last known progress of a worker."""
        return self.board.progress(worker)

    def request_progress(self, worker: int) -> None:
        """Ask a worker to write each timestep and action to its progress until its next `Start`."""
        self.board.request_progress(worker)

    def ran_timesteps(self, worker: int) -> int:
        """Return a worker's timesteps since its start; also after `close`."""
        return self.board.ran_timesteps(worker)

    def memory_bytes(self, worker: int) -> int:
        """Return a worker's private memory at its last answer, in bytes; 0 if unknown."""
        return self.board.memory_bytes(worker)

    def start_ending(self) -> None:
        """Let workers end as soon as they can, without waiting; only `close` will follow."""
        self.abandon_older(NEVER_AGAIN)

    def kill_worker(self, worker: int) -> None:  # noqa: B027 - to be overridden where workers can be killed
        """Kill a worker; `wait` reports its death."""

    def stacks(self, worker: int) -> str:
        """Return the Python stacks of a worker about to be killed, or the reason for their absence."""
        del worker
        return ""

    def pids(self) -> list[int]:
        """Return the workers' process ids, if they are processes."""
        return []


def unreadable(answer: Answer, error: Exception) -> Failure:
    """Return the failure for a report with contents that cannot be unpickled here."""
    text = "".join(traceback.format_exception(error)).rstrip()
    summary = f"its rollouts were pickled, but cannot be unpickled here: {type(error).__name__}: {error}"
    return Failure(
        answer.ticket, Phase.SENDING, None, summary, text, lost_timesteps=answer.ran_timesteps,
        runs_lanes=answer.runs_lanes, runs_longer_blocks=answer.runs_longer_blocks,
    )  # fmt: skip
