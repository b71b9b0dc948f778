"""Run the tickets of several tasks in one worker, with a loop for each task with open environments.

Each loop receives its tickets as from a sampler of its task alone, with the task's own indices; its answers are sent
with the call's indices. Only a single loop has work at a time, in the order of the tickets.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from streamsampler.core.fingerprints import Fingerprint
from streamsampler.protocol.messages import Answer, Continue, Exit, Failure, Message, Phase, Report, Start, Stop, Ticket
from streamsampler.protocol.states import WorkerSide
from streamsampler.protocol.task_sections import Section, TaskName
from streamsampler.workers.board import WorkerRow
from streamsampler.workers.channel import Channel
from streamsampler.workers.logs import naming

_LOG = logging.getLogger("streamsampler")


@dataclass(frozen=True)
class TaskTable:
    """Holds the payloads of several tasks' agents and environments; tasks with the same agent share it.

    Attributes:
        open_envs: Maximum number of tasks with open environments in a worker.
    """

    agents: Sequence[Any]
    environments: Sequence[Any]
    open_envs: int


class LoopOfTask(Protocol):
    """Runs a single task's tickets: a `WorkerLoop`."""

    @property
    def has_work(self) -> bool: ...

    def turn(self, *, wait: bool) -> bool: ...


class StartedFor(NamedTuple):
    """Identifies a loop's last `Start`: tickets of another version or section need another `Start`."""

    version: int
    section: Section


class TaskChannel:
    """Replaces the connection to the sampler for the loop of a task.

    Attributes:
        messages: Messages for the loop, with the task's own indices.
        place: The loop's last `Start`; None before.
        filters: The loop's filters.
        needs_updates: Whether the loop needs agent and environment, since it is new or raised.
    """

    def __init__(self, channel: Channel, loops: TaskLoops, task: TaskName) -> None:
        self._channel, self._loops, self.task = channel, loops, task
        self.interruptible, self.descriptor = channel.interruptible, getattr(channel, "descriptor", None)
        self.messages: deque[Message] = deque()
        self.place: StartedFor | None = None
        self.filters: Any = None
        self.needs_updates = True
        self._fingerprint: Fingerprint | None = None
        self._is_reported = False  # whether a report since the loop's last `Start` contained it

    def receive(self, *, wait: bool) -> Message | None:
        """Return the next message; further tickets of the last section are fetched on demand."""
        del wait
        return self.messages.popleft() if self.messages else self._loops.look_ahead(self)

    def load(self, payload: Any) -> Any:
        return payload.contents if isinstance(payload, _LoadedBefore) else self._channel.load(payload)

    def start(self, place: StartedFor, start: Start) -> None:
        self.place, self.needs_updates, self._is_reported = place, False, False
        self.messages.append(start)

    def answer(self, answer: Answer, contents: Any = None) -> None:
        """Send an answer with the call's indices."""
        if answer.ticket is None:
            self._loops.report_close_failure(self.task, answer, contents)
            return
        assert self.place is not None
        section = self.place.section
        ticket = answer.ticket._replace(indices=section.indices_of_call(answer.ticket.indices))
        if isinstance(answer, Failure):
            self.needs_updates = True
            trajectory = answer.trajectory
            index = None if trajectory is None else section.index_of_call(trajectory)
            self._loops.answer_failure(replace(answer, ticket=ticket, trajectory=index), contents)
            return
        if answer.fingerprint is not None:
            self._fingerprint = answer.fingerprint
        fingerprint = None if self._is_reported else self._fingerprint
        self._is_reported = self._is_reported or not answer.abandoned
        self._loops.answer_report(replace(answer, ticket=ticket, fingerprint=fingerprint), contents)


class _LoadedBefore(NamedTuple):
    """Wraps an already loaded payload."""

    contents: Any


