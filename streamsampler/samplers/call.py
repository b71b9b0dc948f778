"""The gathering loop: it serves every obtaining call, and every engine."""

from __future__ import annotations

import math
from dataclasses import replace
from operator import attrgetter
from typing import Any

from streamsampler.core.errors import ClosedError, SamplerError, UsageError
from streamsampler.core.fingerprints import Fingerprint
from streamsampler.data.assembly import Delivery
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.recorder import lengths_of
from streamsampler.data.statistics import Stats
from streamsampler.data.trees import bytes_of
from streamsampler.engines.base import Answered, Died, Event, Logged, Restored
from streamsampler.protocol.messages import Answer, Checked, Failure, Phase, Report
from streamsampler.protocol.plans import GatherPlan, Streamed
from streamsampler.samplers.batches import BatchMaker, CallAccounts, Summaries
from streamsampler.samplers.per_worker import Snapshot
from streamsampler.samplers.run_ahead import TakenOver, gathering_for
from streamsampler.samplers.session import Session
from streamsampler.samplers.supervisor import (
    AGENT_PHASES,
    UPDATE_PHASES,
    Setback,
    WorkerRecord,
    dropped_error,
    failure_error,
    kernels_error,
    logger,
)

_NOT_NEEDED = "%s; the call did not need it"
_NO_MIDDLE = (
    "first_trajectory must be 0, and there are no parts, with a vector environment whose blocks of trajectories get "
    'longer: pass worker_args={{"n_envs": {0}, "block_size": {0}}}, in every part, for blocks of one size'
)


