"""Track which workers hang, retire or die, and apply the restart policy to the engine."""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium

from streamsampler.core.errors import (
    NotReproducibleError,
    RemoteTraceback,
    ResourceLimitError,
    RolloutError,
    SamplerError,
    SpentQuota,
    WorkerDiedError,
    WorkerError,
    WorkerHungError,
)
from streamsampler.engines.base import Died, Engine
from streamsampler.protocol.hangs import Stillness, Watch
from streamsampler.protocol.long_trajectories import LengthWatch
from streamsampler.protocol.messages import Answer, Exit, Failure, Phase, Report
from streamsampler.protocol.progress import Progress
from streamsampler.protocol.restarts import (
    Incident,
    Likeness,
    Losses,
    Policy,
    cause_of_death,
    cause_of_exception,
    unready,
    was_killed,
)
from streamsampler.protocol.result import LeftOut
from streamsampler.protocol.states import Happened, SamplerSide, SamplerState
from streamsampler.samplers.per_worker import Kind

# ----------------------------------------------------------------------
# What went wrong in a worker, and the error that it ends the call with when its turn comes.


AGENT_PHASES = {Phase.AGENT_CONSTRUCTION, Phase.AGENT_UPDATE}
UPDATE_PHASES = AGENT_PHASES | {Phase.ENV_CONSTRUCTION, Phase.HOOK_CREATED, Phase.CLOSE}
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
    def phase(self) -> Phase | None:
        """What the worker did; None for a worker that was lost before it had begun any work of the call."""
        if self.failure is not None:
            return self.failure.phase
        return None if self.incident is None or self.incident.version is None else self.incident.phase

    @property
    def is_of_an_update(self) -> bool:
        """Whether it happened while the worker took in updates, so that an update may be the cause."""
        return self.phase in UPDATE_PHASES

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
) -> SamplerError:  # fmt: skip
    """Return the error for a worker's failure, with its cause attached.

    What names a worker already, or says that the system allows no more of them, is that error itself.

    Args:
        worker: The worker number.
        failure: What the worker reported.
        exception: The exception itself, where it did not leave this process.
        quota: The quota that is spent, where the trajectory would have been run again otherwise.
        history: All losses since the last error, this one included if it is one.
    """
    if isinstance(exception, WorkerError | ResourceLimitError):
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
        stillness: For how long its row of the status board has not changed.
        hang: Why it was killed, if it made no progress.
        is_ready: Whether it has run a ticket.
        is_checking: Whether it was told to check its environment, and has not answered the ticket after that.
        files: Where wrappers of its environments write files.
        goes_on: The version in which the fragments began that it has environments of; 0 if it has none.
    """

    side: SamplerSide
    sent: dict[Kind, int] = field(default_factory=dict)
    payloads_in_use: tuple[Any, ...] = ()
    spaces: Spaces | None = None
    reported_timesteps: int = 0
    has_answered: bool = False
    stillness: Stillness = field(default_factory=Stillness)
    hang: Hang | None = None
    is_ready: bool = False
    is_checking: bool = False
    files: tuple[str, ...] = ()
    goes_on: int = 0

    def forget(self) -> None:
        """Note that its agent and environments may be in any state: its next start brings others."""
        self.sent.clear()
        self.goes_on = 0

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
        if isinstance(answer, Report) and answer.ended_fragments:
            self.goes_on = 0
        self.is_ready = self.is_ready or (isinstance(answer, Report) and not answer.given_up)
        return is_current


# ----------------------------------------------------------------------


logger = logging.getLogger("streamsampler")

_CONSTRUCTING = {
    *(Phase.AGENT_CONSTRUCTION, Phase.AGENT_UPDATE, Phase.ENV_CONSTRUCTION, Phase.HOOK_CREATED),
    *(Phase.RECORDING, Phase.SENDING),  # on the board: packing a whole ticket, which takes the longer the more there is
}
"""What may take as long as a worker's construction."""

_LEAVING = {SamplerState.RETIRING, SamplerState.CONDEMNED}


