"""Run a worker's loop: receive messages, run tickets, send answers.

`WorkerSide` holds the protocol's state, `_in_force` the payloads of the last updates. After an exception, environments
are closed and made again at the next `Start`.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from streamsampler.core.by_value import dumps_by_value
from streamsampler.core.errors import NotReproducibleError
from streamsampler.core.fingerprints import Fingerprint
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.core.times import Times
from streamsampler.core.timing import Collector, collecting
from streamsampler.environments.updates import for_worker
from streamsampler.protocol.messages import (
    Checked,
    Continue,
    Exit,
    Failure,
    Message,
    Phase,
    Report,
    Start,
    Ticket,
)
from streamsampler.protocol.states import WorkerSide, WorkerState
from streamsampler.workers.base import Outcome, Worker, WorkerContext
from streamsampler.workers.channel import Channel
from streamsampler.workers.explain import class_names, is_interrupt, summary_of
from streamsampler.workers.finishing import AgentFilters
from streamsampler.workers.generators import CONSTRUCTION, seed_constructors
from streamsampler.workers.known_wrappers import files_of
from streamsampler.workers.purity import PurityCheck, check_purity
from streamsampler.workers.task_loops import TaskLoops
from streamsampler.workers.threads import fingerprint

_PHASES = {
    "env": Phase.ENV_CONSTRUCTION,
    "filters": Phase.AGENT_UPDATE,
    "agent": Phase.AGENT_CONSTRUCTION,
    "parameters": Phase.AGENT_UPDATE,
}
_IN_STEPS = {Phase.ACTION: "agent", Phase.STEP: "step", Phase.RECORDING: "step", Phase.HOOK_TIMESTEP: "step"}
_TIMED_AS = [_IN_STEPS.get(phase, "reset") for phase in Phase]  # replacing an environment counts as a reset

_LOG = logging.getLogger("streamsampler")

__all__ = ["Channel", "WorkerLoop", "failure_of", "run_worker"]


def run_worker(channel: Channel, make_worker: Callable[[WorkerContext], Worker], context: WorkerContext) -> None:
    """Run a worker's loop until the sampler sends `Exit`; see `WorkerLoop` for the arguments."""
    loop = WorkerLoop(channel, make_worker, context)
    while loop.turn(wait=True):
        pass