class Call:
    """One obtaining call, from its first ticket to its last answer.

    Args:
        session: What outlives the call.
        plan: What is to be obtained.
        snapshot: The updates that were in force before the call's own, and are again if an environment is refused.
        stats: Where the call is accounted for.
        version: The agent version of its trajectories; None for the one that begins with the call.
        accepted: The updates that are in force again if an agent refuses its update; None for `snapshot`.
        taken_over: What workers run already, which `take_over` takes in; None for nothing.

    Attributes:
        version: The agent version of the call's trajectories.
        gathering: What is assigned to workers, and what arrived.
        accounts: What became of the trajectories.
        batches: Makes batches of what arrived.
        returned: The summaries of what was returned, for filters.
    """

    def __init__(
        self, session: Session, plan: GatherPlan, snapshot: Snapshot, stats: Stats, *, version: int | None = None,
        accepted: Snapshot | None = None, taken_over: TakenOver | None = None,
    ) -> None:  # fmt: skip
        self._session = session
        self._engine = session.engine
        self._supervisor = session.supervisor
        self._layout = session.layout_of(plan)
        self.gathering = taken_over.gathering if taken_over else gathering_for(session, plan)
        self.stats = stats
        self.version = session.begin_version(version, goes_on=taken_over is not None and taken_over.goes_on)
        self._ticket_version = session.ticket_version
        self._supervisor.begin_call(self._ticket_version, plan.timesteps, self._layout.rows)
        self.accounts = CallAccounts(session, self.gathering, stats, self.version)
        self.batches = BatchMaker(session, self.gathering, self.accounts)
        self._snapshot = snapshot
        self._accepted = snapshot if accepted is None else accepted
        self._outside: list[Setback] = []  # of this call's trajectories
        self._refusal: tuple[SamplerError, Snapshot] | None = None
        self.returned: list[Summaries] = []
        self._n_popped = 0
        # Workers in line for a ticket: those that are idle, and those that may get one ahead. A look at each worker
        # whenever one of them answers would cost more than all else where there are thousands.
        self._lines: tuple[dict[int, None], dict[int, None]] = {}, {}
        if session.checks.is_exclusive:
            # Only worker 0 has work at first: it is not left out for having been slow.
            session.throughput.forget(0)
        self._taken_over = taken_over
        if taken_over is None:
            self._hand_out_first()

    def _hand_out_first(self) -> None:
        for record in self._session.records:
            self._line_up(record)
        self._assign_tickets()

    # ------------------------------------------------------------------ the loop

    def take_over(self) -> None:
        """Handle what workers answered before the call, where they had begun with it, and hand out what is left.

        Raises:
            SamplerError: What they answered ends the call. `pump` would wait for ever where nothing else comes.
        """
        taken_over, self._taken_over = self._taken_over, None  # else their memory would be kept as long as the call
        if taken_over is None:
            return
        for event in taken_over.events:
            self.take_in(event)
        self._take_in_all(0.0)
        self._decide()
        self._hand_out_first()

    def pump(self, timeout: float | None = None) -> None:
        """Sleep until a worker answers or dies, handle that, and assign the next tickets.

        Raises:
            RolloutError: User code raised in a worker.
            WorkerDiedError: A worker ended, and there were too many losses.
            WorkerHungError: A worker made no progress, and there were too many losses.
            ClosedError: Another thread closed the sampler.
            UnwritableInfoError: What arrived goes into a file, and no file can hold its infos.
        """
        if self.gathering.result.n_popped != self._n_popped:
            # What a stream's consumer took may have come before a failure, and has made room.
            self._n_popped = self.gathering.result.n_popped
            self._decide()
            self._assign_tickets()
        limit = self._supervisor.wait_limit(self._until_next_look(timeout))
        elapsed = self._take_in_all(limit)
        self._decide()
        self.batches.check_infos()
        self._supervisor.kill_overdue(limit, elapsed)
        self._assign_tickets()

    def _until_next_look(self, timeout: float | None) -> float | None:
        """Return for how many seconds to wait at most, so that idle workers help where a ticket does not arrive."""
        seconds = self.gathering.next_look() - self._session.clock()
        if seconds <= 0:
            self._assign_tickets()
            seconds = self.gathering.next_look() - self._session.clock()
        if not 0 < seconds < math.inf:  # no worker is idle, or idle workers have been asked
            return timeout
        return seconds if timeout is None else min(timeout, seconds)

    def _take_in_all(self, limit: float | None) -> float:
        """Wait for events, and handle all of them before any worker gets a ticket; return how long the wait took."""
        clock = self._session.clock
        began = clock()
        try:
            events = self._engine.wait(limit)
        except (OSError, ValueError):
            self._check_open()
            raise
        elapsed = clock() - began
        self._check_open()
        for event in events:
            self.take_in(event)
            self._line_up(self._session.records[event.worker])
        return elapsed

    def _check_open(self) -> None:
        # By another thread, which may have closed descriptors that were in use here.
        if self._session.cancelled:
            raise ClosedError("this sampler was closed while a call was under way")

    def _assign_tickets(self) -> None:
        """Assign tickets to the workers with room: first one to each, then the next."""
        try:
            for line in self._lines:
                self._assign_to(line)
        except (OSError, ValueError):
            self._check_open()
            raise

    def _assign_to(self, line: dict[int, None]) -> None:
        """Assign a ticket to each worker in a line."""
        ahead = line is self._lines[True]
        for worker in tuple(line):
            record = self._session.records[worker]
            if not self._session.checks.may_work(record) or not self._supervisor.can_work(record):
                continue
            assignment = self.gathering.assign(worker, ahead=ahead, now=self._session.clock())
            if assignment is not None:
                self.stats.restarts += self._supervisor.start_if_absent(record)
                self._session.hand_out(record, *assignment)
                self._line_up(record)
            elif self.gathering.refuses_all:
                break
            elif ahead:
                del line[worker]  # until it has answered

    def _line_up(self, record: WorkerRecord) -> None:
        """Put a worker, for which something has changed, into the line where it belongs, if it has room."""
        for line in self._lines:
            line.pop(record.worker, None)
        if record.side.room:
            self._lines[bool(record.side.unanswered)][record.worker] = None

    # ------------------------------------------------------------------ events

    def take_in(self, event: Event) -> None:
        """Handle what came from a worker; after the call's end, an answer to one of its tickets."""
        if isinstance(event, Logged | Restored):
            self.accounts.take_notice(event)
            return
        record = self._session.records[event.worker]
        if isinstance(event, Died):
            self._handle_death(record, event)
            return
        answer = event.answer
        if answer.checked is not None:
            self._take_checked(record, answer, answer.checked)
        if isinstance(answer, Report):
            if answer.fingerprint is not None:
                self._take_fingerprint(event.worker, answer.fingerprint)
            self._handle_report(record, event, answer)
        elif answer.ticket is not None:
            self._handle_failure(record, event, answer)
        else:
            logger.warning("worker %d, which is being replaced, failed to close: %s", event.worker, answer.summary)
        record.stillness.reset()
        if self._supervisor.is_too_large(record):
            record.side.mark_for_replacement()
            self.stats.replaced += 1
        self._supervisor.retire_if_marked(record)

    def _handle_report(self, record: WorkerRecord, event: Answered, report: Report) -> None:
        """Take in a report: what it brought is added to the result, or is of an older version, or was given up."""
        is_current = record.record_answer(report)
        self.stats.take_report(event.worker, report)
        lengths, delivery = self._unpacked(record, event, report)
        if is_current and not report.given_up:
            self._session.checks.take_answer(record)
            self._add_rollouts(event, report, lengths, delivery)
            return
        event.release()
        self.accounts.add_stale(report.n_trajectories, report.n_timesteps)
        if is_current:
            # The worker failed in another ticket, and runs no more of this version before its next start.
            self.gathering.put_back(event.worker, report.ticket.indices, self._session.clock())

    def _unpacked(
        self, record: WorkerRecord, event: Answered, report: Report
    ) -> tuple[tuple[int, ...], Delivery | None]:
        """Return the lengths of a report's trajectories, from which later tickets are sized, and what it brought."""
        if event.contents is None:
            return (), None
        rollouts, spaces = event.contents
        if spaces is not None:
            record.spaces = spaces
        lengths = rollouts.agent_steps() if self.gathering.plan.counts_agents else lengths_of(rollouts)
        n_bytes = bytes_of(rollouts.observations)
        if not rollouts.fragments:  # their lengths are given, and so are their tickets
            self._session.throughput.measure(
                lengths, report.seconds.rollout, event.worker, n_bytes, fills_rows=len(lengths) >= self._layout.rows
            )
        bits = self._session.fingerprints.bits_of(event.worker)
        return lengths, Delivery(event.worker, rollouts, event.release, n_bytes, record.spaces, bits)

    def _add_rollouts(
        self, event: Answered, report: Report, lengths: tuple[int, ...], delivery: Delivery | None
    ) -> None:
        gathering, indices, now = self.gathering, report.ticket.indices, self._session.clock()
        is_right = self._take_in_way(event.worker, report)
        if not is_right:
            what = "since the agent's parameters were updated: pass the agent itself as agent_update"
            self._refuse(UsageError(f"worker {event.worker} runs trajectories in blocks {what}"), self._accepted)
        elif report.runs_longer_blocks and isinstance(gathering.plan, Streamed) and gathering.plan.first:
            is_right = False
            self._refuse(UsageError(_NO_MIDDLE.format(self._layout.block)), self._accepted)
        if not is_right or not gathering.receive(event.worker, indices, lengths, delivery, now, report.dropped):
            event.release()
            self.accounts.add_surplus(len(lengths), report.n_timesteps)
        elif delivery is not None:
            self.accounts.excess += sum(lengths) - report.n_timesteps
            self.batches.keep(delivery)

    def _take_in_way(self, worker: int, answer: Report | Failure) -> bool:
        """Take in how a worker runs trajectories; return whether its ticket was right for that."""
        gathering, ticket = self.gathering, answer.ticket
        assert ticket is not None
        if answer.runs_lanes:
            if ticket.block > 1 or not gathering.is_certain(worker):
                self._session.record_way(worker, "lanes")
                gathering.run_lanes(worker)
            return True
        longer = answer.runs_longer_blocks
        if self._layout.lengthens and (longer or isinstance(answer, Report)):
            self._session.record_way(worker, "longer blocks" if longer else "blocks")
            gathering.run_blocks(worker, longer=longer)
        return ticket.block == max(self._layout.block, gathering.block_of(worker, ticket.indices))

    def _handle_failure(self, record: WorkerRecord, event: Answered, failure: Failure) -> None:
        is_current = record.record_answer(failure)
        self.stats.lost_timesteps += failure.lost_timesteps
        record.forget()  # environment or agent may be half updated
        if not is_current:
            self.stats.stale_trajectories += 1
            return
        assert failure.ticket is not None
        if failure.phase is Phase.CHECK:
            self._refuse(failure_error(event.worker, failure, event.contents), self._snapshot)
            return
        if failure.phase not in UPDATE_PHASES:
            self._session.checks.take_answer(record)
        version, index = self._place_of(failure.trajectory)
        ticket = failure.ticket._replace(version=version)  # as errors name it
        failure, worker, indices = replace(failure, ticket=ticket), event.worker, ticket.indices
        now = self._session.clock()
        if index not in indices and failure.phase not in UPDATE_PHASES:
            # It is not known which, unless it is the only one.
            index = indices[0] if len(indices) == 1 else None
            failure = replace(failure, trajectory=index if self._session.ledger is None else None)
        setback = self._supervisor.setback_of(record, failure, event.contents)
        if setback.is_of_an_update or setback.is_of_the_engine:
            self.gathering.put_back(worker, indices, now)
            self._outside.append(setback)
            return
        self._take_in_way(worker, failure)
        self.gathering.add_failure(worker, indices, index, setback, final=setback.final, now=now)

    def _place_of(self, trajectory: int | None) -> tuple[int, int | None]:
        """Return the agent version that a trajectory is named by, and its index in the plan, if there is one."""
        fragments = self._session.ledger
        if fragments is None or trajectory is None:
            return self.version, trajectory
        return fragments.base_version, fragments.group_of(trajectory)

    def _handle_death(self, record: WorkerRecord, event: Died) -> None:
        worker, seen = event.worker, self._engine.progress(event.worker)
        has_begun = seen.version == self._ticket_version
        version, index = self._place_of(seen.trajectory)
        incident = self._supervisor.loss_of(event, record, seen, version if has_begun else None)
        setback = None if incident is None else Setback(worker, incident=incident)
        self.stats.hangs += incident is not None and incident.hung
        tickets = record.side.current_tickets()
        self.stats.lost_timesteps += self._session.replace_record(record)
        now = self._session.clock()
        for indices in tickets:
            if setback is not None and has_begun and index in indices:
                self.gathering.add_failure(worker, indices, index, setback, final=False, now=now)
                setback = None
            else:
                self.gathering.put_back(worker, indices, now)
        if setback is not None and (has_begun or seen.trajectory is None):
            self._outside.append(setback)
        elif setback is not None:
            logger.warning(_NOT_NEEDED, setback)

    # ------------------------------------------------------------------ what follows from what went wrong

    def _refuse(self, error: SamplerError, in_force: Snapshot) -> None:
        """End the call with `error`, because its environment or agent cannot be used.

        Args:
            error: The error.
            in_force: The updates that are in force then.
        """
        self._refusal = self._refusal or (error, in_force)

    def _take_checked(self, record: WorkerRecord, answer: Answer, checked: Checked) -> None:
        """Warn if several workers' environments write to the same files."""
        if isinstance(answer, Failure):
            self.stats.take_checked(checked)
        for warning in self._session.checks.shared_files(record, self._session.records, checked.files):
            logger.warning("%s", warning)

    def _take_fingerprint(self, worker: int, found: Fingerprint) -> None:
        """Record how a worker computes; warn if others compute otherwise, or end the call."""
        session = self._session
        if found.is_guest and "torch=" in found.bits and not session.need("torch"):
            found = found.without_torch()
        if refused := session.fingerprints.record(worker, found):
            self._refuse(kernels_error(worker, refused), self._accepted)
        self._warn_of_kernels(session.engine.n_workers)

    def _warn_of_kernels(self, n_expected: int = 0) -> None:
        if text := self._session.fingerprints.warning(n_expected):
            logger.warning("%s", text)

    def _decide(self) -> None:
        """Decide about everything whose turn it is, in an order that does not depend on timing.

        A setback in a trajectory is decided about when its turn has come; until then it uses up no quota. A setback
        outside of trajectories (in a constructor, an update, while a worker was idle) is decided about at once.

        Raises:
            WorkerError: The call ends.
        """
        if self._refusal is not None:
            refused, in_force = self._refusal
            self._session.restore_updates(in_force, self._accepted)
            raise refused
        outside, self._outside = sorted(self._outside, key=attrgetter("worker")), []
        for setback in outside:
            self._decide_outside(setback)
        result = self.gathering.result
        if isinstance(self.gathering.plan, Streamed) and result.has_segments:
            return  # the consumer gets what comes before first
        while (held := result.due) is not None:
            self.stats.failed_trajectories += 1
            if (error := self._supervisor.decide(held.reason)) is not None:
                result.remove_failure(held)
                raise error
            self.gathering.retry(held)
        if (last := result.one_too_many) is not None:
            raise dropped_error(last, self.version, result.n_dropped, result.n_trajectories)

    def _decide_outside(self, setback: Setback) -> None:
        if self.gathering.result.complete:
            # If an update is the cause, the next call, which sends this worker all updates, fails.
            logger.warning(_NOT_NEEDED, setback)
            return
        self.stats.failed_trajectories += 1
        if (error := self._supervisor.decide(setback)) is not None:
            if setback.is_of_an_update:
                in_force = self._accepted if setback.phase in AGENT_PHASES else self._snapshot
                self._session.restore_updates(in_force, self._accepted)
            raise error

    # ------------------------------------------------------------------ the end

    def so_far(self) -> tuple[int, int]:
        """Return the timesteps, those of rollouts under way included, and the finished trajectories.

        No more timesteps than the plan needs: some of them may turn out to be surplus. When the call is complete, those
        of the batch. Of fragments, episodes that ended are counted.
        """
        gathering, under_way, ended = self.gathering, 0, self.batches.n_ended
        if gathering.result.complete:
            return gathering.result.n_timesteps, gathering.result.n_trajectories if ended is None else ended
        for record in self._session.records:
            seen = self._engine.progress(record.worker)
            if seen.version == self._ticket_version and record.side.unanswered:
                under_way += seen.timesteps
        n_timesteps = gathering.arrived_timesteps + under_way
        finished = gathering.arrived_trajectories if ended is None else ended
        return min(n_timesteps, gathering.plan.timesteps or n_timesteps), finished

    def complete(self) -> TrajectoryBatch[Any, Any]:
        """Stop the workers, close the accounts and return the batch, whose statistics filters get."""
        self.batches.check_infos()
        self._stop_workers()
        batch = self.finished()
        self.returned += self.batches.summaries
        return batch

    def finished(self) -> TrajectoryBatch[Any, Any]:
        """Close the accounts and return the finished prefix, which is the batch when the call is complete.

        Raises:
            DataError: The environments of its trajectories have different spaces.
        """
        self.accounts.close_with(self.batches.segments())
        self.accounts.stop_clock()
        batch = self.batches.final()
        if self.stats.metric_kinds:
            self.stats.take_metrics(batch)
        return batch

    def end(self) -> None:
        """Stop the workers and release all memory, however the call ended."""
        self.accounts.stop_clock()
        if self._session.cancelled:
            self.batches.forget_all()
            return
        self._stop_workers()
        self._warn_of_kernels()
        for held in self.gathering.result.held_failures():
            if not held.final:  # a loss, whose worker is replaced all the same
                logger.warning(_NOT_NEEDED, held.reason)
        self.batches.release_all()
        self._session.unpublish_old()

    def _stop_workers(self) -> None:
        self._engine.abandon_older(self._ticket_version + 1)
        for record in self._session.records:
            if (stop := record.side.stop()) is not None:
                self._engine.send(record.worker, stop)
