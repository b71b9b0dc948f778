"""Define the scheduler's instructions. Values; the sampler carries them out in order.

They name reports and failures by event number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from streamsampler.protocol.facts import ErrorFact, WarningFact
from streamsampler.protocol.messages import Message


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message; the sampler adds the updates of a `Start`."""

    worker: int
    message: Message


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a worker in a dead worker's place."""

    worker: int


@dataclass(frozen=True, slots=True)
class Retire:
    """Let a worker close its environment and end."""

    worker: int
    is_too_large: bool = False  # whether its memory is the reason


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill a worker."""

    worker: int
    hangs: bool = False  # whether it makes no progress; then its stacks are read before


@dataclass(frozen=True, slots=True)
class AbandonOlder:
    """Abandon rollouts of versions older than `version` at their next timestep."""

    version: int


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """Read the progress of these workers, for an event at once."""

    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """Ask a worker to write each timestep and action to its progress."""

    worker: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Forget the messages of a dead worker, and account for it."""

    worker: int


@dataclass(frozen=True, slots=True)
class AccountFailure:
    """Count a failure; `Keep` and `Discard` count reports."""

    number: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Count and keep a report."""

    number: int
    fingerprint: str = ""  # bits of its worker's fingerprint; empty if unknown


class Reason(Enum):
    """Why an answer is discarded."""

    STALE = "it is of an older version, or was given up"
    SURPLUS = "its trajectories are not needed"


@dataclass(frozen=True, slots=True)
class Discard:
    """Count and discard an answer."""

    number: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Warn:
    """Log a warning."""

    fact: WarningFact


class Refused(Enum):
    """Updates withdrawn after an error."""

    NOTHING = "the updates stay"
    CALL = "those of the call"
    AGENT = "those that agents are not known to have taken"


@dataclass(frozen=True, slots=True)
class Raise:
    """End the call with an error; no instruction follows."""

    fact: ErrorFact
    refused: Refused = Refused.NOTHING  # the updates at fault


Instruction = (
    Send | Launch | Retire | Kill | Forget | AbandonOlder | ReadProgress | RequestProgress
    | AccountFailure | Keep | Discard | Warn | Raise
)  # fmt: skip
