"""Track which workers hang, retire or die, and apply the restart policy to the engine."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from streamsampler.core.errors import WorkerError
from streamsampler.engines.base import Died, Engine
from streamsampler.protocol.messages import Exit, Failure, Phase
from streamsampler.protocol.restarts import Incident, LengthWatch, Losses, Policy, Watch, cause_of_death
from streamsampler.protocol.states import Happened, SamplerState
from streamsampler.samplers.setbacks import Hang, Setback, WorkerRecord, failure_error, loss_error
from streamsampler.workers.board import Progress

logger = logging.getLogger("streamsampler")

_CONSTRUCTING = {
    *(Phase.AGENT_CONSTRUCTION, Phase.AGENT_UPDATE, Phase.ENV_CONSTRUCTION),
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

    def begin_call(self, version: int, n_timesteps: int | None, side_by_side: int) -> None:
        """Look from now on for trajectories that are far longer than what a call needs.

        Args:
            version: The call's agent version.
            n_timesteps: How many timesteps it needs; None if it does not count timesteps.
            side_by_side: How many trajectories a worker runs at a time.
        """
        self._version = version
        self._lengths.begin(n_timesteps, side_by_side, self._clock())

    # ------------------------------------------------------------------ deadlines

    def wait_limit(self, timeout: float | None) -> float | None:
        """Return for how many seconds to wait for workers at most; `timeout` is the caller's own limit."""
        first = min(self._lengths.next_look, *(record.deadline for record in self._records))
        limits = [first - self._clock()] if first < math.inf else []
        if self._watch is not None:
            limits.append(self._watch.interval)
        if timeout is not None:
            limits.append(timeout)
        return max(0.0, min(limits)) if limits else None

    def kill_overdue(self, limit: float | None, elapsed: float) -> None:
        """Kill the workers that hang and those that take too long to retire, after a wait's events were handled.

        Args:
            limit: What `wait_limit` returned.
            elapsed: Seconds that the wait took.
        """
        now = self._clock()
        for record in self._records:
            if now >= record.deadline:
                self._kill(record)
        if self._watch is not None and limit is not None and self._watch.is_due(limit, elapsed):
            self._kill_hung(self._watch)
        if now >= self._lengths.next_look:
            self._look_for_long_trajectories()

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
        record.deadline = math.inf
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
            record.deadline = self._clock() + self.policy.close_timeout
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
        hang = record.hang
        if hang is None and record.side.state in _LEAVING:
            return None
        what = event.why or cause_of_death(event.exitcode)
        if hang is not None:
            seen = hang.seen
            what = f"made no progress for {hang.seconds:.3g} s"
        return Incident(
            event.worker,
            what,
            seen.phase,
            None if version is None else seen.trajectory,
            version,
            self._clock() - self._made,
            exitcode=event.exitcode if hang is None else None,
            stack="" if hang is None else hang.stack,
            hung=hang is not None,
            hopeless=event.hopeless and version is not None,  # in this call's work, and not in that of an earlier one
        )

    def setback_of(self, record: WorkerRecord, failure: Failure, exception: object) -> Setback:
        """Return what an exception of user code is: a loss if `restart_on` names it; then the worker is replaced."""
        worker = record.worker
        if not self.policy.restarts_on(failure.kinds):
            return Setback(worker, failure, exception)
        version = None if failure.ticket is None else failure.ticket.version
        seconds = self._clock() - self._made
        incident = Incident(worker, f"raised {failure.summary}", failure.phase, failure.trajectory, version, seconds)
        record.side.mark_for_replacement()
        return Setback(worker, failure, exception, incident)

    def decide(self, setback: Setback) -> WorkerError | None:
        """Count a loss; return the error that ends the call, None if the trajectories are to be run again."""
        failure, incident = setback.failure, setback.incident
        if incident is None:
            assert failure is not None
            return failure_error(setback.worker, failure, setback.exception)
        quota = self.losses.add(incident)
        if quota is None and not incident.hopeless:
            details = incident.stack if failure is None else failure.traceback
            logger.warning("%s; a new one takes its place%s", incident, f"\n{details}" if details else "")
            return None
        history = self.losses.history()
        if failure is None:
            return loss_error(incident, quota, history)
        return failure_error(setback.worker, failure, setback.exception, quota=quota, history=history)
