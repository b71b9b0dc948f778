"""The sampler's loop, for every obtaining call and every engine: wait, ask the scheduler, carry out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from streamsampler.core.errors import SamplerError
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.statistics import Stats
from streamsampler.engines import base
from streamsampler.protocol.events import Event, LaunchPossible, ProgressSeen, Waited
from streamsampler.protocol.facts import FaultEndsCall, LossReplaced
from streamsampler.protocol.instructions import (
    AbandonOlder,
    AccountFailure,
    Discard,
    Forget,
    Instruction,
    Keep,
    Kill,
    Launch,
    Raise,
    ReadProgress,
    Refused,
    RequestProgress,
    Retire,
    Send,
    Warn,
)
from streamsampler.protocol.messages import Exit
from streamsampler.protocol.plans import GatherPlan
from streamsampler.samplers.accounts import CallAccounts
from streamsampler.samplers.batches import BatchMaker
from streamsampler.samplers.failures import error_of, logger, warning_of
from streamsampler.samplers.session import Session
from streamsampler.samplers.summaries import Summaries
from streamsampler.samplers.updates import Snapshot

_PATIENCE = 0.1
"""Seconds for which a prefetching call waits for workers that are still in a timestep of a surplus rollout. Those that
do not answer in time get their next ticket in the next call."""


class Call:
    """An obtaining call, from its first ticket to its last answer.

    The scheduler decides; the call waits for events, passes them to the scheduler, and carries out its instructions.

    If a worker refuses an environment, the updates of `snapshot` are restored; if an agent refuses its update, those of
    `accepted` (by default the same). Trajectories have the call's own version unless `sampled_version` is given.
    """

    def __init__(
        self, session: Session, plan: GatherPlan, snapshot: Snapshot, stats: Stats, *,
        sampled_version: int | None = None, accepted: Snapshot | None = None, keeps_prefetched: bool = False,
    ) -> None:  # fmt: skip
        self._session, self._engine, self._scheduler = session, session.engine, session.scheduler
        self._snapshot = snapshot
        self._accepted = snapshot if accepted is None else accepted
        instructions = self._scheduler.begin(
            plan, session.clock(), sampled_version=sampled_version, structures=session.store.used.structures(),
            base_version=0 if session.ledger is None else session.ledger.base_version,
            keeps_prefetched=keeps_prefetched,
        )  # fmt: skip
        session.store.sampled = session.store.used
        assert self._scheduler.gathering is not None
        self.gathering, self.stats, self.version = self._scheduler.gathering, stats, self._scheduler.sampled_version
        self.accounts = CallAccounts(session, self.gathering, stats, self.version)
        self.batches = BatchMaker(session, self.gathering, self.accounts)
        self.returned: list[Summaries] = []  # of returned trajectories, for filters
        self._n_popped = 0
        self._to_do: deque[Instruction] = deque()
        self._carry_out(instructions)

    def pump(self, timeout: float | None = None) -> None:
        """Sleep until an answer, a death or a deadline, for `timeout` seconds at most; then handle it."""
        if self.gathering.result.n_popped != self._n_popped:
            # Trajectories popped by a stream's consumer make room, and may precede a failure.
            self._n_popped = self.gathering.result.n_popped
            self.handle(())
        limit = self._scheduler.seconds_to_wait(self._session.clock())
        self.turn(timeout if limit is None or (timeout is not None and timeout < limit) else limit)

    def turn(self, limit: float | None) -> None:
        session, clock = self._session, self._session.clock
        began = clock()
        try:
            # The engine's events get no name here: the traceback of an error would hold their memory.
            events: list[Event] = list(filter(None, map(self._event_of, self._engine.wait(limit))))
            waited = Waited(limit, clock() - began)
            session.check_open()
            if session.arrivals.absent:
                events += self._launches()
            self.handle([*events, waited])
        except (OSError, ValueError):
            session.check_open()
            raise

    def _event_of(self, event: base.Event) -> Event | None:
        match event:
            case base.Answered():
                return self._session.arrivals.receive(event)
            case base.Died():
                return self._session.arrivals.died(event)
            case base.Logged() | base.EnvsRestored():
                self.accounts.record(event)
                return None

    def _launches(self) -> list[LaunchPossible]:
        absent = self._session.arrivals.absent
        now = {worker: self._engine.can_restart(worker) for worker in absent}
        changed = [
            LaunchPossible(worker, can_launch) for worker, can_launch in now.items() if can_launch != absent[worker]
        ]
        absent.update(now)
        return changed

    def handle(self, events: Sequence[Event]) -> None:
        """Pass events to the scheduler until it needs no more progress words, and carry out its instructions."""
        while (workers := self._carry_out(self._scheduler.handle(events, self._session.clock()))) is not None:
            events = [ProgressSeen({worker: self._engine.progress(worker) for worker in workers})]
        self.batches.append_due()

    def _carry_out(self, instructions: Iterable[Instruction]) -> tuple[int, ...] | None:
        """Carry out instructions, in order; return the workers whose progress the scheduler requests, or None."""
        self._to_do.extend(instructions)
        workers: tuple[int, ...] | None = None
        ending: Raise | None = None
        try:
            while self._to_do:
                match instruction := self._to_do.popleft():
                    case ReadProgress():
                        workers = instruction.workers
                    case Raise():
                        ending = instruction
                    case _:
                        self._do(instruction)
        except SamplerError:
            if not self._session.cancelled:
                # The scheduler assumes all were carried out: without the rest, a worker might wait for work forever.
                self._session.mark_suspect()
            raise
        if ending is not None:
            raise self._error_of(ending)
        return workers

    def _do(self, instruction: Instruction) -> None:  # noqa: C901 (a table)
        session, engine, stats = self._session, self._engine, self.stats
        match instruction:
            case Send(worker=worker, message=message):
                session.send(worker, message)
            case AccountFailure(number=number):
                self.accounts.count(number)
            case Keep(number=number, fingerprint=fingerprint):
                self.batches.keep(number, fingerprint)
                self.accounts.count(number)
            case Discard(number=number, reason=reason):
                self.accounts.discard(number, reason)
                self.accounts.count(number)
            case AbandonOlder(version=version):
                engine.abandon_older(version)
            case RequestProgress(worker=worker):
                engine.request_progress(worker)
            case Launch(worker=worker):
                session.launch(worker)
                stats.restarts += 1
            case Retire(worker=worker, is_too_large=is_too_large):
                engine.send(worker, Exit())
                stats.replaced += is_too_large
            case Kill(worker=worker, hangs=hangs):
                session.kill(worker, hangs=hangs)
            case Forget(worker=worker):
                self.accounts.count_dead(worker)
            case Warn(fact=fact):
                stats.failed_trajectories += isinstance(fact, LossReplaced)
                logger.warning("%s", warning_of(fact))

    def _error_of(self, ending: Raise) -> SamplerError:
        """Return the error that ends the call; undo its updates if a worker refused them."""
        session = self._session
        self.stats.failed_trajectories += isinstance(ending.fact, FaultEndsCall)
        error = error_of(ending.fact, session.arrivals.exceptions, self._seed_of)
        if ending.refused is not Refused.NOTHING:
            in_force = self._snapshot if ending.refused is Refused.CALL else self._accepted
            session.restore_updates(in_force, self._accepted)
        return error

    def _seed_of(self, index: int) -> int:
        return self._session.seeds_of(self.version, [index])[0]

    def so_far(self) -> tuple[int, int]:
        """Return the number of timesteps, unfinished rollouts included, and of finished trajectories.

        Timesteps are capped at the plan's, because some may turn out to be surplus. In fragments, ended episodes count
        as finished.
        """
        gathering, under_way, ended = self.gathering, 0, self.batches.n_ended
        if gathering.result.complete:
            return gathering.result.n_timesteps, gathering.result.n_trajectories if ended is None else ended
        for known in self._scheduler.workers:
            seen = self._engine.progress(known.worker)
            if seen.version == self._scheduler.ticket_version and known.side.unanswered:
                under_way += seen.timesteps
        n_timesteps = gathering.arrived_timesteps + under_way
        finished = gathering.arrived_trajectories if ended is None else ended
        return min(n_timesteps, gathering.plan.timesteps or n_timesteps), finished

    def complete(self) -> TrajectoryBatch[Any, Any]:
        self._carry_out(self._scheduler.stop(self._session.clock()))
        batch = self.finished()
        self.returned += self.batches.summaries
        return batch

    def finished(self) -> TrajectoryBatch[Any, Any]:
        self.count_the_rest()
        self.accounts.close_with(self.batches.segments())
        self.accounts.stop_clock()
        batch = self.batches.final()
        if self.stats.metric_kinds:
            self.stats.add_metrics(batch)
        return batch

    def count_the_rest(self) -> None:
        """Count and hold answers already handled by the scheduler, after an interrupt between instructions."""
        for instruction in [*self._to_do, *self._scheduler.pop_instructions()]:
            if isinstance(instruction, AccountFailure | Keep | Discard):
                self._do(instruction)
        self._to_do.clear()

    def end(self) -> None:
        self.accounts.stop_clock()
        if self._session.cancelled:
            self._session.arrivals.forget_all()
            return
        self._carry_out(self._scheduler.end(self._session.clock()))
        self._session.arrivals.release_all()
        self._session.store.unpublish_old()

    def prefetch(self, plan: GatherPlan) -> None:
        clock = self._session.clock
        self._carry_out(self._scheduler.prefetch(plan, clock(), self._session.store.used.structures()))
        deadline = clock() + _PATIENCE
        while self._scheduler.awaits_answers and (left := deadline - clock()) > 0:
            self.turn(left)
