"""The seam between the gathering loop and where workers live."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamsampler.protocol import Answer, Failure, Message, Phase
from streamsampler.serialization import Payload
from streamsampler.workers.board import Progress

__all__ = ["FAIL_POINT_VARIABLE", "Answered", "Died", "Engine", "Event", "Logged", "unreadable"]

FAIL_POINT_VARIABLE = "STREAMSAMPLER_FAIL_POINT"
"""The environment variable that switches fail points on; see `streamsampler.testing.fail_points`."""


def _nothing() -> None:
    """Release nothing."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A worker answered.

    Attributes:
        worker: Its number.
        answer: What it said.
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
    """A worker ended without being asked to; everything it had sent was handed over before.

    Attributes:
        worker: Its number.
        exitcode: Negative for a signal; None if unknown.
        why: What it did that it was killed for, as the end of a sentence; empty if it ended by itself.
        hopeless: Whether a new worker in its place would do the same.
    """

    worker: int
    exitcode: int | None
    why: str = ""
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Logged:
    """A worker made log records; comes before the answer that they travelled with.

    Attributes:
        worker: Its number.
        records: The records, for `worker_logs.handle_records`.
    """

    worker: int
    records: bytes


Event = Answered | Died | Logged


class Engine(ABC):
    """Workers, and how to talk to them. Knows nothing of calls, plans and batches.

    Attributes:
        n_workers: How many workers there are.
        concurrent: Whether workers run at the same time; otherwise they take turns.
        has_own_loggers: Whether loggers in workers are not those of the sampler's process.
    """

    n_workers: int
    concurrent = True
    has_own_loggers = False

    @abstractmethod
    def publish(self, payload: Payload) -> Any:
        """Make a payload available to all workers, and return what stands for it in a message."""

    @abstractmethod
    def recall(self, handle: Any) -> Payload:
        """Return a published payload."""

    @abstractmethod
    def retract(self, handle: Any) -> None:
        """Let go of a published payload: no message that carries it is unanswered, and none will be sent."""

    @abstractmethod
    def want(self, version: int) -> None:
        """Let rollouts of versions older than `version` be abandoned at their next timestep."""

    @abstractmethod
    def send(self, worker: int, message: Message) -> None:
        """Send a message; never waits. To a dead worker it is lost: its death is reported by `wait`."""

    @abstractmethod
    def wait(self, timeout: float | None) -> list[Event]:
        """Sleep until something happened, for at most `timeout` seconds, and return what did."""

    @abstractmethod
    def progress(self, worker: int) -> Progress:
        """Return what a worker was last seen doing."""

    @abstractmethod
    def ran(self, worker: int) -> int:
        """Return how many timesteps a worker has run since its start, as far as it showed them; also after `close`."""

    @abstractmethod
    def watch(self, worker: int) -> None:
        """Ask a worker to show each timestep and each action in its progress, until its next start."""

    @abstractmethod
    def memory(self, worker: int) -> int:
        """Return the bytes of private memory that a worker had at its last answer; 0 where nobody knows."""

    @abstractmethod
    def stacks(self, worker: int) -> str:
        """Return the Python stacks of a worker that is about to be killed, or the reason why there are none."""

    @abstractmethod
    def kill_worker(self, worker: int) -> None:
        """Kill a worker; `wait` tells of its death."""

    @abstractmethod
    def retire(self, worker: int) -> bool:
        """Let a worker that owes nothing close its environment and end; `wait` tells of its death.

        Returns:
            Whether it will end: not where workers are no processes of their own.
        """

    @abstractmethod
    def restart(self, worker: int) -> None:
        """Start a new worker in the place of one that died."""

    def pids(self) -> list[int]:
        """Return the workers' process ids; none where workers are no processes."""
        return []

    @abstractmethod
    def kill(self) -> None:
        """End all workers at once, from any thread: `wait`, in another one, returns."""

    @abstractmethod
    def close(self, *, listen: bool = True) -> list[Answered | Logged]:
        """Let all workers close their environments and end, within a fixed time.

        Nothing but `want` may be called afterwards.

        Args:
            listen: Whether what the workers still say is read. False where an interrupt may have left a message half
                read.

        Returns:
            What the workers still said, without contents: reports of what they abandoned, failures to close
            their environments, and log records.
        """


def unreadable(answer: Answer, error: Exception) -> Failure:
    """Return the failure of a report whose contents cannot be unpickled here."""
    text = "".join(traceback.format_exception(error)).rstrip()
    summary = f"what it recorded was pickled there, but cannot be unpickled here: {type(error).__name__}: {error}"
    return Failure(answer.ticket, Phase.SENDING, None, summary, text, lost_timesteps=answer.ran_timesteps)
