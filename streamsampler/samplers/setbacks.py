"""What went wrong in a worker, and the error that it ends the call with when its turn comes."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from streamsampler.core.errors import (
    NotReproducibleError,
    RemoteTraceback,
    RolloutError,
    SpentQuota,
    WorkerDiedError,
    WorkerError,
    WorkerHungError,
)
from streamsampler.protocol.messages import Answer, Failure, Phase
from streamsampler.protocol.restarts import Incident, Stillness
from streamsampler.protocol.result import LeftOut
from streamsampler.protocol.states import SamplerSide
from streamsampler.samplers.updates import Kind
from streamsampler.workers.board import Progress

UPDATE_PHASES = {Phase.AGENT_CONSTRUCTION, Phase.AGENT_UPDATE, Phase.ENV_CONSTRUCTION, Phase.CLOSE}
"""What a worker does while it takes in updates."""


@dataclass(frozen=True, slots=True)
class Setback:
    """An exception of user code, a death or a hang.

    Attributes:
        worker: The worker number.
        failure: The worker's report of an exception; None for a death or a hang.
        exception: The exception itself, where it did not leave this process.
        incident: The loss; None for an exception that is none, and ends the call when its turn comes.
    """

    worker: int
    failure: Failure | None = None
    exception: object = None
    incident: Incident | None = None

    @property
    def final(self) -> bool:
        """Whether it ends the call when its turn comes, whatever the quotas."""
        return self.incident is None

    @property
    def is_of_an_update(self) -> bool:
        """Whether it happened while the worker took in updates, so that an update may be the cause."""
        if self.failure is not None:
            return self.failure.phase in UPDATE_PHASES
        # Without a version the worker had not begun the call's work.
        return self.incident is not None and self.incident.version is not None and self.incident.phase in UPDATE_PHASES

    @property
    def is_of_the_engine(self) -> bool:
        """Whether it is about what a worker needs, and no trajectory: the error names its own worker."""
        return isinstance(self.exception, WorkerError)

    def __str__(self) -> str:
        if self.incident is not None:
            return str(self.incident)
        assert self.failure is not None
        where = "" if self.failure.trajectory is None else f" in trajectory {self.failure.trajectory}"
        return f"worker {self.worker} failed while {self.failure.phase}{where}: {self.failure.summary}"


def failure_error(
    worker: int, failure: Failure, exception: Any = None, *, quota: SpentQuota | None = None,
    history: tuple[Incident, ...] = (),
) -> WorkerError:  # fmt: skip
    """Return the error for a worker's failure, with its cause attached; what names a worker already is that error.

    Args:
        worker: The worker number.
        failure: What the worker reported.
        exception: The exception itself, where it did not leave this process.
        quota: The quota that is spent, where the trajectory would have been run again otherwise.
        history: All losses since the last error, this one included if it is one.
    """
    if isinstance(exception, WorkerError):
        return exception
    where = "" if failure.trajectory is None else f" in trajectory {failure.trajectory}"
    if failure.ticket is not None:
        where += f" of agent version {failure.ticket.version}"
    original = exception if isinstance(exception, BaseException) else unpickled(failure.exception)
    if failure.phase is Phase.CHECK and isinstance(original, NotReproducibleError):
        return original
    error = RolloutError(
        f"worker {worker} failed while {failure.phase}{where}: {failure.summary}",
        worker_number=worker,
        phase=failure.phase,
        trajectory=failure.trajectory,
        original=original,
        incidents=history,
        quota=quota,
    )
    # In this process the exception has its frames, which a debugger can look into; elsewhere there is only text.
    error.__cause__ = exception if isinstance(exception, BaseException) else RemoteTraceback(failure.traceback)
    return error


def dropped_error(last: LeftOut, version: int, n_dropped: int, n_kept: int) -> RolloutError:
    """Return the error that ends a call in which nearly every trajectory fails, and which would never be complete.

    Args:
        last: The last trajectory that was left out.
        version: The call's agent version.
        n_dropped: How many trajectories of the call were left out.
        n_kept: How many were not.
    """
    worker, index, (_, phase, summary), _ = last
    return RolloutError(
        f"{n_dropped} trajectories failed and {n_kept} did not: that is too many to leave out; the latest, "
        f"trajectory {index} of agent version {version}, failed in worker {worker} while {phase}: {summary}",
        worker_number=worker,
        phase=phase,
        trajectory=index,
    )


def kernels_error(worker: int, what: str) -> NotReproducibleError:
    """Return the error for workers that compute otherwise than others; it names one of them as its worker."""
    return NotReproducibleError(what, worker_number=worker, phase=Phase.CHECK, trajectory=None)


def unpickled(exception: bytes | None) -> BaseException | None:
    """Return an exception that could be pickled; None where it cannot be unpickled here, or there is none."""
    if exception is None:
        return None
    try:
        loaded = pickle.loads(exception)
    except (Exception, SystemExit, GeneratorExit):
        return None
    return loaded if isinstance(loaded, BaseException) else None


def loss_error(
    incident: Incident, quota: SpentQuota | None, history: tuple[Incident, ...], what: str = ""
) -> WorkerError:
    """Return the error that ends a call because of a loss.

    Args:
        incident: The loss: a death or a hang.
        quota: The quota that is spent; None where a new worker would do the same.
        history: All losses since the last error, this one included.
        what: What the error says, where that is something else than the incident.
    """
    what = what or (str(incident) if quota is not None else f"{incident}; a new worker would do the same")
    fields: dict[str, Any] = {
        "worker_number": incident.worker,
        "phase": incident.phase,
        "trajectory": incident.trajectory,
        "incidents": history,
        "quota": quota,
    }
    if not incident.hung:
        return WorkerDiedError(what, exitcode=incident.exitcode, **fields)
    error = WorkerHungError(what, stack=incident.stack, **fields)
    if incident.stack:
        error.__cause__ = RemoteTraceback(incident.stack)
    return error


# ----------------------------------------------------------------------
# What the sampler knows of one worker, from one start of the worker to its death.


Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]


@dataclass(frozen=True, slots=True)
class Hang:
    """What a worker was doing when it was killed because it made no progress, for how long, and its Python stacks."""

    seen: Progress
    seconds: float
    stack: str


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """What the sampler knows of one worker. When the worker dies, the record is replaced by a new one.

    Attributes:
        side: The sampler's end of the conversation.
        sent: The serial number of each kind of update that the worker was sent.
        payloads_in_use: Handles of payloads in a message that the worker has not answered yet.
        spaces: Its observation and action space; None before its first report.
        reported_timesteps: The timesteps in its answers.
        has_answered: Whether its memory was looked at after an answer.
        has_enough: Whether it got no ticket to run after the one in hand, and is asked again when it has answered.
        stillness: For how long its row of the status board has not changed.
        hang: Why it was killed, if it made no progress.
        deadline: When it is killed because it takes too long to retire, in seconds of the supervisor's clock.
        is_checking: Whether it was told to check its environment, and has not answered the ticket after that.
        files: Where wrappers of its environments write files.
    """

    side: SamplerSide
    sent: dict[Kind, int] = field(default_factory=dict)
    payloads_in_use: tuple[Any, ...] = ()
    spaces: Spaces | None = None
    reported_timesteps: int = 0
    has_answered: bool = False
    has_enough: bool = False
    stillness: Stillness = field(default_factory=Stillness)
    hang: Hang | None = None
    deadline: float = math.inf
    is_checking: bool = False
    files: tuple[str, ...] = ()

    @property
    def worker(self) -> int:
        """The worker number."""
        return self.side.worker

    def record_answer(self, answer: Answer) -> bool:
        """Remove the ticket that was answered; return whether it is of the current version.

        Raises:
            ProtocolError: The worker has no such ticket, or answered it before.
        """
        is_current = self.side.record_answer(answer)
        self.payloads_in_use = ()
        self.reported_timesteps += answer.ran_timesteps
        return is_current
