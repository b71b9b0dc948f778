"""The events that the scheduler handles. Values; the sampler makes them of what its engine brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamsampler.protocol.messages import Failure, Report
from streamsampler.protocol.progress import Progress


@dataclass(frozen=True, slots=True)
class ReportReceived:
    """A worker reported a ticket.

    Attributes:
        worker: The worker number.
        number: The number of the report, by which instructions name it.
        report: The report.
        lengths: The timesteps of the trajectories that came with it; None if none came.
        agent_steps: Of several agents, those of all of them together; None of one agent.
        n_bytes: How many bytes their observations have.
        memory: The private memory of the worker, in bytes; 0 where it is not known.
    """

    worker: int
    number: int
    report: Report
    lengths: tuple[int, ...] | None = None
    agent_steps: tuple[int, ...] | None = None
    n_bytes: int = 0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class FailureReceived:
    """A worker could not run a ticket, or not close its environment.

    Attributes:
        worker: The worker number.
        number: The number of the failure, by which instructions name it.
        failure: The failure.
        is_of_engine: Whether it is about the worker's own needs, and not about a trajectory.
        memory: As in `ReportReceived`.
    """

    worker: int
    number: int
    failure: Failure
    is_of_engine: bool = False
    memory: int = 0


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker ended; all events of what it had sent came before.

    Attributes:
        worker: The worker number.
        progress: What it was last seen doing.
        exitcode: Negative for a signal; None if unknown.
        why: Why the engine killed it, as the end of a sentence about the worker; empty if it ended by itself.
        hopeless: Whether a new worker in its place would do the same.
        stack: The Python stacks of a worker that was killed because it hung, as far as they are known.
        can_launch: Whether a new worker can be started in its place now.
    """

    worker: int
    progress: Progress
    exitcode: int | None = None
    why: str = ""
    hopeless: bool = False
    stack: str = ""
    can_launch: bool = True


@dataclass(frozen=True, slots=True)
class LaunchPossible:
    """A new worker can be started in the place of a dead one, which was not so before; or cannot any more."""

    worker: int
    is_possible: bool = True


@dataclass(frozen=True, slots=True)
class ProgressSeen:
    """The progress of the workers that the scheduler wanted to look at, by worker."""

    progress: Mapping[int, Progress]


@dataclass(frozen=True, slots=True)
class Waited:
    """The sampler has waited for workers.

    Attributes:
        limit: The seconds that it would have waited at most; None for any number.
        elapsed: The seconds that it did wait.
    """

    limit: float | None
    elapsed: float


Event = ReportReceived | FailureReceived | WorkerDied | LaunchPossible | ProgressSeen | Waited
