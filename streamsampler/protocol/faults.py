"""What went wrong in a worker: an exception of user code, a death or a hang. Pure.

A *loss* is a fault that costs the worker, and that other workers make good: its tickets run again. Every death and
every hang is one, and so are the exceptions that `Policy.restart_on` names. Any other exception ends the call when its
turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from streamsampler.core.errors import Phase
from streamsampler.protocol.events import WorkerDied
from streamsampler.protocol.messages import Failure
from streamsampler.protocol.plans import GatherPlan
from streamsampler.protocol.progress import Progress
from streamsampler.protocol.restarts import Incident, Likeness, cause_of_death, cause_of_exception, unready, was_killed
from streamsampler.protocol.sections import Section, TaskName

AGENT_PHASES = {Phase.AGENT_CONSTRUCTION, Phase.AGENT_UPDATE}
UPDATE_PHASES = AGENT_PHASES | {Phase.ENV_CONSTRUCTION, Phase.HOOK_CREATED, Phase.CLOSE}
"""What a worker does while it applies updates."""

BEFORE_TRAJECTORIES = UPDATE_PHASES | {Phase.CHECK}
"""What a worker does before a ticket's first trajectory."""


NO_TASKS: Mapping[int, TaskName] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WorkerFault:
    """An exception of user code, a death or a hang."""

    worker: int
    failure: Failure | None = None  # the worker's report of an exception; None for a death or a hang
    number: int = -1  # of the event, by which the sampler finds the exception itself
    is_of_engine: bool = False  # whether it is about the worker's own needs, and not about a trajectory
    incident: Incident | None = None  # the loss; None for an exception that ends the call when its turn comes
    task: TaskName | None = None  # where workers run several

    @property
    def is_final(self) -> bool:
        """Whether it ends the call when its turn comes, whatever the quotas."""
        return self.incident is None

    @property
    def phase(self) -> Phase | None:
        """What the worker did; None for a worker that was lost before it had begun any work of the call."""
        if self.failure is not None:
            return self.failure.phase
        return None if self.incident is None or self.incident.version is None else self.incident.phase

    @property
    def is_of_update(self) -> bool:
        """Whether the worker was applying updates, so that one of them may be the cause."""
        return self.phase in UPDATE_PHASES

    def costs_nothing_in(self, section: Section | None) -> bool:
        """Whether the worker closed the environment of a task, and has answered all tickets of that task before.

        Then nothing of the task is lacking, as with a sampler of it alone, whose workers may die when they close at the
        end. If an answer was lost on its way, the first ticket without an answer, which is of `section`, is of the
        task: its trajectories are run again, and may cost a worker again.
        """
        if self.incident is None or not self.incident.in_closing:
            return False
        return section is None or section.task != self.task

    def is_over(self, section: Section | None, tasks: Mapping[int, TaskName]) -> bool:
        """Whether the worker did something for a task that no ticket of the call waits for, so that nothing is lacking.

        It was of an earlier call, or the worker that seemed to hang has answered before it was killed.
        """
        lost = self.incident
        if section is not None or lost is None or not tasks:
            return False
        return lost.task is not None or (lost.hung and lost.version is not None)

    def __str__(self) -> str:
        if self.incident is not None:
            return str(self.incident)
        assert self.failure is not None
        where = "" if self.failure.trajectory is None else f" in trajectory {self.failure.trajectory}"
        where += "" if self.task is None else f" of {self.task}"
        return f"worker {self.worker} failed while {self.failure.phase}{where}: {self.failure.summary}"


@dataclass(frozen=True, slots=True)
class Hang:
    """The progress of a worker that was killed because it made none for so many seconds, and its stacks if known."""

    progress: Progress
    seconds: float
    stack: str = ""


