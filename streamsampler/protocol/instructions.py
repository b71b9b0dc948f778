"""The instructions that the scheduler gives. Values; the sampler carries them out in order.

Reports and failures are named by the numbers of their events: the sampler has what they brought. Warnings and errors
are facts, which the sampler puts into words.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from streamsampler.core.errors import SpentQuota
from streamsampler.protocol.faults import WorkerFault
from streamsampler.protocol.messages import Message
from streamsampler.protocol.restarts import Incident
from streamsampler.protocol.result import LeftOut, Result
from streamsampler.protocol.sections import Section, TaskName


@dataclass(frozen=True, slots=True)
class Send:
    """Send a worker a message; a `Start` is without updates, which the sampler adds."""

    worker: int
    message: Message


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a new worker in the place of a dead one."""

    worker: int


@dataclass(frozen=True, slots=True)
class Retire:
    """Let a worker without unanswered tickets close its environment and end."""

    worker: int
    is_too_large: bool = False  # whether the reason is its memory


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill a worker."""

    worker: int
    hangs: bool = False  # whether it makes no progress; then its stacks are looked at before


@dataclass(frozen=True, slots=True)
class AbandonOlder:
    """Let workers abandon rollouts of versions older than `version` at their next timestep."""

    version: int


@dataclass(frozen=True, slots=True)
class Look:
    """Tell the scheduler the progress of these workers, at once."""

    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """Ask a worker to show each timestep and each action in its progress."""

    worker: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Forget what a dead worker was sent, and account for it."""

    worker: int


@dataclass(frozen=True, slots=True)
class CountFailure:
    """Add the times and timesteps of a failure to the accounts. Those of other answers are added with what follows."""

    number: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Count a report, and keep its rollouts: its trajectories are new."""

    number: int
    fingerprint: str = ""  # the bits of its worker's fingerprint; empty where they are not known


class Reason(Enum):
    """Why an answer is discarded."""

    STALE = "it is of an older version, or was given up"
    SURPLUS = "its trajectories are not needed"


@dataclass(frozen=True, slots=True)
class Discard:
    """Discard what a report or a failure brought, and account for it."""

    number: int
    reason: Reason


# Facts of warnings.


@dataclass(frozen=True, slots=True)
class LossReplaced:
    """A worker was lost, and a new one takes its place."""

    fault: WorkerFault


@dataclass(frozen=True, slots=True)
class LostInClosing:
    """A worker was lost while it closed the environment of one of several tasks, and a new one takes its place."""

    fault: WorkerFault


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """Something went wrong that the call did not need."""

    fault: WorkerFault


@dataclass(frozen=True, slots=True)
class NotClosed:
    """A worker that is being replaced failed to close its environment."""

    fault: WorkerFault


@dataclass(frozen=True, slots=True)
class AlwaysTooLarge:
    """A worker has more memory than it may after its first answer: every worker is replaced all the time."""

    worker: int
    memory: int
    limit: int


@dataclass(frozen=True, slots=True)
class LongTrajectory:
    """A trajectory has far more timesteps than its batch needs, and goes on."""

    worker: int
    trajectory: int
    needed: int


@dataclass(frozen=True, slots=True)
class FilesOverwritten:
    """Environments of one or two workers write to the same files."""

    workers: tuple[int, ...]
    place: str


@dataclass(frozen=True, slots=True)
class OtherKernels:
    """Workers compute with different kernels."""

    text: str  # a sentence about them
    worker: int = 0  # that showed it, where that is an error


# Facts of errors.


@dataclass(frozen=True, slots=True)
class FaultEndsCall:
    """A fault whose turn has come ends the call."""

    fault: WorkerFault
    quota: SpentQuota | None = None  # the quota that is spent, where the ticket would have been run again otherwise
    history: tuple[Incident, ...] = ()  # all losses since the last error, this one included if it is one


@dataclass(frozen=True, slots=True)
class NotReproducible:
    """The check of a worker's environment failed."""

    fault: WorkerFault


@dataclass(frozen=True, slots=True)
class RunsBlocks:
    """A worker runs trajectories in blocks since the parameters of its agent were updated."""

    worker: int


@dataclass(frozen=True, slots=True)
class NoMiddle:
    """A stream cannot begin in the middle of blocks that get longer, of which the first ones have `block`."""

    block: int
    task: TaskName | None = None


@dataclass(frozen=True, slots=True)
class TooManyDropped:
    """Nearly every trajectory is left out; where workers run several tasks, of one of them."""

    last: LeftOut
    version: int
    n_dropped: int
    n_kept: int
    task: TaskName | None = None

    @classmethod
    def of(cls, last: LeftOut, version: int, result: Result, section: Section | None) -> TooManyDropped:
        """Return the fact of a call, of whose result `last` is one too many: in a section, where there are several."""
        if section is None:
            return cls(last, version, result.n_dropped, result.n_trajectories)
        own = last._replace(trajectory=section.own_index(last.trajectory))
        return cls(own, version, *result.counts_of_section(last.trajectory), section.task)


WarningFact = (
    LossReplaced | LostInClosing | NotNeeded | NotClosed | AlwaysTooLarge | LongTrajectory | FilesOverwritten
    | OtherKernels
)  # fmt: skip
ErrorFact = FaultEndsCall | NotReproducible | RunsBlocks | NoMiddle | TooManyDropped | OtherKernels


@dataclass(frozen=True, slots=True)
class Warn:
    """Log a warning."""

    fact: WarningFact


class Refused(Enum):
    """Which updates are not in force any more after an error."""

    NOTHING = "the updates stay"
    CALL = "those of the call"
    AGENT = "those that agents are not known to have taken"


@dataclass(frozen=True, slots=True)
class Raise:
    """End the call with an error; no instruction follows."""

    fact: ErrorFact
    refused: Refused = Refused.NOTHING  # the updates that are the cause


Instruction = (
    Send | Launch | Retire | Kill | Forget | AbandonOlder | Look | RequestProgress  # to workers, and about them
    | CountFailure | Keep | Discard | Warn | Raise
)  # fmt: skip
