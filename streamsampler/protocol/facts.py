"""Define the facts of the scheduler's warnings and errors. Values; the sampler words them."""

from __future__ import annotations

from dataclasses import dataclass

from streamsampler.core.errors import SpentQuota
from streamsampler.protocol.faults import WorkerFault
from streamsampler.protocol.losses import Loss
from streamsampler.protocol.result import DroppedReport, Result
from streamsampler.protocol.task_sections import Section, TaskName


@dataclass(frozen=True, slots=True)
class LossReplaced:
    """A worker was lost, and replaced."""

    fault: WorkerFault


@dataclass(frozen=True, slots=True)
class LostInClosing:
    """A worker was lost while closing a task's environment, and replaced."""

    fault: WorkerFault


@dataclass(frozen=True, slots=True)
class UnneededFault:
    """A fault in work the call did not need."""

    fault: WorkerFault


@dataclass(frozen=True, slots=True)
class NotClosed:
    """A worker being replaced failed to close its environment."""

    fault: WorkerFault


@dataclass(frozen=True, slots=True)
class AlwaysTooLarge:
    """A worker exceeds its memory limit after its first answer."""

    worker: int
    memory: int
    limit: int


@dataclass(frozen=True, slots=True)
class LongTrajectory:
    """A trajectory has far more timesteps than its batch needs."""

    worker: int
    trajectory: int
    needed: int


@dataclass(frozen=True, slots=True)
class FilesOverwritten:
    """Environments write to the same files, in two workers or in the same."""

    workers: tuple[int, ...]
    place: str


@dataclass(frozen=True, slots=True)
class OtherKernels:
    """Workers compute with different kernels."""

    text: str  # a sentence about them
    worker: int = 0  # the worker at fault, for an error


@dataclass(frozen=True, slots=True)
class FaultEndsCall:
    """A fault ends the call, at its turn."""

    fault: WorkerFault
    quota: SpentQuota | None = None  # the spent quota, if the ticket would run again otherwise
    history: tuple[Loss, ...] = ()  # all losses since the last error, including this


@dataclass(frozen=True, slots=True)
class NotReproducible:
    """A worker's run-twice check failed."""

    fault: WorkerFault


@dataclass(frozen=True, slots=True)
class RunsBlocks:
    """A worker runs trajectories in blocks since its agent's update."""

    worker: int


@dataclass(frozen=True, slots=True)
class StartsInsideBlock:
    """A stream cannot start in the middle of growing blocks; the first have `block` trajectories."""

    block: int
    task: TaskName | None = None


@dataclass(frozen=True, slots=True)
class TooManyDropped:
    """Nearly every trajectory of the call, or of a task, is dropped."""

    last: DroppedReport
    version: int
    n_dropped: int
    n_kept: int
    task: TaskName | None = None

    @classmethod
    def of(cls, last: DroppedReport, version: int, result: Result, section: Section | None) -> TooManyDropped:
        """Describe the call, or a section of it, at the last dropped trajectory."""
        if section is None:
            return cls(last, version, result.n_dropped, result.n_trajectories)
        own = last._replace(trajectory=section.own_index(last.trajectory))
        return cls(own, version, *result.counts_of_section(last.trajectory), section.task)


WarningFact = (
    LossReplaced | LostInClosing | UnneededFault | NotClosed | AlwaysTooLarge | LongTrajectory | FilesOverwritten
    | OtherKernels
)  # fmt: skip
ErrorFact = FaultEndsCall | NotReproducible | RunsBlocks | StartsInsideBlock | TooManyDropped | OtherKernels