class TaskLoops:
    """Runs the loops of the tasks with open environments, through the worker's own channel."""

    def __init__(
        self, channel: Channel, row: WorkerRow, make_loop: Callable[[TaskChannel], LoopOfTask],
        failure_of: Callable[[Ticket, Phase, None, BaseException], Failure],
    ) -> None:  # fmt: skip
        self._channel, self._row, self._make_loop, self._failure_of = channel, row, make_loop, failure_of
        self._flush: Callable[[], None] = getattr(channel, "flush", lambda: None)
        self._side = WorkerSide()
        self._unread: deque[Message] = deque()  # received while a loop had work
        self._open: dict[int, tuple[LoopOfTask, TaskChannel]] = {}  # by task, in the order of last use
        self._current: tuple[LoopOfTask, TaskChannel] | None = None  # has work, or had it last
        self._started: TaskChannel | None = None  # of the last started loop
        self._table: TaskTable
        self._start: Start
        self._resets: Any = None
        self._filters: Any = None  # their payload; None for none
        self._unloadable: BaseException | None = None  # why the call's resets cannot be loaded
        self._idle = 0.0  # seconds, since the last report
        self._is_stopped = False  # whether the current loop received Stop because of an unread message
        self._is_ending = False
        self._close_failure: Answer | None = None

    def turn(self, *, wait: bool) -> bool:
        loop = None if self._current is None or not self._current[0].has_work else self._current[0]
        self._read(wait=wait and loop is None and self._side.later_ticket(1) is None)
        if any(isinstance(message, Exit) for message in self._unread):
            self._shut_down()
            return False
        if self._unread:
            self.receive(self._unread.popleft())
        elif loop is not None:
            self._run_turn()
        elif (ticket := self._side.next_ticket()) is not None:
            self._run(ticket)
        return True

    def _read(self, *, wait: bool) -> None:
        began = perf_counter()
        while (message := self._channel.receive(wait=wait and not self._unread)) is not None:
            self._unread.append(message)
        if wait:
            self._idle += perf_counter() - began

    def receive(self, message: Message) -> None:
        abandoned = self._side.receive(message)
        if isinstance(message, Start):
            self._begin(message)
        elif isinstance(message, Stop):
            self._stop()
        self._report_abandoned(abandoned)

    def _stop(self) -> None:
        """Make the current loop abandon its tickets, unless it did so when the message was first seen."""
        if self._current is not None and self._current[0].has_work:
            if not self._is_stopped:
                self._current[1].messages.append(Stop())
            self._run_turn()
        self._is_stopped = False

    def _begin(self, start: Start) -> None:
        self._start = start
        self._row.begin_ticket(start.version)
        if start.tasks is not None:
            self._table = self._channel.load(start.tasks)
        if start.filters is not None:
            self._filters = start.filters
        try:
            self._resets, self._unloadable = self._channel.load(start.resets), None
        except (Exception, SystemExit) as error:
            self._unloadable = error  # reset options are the user's objects

    def _report_abandoned(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self._side.before_answer()
            self._channel.answer(Report(ticket, abandoned=True))

    def _run(self, ticket: Ticket) -> None:
        if not self._row.may_run(ticket.version):
            self._report_abandoned((ticket,))
            return
        if self._unloadable is not None:
            error = self._unloadable
            self.answer_failure(self._failure_of(ticket, Phase.RESET, None, error), error)
            return
        section: Section = self._resets.sections.of(ticket.indices)
        self._row.index_base = 1 + section.start - section.first
        loop, channel = self._current = self._loop_of(section.task)
        self._row.set_task(section.task.number)
        own = ticket._replace(indices=section.own_indices(ticket.indices))
        check = self._start.check and section.checks_with(ticket.indices)
        if (
            channel is self._started
            and not channel.needs_updates
            and channel.place == (ticket.version, section)
            and not check
        ):
            channel.messages.append(Continue((own,)))
        else:
            # A new `Start` makes the loop send its spaces again: another loop may have sent other spaces since.
            self._started = channel
            channel.start(StartedFor(ticket.version, section), self._start_of(channel, own, check=check))
        self._run_turn()
        if loop.has_work:
            self._run_turn()

    def _run_turn(self) -> None:
        assert self._current is not None
        loop, channel = self._current
        with naming(channel.task):
            loop.turn(wait=False)

    def _start_of(self, channel: TaskChannel, ticket: Ticket, *, check: bool) -> Start:
        """Return a `Start` for a task's loop, with agent and environment if it needs updates."""
        contents: dict[str, Any] = {}
        if channel.filters is not self._filters:
            contents["filters"] = channel.filters = self._filters
        if channel.needs_updates:
            number = channel.task.number
            contents |= {"agent": self._table.agents[number], "env": self._table.environments[number]}
            if self._filters is not None:
                contents["filters"] = channel.filters = self._filters
        return Start(ticket.version, (ticket,), check=check, resets=_LoadedBefore(self._resets), **contents)

    def _loop_of(self, task: TaskName) -> tuple[LoopOfTask, TaskChannel]:
        """Return a task's loop; for a new loop, first close the least recently used above the limit."""
        found = self._open.pop(task.number, None)
        if found is None:
            while len(self._open) >= self._table.open_envs:
                self._close(next(iter(self._open)))
            channel = TaskChannel(self._channel, self, task)
            found = self._make_loop(channel), channel
        self._open[task.number] = found
        return found

    def look_ahead(self, channel: TaskChannel) -> Message | None:
        """Return the next ticket of the current loop's section; or Stop, once, if its tickets are called off."""
        if self._is_ending or channel.place is None:
            return None
        self._read(wait=False)
        while self._unread and isinstance(self._unread[0], Continue):
            self._report_abandoned(self._side.receive(self._unread.popleft()))
        if self._unread:  # any other message ends the tickets
            called_off, self._is_stopped = not self._is_stopped, True
            return Stop() if called_off else None
        ticket = self._side.later_ticket(1)
        version, section = channel.place
        if ticket is None or ticket.version != version or self._resets.sections.of(ticket.indices) != section:
            return None
        self._side.next_ticket()
        return Continue((ticket._replace(indices=section.own_indices(ticket.indices)),))

    def answer_report(self, report: Report, contents: Any) -> None:
        self._side.before_answer()
        seconds, self._idle = report.seconds._replace(idle=report.seconds.idle + self._idle), 0.0
        self._channel.answer(replace(report, seconds=seconds), contents)

    def answer_failure(self, failure: Failure, error: Any) -> None:
        """Send a failure: no further ticket runs until the next `Start`."""
        abandoned = self._side.fail()
        self._row.end_ticket(0)  # the worker works for no task
        self._channel.answer(failure, error)
        self._report_abandoned(abandoned)

    def _close(self, task: int) -> None:
        if not self._is_ending:
            self._flush()  # closing may end the process; the task's trajectories must have left it before
        loop, channel = self._open.pop(task)
        if channel is self._started:
            self._started = None
        channel.messages.clear()
        channel.messages.append(Exit())
        self._row.set_task(task)
        with naming(channel.task):
            loop.turn(wait=False)
        self._row.end_ticket(0)

    def report_close_failure(self, task: TaskName, failure: Answer, error: Any) -> None:
        """Report a failure to close a task's environments: as an error at the worker's end, as a warning before."""
        assert isinstance(failure, Failure)
        if self._is_ending and self._close_failure is None:
            self._close_failure = replace(failure, summary=f"{failure.summary} ({task})")
            self._channel.answer(self._close_failure, error)
            return
        _LOG.warning("closing the environment raised %s", failure.summary)

    def _shut_down(self) -> None:
        self._is_ending = True
        self._unread.clear()
        self._row.set_phase(Phase.CLOSE)  # the sampler waits longer in this phase
        while self._open:
            self._close(next(iter(self._open)))
