"""Make the sampler's decisions in a state machine: events in, instructions out. Pure: no I/O, no clock.

The scheduler decides everything about workers, over all calls of a sampler: tickets and their sizes, copies,
completion, losses, hangs, replacements, run-twice checks. The sampler's loop waits for events, calls `handle`, and
carries out the instructions.

All events of a wait are handled before any decision, in an order independent of timing: first faults outside of
trajectories, by worker; then failures at their turn; then tickets are assigned. So the seed decides whether a call
fails, and with which error. The sampler has the contents of reports, the scheduler their numbers and lengths. Progress
comes as an event, requested by `ReadProgress`, so plans and events reproduce every decision; `trace` records the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from streamsampler.core.fingerprints import Fingerprint
from streamsampler.protocol.dispatch import Dispatch
from streamsampler.protocol.events import (
    Event,
    FailureReceived,
    LaunchPossible,
    ProgressSeen,
    ReportReceived,
    Waited,
    WorkerDied,
)  # fmt: skip
from streamsampler.protocol.facts import (
    FaultEndsCall,
    LossReplaced,
    LostInClosing,
    NotClosed,
    NotReproducible,
    OtherKernels,
    RunsBlocks,
    StartsInsideBlock,
    TooManyDropped,
    UnneededFault,
)  # fmt: skip
from streamsampler.protocol.faults import (
    AGENT_PHASES,
    BEFORE_TRAJECTORIES,
    UPDATE_PHASES,
    WorkerFault,
    is_before_ready,
    loss_by_death,
    loss_by_exception,
    place_of,
)  # fmt: skip
from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.instructions import (
    AbandonOlder,
    AccountFailure,
    Discard,
    Forget,
    Instruction,
    Keep,
    Raise,
    ReadProgress,
    Reason,
    Refused,
    Send,
    Warn,
)  # fmt: skip
from streamsampler.protocol.known_worker import KnownWorker
from streamsampler.protocol.losses import LossesByTask, Policy, unready
from streamsampler.protocol.messages import Phase, Report
from streamsampler.protocol.plans import Fragments, GatherPlan, Layout, Streamed
from streamsampler.protocol.prefetch import Prefetch
from streamsampler.protocol.progress import Progress
from streamsampler.protocol.result import Order, Span
from streamsampler.protocol.run_modes import RunModes, Structure
from streamsampler.protocol.run_twice_checks import RunTwiceChecks, TaskChecks
from streamsampler.protocol.states import CAPACITY, Happened, SamplerSide
from streamsampler.protocol.supervision import LEAVING, Question, Supervision
from streamsampler.protocol.task_gathering import TaskGathering
from streamsampler.protocol.task_sections import Section, Sections, TaskName
from streamsampler.protocol.throughput import Throughput
from streamsampler.protocol.tickets import SHORTEST_TICKET_SECONDS
from streamsampler.protocol.trace import LENGTHS_SHIFT, SchedulerTrace
from streamsampler.protocol.worker_kernels import Fingerprints


class Scheduler:
    """Decides for all workers."""

    def __init__(
        self, n_workers: int, *, policy: Policy | None = None, order: Order = "index", version: int = 0,
        capacity: int = CAPACITY, layout: Layout = Layout(), concurrent: bool = True, can_retire: bool = True,
        shortest_ticket: float = SHORTEST_TICKET_SECONDS, checks: RunTwiceChecks | None = None,
        fingerprints: Fingerprints | None = None, trace: SchedulerTrace | None = None, now: float = 0.0,
    ) -> None:  # fmt: skip
        made_with = {name: value for name, value in locals().items() if name not in ("self", "trace")}
        self.trace = trace or SchedulerTrace()
        self.trace.begin_part(made_with)
        self.policy = policy or Policy()
        # Of the last call, of its trajectories, and of tickets; see `messages.Ticket`.
        self.version = self.sampled_version = self.ticket_version = version
        self._capacity, self._made = capacity, now
        self.workers = [self._new_worker(worker) for worker in range(n_workers)]
        for known in self.workers:
            known.side.apply(Happened.LAUNCHED)
        self.layout = self._layout = layout
        self.throughput = Throughput()
        self._throughputs: dict[int, Throughput] = {}  # by task number
        self.losses = LossesByTask(self.policy, n_workers)
        self._tasks: dict[int, TaskName] = {}  # of all calls so far, by number
        self.checks = checks or RunTwiceChecks(None)
        self.fingerprints = fingerprints or Fingerprints(None)
        self.gathering: Gathering | None = None  # None before the first call
        self._gathering: Gathering  # the same, once the first call has started
        self._order, self._concurrent, self._shortest_ticket = order, concurrent, shortest_ticket
        self._instructions: list[Instruction] = []
        self._dispatch = Dispatch(self.workers, self.checks, self._instructions)
        self._supervision = Supervision(
            self.workers, self.policy, can_retire=can_retire, instructions=self._instructions
        )
        self._now = now
        self._run_modes = RunModes()
        self._base_version = 0
        self._is_open = False  # whether a call is open
        self._outside: list[WorkerFault] = []  # outside of trajectories
        self._refusal: Raise | None = None
        self._prefetch: Prefetch | None = None
        self._seen: dict[int, Progress] = {}  # by worker, as last read
        self._asked: set[Question] = set()  # without an answer yet
        self._overdue: list[int] = []  # workers with tickets that may be copied
        self._next_ask = math.inf  # when idle workers are asked again

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "trace": SchedulerTrace()}  # a trace starts with a pickled scheduler

    def _new_worker(self, worker: int) -> KnownWorker:
        return KnownWorker(SamplerSide(worker, self.ticket_version, self._capacity))

    def gathering_for(self, plan: GatherPlan, structures: Sequence[Structure] = ((),)) -> Gathering:
        """Return a gathering for the workers' current agents and environments.

        `structures` is for all workers, or for each. Raise a UsageError if no indices can replace dropped trajectories.
        """
        is_whole = not isinstance(plan, Fragments)
        options: dict[str, Any] = {
            "n_workers": len(self.workers), "order": self._order, "dropping": self.policy.drops,
            "layout": plan.layout if isinstance(plan, Fragments) else self.layout, "concurrent": self._concurrent,
            "shortest_ticket": self._shortest_ticket, "steps_of": self._shown_timesteps,
            "is_awaited": self._is_checking,
        }  # fmt: skip
        if plan.sections:
            gathering: Gathering = TaskGathering(plan, self._throughputs, **options)
        else:
            throughput, own_queues = self.throughput if is_whole else None, len(structures) > 1 or not is_whole
            gathering = Gathering(plan, throughput=throughput, own_queues=own_queues, **options)
        if is_whole and self._run_modes.known:
            self._run_modes.apply_to(gathering, structures)
        return gathering

    def begin(
        self, plan: GatherPlan, now: float, *, sampled_version: int | None = None, base_version: int = 0,
        structures: Sequence[Structure] = ((),), keeps_prefetched: bool = False,
    ) -> list[Instruction]:  # fmt: skip
        """Start a call; the next `handle` assigns its tickets.

        `sampled_version` is the agent version of its trajectories; None for the call's own. `base_version` is the
        version at the start of the fragments' environments, 0 for whole trajectories. `keeps_prefetched` adopts tickets
        in advance if the plan has them.
        """
        options = {
            "sampled_version": sampled_version, "base_version": base_version, "structures": structures,
            "keeps_prefetched": keeps_prefetched,
        }  # fmt: skip
        self.trace.calls.append(("begin", plan, now, options))
        self._now = now
        gathering, prefetch = self.gathering_for(plan, structures), self._prefetch
        goes_on = keeps_prefetched and prefetch is not None and gathering.adopt(prefetch.tickets)
        self.gathering = self._gathering = gathering
        self._layout, self._prefetch = plan.layout if isinstance(plan, Fragments) else self.layout, None
        self.version += 1
        self.sampled_version, self._base_version = sampled_version or self.version, base_version
        self._run_modes.structures = structures
        self._outside, self._refusal, self._is_open = [], None, True
        if not goes_on:
            self._begin_tickets()
        self.losses.begin_call()
        if plan.sections:
            self._begin_tasks(plan.sections)
        self._supervision.lengths.begin(plan.timesteps, self._layout.rows, now)
        if self.checks.is_exclusive:
            # Only worker 0 gets tickets at first: do not pass it over as slow.
            self.throughput.forget(0)
        self._dispatch.enqueue_all()
        for event in [] if prefetch is None else prefetch.postponed:
            self._receive(event)
        return self.pop_instructions()

    def _begin_tasks(self, sections: Sections) -> None:
        self._tasks |= {section.task.number: section.task for section in sections}
        self._supervision.watch_closing()
        if isinstance(self.checks, TaskChecks):
            self.checks.begin_call()

    def _begin_tickets(self) -> None:
        """Let workers abandon all older tickets, so that they do not mix with new tickets."""
        self.ticket_version = max(self.ticket_version + 1, self.version)
        # First of all, since older rollouts are surplus from now on.
        self._instructions.append(AbandonOlder(self.ticket_version))
        for known in self.workers:
            known.side.begin_version(self.ticket_version)

    def continue_from(self, version: int, sampled_version: int) -> None:
        """Set the last agent version, and that of its trajectories."""
        self.trace.calls.append(("continue_from", version, sampled_version))
        self.version, self.sampled_version = version, sampled_version

    def renew_checks(self) -> None:
        """Make a run-twice check due after a change of the environment."""
        self.trace.calls.append(("renew_checks",))
        self.checks.renew()

    def pop_spans(self) -> list[Span]:
        self.trace.calls.append(("pop_spans",))
        return self._gathering.result.pop_spans()

    def end(self, now: float) -> list[Instruction]:
        """End a call, complete or not."""
        self.trace.calls.append(("end", now))
        self._now = now
        if self._is_open:
            self._is_open = False
            self._stop_workers()
            for held in self._gathering.result.held_failures():
                if not held.final:  # a loss: its worker is replaced all the same
                    self._instructions.append(Warn(UnneededFault(held.reason)))
        self._warn_of_kernels()
        return self.pop_instructions()

    def stop(self, now: float) -> list[Instruction]:
        self.trace.calls.append(("stop", now))
        self._now = now
        self._stop_workers()
        return self.pop_instructions()

    def _stop_workers(self) -> None:
        self._instructions.append(AbandonOlder(self.ticket_version + 1))
        for known in self.workers:
            if (stop := known.side.stop()) is not None:
                self._instructions.append(Send(known.worker, stop))

    def prefetch(self, plan: GatherPlan, now: float, structures: Sequence[Structure] = ((),)) -> list[Instruction]:
        """Start on the expected next plan after a complete call; busy workers get tickets later."""
        self.trace.calls.append(("prefetch", plan, now, structures))
        self._begin_tickets()
        gathering = self.gathering_for(plan, structures)
        self._prefetch = Prefetch(gathering, self.ticket_version, self.workers, self._dispatch, self._capacity, now)
        return self.pop_instructions()

    @property
    def awaits_answers(self) -> bool:
        """Whether workers that will get tickets in advance still owe answers."""
        return self._prefetch is not None and self._prefetch.awaits_answers

    def pop_instructions(self) -> list[Instruction]:
        """Return all instructions, once; after an interrupt, those not returned by `handle`."""
        instructions = [*self._instructions]
        self._instructions.clear()
        self.trace.returned.append(instructions)
        if self.trace.room <= 0:
            self.trace.begin_part(self)
        return instructions

    def handle(self, events: Sequence[Event], now: float) -> list[Instruction]:
        """Handle the events of a wait in their order of arrival; return instructions. End the call after a `Raise`."""
        self.trace.room -= len(events)
        self.trace.calls.append(("handle", events, now))
        self._now = now
        answered, waits = set[Question](), list[Waited]()
        for event in events:
            if isinstance(event, Waited):
                waits.append(event)
            elif isinstance(event, ProgressSeen):
                self._seen, answered, self._asked = dict(event.progress), self._asked, set()
            elif self._prefetch is None or not self._prefetch.postpone(event):
                self._receive(event)
        if self._is_open and not self._decide():
            return self.pop_instructions()
        questions = self._supervision.watch(waits, self._seen, answered, self.ticket_version, now)
        if self._is_open:
            questions |= self._assign_tickets(knows_progress="copies" in answered)
        elif self._prefetch is not None:
            self._prefetch.send_more(now)
        self._ask(questions)
        return self.pop_instructions()

    def _ask(self, questions: set[Question]) -> None:
        self._asked = questions
        if not questions:
            return
        workers = {*self._overdue, *self._gathering.late} if "copies" in questions else set[int]()
        if questions != {"copies"}:
            workers.update(known.worker for known in self.workers if known.side.unanswered)
        self._instructions.append(ReadProgress(tuple(sorted(workers))))

    def seconds_to_wait(self, now: float) -> float | None:
        """Return the most seconds to wait for events, or None."""
        first = min(self._next_ask, self._supervision.next_deadline()) - now
        limit = max(0.0, min(first, self._supervision.interval))
        return None if limit == math.inf else limit

    def _receive(self, event: Event) -> None:
        match event:
            case ReportReceived():
                self._receive_report(event)
            case FailureReceived():
                self._receive_failure(event)
            case WorkerDied():
                self._receive_death(event)
                return
            case LaunchPossible(worker=worker, is_possible=is_possible):
                self.workers[worker].can_launch = is_possible
                return
            case _:
                return
        known = self.workers[event.worker]
        self._supervision.record_answer_of(known, event.memory, self._now)
        self._dispatch.enqueue(known)

    def _assign_tickets(self, *, knows_progress: bool) -> set[Question]:
        """Assign tickets and copies; return the questions to answer before copying."""
        gathering, now = self._gathering, self._now
        self._dispatch.assign(gathering, now)
        if knows_progress:
            gathering.measure_late(now)
        may_copy = bool(self._dispatch.idle) and gathering.may_copy
        self._overdue = gathering.copies.overdue(now) if may_copy and not knows_progress else []
        if self._overdue or gathering.late:
            return {"copies"}
        if may_copy:
            self._dispatch.assign_copies(gathering, now)
        ask_again_at = gathering.copies.ask_again_at
        self._next_ask = ask_again_at if ask_again_at > now else math.inf  # idle workers were asked just now
        return set()

    def _receive_report(self, event: ReportReceived) -> None:
        known, report, gathering = self.workers[event.worker], event.report, self._gathering
        is_current = known.side.record_answer(report)
        known.is_ready = known.is_ready or not report.abandoned
        if report.checked is not None:
            self._record_files(known, report.checked.files)
        if report.fingerprint is not None:
            self._record_fingerprint(event.worker, report.fingerprint)
        # By this call's plan, which may have changed since the report.
        counts_agents = gathering.plan.counts_agents and event.agent_steps is not None
        lengths = (event.agent_steps if counts_agents else event.lengths) or ()
        self.trace.room -= len(lengths) >> LENGTHS_SHIFT
        if lengths:
            self._measure(event, lengths, is_current=is_current)
        if not is_current or report.abandoned:
            self._instructions.append(Discard(event.number, Reason.STALE))
            if is_current:
                # The worker failed in another ticket, and runs no more of this version before its next start.
                gathering.put_back(event.worker, report.ticket.indices, self._now)
            return
        self.checks.record_answer(known, report.ticket.indices, gathering.plan.sections)
        is_new = self._fits_plan(event.worker, report) and gathering.receive(
            event.worker, report.ticket.indices, lengths, event.number, self._now, report.dropped
        )
        if is_new:
            self._instructions.append(Keep(event.number, self.fingerprints.bits_of(event.worker)))
        else:
            self._instructions.append(Discard(event.number, Reason.SURPLUS))

    def _measure(self, event: ReportReceived, lengths: Sequence[int], *, is_current: bool) -> None:
        """Update the estimates of lengths and speeds, by task."""
        gathering, report, throughput = self._gathering, event.report, self.throughput
        if isinstance(gathering.plan, Fragments):
            return
        if isinstance(gathering, TaskGathering):
            if not is_current:
                return  # its indices may be of another task now
            throughput = gathering.throughput_of(report.ticket.indices)
        fills_rows = len(lengths) >= self._layout.rows
        throughput.measure(lengths, report.seconds.rollout, event.worker, event.n_bytes, fills_rows=fills_rows)

    def _fits_plan(self, worker: int, report: Report) -> bool:
        """Return whether a ticket was run as the call needs; otherwise end the call."""
        plan, indices = self._gathering.plan, report.ticket.indices
        if not self._run_modes.record(self._gathering, self._layout, worker, report):
            self._refuse(Raise(RunsBlocks(worker), Refused.AGENT))
        elif report.runs_longer_blocks and isinstance(plan, Streamed) and plan.begins_in_the_middle(indices):
            section = plan.section_of(indices)
            task = None if section is None else section.task
            self._refuse(Raise(StartsInsideBlock(self._layout.block, task), Refused.AGENT))
        else:
            return True
        return False

    def _record_files(self, known: KnownWorker, files: tuple[str, ...]) -> None:
        for shared in self.checks.record_files(known, self.workers, files):
            self._instructions.append(Warn(shared))

    def _record_fingerprint(self, worker: int, found: Fingerprint) -> None:
        if refused := self.fingerprints.record(worker, found):
            self._refuse(Raise(OtherKernels(refused, worker), Refused.AGENT))
        self._warn_of_kernels(len(self.workers))

    def _warn_of_kernels(self, n_expected: int = 0) -> None:
        if text := self.fingerprints.warning(n_expected):
            self._instructions.append(Warn(OtherKernels(text)))

    def _receive_failure(self, event: FailureReceived) -> None:
        known, failure, gathering = self.workers[event.worker], event.failure, self._gathering
        if failure.checked is not None:
            self._record_files(known, failure.checked.files)
        if failure.ticket is None:
            self._instructions.append(AccountFailure(event.number))
            self._instructions.append(Warn(NotClosed(WorkerFault(event.worker, failure, event.number))))
            return
        indices = failure.ticket.indices
        if not known.side.record_answer(failure):
            self._instructions.append(Discard(event.number, Reason.STALE))
            return
        self._instructions.append(AccountFailure(event.number))
        section = gathering.plan.section_of(indices)
        if failure.phase is Phase.CHECK and section is None:
            fault = WorkerFault(event.worker, failure, event.number, event.is_of_engine)
            self._refuse(Raise(NotReproducible(fault), Refused.CALL))
            return
        if failure.phase not in BEFORE_TRAJECTORIES:
            self.checks.record_answer(known, indices, gathering.plan.sections)
        index, trajectory = place_of(failure, indices, gathering.plan, names_place=not self._base_version)
        fault = self._fault_of(event, trajectory)
        if fault.is_of_engine or (fault.is_of_update and section is None):
            gathering.put_back(event.worker, indices, self._now)
            self._outside.append(fault)
            return
        self._run_modes.record(gathering, self._layout, event.worker, failure)
        gathering.add_failure(event.worker, indices, index, fault, final=fault.is_final, now=self._now)

    def _fault_of(self, event: FailureReceived, trajectory: int | None) -> WorkerFault:
        """Return an exception as a fault; if it is a loss, mark the worker for replacement."""
        version, ticket = self._version_of(event.failure.trajectory), event.failure.ticket
        assert ticket is not None
        section = self._gathering.plan.section_of(ticket.indices)
        task = None if section is None else section.task
        if section is not None and trajectory is not None:
            trajectory = section.own_index(trajectory)
        failure = replace(event.failure, ticket=ticket._replace(version=version), trajectory=trajectory)
        incident = None
        if self.policy.restarts_on(failure.kinds):
            if failure.phase not in UPDATE_PHASES:
                self.losses.forget(unready(event.worker))
            incident = loss_by_exception(event.worker, failure, self._now - self._made, task)
            self._supervision.mark(self.workers[event.worker])
        return WorkerFault(event.worker, failure, event.number, event.is_of_engine, incident, task)

    def _version_of(self, trajectory: int | None) -> int:
        return self.sampled_version if trajectory is None or not self._base_version else self._base_version

    def _receive_death(self, event: WorkerDied) -> None:
        worker, seen, gathering = event.worker, event.progress, self._gathering
        has_begun = seen.version == self.ticket_version
        index = gathering.plan.place_of(seen.trajectory)
        tickets = self.workers[worker].side.current_tickets()
        section = gathering.plan.section_of(tickets[0]) if tickets and has_begun else None
        fault = self._fault_of_death(event, self._version_of(seen.trajectory) if has_begun else None, section)
        self._forget_worker(event)
        if fault is not None and fault.costs_nothing_in(section):
            self._instructions.append(Warn(LostInClosing(fault)))
            fault = None
        if section is not None and fault is not None:
            if isinstance(self.checks, TaskChecks) and section.checks_with(tickets[0]):
                self.checks.record_death_in(section.task.number, worker)
            index = tickets[0][0] if index is None else index  # as for an exception before the first trajectory
        for indices in tickets:
            if fault is not None and has_begun and index in indices:
                gathering.add_failure(worker, indices, index, fault, final=False, now=self._now)
                fault = None
            else:
                gathering.put_back(worker, indices, self._now)
        if fault is not None and (has_begun or seen.trajectory is None) and not fault.is_over(section, self._tasks):
            self._outside.append(fault)
        elif fault is not None:
            self._instructions.append(Warn(UnneededFault(fault)))

    def _fault_of_death(self, event: WorkerDied, version: int | None, section: Section | None) -> WorkerFault | None:
        """Return a death as a fault; None for a retiring worker."""
        known = self.workers[event.worker]
        if known.hang is None and known.side.state in LEAVING:
            if known.is_ready:
                self.losses.forget(unready(event.worker))
            return None
        incident = loss_by_death(
            event,
            known.hang,
            version,
            self._now - self._made,
            is_ready=known.is_ready,
            section=section,
            tasks=self._tasks,
        )
        if not is_before_ready(incident, is_ready=known.is_ready):
            self.losses.forget(unready(event.worker))
        return WorkerFault(event.worker, incident=incident, task=incident.task)

    def _forget_worker(self, event: WorkerDied) -> None:
        worker, known = event.worker, self.workers[event.worker]
        self._instructions.append(Forget(worker))
        known.side.apply(Happened.DIED)
        self.checks.record_death(known)
        self.fingerprints.record_death(worker)
        for throughput in (self.throughput, *self._throughputs.values()):
            throughput.forget(worker)
        self.workers[worker] = new = self._new_worker(worker)
        new.can_launch = event.can_launch
        self._dispatch.enqueue(new)

    def _refuse(self, error: Raise) -> None:
        """End the call with an error because of its environment or agent."""
        self._refusal = self._refusal or error

    def _decide(self) -> bool:
        """Decide all faults at their turn, independent of timing; return whether the call continues.

        A fault in a trajectory waits for its turn, and uses up no quota before. A fault outside of trajectories
        (construction, update, idle worker) is decided at once.
        """
        if self._refusal is not None:
            self._instructions.append(self._refusal)
            return False
        if self._outside:
            outside, self._outside = sorted(self._outside, key=attrgetter("worker")), []
            if not all(map(self._decide_outside, outside)):
                return False
        gathering = self._gathering
        result = gathering.result
        if isinstance(gathering.plan, Streamed) and result.has_spans:
            return True  # the consumer first gets the trajectories before it
        while (held := result.due) is not None:
            if not self._can_retry(held.reason):
                result.remove_failure(held)
                return False
            gathering.retry(held)
        if (last := result.one_too_many) is not None:
            section = gathering.plan.section_of(range(last.trajectory, last.trajectory + 1))
            self._instructions.append(Raise(TooManyDropped.of(last, self.sampled_version, result, section)))
            return False
        return True

    def _decide_outside(self, fault: WorkerFault) -> bool:
        if self._gathering.result.complete:
            # If an update is the cause, the next call fails: it sends this worker all updates.
            self._instructions.append(Warn(UnneededFault(fault)))
            return True
        return self._can_retry(fault)

    def _can_retry(self, fault: WorkerFault) -> bool:
        """Count a loss; return whether its tickets run again, or else end the call."""
        refused = Refused.NOTHING
        if fault.is_of_update:
            refused = Refused.AGENT if fault.phase in AGENT_PHASES else Refused.CALL
        if fault.incident is None:
            self._instructions.append(Raise(FaultEndsCall(fault), refused))
            return False
        losses = self.losses[fault.incident.task]
        quota = losses.count(fault.incident)
        if quota is None and not fault.incident.hopeless:
            self._instructions.append(Warn(LossReplaced(fault)))
            return True
        self._instructions.append(Raise(FaultEndsCall(fault, quota, losses.history()), refused))
        return False

    def _shown_timesteps(self, worker: int) -> int:
        seen = self._seen.get(worker)
        return seen.timesteps if seen is not None and seen.version == self.ticket_version else 0

    def _is_checking(self, worker: int) -> bool:
        """Whether a worker owes a check's answer, without which a call completed by copies would not warn."""
        known, sections = self.workers[worker], self._gathering.plan.sections
        tickets = known.side.current_tickets() if sections else ()
        return known.is_checking or any(sections.of(indices).checks_with(indices) for indices in tickets)
