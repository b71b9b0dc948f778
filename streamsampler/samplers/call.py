"""The one gathering loop: it serves every obtaining call, and every engine."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from streamsampler.data.assembly import Delivery, EarlyRows, assemble, infos_alone
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.statistics import REMEMBERED, DroppedTrajectory, Stats
from streamsampler.data.trees import leaves
from streamsampler.engines.base import Answered, Died, Event, Logged
from streamsampler.errors import ClosedError, DataError
from streamsampler.protocol.messages import Failure, Report, Start, Stop
from streamsampler.samplers.anomaly_accounts import AnomalyAccounts
from streamsampler.samplers.call_accounts import add_returned, add_unseen
from streamsampler.samplers.checking import take_verdict
from streamsampler.samplers.decisions import Decisions
from streamsampler.samplers.session import Session, Spaces
from streamsampler.samplers.setbacks import UPDATE_PHASES, Setback
from streamsampler.samplers.supervisor import logger
from streamsampler.scheduling.gathering import Gathering
from streamsampler.scheduling.plans import Endless, GatherPlan, expected_rows
from streamsampler.scheduling.result import LeftOut, Segment
from streamsampler.workers.logs import handle_records

__all__ = ["Call"]


class Call:
    """One obtaining call, from its first ticket to its last answer.

    Args:
        session: What outlives it.
        plan: What is wanted.
        snapshot: The updates that were in force before the call's own.
        stats: Where its accounts are kept.
    """

    def __init__(self, session: Session, plan: GatherPlan, snapshot: Any, stats: Stats) -> None:
        self._session = session
        self._engine = session.engine
        self._dispatcher = session.dispatcher
        self.version = session.dispatcher.version + 1
        self.gathering = Gathering(
            plan,
            n_workers=self._engine.n_workers,
            order=session.order,
            pace=session.pace,
            own_queues=session.updates.differ,
            blocks=session.blocks,
            dropping=session.supervisor.policy.on_failure == "drop",
            concurrent=self._engine.concurrent,
        )
        self.stats = stats
        self._decisions = Decisions(self.gathering, session, snapshot, stats, self.version)
        self._hungry = set(range(self._engine.n_workers))
        self._deliveries: dict[int, Delivery] = {}
        self._stopped: set[int] = set()
        self._spaces: tuple[Spaces, Spaces] | None = None  # the engine's, and a copy for this call's batches
        # A stream hands out each trajectory by itself.
        self._early = None if isinstance(plan, Endless) else EarlyRows(session.pool.allocate)
        self._anomalies = AnomalyAccounts(session, stats, self.version)
        self._yielded = [0, 0]  # trajectories and timesteps that the consumer of a stream has seen
        self._accounted = False  # whether what arrived is in the accounts
        self._begun: float | None = perf_counter()
        # The word first: whatever an older rollout still does now, nobody wants it.
        self._engine.abandon_older(self.version)
        self._dispatcher.begin(self.version)
        if session.verdicts.exclusive:
            session.pace.forget(0)  # only that worker has work before its verdict: it is not left out for being slow
        self._feed()

    # ------------------------------------------------------------------ the loop

    def pump(self, timeout: float | None = None) -> None:
        """Sleep until a worker answers or dies, take it in, and hand out what follows from it.

        Raises:
            RolloutError: User code raised in a worker.
            WorkerDiedError: A worker ended, and there were too many losses.
            WorkerHungError: A worker made no progress, and there were too many losses.
            ClosedError: Another thread closed the sampler.
        """
        self._decisions.decide()  # of a stream: what comes before a failure was handed out since
        self._feed()  # what was taken out since may have made room
        supervisor, clock = self._session.supervisor, self._session.clock
        planned, began = supervisor.planned(timeout), clock()
        try:
            events = self._engine.wait(planned)
        except (OSError, ValueError):
            self._check_open()
            raise
        elapsed = clock() - began
        self._check_open()
        for event in events:
            self._take_in(event)
        self._decisions.decide()
        supervisor.waited(planned, elapsed, self._dispatcher.oldest)
        self._feed()

    def _check_open(self) -> None:
        # By another thread, which may have closed descriptors that were in use here.
        if self._session.cancelled:
            raise ClosedError("this sampler was closed while a call was under way")

    def _feed(self) -> None:
        try:
            self._hand_out()
        except (OSError, ValueError):
            self._check_open()
            raise

    def _hand_out(self) -> None:
        """Give tickets to those who have room: first one for everybody, then the next."""
        for ahead in (False, True):
            if ahead and not self.gathering.has_plenty:
                return
            for worker in sorted(self._hungry):
                if ahead == bool(self._dispatcher.owes(worker)) and self._session.verdicts.may_work(worker):
                    self._hand(worker, ahead=ahead)

    def _hand(self, worker: int, *, ahead: bool) -> None:
        supervisor = self._session.supervisor
        if not self._dispatcher.owes(worker):
            supervisor.may_go(worker)
        if self._dispatcher.room(worker) <= 0 or not supervisor.works(worker):
            self._hungry.discard(worker)  # it asks again with its next answer, or when its successor comes
            return
        assignment = self.gathering.take(worker, ahead=ahead, now=self._session.clock())
        if assignment is None:
            return
        if self._session.revive(worker):
            self.stats.restarts += 1
        if not self._dispatcher.owes(worker):
            supervisor.moved(worker)
        message = self._dispatcher.hand(worker, *assignment)
        if isinstance(message, Start):
            message = Start(message.version, message.tickets, **self._session.told_at_start(worker))
        self._engine.send(worker, message)

    def _take_in(self, event: Event) -> None:
        if isinstance(event, Logged):
            handle_records(event.worker, event.records)
            return
        self._hungry.add(event.worker)
        supervisor = self._session.supervisor
        if isinstance(event, Died):
            self._take_in_death(event)
            return
        if event.answer.checked is not None:
            self._decisions.refuse(take_verdict(event, event.answer.checked, self._session, self.stats))
        match event:
            case Answered(answer=Report() as report):
                self._take_in_report(event, report)
            case Answered(answer=Failure() as failure):
                self._take_in_failure(event, failure)
        supervisor.moved(event.worker)
        if supervisor.is_too_large(event.worker):
            supervisor.replace(event.worker)
            self.stats.replaced += 1

    def _take_in_report(self, event: Answered, report: Report) -> None:
        worker = event.worker
        current = self._dispatcher.settle(worker, report)
        self._session.reading[worker] = []
        self._session.told(worker, report)
        self.stats.take_report(worker, report)
        if event.contents is not None:
            rollouts, spaces = event.contents
            if spaces is not None:
                self._session.spaces[worker] = spaces
            lengths = rollouts.lengths.tolist()
            n_bytes = sum(leaf.nbytes for _, leaf in leaves(rollouts.observations))
            self._session.pace.add(lengths, sum(report.seconds[:3]), worker, n_bytes)
            if current:
                delivery = Delivery(worker, rollouts, event.release, n_bytes)
                self._take_in_rollouts(event, report, lengths, delivery)
                return
            event.release()
        elif current and report.dropped:
            self._take_in_rollouts(event, report, [], None)
            return
        elif current:
            # It failed in another ticket, and runs no more of this version before it is told afresh.
            self.gathering.give_back(worker, report.ticket.indices, self._session.clock())
        self.stats.stale_trajectories += report.n_trajectories
        self.stats.stale_timesteps += report.n_timesteps

    def _take_in_rollouts(self, event: Answered, report: Report, lengths: list[int], delivery: Delivery | None) -> None:
        gathering, indices, now = self.gathering, report.ticket.indices, self._session.clock()
        if not gathering.add(event.worker, indices, lengths, delivery, now, report.dropped):
            event.release()
            self.stats.surplus_trajectories += len(lengths)
            self.stats.surplus_timesteps += sum(lengths)
        elif delivery is not None:
            self._deliveries[id(delivery)] = delivery
            self._copy_early()

    def _copy_early(self, *, rest: bool = False) -> None:
        """Copy what is new in the result, if it is due or the `rest`, and give back the memory it came in."""
        if (early := self._early) is None:
            return
        for segment in self.gathering.segments(early.n_counted):
            early.count(segment)
        if not (early.n_taken if rest else early.due):
            return
        segments = self.gathering.segments(early.n_taken)
        if not early.take(segments, expected_rows(self.gathering.plan, self.gathering.pace.timesteps)):
            self._early = None
            return
        for segment in segments:
            if segment.delivery.ends_with(segment):
                segment.delivery.rollouts = infos_alone(segment.delivery.rollouts)
                self.release(segment.delivery)

    def _take_in_failure(self, event: Answered, failure: Failure) -> None:
        session = self._session
        if failure.ticket is None:
            logger.warning("worker %d, which is being replaced, failed to close: %s", event.worker, failure.summary)
            return
        current = self._dispatcher.settle(event.worker, failure)
        session.reading[event.worker] = []
        session.told(event.worker, failure)
        self.stats.lost_timesteps += failure.lost_timesteps
        # Whatever it was doing, its environment or its agent may be half of something: it gets new ones.
        session.updates.forget(event.worker)
        if not current:
            self.stats.stale_trajectories += 1
            return
        worker, indices, now = event.worker, failure.ticket.indices, session.clock()
        if failure.trajectory not in indices and failure.phase not in UPDATE_PHASES:
            # Nobody knows which, unless it is the only one.
            failure = replace(failure, trajectory=indices[0] if len(indices) == 1 else None)
        setback = session.supervisor.raised(worker, failure, event.contents)
        if setback.is_of_an_update:
            self.gathering.give_back(worker, indices, now)
            self._decisions.add(setback)
            return
        index, done = failure.trajectory, failure.done
        self.gathering.fail(worker, indices, index, setback, final=setback.final, done=done, now=now)

    def _take_in_death(self, event: Died) -> None:
        session, worker = self._session, event.worker
        seen = self._engine.progress(worker)
        held = self._dispatcher.lost(worker)
        self.stats.lost_timesteps += session.lost_with(worker)
        session.forget(worker)
        begun = seen.version == self.version
        incident = session.supervisor.buried(event, seen, self.version if begun else None)
        setback = None if incident is None else Setback(worker, incident=incident)
        self.stats.hangs += incident is not None and incident.hung
        now = session.clock()
        for indices in held:
            if setback is not None and begun and seen.trajectory in indices:
                self.gathering.fail(worker, indices, seen.trajectory, setback, final=False, now=now)
                setback = None
            else:
                self.gathering.give_back(worker, indices, now)
        if setback is not None:
            self._decisions.add(setback, needed=begun or seen.trajectory is None)

    def so_far(self) -> tuple[int, int]:
        """Timesteps, those of rollouts under way included, and finished trajectories; in the end, those of the batch.

        No more timesteps than are wanted before that: some of them may turn out to be surplus.
        """
        gathering, under_way = self.gathering, 0
        if gathering.complete:
            return gathering.n_timesteps, gathering.n_trajectories
        for worker in range(self._engine.n_workers):
            seen = self._engine.progress(worker)
            if seen.version == self.version and self._dispatcher.owes(worker):
                under_way += seen.timesteps
        n_timesteps = gathering.arrived_timesteps + under_way
        return min(n_timesteps, gathering.plan.timesteps or n_timesteps), gathering.arrived_trajectories

    # ------------------------------------------------------------------ the result

    def batch(self, segments: list[Segment], joined: Mapping[str, Any] | None = None) -> TrajectoryBatch[Any, Any]:
        """Return trajectories in memory of their own; some of their fields may be joined already."""
        observation_space, action_space = self._spaces_of(segments)
        return assemble(
            segments,
            observation_space=observation_space,
            action_space=action_space,
            seeds_of=partial(self._session.seeds_of, self.version),
            agent_version=self.version,
            seed=self._session.seed,
            stats=self.stats,
            joined=joined or {},
        )

    def _spaces_of(self, segments: list[Segment]) -> Spaces:
        first: Spaces | None = None
        for worker in sorted({segment.delivery.worker for segment in segments}):
            spaces = self._session.spaces[worker]
            assert spaces is not None
            if first is None:
                first, first_worker = spaces, worker
            elif spaces != first:
                raise DataError(
                    "the environments of one batch must have the same spaces: "
                    f"worker {first_worker} has {first[0]} and {first[1]}, worker {worker} has {spaces[0]} and "
                    f"{spaces[1]}"
                )
        assert first is not None
        # Workers and calls share what the engine hands out; a user may change what is in a batch.
        if self._spaces is None or self._spaces[0] is not first:
            self._spaces = first, copy.deepcopy(first)
        return self._spaces[1]

    def release(self, delivery: Delivery) -> None:
        """Give the memory of a delivery back; its arrays are void afterwards."""
        if self._deliveries.pop(id(delivery), None) is not None:
            delivery.release()

    def complete(self) -> TrajectoryBatch[Any, Any]:
        """Stop the workers, close the accounts and return the batch."""
        self._stop_workers()
        return self.finished()

    def finished(self) -> TrajectoryBatch[Any, Any]:
        """Close the accounts and return the finished prefix, which is the batch when the call is complete.

        Raises:
            DataError: The environments of its trajectories have different spaces.
        """
        segments = self.gathering.segments()
        if not self._accounted:  # an interrupt may have come after that
            self._accounted = True
            self.account_for(segments, self.gathering.pop_left_out())
            self._anomalies.returned()
            add_returned(self.stats, self.gathering)
        self._stop_clock()
        self._copy_early(rest=True)
        return self.batch(segments, self._early.fields() if self._early is not None else {})

    def account_for(self, segments: list[Segment], left_out: list[LeftOut]) -> None:
        """Count what was left out, and remember what may be wrong with the others."""
        self._anomalies.hold(segments)
        stats, version = self.stats, self.version
        stats.dropped_trajectories += len(left_out)
        stats.dropped += [DroppedTrajectory(version, index, worker, *it[1:]) for worker, index, it, _ in left_out]
        del stats.dropped[:-REMEMBERED]

    def yielded(self, batch: TrajectoryBatch[Any, Any]) -> None:
        """Take note that a stream's consumer gets to see these trajectories."""
        self.stats.kept_trajectories += batch.n_trajectories
        self.stats.kept_timesteps += batch.n_timesteps
        self._yielded[0] += batch.n_trajectories
        self._yielded[1] += batch.n_timesteps
        self._anomalies.returned(batch.indices.tolist())

    def account_for_unseen(self) -> None:
        """Count as surplus what arrived and was never returned; nothing where that is done."""
        if not self._accounted:
            self._accounted = True
            add_unseen(self.stats, self.gathering, self._yielded)

    def end(self) -> None:
        """Stop the workers and give all memory back, however the call ended."""
        self._stop_clock()
        if self._session.cancelled:
            self._deliveries.clear()  # the engine is closed, or is about to be, in another thread
            return
        self._stop_workers()
        self._decisions.end()
        for delivery in list(self._deliveries.values()):
            self.release(delivery)
        self._session.unpublish_old()

    def _stop_clock(self) -> None:
        if self._begun is not None:
            self.stats.seconds += perf_counter() - self._begun
            self._begun = None

    def _stop_workers(self) -> None:
        self._engine.abandon_older(self.version + 1)
        for worker in self._dispatcher.owing():
            if self._session.supervisor.is_alive(worker) and worker not in self._stopped:
                self._engine.send(worker, Stop())
                self._stopped.add(worker)
