"""The result of a suite: an evaluation of each task, and statistics over all tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np

from streamsampler.core.errors import DataError
from streamsampler.core.keywords import suggesting
from streamsampler.core.words import count
from streamsampler.evaluation.evaluation import (
    Evaluation,
    Line,
    aligned,
    in_brackets,
    number,
    plain,
    shown_seeds,
    warned,
)
from streamsampler.evaluation.found import Found
from streamsampler.evaluation.intervals import Floats, Interval, Unknown
from streamsampler.evaluation.journal import INTERRUPTED, JournalContents
from streamsampler.evaluation.suites.means import suite_mean, suite_mean_interval, suite_success_interval
from streamsampler.evaluation.suites.middles import suite_interquartile_mean, suite_interquartile_mean_interval
from streamsampler.evaluation.suites.profiles import PerformanceProfile, profile
from streamsampler.evaluation.suites.scores import TaskScores
from streamsampler.evaluation.suites.tables import RowKind, TableRow, as_csv, as_markdown, as_text

Scale: TypeAlias = tuple[float, float]
"""The returns of the scores 0 and 1, such as those of a random agent and of a reference."""

_STATISTICS = (
    "mean", "mean_interval", "interquartile_mean", "interquartile_mean_interval", "success_rate", "success_interval",
)  # fmt: skip


def scores_of(evaluation: Evaluation, scale: Scale | None) -> TaskScores:
    """Return the scores of an evaluation: its returns, normalised if a scale is given."""
    returns, bounds, seeds = evaluation.returns, evaluation.bounds, _keys(evaluation)
    if scale is None:
        return TaskScores(returns, seeds, bounds)
    low, high = scale
    if bounds is not None:
        first, second = sorted((bound - low) / (high - low) for bound in bounds)
        bounds = first, second
    return TaskScores((returns - low) / (high - low), seeds, bounds)


def successes_of(evaluation: Evaluation) -> TaskScores:
    """Return the successes of an evaluation with success flags for all trajectories, as 0 and 1."""
    return TaskScores(np.asarray(evaluation.successes, np.float64), _keys(evaluation), (0.0, 1.0))


def _keys(evaluation: Evaluation) -> tuple[int, ...]:
    """Return the key by which trajectories of different tasks depend on one another: the seed.

    Scenarios may repeat a seed with other options, so their key is the index.
    """
    seeds = evaluation.seeds
    return seeds if len(set(seeds)) == len(seeds) else tuple(evaluation.indices.tolist())


def difference_between(suites: Mapping[Any, SuiteEvaluation]) -> str | None:
    """Return the first difference between the tasks or scales of suites, in words; None without any."""
    (first, one), *others = suites.items()
    for name, other in others:
        if one.names != other.names:
            return f"the tasks are {', '.join(one.names)} in {first}, and {', '.join(other.names)} in {name}"
        if one.normalise != other.normalise:
            return f"normalise is {one.normalise} in {first}, and {other.normalise} in {name}"
    return None


def asked_of_tasks(asked: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the request for all tasks: a common amount, or the numbers of trajectories by task.

    None if no single call requests all tasks, as for merged files with different seeds.
    """
    first, *others = asked.values()
    if all(it == first for it in others):
        return dict(first)
    if any(it.keys() != {"n_trajectories"} for it in asked.values()):
        return None
    return {"n_trajectories": {name: it["n_trajectories"] for name, it in asked.items()}}


def asked_of(suite: SuiteEvaluation, name: str) -> Mapping[str, Any] | None:
    """Return the request of a task; None if unknown."""
    if suite.asked is None:
        return None
    n = suite.asked.get("n_trajectories")
    return {"n_trajectories": n[name]} if isinstance(n, Mapping) else suite.asked


def group_of(name: str) -> str:
    """Return the group of a task: its name up to the last slash; empty without a group."""
    return name.rpartition("/")[0]


