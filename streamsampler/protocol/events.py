"""The events that the scheduler handles. Values; the sampler makes them of what its engine brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamsampler.protocol.messages import Failure, Report
from streamsampler.protocol.progress import Progress


@dataclass(frozen=True, slots=True)
class ReportReceived:
    """A worker reported a ticket."""

    worker: int
    number: int  # by which instructions name it
    report: Report
    lengths: tuple[int, ...] | None = None  # timesteps of the trajectories that came with it; None if none came
    agent_steps: tuple[int, ...] | None = None  # of several agents, those of all of them together
    n_bytes: int = 0  # of the observations
    memory: int = 0  # private memory of the worker, in bytes; 0 where it is not known


@dataclass(frozen=True, slots=True)
class FailureReceived:
    """A worker could not run a ticket, or not close its environment."""

    worker: int
    number: int  # by which instructions name it
    failure: Failure
    is_of_engine: bool = False  # whether it is about the worker's own needs, and not about a trajectory
    memory: int = 0  # as in `ReportReceived`


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker ended; the events of its last answers came before."""

    worker: int
    progress: Progress  # the last that it showed
    exitcode: int | None = None  # negative for a signal; None if unknown
    why: str = ""  # why the engine killed it, as the end of a sentence; empty if it ended by itself
    hopeless: bool = False  # whether a new worker in its place would do the same
    stack: str = ""  # its Python stacks, if it was killed because it hung
    can_launch: bool = True  # whether a new worker can be started in its place now


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
    """The sampler has waited for workers."""

    limit: float | None  # seconds that it would have waited at most; None for any number
    elapsed: float  # seconds that it did wait


Event = ReportReceived | FailureReceived | WorkerDied | LaunchPossible | ProgressSeen | Waited
