"""Describe faults of workers: an exception of user code, a death or a hang. Pure.

A *loss* costs the worker: a death, a hang, or an exception named in `Policy.restart_on`. Other workers run its tickets
again. Any other exception ends the call at its turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from streamsampler.core.errors import Phase
from streamsampler.protocol.events import WorkerDied
from streamsampler.protocol.losses import Loss, LossKind, cause_of_death, cause_of_exception, unready, was_killed
from streamsampler.protocol.messages import Failure
from streamsampler.protocol.plans import GatherPlan
from streamsampler.protocol.progress import Progress
from streamsampler.protocol.task_sections import Section, TaskName

AGENT_PHASES = {Phase.AGENT_CONSTRUCTION, Phase.AGENT_UPDATE}
UPDATE_PHASES = AGENT_PHASES | {Phase.ENV_CONSTRUCTION, Phase.HOOK_CREATED, Phase.CLOSE}
"""Phases of a worker while it applies updates."""

BEFORE_TRAJECTORIES = UPDATE_PHASES | {Phase.CHECK}
"""Phases of a worker before a ticket's first trajectory."""


NO_TASKS: Mapping[int, TaskName] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WorkerFault:
    """An exception of user code, a death or a hang."""

    worker: int
    failure: Failure | None = None  # for an exception
    number: int = -1  # of the event; the sampler finds the exception by it
    is_of_engine: bool = False  # whether the engine failed, and not a trajectory
    incident: Loss | None = None  # the loss; None for an exception that ends the call
    task: TaskName | None = None  # where workers run several

    @property
    def is_final(self) -> bool:
        return self.incident is None

    @property
    def phase(self) -> Phase | None:
        """The worker's phase; None if it was lost before any work of the call."""
        if self.failure is not None:
            return self.failure.phase
        return None if self.incident is None or self.incident.version is None else self.incident.phase

    @property
    def is_of_update(self) -> bool:
        return self.phase in UPDATE_PHASES

    def costs_nothing_in(self, section: Section | None) -> bool:
        """Whether the worker was lost while closing a task's environment, with all tickets of the task answered.

        If its first unanswered ticket, of `section`, is of the same task, an answer was lost on its way, and the loss
        counts.
        """
        if self.incident is None or not self.incident.in_closing:
            return False
        return section is None or section.task != self.task

    def is_over(self, section: Section | None, tasks: Mapping[int, TaskName]) -> bool:
        """Whether the worker was lost in an earlier call's work, or killed as hung after its last answer."""
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
    """The last progress of a worker killed for lack of it, for how long, and its stacks."""

    progress: Progress
    seconds: float
    stack: str = ""


def loss_by_death(
    event: WorkerDied, hang: Hang | None, version: int | None, seconds: float, *, is_ready: bool,
    section: Section | None = None, tasks: Mapping[int, TaskName] = NO_TASKS,
) -> Loss:  # fmt: skip
    """Describe a death or hang as a loss, `seconds` after the sampler was made; `section` is the current ticket's."""
    seen = event.progress if hang is None else hang.progress
    task = None if section is None else section.task
    if seen.task is not None and (seen.is_closing or section is None):
        task = tasks.get(seen.task)
    trajectory = None if version is None else seen.trajectory
    if section is not None and trajectory is not None:
        trajectory = section.own_index(trajectory)
    is_starting = version is None and not is_ready and hang is None
    incident = Loss(
        event.worker,
        event.why or cause_of_death(event.exitcode) if hang is None else f"made no progress for {hang.seconds:.3g} s",
        Phase.STARTING if is_starting and task is None else seen.phase,
        trajectory,
        version,
        seconds,
        exitcode=event.exitcode if hang is None else None,
        stack="" if hang is None else event.stack,
        hung=hang is not None,
        hopeless=event.hopeless and version is not None,  # in this call's work, not in an earlier call's
        task=task,
        in_closing=seen.is_closing and not event.hopeless,
    )
    return replace(incident, likeness=_likeness_of(incident, is_ready=is_ready))


def is_before_ready(incident: Loss, *, is_ready: bool) -> bool:
    """Return whether a worker was lost before it could work, as its replacement may be."""
    return incident.trajectory is None and not (is_ready and incident.version is None)


def _likeness_of(incident: Loss, *, is_ready: bool) -> LossKind | None:
    killed = was_killed(incident.exitcode)
    if incident.hung:
        killed = 'File "' not in incident.stack  # without stacks it may have been stopped from outside
    cause = incident.phase, incident.stack if incident.hung else incident.what
    if incident.in_closing:
        return LossKind(f"the environment of {incident.task}", cause, by_chance=killed, of_call=True)
    if is_before_ready(incident, is_ready=is_ready):
        return LossKind(unready(incident.worker), cause, by_chance=killed)
    if incident.trajectory is None:
        return None
    of_task = "" if incident.task is None else f" of {incident.task}"
    return LossKind(f"trajectory {incident.trajectory}{of_task}", cause, by_chance=killed, of_call=True)


def loss_by_exception(worker: int, failure: Failure, seconds: float, task: TaskName | None = None) -> Loss:
    """Describe an exception named in `restart_on` as a loss, `seconds` after the sampler was made."""
    version, subject, of_call = None, unready(worker), False
    if failure.ticket is not None:
        version, indices = failure.ticket.version, failure.ticket.indices
        if failure.phase not in UPDATE_PHASES:
            known, of_call = failure.trajectory is not None, True
            subject = f"trajectory {failure.trajectory}" if known else f"trajectories {indices[0]} to {indices[-1]}"
            subject += "" if task is None else f" of {task}"
    cause = failure.phase, *cause_of_exception(failure.kinds[0], failure.traceback)
    likeness = LossKind(subject, cause, of_call=of_call)
    what = f"raised {failure.summary}"
    return Loss(worker, what, failure.phase, failure.trajectory, version, seconds, likeness=likeness, task=task)


def place_of(failure: Failure, indices: range, plan: GatherPlan, *, names_place: bool) -> tuple[int | None, int | None]:
    """Return the index of a ticket where a failure counts, and its trajectory; None if unknown.

    A failure to make a task's environment counts at the ticket's first trajectory: all tasks before are then complete.
    An unknown trajectory must be alone in its ticket; `names_place` says whether its index is a trajectory index.
    """
    if failure.phase in BEFORE_TRAJECTORIES and plan.sections:
        return indices[0], None
    index = plan.place_of(failure.trajectory)
    if index in indices or failure.phase in BEFORE_TRAJECTORIES:
        return index, failure.trajectory
    index = indices[0] if len(indices) == 1 else None
    return index, index if names_place else None