class Supervisor:
    """The deadlines and the losses of an engine's workers, over all calls.

    Args:
        engine: Where they live.
        records: What is known of each worker, by worker number; a dead worker's record is replaced by the caller.
        policy: What is done about losses.
        clock: Seconds, from any beginning.
    """

    def __init__(
        self, engine: Engine, records: Sequence[WorkerRecord], policy: Policy, clock: Callable[[], float]
    ) -> None:
        self.policy = policy
        self.losses = Losses(policy, engine.n_workers)
        self._engine = engine
        self._records = records
        self._clock = clock
        self._made = clock()
        self._watch = policy.watch()
        self._has_warned = False
        self._lengths = LengthWatch()
        self._version = 0
        self._deadlines: dict[int, float] = {}  # when workers that retire are killed, in seconds of the clock

    def begin_call(self, version: int, n_timesteps: int | None, side_by_side: int) -> None:
        """Look from now on for trajectories that are far longer than what a call needs.

        Args:
            version: The call's agent version.
            n_timesteps: How many timesteps it needs; None if it does not count timesteps.
            side_by_side: How many trajectories a worker runs at a time.
        """
        self._version = version
        self.losses.begin_call()
        self._lengths.begin(n_timesteps, side_by_side, self._clock())

    # ------------------------------------------------------------------ deadlines

    def wait_limit(self, timeout: float | None) -> float | None:
        """Return for how many seconds to wait for workers at most; `timeout` is the caller's own limit."""
        first = min((self._lengths.next_look, *self._find_deadlines().values())) - self._clock()
        interval = math.inf if self._watch is None else self._watch.interval
        limit = max(0.0, min(first, interval, math.inf if timeout is None else timeout))
        return None if limit == math.inf else limit

    def kill_overdue(self, limit: float | None, elapsed: float) -> None:
        """Kill the workers that hang and those that take too long to retire, after a wait's events were handled.

        Args:
            limit: What `wait_limit` returned.
            elapsed: Seconds that the wait took.
        """
        now = self._clock()
        for worker, deadline in self._find_deadlines().items():
            if now >= deadline:
                self._kill(self._records[worker])
        if self._watch is not None and limit is not None and self._watch.is_due(limit, elapsed):
            self._kill_hung(self._watch)
        if now >= self._lengths.next_look:
            self._look_for_long_trajectories()

    def _find_deadlines(self) -> dict[int, float]:
        """Return the deadlines of the workers that are retiring still: some have ended since, or were killed."""
        states = {worker: self._records[worker].side.state for worker in self._deadlines}
        self._deadlines = {it: self._deadlines[it] for it, state in states.items() if state is SamplerState.RETIRING}
        return self._deadlines

    def _look_for_long_trajectories(self) -> None:
        shown = {}
        for record in self._records:
            if record.side.unanswered:
                seen = self._engine.progress(record.worker)
                if seen.version == self._version and seen.trajectory is not None:
                    shown[record.worker] = seen.trajectory, seen.timesteps
        if (found := self._lengths.look(shown, self._clock())) is not None:
            worker, trajectory = found
            logger.warning(
                "trajectory %d, which worker %d runs, has more than ten times the %d timesteps that this batch needs, "
                "and goes on: it may never end. Pass max_episode_length (or a smaller one) to truncate trajectories; "
                "this is reported once",
                trajectory, worker, self._lengths.needed,
            )  # fmt: skip

    def _kill_hung(self, watch: Watch) -> None:
        rows, seen = {}, {}
        for record in self._records:
            if record.side.unanswered and record.side.state is not SamplerState.CONDEMNED:
                progress = seen[record.worker] = self._engine.progress(record.worker)
                begun = progress.version >= record.side.unanswered[0].version
                constructing = not begun or progress.phase in _CONSTRUCTING
                rows[record.worker] = record.stillness, progress, constructing
        suspects, hung = watch.look(rows)
        for worker in suspects:
            self._engine.request_progress(worker)
        for worker, seconds in hung.items():
            self._records[worker].hang = Hang(seen[worker], seconds, self._engine.stacks(worker))
            self._kill(self._records[worker])

    def _kill(self, record: WorkerRecord) -> None:
        record.side.apply(Happened.KILLED)
        self._engine.kill_worker(record.worker)

    # ------------------------------------------------------------------ replacing workers

    def start_if_absent(self, record: WorkerRecord) -> bool:
        """Start a new worker where the last one died; return whether it had."""
        if record.side.state is not SamplerState.ABSENT:
            return False
        self._engine.restart(record.worker)
        record.side.apply(Happened.LAUNCHED)
        return True

    def can_work(self, record: WorkerRecord) -> bool:
        """Return whether a worker is there, or a new one can be started in its place."""
        return record.side.state is not SamplerState.ABSENT or self._engine.can_restart(record.worker)

    def is_too_large(self, record: WorkerRecord) -> bool:
        """Whether a worker that answered has more memory than it may, and is not being replaced already."""
        limit = self.policy.max_worker_memory
        if limit is None or record.side.is_to_be_replaced:
            return False
        is_first, memory = not record.has_answered, self._engine.memory_bytes(record.worker)
        record.has_answered = True
        if is_first and memory > limit and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "worker %d has %d bytes after its first answer: with max_worker_memory=%d every worker is replaced all "
                "the time",
                record.worker,
                memory,
                limit,
            )
        return memory > limit

    def retire_if_marked(self, record: WorkerRecord) -> None:
        """Retire the worker if it is marked for replacement and has no unanswered tickets."""
        side = record.side
        if side.unanswered or not side.is_to_be_replaced or side.state in _LEAVING:
            return
        if self._engine.retire(record.worker):
            side.apply(Exit)
            self._deadlines[record.worker] = self._clock() + self.policy.close_timeout
        else:
            side.mark_for_replacement(marked=False)

    # ------------------------------------------------------------------ losses

    def loss_of(self, event: Died, record: WorkerRecord, seen: Progress, version: int | None) -> Incident | None:
        """Return the loss that a death is; None if the worker was retiring.

        Args:
            event: The death.
            record: What was known of the worker.
            seen: What the worker was last seen doing.
            version: The agent version that the worker had begun; None if it had not begun the current one.
        """
        hang, worker = record.hang, event.worker
        if hang is None and record.side.state in _LEAVING:
            if record.is_ready:
                self.losses.forget(unready(worker))
            return None
        what = event.why or cause_of_death(event.exitcode)
        if hang is not None:
            seen = hang.seen
            what = f"made no progress for {hang.seconds:.3g} s"
        is_starting = version is None and not record.is_ready and hang is None
        incident = Incident(
            worker,
            what,
            Phase.STARTING if is_starting else seen.phase,
            None if version is None else seen.trajectory,
            version,
            self._clock() - self._made,
            exitcode=event.exitcode if hang is None else None,
            stack="" if hang is None else hang.stack,
            hung=hang is not None,
            hopeless=event.hopeless and version is not None,  # in this call's work, and not in that of an earlier one
        )
        return replace(incident, likeness=self._likeness_of(incident, record))

    def _likeness_of(self, incident: Incident, record: WorkerRecord) -> Likeness | None:
        """Return what a death or a hang has in common with equal ones."""
        phase, killed = incident.phase, was_killed(incident.exitcode)
        if incident.hung:
            killed = 'File "' not in incident.stack  # nothing tells where it stood still: it may have been stopped
        cause = phase, incident.stack if incident.hung else incident.what
        if incident.trajectory is None and not (record.is_ready and incident.version is None):
            return Likeness(unready(incident.worker), cause, by_chance=killed)
        self.losses.forget(unready(incident.worker))
        if incident.trajectory is None:
            return None
        return Likeness(f"trajectory {incident.trajectory}", cause, by_chance=killed, of_call=True)

    def setback_of(self, record: WorkerRecord, failure: Failure, exception: object) -> Setback:
        """Return what an exception of user code is: a loss if `restart_on` names it; then the worker is replaced."""
        worker = record.worker
        if not self.policy.restarts_on(failure.kinds):
            return Setback(worker, failure, exception)
        version, seconds = None, self._clock() - self._made
        subject, of_call, cause = unready(worker), False, cause_of_exception(failure.kinds[0], failure.traceback)
        if failure.ticket is not None:
            version, indices = failure.ticket.version, failure.ticket.indices
            if failure.phase not in UPDATE_PHASES:
                self.losses.forget(subject)
                known = failure.trajectory is not None
                subject = f"trajectory {failure.trajectory}" if known else f"trajectories {indices[0]} to {indices[-1]}"
                of_call = True
        likeness = Likeness(subject, (failure.phase, *cause), of_call=of_call)
        what = f"raised {failure.summary}"
        incident = Incident(worker, what, failure.phase, failure.trajectory, version, seconds, likeness=likeness)
        record.side.mark_for_replacement()
        return Setback(worker, failure, exception, incident)

    def decide(self, setback: Setback) -> SamplerError | None:
        """Count a loss; return the error that ends the call, None if the trajectories are to be run again."""
        failure, incident = setback.failure, setback.incident
        if incident is None:
            assert failure is not None
            return failure_error(setback.worker, failure, setback.exception)
        quota = self.losses.count(incident)
        if quota is None and not incident.hopeless:
            details = incident.stack if failure is None else failure.traceback
            logger.warning("%s; a new one takes its place%s", incident, f"\n{details}" if details else "")
            return None
        history = self.losses.history()
        if failure is None:
            return loss_error(incident, quota, history)
        return failure_error(setback.worker, failure, setback.exception, quota=quota, history=history)