def loss_by_death(
    event: WorkerDied, hang: Hang | None, version: int | None, seconds: float, *, is_ready: bool,
    section: Section | None = None, tasks: Mapping[int, TaskName] = NO_TASKS,
) -> Incident:  # fmt: skip
    """Return the loss that a death is, `seconds` after the sampler was made.

    `version` is None if the worker had not begun the current one. Where workers run several tasks, the section is that
    of the ticket in hand, and tasks are all of them by their numbers.
    """
    seen = event.progress if hang is None else hang.progress
    task = None if section is None else section.task
    if seen.task is not None and (seen.is_closing or section is None):
        task = tasks.get(seen.task)
    trajectory = None if version is None else seen.trajectory
    if section is not None and trajectory is not None:
        trajectory = section.own_index(trajectory)
    is_starting = version is None and not is_ready and hang is None
    incident = Incident(
        event.worker,
        event.why or cause_of_death(event.exitcode) if hang is None else f"made no progress for {hang.seconds:.3g} s",
        Phase.STARTING if is_starting and task is None else seen.phase,
        trajectory,
        version,
        seconds,
        exitcode=event.exitcode if hang is None else None,
        stack="" if hang is None else event.stack,
        hung=hang is not None,
        hopeless=event.hopeless and version is not None,  # in this call's work, and not in that of an earlier one
        task=task,
        in_closing=seen.is_closing and not event.hopeless,
    )
    return replace(incident, likeness=_likeness_of(incident, is_ready=is_ready))


def is_before_ready(incident: Incident, *, is_ready: bool) -> bool:
    """Return whether a worker was lost before it could work, which may happen again to the worker in its place."""
    return incident.trajectory is None and not (is_ready and incident.version is None)


def _likeness_of(incident: Incident, *, is_ready: bool) -> Likeness | None:
    """Return what a death or a hang has in common with equal ones."""
    killed = was_killed(incident.exitcode)
    if incident.hung:
        killed = 'File "' not in incident.stack  # nothing tells where it stood still: it may have been stopped
    cause = incident.phase, incident.stack if incident.hung else incident.what
    if incident.in_closing:
        return Likeness(f"the environment of {incident.task}", cause, by_chance=killed, of_call=True)
    if is_before_ready(incident, is_ready=is_ready):
        return Likeness(unready(incident.worker), cause, by_chance=killed)
    if incident.trajectory is None:
        return None
    of_task = "" if incident.task is None else f" of {incident.task}"
    return Likeness(f"trajectory {incident.trajectory}{of_task}", cause, by_chance=killed, of_call=True)


def loss_by_exception(worker: int, failure: Failure, seconds: float, task: TaskName | None = None) -> Incident:
    """Return the loss that an exception is which `restart_on` names, `seconds` after the sampler was made."""
    version, subject, of_call = None, unready(worker), False
    if failure.ticket is not None:
        version, indices = failure.ticket.version, failure.ticket.indices
        if failure.phase not in UPDATE_PHASES:
            known, of_call = failure.trajectory is not None, True
            subject = f"trajectory {failure.trajectory}" if known else f"trajectories {indices[0]} to {indices[-1]}"
            subject += "" if task is None else f" of {task}"
    cause = failure.phase, *cause_of_exception(failure.kinds[0], failure.traceback)
    likeness = Likeness(subject, cause, of_call=of_call)
    what = f"raised {failure.summary}"
    return Incident(worker, what, failure.phase, failure.trajectory, version, seconds, likeness=likeness, task=task)


def place_of(failure: Failure, indices: range, plan: GatherPlan, *, names_place: bool) -> tuple[int | None, int | None]:
    """Return the index of a ticket at whose turn a failure counts, and its trajectory; None where it is not known.

    What goes wrong while a task's environment is made counts at the turn of the ticket's first trajectory, so that all
    tasks before it are complete. Where it is not known which trajectory failed, it is the only one, if that is an index
    of the plan: `names_place`.
    """
    if failure.phase in BEFORE_TRAJECTORIES and plan.sections:
        return indices[0], None
    index = plan.place_of(failure.trajectory)
    if index in indices or failure.phase in BEFORE_TRAJECTORIES:
        return index, failure.trajectory
    index = indices[0] if len(indices) == 1 else None
    return index, index if names_place else None