@suggesting()
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SuiteEvaluation(Found):
    """The result of `streamsampler.evaluate` for a suite: an evaluation of each task, and statistics over tasks.

    `print(suite)` shows a line for each task and the statistics with their 95 % intervals. `suite["push"]` is the
    `Evaluation` of a task, equal to the result of `evaluate` for this task alone. Iteration yields the names of the
    tasks with an evaluation.

    Statistics over tasks give each task the same weight. They are of returns, or with `normalise` of scores: a return
    r has the score (r - low) / (high - low). The intervals account for the dependence of tasks with common seeds.

    Attributes:
        names: The names of all tasks of the suite, in order. Tasks named "manipulation/push" and "manipulation/lift"
            are in the group "manipulation".
        tasks: The evaluation of each task with trajectories, by name.
        failed: The error of each failed task, by name. Such a task has no evaluation.
        normalise: The returns of the scores 0 and 1, by task; None for returns as they are.
        stopped: Reason for the end of the trajectories.
        asked: The request as JSON values: the same for all tasks, or the numbers of trajectories by task. None if
            unknown.

    Raises:
        DataError: No task has an evaluation, or a name is unknown.
    """

    KIND: ClassVar[str] = "suite"
    MEMBERS: ClassVar[str] = "tasks"

    names: tuple[str, ...]
    tasks: Mapping[str, Evaluation]
    failed: Mapping[str, str] = field(default_factory=dict)
    normalise: Mapping[str, Scale] | None = None
    stopped: str
    asked: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not self.tasks:
            raise DataError("the result of a suite needs at least one evaluation")
        known = set(self.names)
        given = [*self.tasks, *self.failed, *(self.normalise or ())]
        if unknown := [name for name in given if name not in known]:
            raise DataError(f"the tasks of the suite are {', '.join(self.names)}, and {unknown[0]!r} is none of them")

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tasks)

    def __getitem__(self, name: str) -> Evaluation:
        """Return the evaluation of a task.

        Raises:
            KeyError: The suite has no such task, or the task has no evaluation; names the tasks with an evaluation.
        """
        if name in self.tasks:
            return self.tasks[name]
        if name in self.failed:
            raise KeyError(f"the task {name!r} has no evaluation, because it failed: {self.failed[name]}")
        if name in self.names:
            raise KeyError(f"the task {name!r} has no evaluation yet: {self.stopped}")
        if name in self.groups:
            raise KeyError(f"{name!r} is a group of tasks: suite.groups[{name!r}] has its statistics")
        raise KeyError(f"there is no task {name!r}; the tasks are {', '.join(self.names)}")

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluations of all tasks that have one, in order."""
        return tuple(self.tasks.values())

    @cached_property
    def groups(self) -> dict[str, SuiteEvaluation]:
        """The tasks of each group, as a suite, by the group's name; nested groups included."""
        names: dict[str, list[str]] = {}
        for name in self.names:
            group = name
            while group := group_of(group):
                names.setdefault(group, []).append(name)
        return {group: self._only(members) for group, members in names.items() if any(it in self for it in members)}

    def _only(self, names: Sequence[str]) -> SuiteEvaluation:
        normalise = self.normalise
        return replace(
            self,
            names=tuple(names),
            tasks={name: it for name, it in self.tasks.items() if name in names},
            failed={name: it for name, it in self.failed.items() if name in names},
            normalise=None if normalise is None else {name: it for name, it in normalise.items() if name in names},
        )

    @property
    def is_complete(self) -> bool:
        """Whether each task has an evaluation."""
        return len(self.tasks) == len(self.names)

    def scores(self, name: str) -> Floats:
        """Return the normalised returns of a task; without `normalise` its returns.

        Args:
            name: The task's name.

        Returns:
            (N,) float64.
        """
        return scores_of(self[name], self.scale(name)).values

    def scale(self, name: str) -> Scale | None:
        """Return the returns of a task's scores 0 and 1; None for returns as they are."""
        return None if self.normalise is None else self.normalise[name]

    @cached_property
    def _scores(self) -> list[TaskScores]:
        return [scores_of(it, self.scale(name)) for name, it in self.tasks.items()]

    @property
    def mean(self) -> float:
        """The mean of the tasks' mean returns, or mean scores."""
        return suite_mean(self._scores)

    @cached_property
    def mean_interval(self) -> Interval | Unknown:
        """The interval of the mean."""
        return suite_mean_interval(self._scores)

    @property
    def interquartile_mean(self) -> float:
        """The mean of the middle half of all returns, or scores, of all tasks (Agarwal and others, 2021)."""
        return suite_interquartile_mean(self._scores)

    @cached_property
    def interquartile_mean_interval(self) -> Interval | Unknown:
        """The interval of the interquartile mean."""
        return suite_interquartile_mean_interval(self._scores)

    @cached_property
    def _successes(self) -> list[TaskScores] | None:
        if any(it.successes is None for it in self.evaluations):
            return None
        return [successes_of(it) for it in self.evaluations]

    @property
    def success_rate(self) -> float | None:
        """The mean of the tasks' success rates; None if a task's infos have no success flag."""
        return None if self._successes is None else suite_mean(self._successes)

    @cached_property
    def success_interval(self) -> Interval | Unknown | None:
        """The interval of the success rate; None without a rate."""
        return None if self._successes is None else suite_success_interval(self._successes)

    def profile(self, thresholds: Sequence[float] | Floats) -> PerformanceProfile:
        """Return the performance profile: the share of trajectories with a score above each threshold.

        The mean of the tasks' shares (Agarwal and others, 2021), with the ends of its interval at each threshold.

        Args:
            thresholds: (M,) scores, or returns without `normalise`.

        Returns:
            The profile, with `shares`, `low` and `high`, (M,) float64 each.

        Raises:
            UsageError: A threshold or a return is no number.
        """
        return profile(self._scores, np.asarray(thresholds, np.float64))

    def rows(self) -> Iterator[TableRow]:
        """Yield the rows of tables: tasks in order, groups, all tasks."""
        for name in self.names:
            if name not in self.tasks:
                yield TableRow("task", name, 0, failed=self.failed.get(name, ""))
                continue
            task = self[name]
            score = None if self.normalise is None else float(self.scores(name).mean())
            yield TableRow(
                "task", name, len(task), task.mean, task.mean_interval, score, task.success_rate, task.success_interval
            )
        for name, group in self.groups.items():
            yield group._row("group", name)
        yield self._row("suite", "all tasks")

    def _row(self, kind: RowKind, name: str) -> TableRow:
        return TableRow(
            kind, name, sum(map(len, self.evaluations)), self.mean, self.mean_interval,
            success_rate=self.success_rate, success_interval=self.success_interval,
        )  # fmt: skip

    def __str__(self) -> str:
        n = sum(map(len, self.evaluations))
        agents = list(dict.fromkeys(str(each.agent.get("name")) for each in self.evaluations))
        agent = agents[0] if len(agents) == 1 else count(len(agents), "agent")
        part = "" if (it := self.evaluations[0].part) is None else f", {it}"
        texts = [f"{agent} in {count(len(self.names), 'task')}: {count(n, 'trajectory')}{part}"]
        texts += as_text(list(self.rows()), scored=self.normalise is not None)
        for name, group in self.groups.items():
            texts += [f"group {name}: {count(len(group.names), 'task')}", *aligned(group.lines())]
        texts += ["over tasks, each with the same weight", *aligned(self.lines())]
        texts += [f"note: {note}" for note in self._notes()]
        texts.append(f"seeds: {shown_seeds(self.evaluations[0].seeds)}{self._origin()}")
        texts.append(f"stopped: {self.stopped}")
        return "\n".join(texts)

    def lines(self) -> list[Line]:
        """Return the statistics over tasks with their intervals, for printing."""
        what = "return" if self.normalise is None else "score"
        lines: list[Line] = [
            (f"mean {what}", number(self.mean), self.mean_interval),
            ("interquartile mean", number(self.interquartile_mean), self.interquartile_mean_interval),
        ]
        if self.success_rate is not None:
            lines.append(("success rate", number(self.success_rate), self.success_interval))
        return lines

    def _notes(self) -> Iterator[str]:
        if self.failed:
            yield f"{count(len(self.failed), 'task')} of {len(self.names)} failed, and are missing in the statistics:"
            yield from (f"{name}: {error}" for name, error in self.failed.items())
        if missing := [name for name in self.names if name not in self.tasks and name not in self.failed]:
            yield f"{count(len(missing), 'task')} of {len(self.names)} without trajectories: {', '.join(missing)}"
        for name, evaluation in self.tasks.items():
            if isinstance(interval := evaluation.mean_interval, Unknown):
                yield f"{name}: no interval of the mean return holds: {interval.why}"
            yield from (f"{name}: {note}" for note in warned(evaluation))

    def _origin(self) -> str:
        first, *others = self.evaluations
        seed = "" if first.seed is None else f", of the sampler's seed {first.seed}"
        return seed + (", the same for each task" if all(it.seeds == first.seeds for it in others) else ", and others")

    def __repr__(self) -> str:
        tasks = count(len(self.names), "task")
        return f"SuiteEvaluation({tasks}, mean {number(self.mean)}{in_brackets(self.mean_interval)})"

    def to_markdown(self) -> str:
        """Return a table in Markdown, with a row for each task and each group, and a row for all tasks."""
        return as_markdown(list(self.rows()), scored=self.normalise is not None)

    def to_csv(self) -> str:
        """Return a table as comma-separated values: the same rows, with the ends of intervals in columns."""
        return as_csv(list(self.rows()), scored=self.normalise is not None)

    def summary(self) -> dict[str, Any]:
        """Return the statistics as JSON values."""
        return {"n_tasks": len(self), **{name: plain(getattr(self, name)) for name in _STATISTICS}}

    @property
    def amount_asked(self) -> Mapping[str, Any] | None:
        """The arguments of the request."""
        return self.asked

    def by_position(self) -> dict[int, Evaluation]:
        """Return the evaluation of each task that has one, by the task's position."""
        return {self.names.index(name): evaluation for name, evaluation in self.tasks.items()}

    def names_by_position(self) -> tuple[str, ...]:
        return self.names

    @classmethod
    def names_in_journal(cls, head: Mapping[str, Any]) -> list[str]:
        return list(head["tasks"])

    @classmethod
    def facts_of_journal(cls, journal: JournalContents) -> dict[str, Any]:
        """Return the trajectories of a journal as JSON values; see `Found`."""
        names = journal.head["tasks"]
        return {
            **journal.head,
            "failed": {},
            "stopped": INTERRUPTED,
            "evaluations": {names[position]: facts for position, facts in journal.evaluations.items()},
        }

    def facts(self) -> dict[str, Any]:
        """Return the contents as JSON values; see `Found`."""
        return {
            "tasks": list(self.names),
            "stopped": self.stopped,
            "asked": self.asked,
            "normalise": None if self.normalise is None else {name: list(it) for name, it in self.normalise.items()},
            "failed": dict(self.failed),
            "summary": {**self.summary(), "groups": {name: it.summary() for name, it in self.groups.items()}},
            "evaluations": {name: it.contents() for name, it in self.tasks.items()},
        }

    @classmethod
    def of_facts(cls, facts: dict[str, Any]) -> SuiteEvaluation:
        """Return the result with these contents; see `Found`."""
        normalise = facts["normalise"]
        scales = None if normalise is None else {str(name): (float(a), float(b)) for name, (a, b) in normalise.items()}
        return cls(
            names=tuple(map(str, facts["tasks"])),
            tasks={str(name): Evaluation.of_facts(each) for name, each in facts["evaluations"].items()},
            failed={str(name): str(each) for name, each in facts["failed"].items()},
            normalise=scales,
            stopped=str(facts["stopped"]),
            asked=facts.get("asked"),
        )
