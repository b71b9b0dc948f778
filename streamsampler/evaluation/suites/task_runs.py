"""Run the missing trajectories of tasks: with shared workers, or with a sampler for each task in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from streamsampler.core.errors import ClosedError, ConcurrentCallError, DataError, ProtocolError, SamplerError
from streamsampler.core.words import count
from streamsampler.evaluation.agents import Row, SuccessMeaning, agent_facts
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.evaluation_call import EvaluationCall
from streamsampler.evaluation.journal import INTERRUPTED, JournalEntry
from streamsampler.evaluation.opening import opened_sampler
from streamsampler.evaluation.resuming import SavedTrajectories
from streamsampler.evaluation.suites.shared_workers import SharedWorkers
from streamsampler.evaluation.suites.suite_plan import TaskState
from streamsampler.samplers.base import Sampler

_OF_THE_CALL = (ClosedError, ConcurrentCallError, ProtocolError)
"""Errors that end the whole call, because they belong to no task."""


class FinishedTask(NamedTuple):
    """A task with all trajectories requested so far, or a failed task.

    Attributes:
        name: Its name.
        evaluation: Its evaluation; None if it failed, or if all its trajectories were dropped.
        error: Reason of its failure, or None.
    """

    name: str
    evaluation: Evaluation | None = None
    error: SamplerError | None = None


@dataclass
class TaskRuns:
    """Runs the missing trajectories of tasks.

    A context manager, which closes the workers.

    Attributes:
        agents: The agent of each task, as samplers take it.
        envs: The environment of each task.
        open_envs: Largest number of tasks with an open environment in a worker.
        success: See `streamsampler.evaluate`.
        return_of: See `streamsampler.evaluate`.
        options: The sampler's other arguments.
        arrived: Called with each new trajectory and its task.
        source: The file of the present trajectories, for errors.
        entry: Returns the journal entry of a task's trajectories during the run; None without a journal.
    """

    agents: Mapping[str, Any]
    envs: Mapping[str, Any]
    open_envs: int
    success: SuccessMeaning
    return_of: tuple[str, ...] | None
    options: Mapping[str, Any]
    arrived: Callable[[str, Row], None]
    source: Path
    entry: Callable[[str], JournalEntry | None]
    _shared: SharedWorkers | None = field(default=None, init=False)

    def __enter__(self) -> TaskRuns:
        if self.options.get("inference") != "parent":  # there the agent of each task stays in this process
            self._shared = SharedWorkers(self.agents, self.envs, self.open_envs, self.options)
            self._shared.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._shared is not None:
            self._shared.__exit__(*error)

    def run(self, tasks: Mapping[str, TaskState]) -> Iterator[FinishedTask]:
        """Run the missing trajectories of tasks, and yield each task when it has them.

        After Ctrl-C the finished trajectories of the current task are yielded, and then KeyboardInterrupt is raised.
        """
        return self._in_turn(tasks) if self._shared is None else self._together(tasks, self._shared)

    def _in_turn(self, tasks: Mapping[str, TaskState]) -> Iterator[FinishedTask]:
        """Run one task after the other, each with its own sampler."""
        for name, state in tasks.items():
            call: EvaluationCall | None = None
            try:
                opened = opened_sampler(self.agents[name], self.envs[name], None, self.options, None, None)
                with opened as (sampler, facts, updates):
                    call = self._call(name, state, sampler, facts, updates)
                    yield from self._taken(name, call)
            except _OF_THE_CALL:
                raise
            except SamplerError as error:
                name_task(error, [*self.agents].index(name), name, None if call is None else call.seed_of)
                yield FinishedTask(name, error=error)

    def _together(self, tasks: Mapping[str, TaskState], shared: SharedWorkers) -> Iterator[FinishedTask]:
        """Run all tasks with the same workers; after a failure of one task, the others continue in a further stream."""
        left = list(tasks)
        while left:
            calls = {}
            for name in left:
                source: Any = shared.source(name, 2 ** tasks[name].n_short)
                calls[name] = self._call(name, tasks[name], source, agent_facts(self.agents[name]), {})
            shared.begin()
            while left and not shared.has_ended:
                yield from self._taken_from(shared, name := left.pop(0), calls[name])

    def _taken_from(self, shared: SharedWorkers, name: str, call: EvaluationCall) -> Iterator[FinishedTask]:
        try:
            yield from self._taken(name, call)
        except _OF_THE_CALL:
            raise
        except SamplerError as error:
            if shared.has_ended and error.task is None:
                raise
            yield FinishedTask(name, error=error)

    def _call(
        self, name: str, state: TaskState, sampler: Sampler[Any, Any], facts: Mapping[str, Any], updates: Any
    ) -> EvaluationCall:
        known = None if state.evaluation is None else SavedTrajectories(self.source, state.evaluation)
        amount, entry = state.amount_by_now, self.entry(name)
        return EvaluationCall(sampler, amount, self.success, facts, updates, self.return_of, known, entry)

    def _taken(self, name: str, call: EvaluationCall) -> Iterator[FinishedTask]:
        n_known = call.earlier[1]
        with call:
            try:
                while (row := call.take()) is not None:
                    if len(call.rows) > n_known:
                        self.arrived(name, row)
            except KeyboardInterrupt:
                if call.rows or n_known:
                    yield FinishedTask(name, call.finished(INTERRUPTED))
                raise
            if not call.rows and call.amount.is_fixed:
                raise all_left_out(call)
            yield FinishedTask(name, call.finished(call.amount.asked) if call.rows else None)


def name_task(error: SamplerError, number: int, name: str, seed_of: Callable[[int], int] | None) -> None:
    """Name the task and the seed in an error of a sampler with a single task, as in errors of shared workers."""
    error.task = number
    trajectory = getattr(error, "trajectory", None)
    task = f"task {name!r}"
    if trajectory is not None and seed_of is not None:
        task += f" (seed {seed_of(trajectory)})"
    text, version = str(error.args[0]), " of agent version 1"
    text = text.replace(version, f" of {task}", 1) if version in text else f"{task}: {text}"
    error.args = (text, *error.args[1:])


def all_left_out(call: EvaluationCall) -> DataError:
    """Return the error of a task with no trajectory left."""
    reasons = "; ".join(call.reasons)
    return DataError(f"each of its {count(call.n, 'trajectory')} was dropped, so the task has no result: {reasons}")