class WorkerLoop:
    """Runs a worker's loop step by step, so that several loops can share a thread.

    Args:
        channel: The connection to the sampler.
        make_worker: Makes the worker, at the first `Start`.
        context: The worker's construction arguments; the loop adds `rebuild`.
    """

    def __init__(
        self, channel: Channel, make_worker: Callable[[WorkerContext], Worker], context: WorkerContext
    ) -> None:
        self._channel = channel
        self._collector = Collector(context.row.words, context.row.phase_word, _TIMED_AS)
        self._make_worker = make_worker
        self._context = replace(context, rebuild=self._rebuild)
        self._row = context.row
        self._seed = context.seed
        self._side = WorkerSide()
        self._pending_message: Message | None = None  # received while a ticket ran, for the next turn
        self._worker: Worker | None = None
        self._finishing = AgentFilters()
        self._derived = TrajectorySeeds(context.seed, CONSTRUCTION)
        self._seeds_ahead: dict[Ticket, list[int]] = {}  # of tickets returned by `look_ahead`
        self._spaces_sent = False
        self._seconds = [0.0, 0.0, 0.0]  # sending, idle, checking
        self._is_to_check = False  # before the next ticket
        self._last_check = PurityCheck()
        self._warned_of: set[str] = set()
        self._checked: Checked | None = None  # for the next answer
        # In the user's process or a fork of it, torch may be loaded for reasons unrelated to the agent.
        self._is_guest = channel.interruptible or "torch" in sys.modules
        self._fingerprint: Fingerprint | None = None
        self._unreported_fingerprint: Fingerprint | None = None  # the same, until a report contains it
        self._in_force: dict[str, Any] = {}  # payloads of the last updates by kind, loadable while the version may run
        self._spoiled = False  # a rollout raised: agent and environment may be in any state
        self._loops: TaskLoops | None = None  # for a sampler of several tasks, the loop of each open task

    def turn(self, *, wait: bool) -> bool:
        """Receive a message or run a ticket; return False after the worker has ended.

        Args:
            wait: Whether to wait for a message if the worker is idle.
        """
        if self._loops is not None:
            return self._loops.turn(wait=wait)
        side = self._side
        idle = side.state is not WorkerState.STREAMING
        begin = perf_counter()
        message, self._pending_message = self._pending_message or self._channel.receive(wait=wait and idle), None
        if idle:
            self._seconds[1] += perf_counter() - begin
        if message is not None:
            abandoned = side.receive(message)
            match message:
                case Exit():
                    self._shut_down()
                    return False
                case Start():
                    self._start(message)
            if abandoned:
                self._report_abandoned(abandoned)
        elif (ticket := side.next_ticket()) is not None:
            self._run(ticket)
        return True

    def _loop_of_task(self, channel: Channel) -> WorkerLoop:
        return WorkerLoop(channel, self._make_worker, self._context)

    @property
    def has_work(self) -> bool:
        """Whether the loop has a ticket to run, or a message received during a ticket."""
        return self._pending_message is not None or self._side.state is WorkerState.STREAMING

    def _start(self, start: Start) -> None:
        """Apply a `Start`; for several tasks, create a loop for each."""
        if start.tasks is not None:
            self._loops = TaskLoops(self._channel, self._row, self._loop_of_task, failure_of)
            self._loops.receive(start)
            return
        self._row.begin_ticket(start.version)
        self._seeds_ahead.clear()
        # Sent once for each version, not for each environment: the sampler does not read stale reports or their spaces.
        self._spaces_sent = False
        try:
            updates = {kind: payload for kind in _PHASES if (payload := getattr(start, kind)) is not None}
            if updates:
                # Constructors' draws must not depend on the process or on its start time.
                seed_constructors(self._seed)
            worker = self._worker or self._made_worker()
            worker.trajectory = None
            if "agent" in updates:
                self._in_force.pop("parameters", None)  # parameters of the old agent do not fit the new
            self._in_force.update(updates)
            if self._spoiled:
                self._discard_all(worker)
            else:
                worker.keep_fragments(start.continued_version)
                if "env" in updates and worker.must_renew:
                    self._discard(worker)
            if updates:
                self._apply(worker, updates)
            self._apply_resets(worker, start)
            self._update_fingerprint(anew=start.agent is not None or start.env is not None)
        except BaseException as error:  # the sampler raises any exception of user code, SystemExit included
            self._let_interrupts_through(error)
            phase = Phase.AGENT_CONSTRUCTION if self._worker is None else self._worker.phase
            ticket = self._side.next_ticket()
            assert ticket is not None
            self._fail(ticket, phase, None, error)

    def _made_worker(self) -> Worker:
        self._row.set_phase(Phase.AGENT_CONSTRUCTION)  # may import libraries for seconds
        worker = self._worker = self._make_worker(self._context)
        worker.look_ahead, worker.is_called_off = self._look_ahead, self._is_called_off
        worker.descriptor = getattr(self._channel, "descriptor", None)  # optional in users' engines
        worker.in_force, worker.load = self._in_force, self._channel.load
        return worker

    def _apply_resets(self, worker: Worker, start: Start) -> None:
        """Store the call's checks and resets."""
        self._is_to_check = start.check
        if start.resets is not None:
            self._enter(worker, Phase.RESET)
        worker.resets = None if start.resets is None else self._channel.load(start.resets)
        if start.env is not None and worker.context.check is not None and (files := files_of(worker.environments())):
            self._checked = Checked(files=files)

    def _update_fingerprint(self, *, anew: bool) -> None:
        """Prepare to report this process's fingerprint if it is new: an update may have loaded torch."""
        if (found := fingerprint()) is not self._fingerprint or (anew and self._is_guest):
            self._fingerprint = found
            self._unreported_fingerprint = found._replace(is_guest=self._is_guest)

    def _apply(self, worker: Worker, updates: dict[str, Any]) -> None:
        """Apply payloads of updates: the environment's first, since a new agent receives its spaces."""
        for kind, phase in _PHASES.items():
            if kind in updates:
                self._enter(worker, phase)
                if kind == "env":
                    with for_worker(self._context.worker_number):
                        worker.update_env(self._channel.load(updates[kind]))
                else:
                    self._finishing.update(worker, kind, self._channel.load(updates[kind]))
        self._finishing.renew(worker, updates)

    def _rebuild(self) -> None:
        worker = self._worker
        assert worker is not None
        self._discard(worker)
        seed_constructors(self._seed)
        kept = ("parameters",) if worker.shares_agent else ()
        self._apply(worker, {kind: it for kind, it in self._in_force.items() if kind not in kept})

    def _discard_all(self, worker: Worker) -> None:
        with contextlib.suppress(Exception, SystemExit):
            worker.keep_fragments(0)
        self._discard(worker)

    def _discard(self, worker: Worker) -> None:
        """Close the environment of whole trajectories after an exception; ignore further exceptions."""
        self._spoiled = False
        with contextlib.suppress(Exception, SystemExit):
            worker.shutdown()

    def _enter(self, worker: Worker, phase: Phase) -> None:
        worker.phase = phase
        self._row.set_phase(phase)

    def _run(self, ticket: Ticket) -> None:
        worker = self._worker
        assert worker is not None
        if not self._row.may_run(ticket.version):
            self._side.before_answer()
            self._report_abandoned((ticket,))
            return
        self._row.begin_ticket(ticket.version)
        worker.ran_timesteps = 0
        ended = False
        try:
            if self._is_to_check and not self._check(worker, ticket.version):
                self._side.before_answer()
                self._report_abandoned((ticket,))
                return
            seeds = self._seeds_ahead.pop(ticket, None) or self._seeds_of(ticket.version, ticket.indices)
            began = perf_counter()
            with collecting(self._collector):
                outcome = worker.rollout(ticket, seeds)
            if not any(outcome.seconds):  # the scheduler sizes the next tickets by it
                outcome = replace(outcome, seconds=(0.0, 0.0, perf_counter() - began))
            self._finishing.finish(outcome)
            worker.trajectory, worker.phase = None, Phase.SENDING
            self._row.set_phase(Phase.SENDING)
            reported = int(
                outcome.n_timesteps + outcome.abandoned_timesteps
            )  # not a NumPy number, which workers of users may return
            worker.ran_timesteps = max(reported, worker.ran_timesteps)
            self._row.end_ticket(worker.ran_timesteps, worker.running_timesteps)
            ended = True
            self._report(ticket, outcome, worker.ran_timesteps - reported)
        except BaseException as error:  # see _start
            if not ended:
                self._row.end_ticket(worker.ran_timesteps)
            self._let_interrupts_through(error)
            self._spoiled = True
            self._fail(ticket, worker.phase, worker.trajectory, error, worker.ran_timesteps)
        finally:
            worker.phase, worker.trajectory = Phase.WAITING, None
            self._row.set_phase(Phase.WAITING)

    def _look_ahead(self, number: int) -> tuple[Ticket, list[int]] | None:
        side = self._side
        while (ticket := side.later_ticket(number)) is None:
            if self._pending_message is not None or (message := self._channel.receive(wait=False)) is None:
                return None
            if isinstance(message, Continue):
                side.receive(message)
            else:
                self._pending_message = message
        seeds = self._seeds_ahead[ticket] = self._seeds_of(ticket.version, ticket.indices)
        return ticket, seeds

    def _is_called_off(self) -> bool:
        return self._pending_message is not None

    def _seeds_of(self, version: int, indices: range) -> list[int]:
        if self._derived.agent_version != version:
            self._derived = TrajectorySeeds(self._seed, version)
        worker = self._worker
        if worker is None or worker.resets is None:
            return self._derived.of(indices)
        return worker.resets.seeds_of(self._derived, indices)

    def _check(self, worker: Worker, version: int) -> bool:
        """Check whether trajectories depend on their seeds alone; return whether the ticket may run."""
        began = perf_counter()
        found = self._last_check = check_purity(worker, version, partial(self._seeds_of, version), self._last_check)
        self._is_to_check = not found.complete
        worker.trajectory, worker.ran_timesteps = None, 0
        self._row.end_ticket(found.timesteps)
        files = () if self._checked is None else self._checked.files
        self._checked = Checked(found.trajectories, found.timesteps, files)
        self._report_finding(worker, found)
        if may_run := self._row.may_run(version):
            if found.spoiled:
                self._rebuild()
            self._row.begin_ticket(version)
        self._seconds[2] += perf_counter() - began
        return may_run

    def _report_finding(self, worker: Worker, found: PurityCheck) -> None:
        if found.finding and worker.context.check == "error":
            self._last_check = PurityCheck()  # so the same environment is refused again next time
            number, worker.phase = self._context.worker_number, Phase.CHECK
            what = f"worker {number} found, while {Phase.CHECK}: {found.finding}"
            raise NotReproducibleError(what, worker_number=number, phase=Phase.CHECK, trajectory=None)
        for text in filter(None, (found.unstable, found.finding)):
            if text not in self._warned_of:
                self._warned_of.add(text)
                _LOG.warning("%s", text)

    def _let_interrupts_through(self, error: BaseException) -> None:
        if is_interrupt(error) and self._channel.interruptible:
            raise error

    def _report(self, ticket: Ticket, outcome: Outcome, lost_timesteps: int) -> None:
        begin, worker = perf_counter(), self._worker
        assert worker is not None
        report = Report(
            ticket,
            abandoned=outcome.rollouts is None and not outcome.dropped,
            n_trajectories=outcome.n_trajectories,
            n_timesteps=outcome.n_timesteps,
            n_abandoned=outcome.n_abandoned,
            abandoned_timesteps=outcome.abandoned_timesteps,
            seconds=Times(*outcome.seconds[:3], *self._seconds),
            dropped=outcome.dropped,
            lost_timesteps=lost_timesteps,
            checked=self._checked,
            runs_lanes=worker.runs_lanes,
            runs_longer_blocks=worker.runs_longer_blocks,
            fingerprint=self._unreported_fingerprint,
            timed=self._collector.take(),
            metrics=outcome.metrics,
            further_envs=worker.further_envs,
            ended_fragments=worker.has_ended_fragments,
            n_timed_out=outcome.n_timed_out,
        )
        worker.further_envs, worker.has_ended_fragments = 0, False
        self._seconds = [0.0, 0.0, 0.0]
        if outcome.rollouts is None:
            self._side.before_answer()
            self._channel.answer(report)
        else:
            self._side.before_answer()
            spaces = None if self._spaces_sent else worker.spaces
            self._channel.answer(report, (outcome.rollouts, spaces))
            self._spaces_sent = True
        self._checked = self._unreported_fingerprint = None
        self._seconds[0] += perf_counter() - begin

    def _report_abandoned(self, tickets: tuple[Ticket, ...]) -> None:
        for ticket in tickets:
            n_abandoned, timesteps = (0, 0) if self._worker is None else self._worker.abandon()
            self._row.end_ticket(timesteps)
            self._channel.answer(Report(
                ticket, abandoned=True, n_abandoned=n_abandoned, abandoned_timesteps=timesteps, checked=self._checked
            ))  # fmt: skip
            self._checked = None

    def _fail(
        self,
        ticket: Ticket,
        phase: Phase,
        trajectory: int | None,
        error: BaseException,
        lost_timesteps: int = 0,
    ) -> None:
        others = self._side.fail()
        failure = replace(
            failure_of(ticket, phase, trajectory, error), lost_timesteps=lost_timesteps, checked=self._checked,
        )  # fmt: skip
        if (worker := self._worker) is not None:
            lanes, longer = worker.runs_lanes, worker.runs_longer_blocks
            failure = replace(failure, runs_lanes=lanes, runs_longer_blocks=longer)
        self._channel.answer(failure, error)
        self._checked = None
        self._report_abandoned(others)

    def _shut_down(self) -> None:
        if self._worker is None:
            return
        self._row.set_phase(Phase.CLOSE)  # the sampler waits longer in this phase
        try:
            if self._spoiled or self._worker.spoiled:
                self._discard_all(self._worker)
                return
            try:
                self._worker.keep_fragments(0)
            finally:
                self._worker.shutdown()
        except BaseException as error:
            self._let_interrupts_through(error)
            self._channel.answer(failure_of(None, Phase.CLOSE, None, error), error)
        finally:
            self._worker.end()


def failure_of(ticket: Ticket | None, phase: Phase, trajectory: int | None, error: BaseException) -> Failure:
    """Return a worker's failure for an exception.

    Args:
        ticket: The current ticket; None after `Exit`.
        phase: The worker's phase.
        trajectory: The current trajectory; None outside trajectories.
        error: The exception.
    """
    try:
        exception = dumps_by_value(error)
    except Exception:
        exception = None
    text = "".join(traceback.format_exception(error)).rstrip()
    return Failure(
        ticket, phase, trajectory, summary=summary_of(error), traceback=text, exception=exception,
        kinds=class_names(error),
    )  # fmt: skip
