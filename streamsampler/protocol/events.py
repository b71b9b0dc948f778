"""Define the scheduler's events. Values; the sampler makes them from those of its engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamsampler.protocol.messages import Failure, Report
from streamsampler.protocol.progress import Progress


@dataclass(frozen=True, slots=True)
class ReportReceived:
    """A worker answered a ticket."""

    worker: int
    number: int  # by which instructions name it
    report: Report
    lengths: tuple[int, ...] | None = None  # timesteps of its trajectories; None without any
    agent_steps: tuple[int, ...] | None = None  # timesteps summed over several agents
    n_bytes: int = 0  # of the observations
    memory: int = 0  # private memory of the worker, in bytes; 0 if unknown


@dataclass(frozen=True, slots=True)
class FailureReceived:
    """A worker failed to run a ticket, or to close its environment."""

    worker: int
    number: int  # by which instructions name it
    failure: Failure
    is_of_engine: bool = False  # whether the engine failed, and not a trajectory
    memory: int = 0  # as in `ReportReceived`


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker ended, after the events of its last answers."""

    worker: int
    progress: Progress  # its last progress
    exitcode: int | None = None  # negative for a signal; None if unknown
    why: str = ""  # reason why the engine killed it, as the end of a sentence; empty if it ended by itself
    hopeless: bool = False  # whether a new worker in its place would do the same
    stack: str = ""  # its Python stacks, if it was killed because it hung
    can_launch: bool = True  # whether a new worker can be started in its place now


@dataclass(frozen=True, slots=True)
class LaunchPossible:
    """A dead worker can be replaced now, or no longer."""

    worker: int
    is_possible: bool = True


@dataclass(frozen=True, slots=True)
class ProgressSeen:
    """The progress of the workers named in a `ReadProgress`, by worker."""

    progress: Mapping[int, Progress]


@dataclass(frozen=True, slots=True)
class Waited:
    """The sampler has waited for workers."""

    limit: float | None  # most seconds it would have waited; None for any number
    elapsed: float  # seconds of the actual wait


Event = ReportReceived | FailureReceived | WorkerDied | LaunchPossible | ProgressSeen | Waited
