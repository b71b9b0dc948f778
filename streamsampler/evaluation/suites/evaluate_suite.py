"""Evaluate agents on a suite: all its tasks, with the same seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from streamsampler.core.errors import UsageError, positive
from streamsampler.core.progress import Display, ProgressArgument, display
from streamsampler.core.seeding import check_seed
from streamsampler.core.words import count
from streamsampler.evaluation.agents import ReturnOf, Row, SuccessMeaning, check_return_of
from streamsampler.evaluation.amounts import Amount, HowMany, amount_of
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.evaluation_call import EvaluationInterruptedError
from streamsampler.evaluation.journal import INTERRUPTED
from streamsampler.evaluation.opening import in_part
from streamsampler.evaluation.resuming import SavedTrajectories
from streamsampler.evaluation.rules import no_success_rate
from streamsampler.evaluation.run_file import RunFile
from streamsampler.evaluation.suites.scores import TaskScores
from streamsampler.evaluation.suites.suite_arguments import by_task, checked_normalise, checked_suite, with_task
from streamsampler.evaluation.suites.suite_evaluation import (
    Scale,
    SuiteEvaluation,
    asked_of_tasks,
    scores_of,
    successes_of,
)
from streamsampler.evaluation.suites.suite_plan import SuitePlan
from streamsampler.evaluation.suites.suite_precision import SuitePrecision
from streamsampler.evaluation.suites.task_agents import TaskAgents
from streamsampler.evaluation.suites.task_runs import TaskRuns
from streamsampler.protocol.evaluation_parts import PartArgument

_NOT_FOR_SUITES = {
    "sampler": "a sampler has a single environment: leave it out, or evaluate each task separately",
    "video": "record videos of a task afterwards: streamsampler.replay(suite['task'], …), or evaluate it separately",
    "guarantee": "no sequential interval over tasks exists; evaluate each task separately",
}


def refuse_for_suites(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of `evaluate` for a single environment.

    Raises:
        UsageError: Such an argument is given; says what to do.
    """
    for name, why in _NOT_FOR_SUITES.items():
        if arguments.get(name):
            raise UsageError(f"{name} is not for a suite: {why}")


def refuse_without_suite(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of suites for a single environment.

    Raises:
        UsageError: Such an argument is given; says what to do.
    """
    if given := [name for name, value in arguments.items() if value is not None]:
        raise UsageError(f'{given[0]} needs a suite: give the environments by name, {{"push": env, …}}')


@dataclass(frozen=True)
class SuiteArguments:
    """The checked arguments of an evaluation on a suite, without its agent.

    Attributes:
        envs: The environments by name.
        amounts: Number of trajectories of each task.
        only: The tasks to run; others have no trajectories.
        normalise: The returns of the scores 0 and 1, by task; None for returns as they are.
        success: See `streamsampler.evaluate`.
        return_of: See `streamsampler.evaluate`.
        deterministic: See `streamsampler.evaluate`.
        vec_normalize: See `streamsampler.evaluate`.
        open_envs: See `streamsampler.evaluate`.
        options: The sampler's other arguments.
    """

    envs: Mapping[str, Any]
    amounts: Mapping[str, Amount]
    only: Sequence[str]
    normalise: Mapping[str, Scale] | None
    success: SuccessMeaning
    return_of: tuple[str, ...] | None
    deterministic: bool | None
    vec_normalize: Any
    open_envs: int
    options: Mapping[str, Any]

    @classmethod
    def checked(
        cls, envs: Mapping[Any, Any], *, how_many: HowMany, bounds: Any, part: PartArgument | None, amount: Any,
        normalise: Any, tasks: Any, success: SuccessMeaning, return_of: ReturnOf | None, deterministic: bool | None,
        vec_normalize: Any, open_envs: Any, options: Mapping[str, Any],
    ) -> Self:  # fmt: skip
        """Check arguments; see `streamsampler.evaluate`.

        Raises:
            UsageError: A value is out of range or missing; names the task.
        """
        suite = checked_suite(envs)
        names = list(suite)
        # All parts need a common seed: it must be given.
        seed = options.get("seed") if part is not None else check_seed(options.get("seed"))
        options = {**options, "seed": seed}
        of_all = {name: list(it) if isinstance(it, Iterator) else it for name, it in amount.items()}
        amounts = amounts_of(names, how_many, bounds, part, suite, options, **of_all)
        only = checked_tasks(tasks, names) or names
        if only != names and _precision(amounts) is not None:
            raise UsageError(
                "tasks are for n_trajectories, seeds or scenarios: with until_halfwidth the number of trajectories of "
                "a task depends on all other tasks. Leave out tasks, or evaluate a suite of these tasks alone"
            )
        return cls(
            envs=suite,
            amounts=amounts,
            only=only,
            normalise=checked_normalise(normalise, names),
            success=success,
            return_of=check_return_of(return_of),
            deterministic=deterministic,
            vec_normalize=vec_normalize,
            open_envs=positive("open_envs", 2 if open_envs is None else open_envs),
            options=options,
        )

    @property
    def asked(self) -> dict[str, Any]:
        """The request as a journal stores it: a common amount, or the numbers of trajectories by task."""
        return asked_of_tasks({name: amount.arguments for name, amount in self.amounts.items()}) or {}

    @property
    def journal_facts(self) -> dict[str, Any]:
        """The arguments in a journal besides the amount, by name."""
        bounds = {name: amount.bounds for name, amount in self.amounts.items()}
        known = {"bounds": bounds} if any(bounds.values()) else {}
        return {"tasks": list(self.envs), "normalise": self.scales, **known}

    @property
    def scales(self) -> dict[str, list[float]] | None:
        """The returns of the scores 0 and 1, as JSON values."""
        return None if self.normalise is None else {name: list(scale) for name, scale in self.normalise.items()}


class SuiteCall:
    """Runs an evaluation of an agent on a suite.

    Raises:
        UsageError: The agent of a task is ambiguous, or does not fit the task's spaces.
    """

    def __init__(self, agent: Any, arguments: SuiteArguments) -> None:
        self._names, self._normalise = tuple(arguments.envs), arguments.normalise
        chosen = {name: arguments.envs[name] for name in arguments.only}
        options = arguments.options
        agents = TaskAgents(
            agent, chosen, options.get("env_kwargs"), deterministic=arguments.deterministic,
            vec_normalize=arguments.vec_normalize, policy_of=options.get("policy_of"),
        )  # fmt: skip
        precision = _precision(arguments.amounts)
        self._of = "return" if precision is None else precision.of
        amounts = {name: arguments.amounts[name] for name in chosen}
        self.plan = SuitePlan.of_amounts(amounts, precision, self._scores_of)
        self._rows = self._timesteps = 0
        self._task = ""
        self._shown: Display | None = None
        self._arguments = arguments
        self._agents, self._envs = {name: agents[name] for name in chosen}, chosen

    def _arrived(self, task: str, row: Row) -> None:
        self._task = task
        self._rows, self._timesteps = self._rows + 1, self._timesteps + row.length
        if self._shown is not None:
            self._shown.update(lambda: (self._timesteps, self._rows), complete=False)

    def _scores_of(self, name: str, evaluation: Evaluation) -> TaskScores:
        """Return a task's scores for the precision of the mean.

        Raises:
            UsageError: The mean is of success rates, and the task's infos have no success flag.
        """
        if self._of == "return":
            scale = None if self._normalise is None else self._normalise[name]
            return scores_of(evaluation, scale)
        if evaluation.successes is None:
            raise no_success_rate(len(evaluation))
        return successes_of(evaluation)

    def run(self, run: RunFile, progress: ProgressArgument, *, agent: str = "", first: int = 0) -> SuiteEvaluation:
        """Run all trajectories, and return the result.

        Raises:
            UsageError: The file's trajectories belong to another run, or are more than requested.
            EvaluationInterruptedError: Ctrl-C; has the result so far.
            SamplerError: Each task failed: the first error.
        """
        positions = {name: first + self._names.index(name) for name in self.plan.states}
        for name, position in positions.items():
            if (saved := run.saved(position)) is not None:
                self.plan.know(name, saved.evaluation)
        self._rows, self._timesteps = earlier = self.plan.n_known
        runs = TaskRuns(
            self._agents, self._envs, self._arguments.open_envs, self._arguments.success, self._arguments.return_of,
            self._arguments.options, self._arrived, run.source or Path("the trajectories before"),
            lambda name: run.entry(positions[name]),
        )  # fmt: skip

        def note() -> str:
            return ": ".join(filter(None, (agent, self._task)))

        with display(progress, self.plan.n_wanted, "trajectories", earlier=earlier[::-1], note=note) as self._shown:
            try:
                self._run(runs)
                for name, evaluation, n_needed in self.plan.surplus():
                    with_task(name, SavedTrajectories(runs.source, evaluation).check_used, n_needed)
            except KeyboardInterrupt as interrupt:
                if not any(state.n for state in self.plan.states.values()):
                    raise
                found = self.result(is_interrupted=True)
                raise EvaluationInterruptedError(found, sum(map(len, found.evaluations))) from interrupt
            self._shown.update(lambda: (self._timesteps, self._rows), complete=True)
        return self.result()

    def _run(self, runs: TaskRuns) -> None:
        assert self._shown is not None
        # Complete tasks are included: creating their calls checks that their trajectories belong to this run.
        names = [name for name, state in self.plan.states.items() if state.n] or self.plan.next_tasks()
        with runs:
            while names := list(dict.fromkeys([*names, *self.plan.next_tasks()])):
                # A round may find a task without scores: it has failed, and is not run.
                names = [name for name in names if self.plan.states[name].error is None]
                self._shown.expect(self.plan.n_wanted)
                for done in runs.run({name: self.plan.states[name] for name in names}):
                    if done.error is not None:
                        self.plan.fail(done.name, done.error)
                        self._shown.expect(self.plan.n_wanted)
                    else:
                        self.plan.finish(done.name, done.evaluation)
                names = []

    def result(self, *, is_interrupted: bool = False) -> SuiteEvaluation:
        """Return the result of the trajectories so far.

        Raises:
            SamplerError: Each task failed: the first error.
        """
        failed = self.plan.failed
        if failed and not any(state.n for state in self.plan.states.values()):
            name, error = next(iter(failed.items()))
            if len(failed) > 1 or len(self._names) > 1:
                error.add_note(f"this is the error of the task {name!r}; {count(len(failed), 'task')} failed, and no "
                               "task has a result")  # fmt: skip
            if isinstance(error, UsageError):
                raise type(error)(f"task {name!r}: {error}") from error
            raise error
        stopped = {name: self._stopped(name, is_interrupted=is_interrupted) for name in self.plan.states}
        return SuiteEvaluation(
            names=self._names,
            tasks=self.plan.evaluations(stopped),
            failed={name: str(error) for name, error in failed.items()},
            normalise=self._normalise,
            stopped=self._reason(is_interrupted=is_interrupted),
            asked=self._arguments.asked,
        )

    def _stopped(self, name: str, *, is_interrupted: bool) -> str:
        state = self.plan.states[name]
        if is_interrupted and state.n < state.wanted:
            return INTERRUPTED
        if self.plan.precision is not None:
            return "the precision of the suite decided"
        asked = state.amount.asked
        return asked if state.n == state.wanted else f"{asked}; some raised and were dropped"

    def _reason(self, *, is_interrupted: bool) -> str:
        if is_interrupted:
            return INTERRUPTED
        if self.plan.precision is not None:
            return self.plan.precision.reason(self.plan.scores())
        asked = list(dict.fromkeys(state.amount.asked for state in self.plan.states.values()))
        return asked[0] if len(asked) == 1 else "as many as were asked for"


def amounts_of(
    names: Sequence[str], how_many: HowMany, bounds: Any, part: PartArgument | None, envs: Mapping[str, Any],
    options: Mapping[str, Any], **of_all: Any,
) -> dict[str, Amount]:  # fmt: skip
    """Return the number of trajectories of each task.

    Raises:
        UsageError: A value is out of range or missing; names the task.
    """
    numbers = by_task(how_many.name, how_many.n, names)
    limits = by_task("bounds", bounds, names)
    amounts = {}
    for name in names:

        def amount(name: str = name) -> Amount:
            found = amount_of(how_many=HowMany(numbers[name], how_many.name), bounds=limits[name], **of_all)
            return in_part(found, part, None, options, envs[name])

        is_own = numbers[name] is not how_many.n or limits[name] is not bounds
        amounts[name] = with_task(name, amount) if is_own else amount()
    return amounts


def saved_bounds(run: RunFile, names: Sequence[str]) -> dict[str, Any] | None:
    """Return the bounds of returns by task in a saved suite, or in its first agent's; None without bounds.

    Raises:
        UsageError: The file is complete without trajectories of a task, so that its bounds are unknown.
    """
    if run.facts.bounds is not None:
        return dict(run.facts.bounds)
    if not names:  # an error later
        return None
    known = {names[position % len(names)]: evaluation.bounds for position, evaluation in run.known.items()}
    if not any(known.values()):
        return None
    if lacking := [name for name in names if name not in known]:
        raise UsageError(
            f"{run.source} has bounds of each task that has trajectories, and none of {lacking[0]!r}: give bounds again"
        )
    return known


def checked_tasks(tasks: Any, names: Sequence[str]) -> list[str] | None:
    """Return the tasks to run, in the order of the suite; None for all.

    Raises:
        UsageError: A name is no task of the suite, or no name is given.
    """
    if tasks is None:
        return None
    if isinstance(tasks, str) or not isinstance(tasks, Iterable):
        raise UsageError(f"tasks must be a list of names of the suite's tasks, got {tasks!r:.60}")
    chosen = list(tasks)
    if unknown := [name for name in chosen if name not in names]:
        raise UsageError(f"tasks has {unknown[0]!r}, which is no task; the tasks are {', '.join(names)}")
    if not chosen:
        raise UsageError("tasks is empty: name at least one task")
    return [name for name in names if name in chosen]


def _precision(amounts: Mapping[str, Amount]) -> SuitePrecision | None:
    """Return the requested precision of the mean over tasks; None for fixed numbers."""
    first = next(iter(amounts.values()))
    if (rule := first.rule) is None:
        return None
    return SuitePrecision(rule.halfwidth, min(rule.floor, first.n), first.n, rule.of)
