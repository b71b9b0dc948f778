"""The result of a comparison on a suite: the suites of all agents, and differences task by task and seed by seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from streamsampler.core.errors import DataError, UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.core.words import count
from streamsampler.evaluation.comparison import Comparison, Pairs
from streamsampler.evaluation.evaluation import (
    Evaluation,
    Line,
    aligned,
    in_brackets,
    number,
    percent,
    plain,
    shown_seeds,
)
from streamsampler.evaluation.found import Found
from streamsampler.evaluation.gate import GateDecision, GateVerdict, checked_margin, name_of_difference
from streamsampler.evaluation.intervals import LEVEL, Interval, Unknown
from streamsampler.evaluation.journal import INTERRUPTED, JournalContents
from streamsampler.evaluation.rules import PrecisionOf
from streamsampler.evaluation.suites.holm import TaskDifference, holm
from streamsampler.evaluation.suites.improvement import TaskPairs, suite_improvement, suite_improvement_interval
from streamsampler.evaluation.suites.means import suite_mean, suite_mean_interval, task_interval
from streamsampler.evaluation.suites.scores import SuiteScores, TaskScores
from streamsampler.evaluation.suites.suite_evaluation import Scale, SuiteEvaluation
from streamsampler.evaluation.suites.suite_gate import suite_gate_interval
from streamsampler.evaluation.suites.tables import with_ends

_NUMBERS = (
    "mean_difference", "mean_difference_interval", "probability_of_improvement", "improvement_interval",
    "success_difference", "success_difference_interval",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SuitePairs:
    """Two agents on the tasks of a suite, on the same seeds. Differences are second agent minus first.

    Attributes:
        first: The first agent's name.
        second: The second agent's name.
        tasks: The pairs of each task that both agents have, by name; differences of returns.
        normalise: The returns that become the scores 0 and 1, by task; None for returns as they are.
        level: How often each interval holds.
    """

    first: str
    second: str
    tasks: Mapping[str, Pairs]
    normalise: Mapping[str, Scale] | None
    level: float

    def __len__(self) -> int:
        return sum(map(len, self.tasks.values()))

    def __getitem__(self, name: str) -> Pairs:
        """Return the pairs of a task, by its name."""
        if name not in self.tasks:
            raise KeyError(f"there are no pairs of {name!r}; the tasks with pairs are {', '.join(self.tasks)}")
        return self.tasks[name]

    @cached_property
    def scores(self) -> dict[str, TaskPairs]:
        """The scores, or returns, of both agents in each task; of the same seeds, in the same order."""
        found = {}
        for name, pairs in self.tasks.items():
            low, high = (0.0, 1.0) if self.normalise is None else self.normalise[name]
            first, second = ((returns - low) / (high - low) for returns in pairs.returns)
            bounds = None
            if pairs.bounds is not None:
                one, other = sorted((bound - low) / (high - low) for bound in pairs.bounds)
                bounds = one, other
            found[name] = TaskPairs(first, second, pairs.seeds, bounds)
        return found

    @cached_property
    def differences(self) -> list[TaskScores]:
        """The differences of scores, or of returns, of each task."""
        return [task.differences for task in self.scores.values()]

    @property
    def mean_difference(self) -> float:
        """The mean of the tasks' mean differences."""
        return suite_mean(self.differences)

    @cached_property
    def mean_difference_interval(self) -> Interval | Unknown:
        """The interval of the mean difference."""
        return suite_mean_interval(self.differences, self.level, of="difference")

    @property
    def probability_of_improvement(self) -> float:
        """The mean over tasks of the probability that the second agent's score is above the first one's."""
        return suite_improvement(list(self.scores.values()))

    @cached_property
    def improvement_interval(self) -> Interval | Unknown:
        """The interval of the probability of improvement."""
        return suite_improvement_interval(list(self.scores.values()), self.level)

    @cached_property
    def _successes(self) -> list[TaskScores] | None:
        found = []
        for pairs in self.tasks.values():
            if pairs.successes is None:
                return None
            first, second = (np.asarray(each, np.float64) for each in pairs.successes)
            found.append(TaskScores(second - first, pairs.seeds, (-1.0, 1.0)))
        return found

    @property
    def success_difference(self) -> float | None:
        """The mean of the tasks' differences of success rates; None where infos say nothing of success."""
        return None if self._successes is None else suite_mean(self._successes)

    @cached_property
    def success_difference_interval(self) -> Interval | Unknown | None:
        """The interval of the difference of success rates; None where there is none."""
        if self._successes is None:
            return None
        if len(self.tasks) == 1:
            return next(iter(self.tasks.values())).success_difference_interval
        return suite_mean_interval(self._successes, self.level, of="difference")

    @cached_property
    def judged(self) -> dict[str, TaskDifference]:
        """The difference of each task, with the interval by which it is sure, or not, as one of many (Holm, 1979)."""
        each = [partial(task_interval, task) for task in self.differences]
        return dict(zip(self.tasks, holm(each, self.level), strict=True))

    @property
    def sure(self) -> dict[str, str]:
        """The tasks in which the second agent is "better" or "worse", sure at the level for all of them together.

        In at most 5 of 100 comparisons of equal agents there is any such task.
        """
        return {name: each.sure for name, each in self.judged.items() if each.sure is not None}

    def decision(self, margin: float, of: PrecisionOf) -> GateDecision:
        """Return whether the second agent is worse by more than a margin; see `SuiteComparison.verdict`."""
        differences = self.differences if of == "return" else self._successes
        if differences is None:
            raise UsageError("there is no success rate of each task: no info says whether trajectories succeeded")
        suite = SuiteScores(differences)
        is_zero = all(float(np.abs(task.values).max()) <= suite.rounding for task in differences)
        return GateDecision(
            first=self.first,
            second=self.second,
            margin=margin,
            of=f"{name_of_difference(of)} over tasks" if self.normalise is None or of == "success" else "mean scores",
            n_pairs=suite.fewest,
            difference=0.0 if is_zero else suite.mean,
            interval=suite_gate_interval(differences, self.level),
            all_equal=is_zero,
        )

    def __str__(self) -> str:
        sure = self.sure
        better, worse = ([name for name, it in sure.items() if it == each] for each in ("better", "worse"))
        texts = [f"{self.second} minus {self.first}: {count(len(self), 'pair')} in {count(len(self.tasks), 'task')}"]
        texts += [*self._grid(), *aligned(self.lines())]
        texts.append(f"  better in {_named(better)}, worse in {_named(worse)}, sure for all tasks together (Holm)")
        return "\n".join(texts)

    def __repr__(self) -> str:
        interval = in_brackets(self.mean_difference_interval)
        tasks = f"{self.second} minus {self.first}: {count(len(self.tasks), 'task')}"
        return f"SuitePairs({tasks}, mean difference {number(self.mean_difference)}{interval})"

    def _grid(self) -> list[str]:
        """Return a line for each task: its difference, and where it is sure."""
        has_rates = any(pairs.success_difference is not None for pairs in self.tasks.values())
        cells = [["task", "pairs", f"difference, {100 * self.level:.4g} %", *["success rates"] * has_rates, ""]]
        for name, pairs in self.tasks.items():
            line = [name, f"{len(pairs):,}", with_ends(number(pairs.mean_difference), pairs.mean_difference_interval)]
            if has_rates:
                rate = pairs.success_difference
                line.append("" if rate is None else with_ends(percent(rate), pairs.success_difference_interval))
            cells.append([*line, self.sure.get(name, "")])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        padded = ([f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)] for line in cells)
        return [f"  {'  '.join(line)}".rstrip() for line in padded]

    def lines(self) -> list[Line]:
        """Return the statistics over tasks with their intervals, to be printed."""
        what = "returns" if self.normalise is None else "scores"
        lines: list[Line] = [
            (f"difference of mean {what}", number(self.mean_difference), self.mean_difference_interval),
            ("probability of improvement", number(self.probability_of_improvement), self.improvement_interval),
        ]
        if self.success_difference is not None:
            lines.append(
                ("difference of success rates", number(self.success_difference), self.success_difference_interval)
            )
        return lines

    def summary(self) -> dict[str, Any]:
        """Return the statistics as JSON has them."""
        return {
            "first": self.first,
            "second": self.second,
            "n_pairs": len(self),
            **{name: plain(getattr(self, name)) for name in _NUMBERS},
            "sure": self.sure,
            "tasks": {name: pairs.summary() for name, pairs in self.tasks.items()},
        }


def _named(names: list[str]) -> str:
    return f"{count(len(names), 'task')} ({', '.join(names)})" if names else "no task"


def position_names(agents: Sequence[str], tasks: Sequence[str]) -> list[str]:
    """Return a name for each agent and task, in the order of their positions in a journal."""
    return [f"{agent} in {task}" for agent in agents for task in tasks]


@suggesting()
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SuiteComparison(Found):
    """The result of `streamsampler.compare` on a suite: each agent's suite, and the differences to the first agent.

    `comparison["old"]` is an agent's `SuiteEvaluation`; `comparison.tasks["push"]` the `Comparison` in a task;
    `comparison.pairs[0]` the differences of the second agent to the first. Where there are more than two agents, each
    interval holds so much more often that all of them together hold as often as one of two agents.

    Attributes:
        names: The agents' names.
        suites: The suite of each.
        stopped: Why there are no more trajectories.
        margin: By how much each agent may be worse than the first one; None where no verdict was asked for.
        decide_on: The difference that the verdict is about: "return" or "success".

    Raises:
        DataError: There are fewer than two agents, or their suites are of other tasks.
    """

    KIND: ClassVar[str] = "suite comparison"

    names: tuple[str, ...]
    suites: tuple[SuiteEvaluation, ...]
    stopped: str
    margin: float | None = None
    decide_on: PrecisionOf = "return"

    def __post_init__(self) -> None:
        if len(self.names) != len(self.suites) or len(self.names) < 2:
            raise DataError(f"a comparison has at least two agents: {len(self.suites)} suites, {len(self.names)} names")
        first, *others = self.suites
        for other in others:
            if (other.names, other.normalise) != (first.names, first.normalise):
                raise DataError(
                    f"the suites are of other tasks: {', '.join(first.names)} and {', '.join(other.names)}, with "
                    f"normalise {first.normalise} and {other.normalise}"
                )
        if not self.tasks:
            reasons = "; ".join(f"{name}: {error}" for name, error in self.failed.items())
            raise DataError(f"{' and '.join(self.names)} have no task in common that did not fail: {reasons}")

    def __getitem__(self, name: str) -> SuiteEvaluation:
        """Return an agent's suite, by the agent's name."""
        try:
            return self.suites[self.names.index(name)]
        except ValueError:
            raise KeyError(f"{name!r}: the keys are the names of agents, {', '.join(self.names)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    @cached_property
    def tasks(self) -> dict[str, Comparison]:
        """The comparison in each task that all agents have an evaluation of, by the task's name."""
        return {
            name: Comparison(
                names=self.names,
                evaluations=tuple(suite[name] for suite in self.suites),
                stopped=self.suites[0][name].stopped,
                bounds=self.suites[0][name].bounds,
            )
            for name in self.suites[0].names
            if all(name in suite.tasks for suite in self.suites)
        }

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluations of all agents in all tasks."""
        return tuple(each for suite in self.suites for each in suite.evaluations)

    @property
    def failed(self) -> dict[str, str]:
        """The errors of tasks that failed, by agent and task."""
        each = zip(self.names, self.suites, strict=True)
        return {f"{agent}: {task}": error for agent, suite in each for task, error in suite.failed.items()}

    @cached_property
    def pairs(self) -> tuple[SuitePairs, ...]:
        """Each other agent with the first one, in each task, on the seeds that both have."""
        return tuple(
            SuitePairs(
                first=self.names[0],
                second=name,
                tasks={task: comparison.pairs[position] for task, comparison in self.tasks.items()},
                normalise=self.suites[0].normalise,
                level=1 - (1 - LEVEL) / (len(self.names) - 1),
            )
            for position, name in enumerate(self.names[1:])
        )

    def __str__(self) -> str:
        first = self.suites[0]
        what = "mean return" if first.normalise is None else "mean score"
        cells = [["", *self.names], [what, *(number(suite.mean) for suite in self.suites)]]
        cells.append(["interquartile mean", *(number(suite.interquartile_mean) for suite in self.suites)])
        if all(suite.success_rate is not None for suite in self.suites):
            cells.append(["success rate", *(percent(suite.success_rate or 0.0) for suite in self.suites)])
        cells.append(["trajectories", *(f"{sum(map(len, suite.evaluations)):,}" for suite in self.suites)])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        texts = [f"{', '.join(self.names)} in {count(len(first.names), 'task')}, on the same seeds"]
        for name, *values in cells:
            shown = "  ".join(f"{value:>{width}}" for value, width in zip(values, widths[1:], strict=True))
            texts.append(f"  {name:{widths[0]}}  {shown}".rstrip())
        texts += [*map(str, self.pairs)]
        texts += [] if self.margin is None else [str(self.verdict())]
        if self.failed:
            texts.append(f"note: {count(len(self.failed), 'evaluation')} failed, and the differences lack these tasks:")
            texts += [f"note: {name}: {error}" for name, error in self.failed.items()]
        texts.append(f"seeds: {shown_seeds(first.evaluations[0].seeds)}")
        texts.append(f"stopped: {self.stopped}")
        return "\n".join(texts)

    def __repr__(self) -> str:
        return f"SuiteComparison({', '.join(self.names)}: {count(len(self.tasks), 'task')})"

    def verdict(self, margin: float | None = None, *, decide_on: PrecisionOf | None = None) -> GateVerdict:
        """Return whether any agent is worse than the first one by more than a margin; see `Comparison.verdict`.

        Args:
            margin: By how much an agent may be worse, at least 0: of returns, of scores where there is `normalise`, or
                of success rates. By default the margin that was asked for.
            decide_on: "return" or "success"; by default as was asked for.

        Raises:
            UsageError: There is no margin, or it cannot be one; or infos say nothing of success.
        """
        of = self.decide_on if decide_on is None else decide_on
        margin = self.margin if margin is None else margin
        if margin is None:
            raise UsageError("by how much may an agent be worse? Give a margin, such as verdict(0.05)")
        checked = checked_margin(margin, of)
        decisions = tuple(pairs.decision(checked, of) for pairs in self.pairs)
        if lacking := [name for name in self.suites[0].names if name not in self.tasks]:
            # An agent that fails in a task must not pass because the task is left out.
            why = Unknown(f"there are no pairs in {', '.join(lacking)}")
            advice = "each task needs pairs of all agents"
            decisions = tuple(replace(it, interval=why, all_equal=False, advice=advice) for it in decisions)
        return GateVerdict(decisions)

    def by_position(self) -> dict[int, Evaluation]:
        """Return the evaluations of all agents in all tasks, by their positions."""
        n = len(self.suites[0].names)
        suites = enumerate(self.suites)
        return {agent * n + task: it for agent, suite in suites for task, it in suite.by_position().items()}

    def names_by_position(self) -> list[str]:
        """Return a name for each agent and task."""
        return position_names(self.names, self.suites[0].names)

    @classmethod
    def names_in_journal(cls, head: Mapping[str, Any]) -> list[str]:
        """Return a name for each agent and task."""
        return position_names(head["agents"], head["tasks"])

    @classmethod
    def facts_of_journal(cls, journal: JournalContents) -> dict[str, Any]:
        """Return the JSON of the trajectories in a journal; see `Found`."""
        names, found = journal.head["tasks"], list[dict[str, Any]]()
        for agent in range(len(journal.head["agents"])):
            own = range(agent * len(names), (agent + 1) * len(names))
            evaluations = {names[at - own.start]: it for at, it in journal.evaluations.items() if at in own}
            if not evaluations:
                break
            found.append({**journal.head, "failed": {}, "stopped": INTERRUPTED, "evaluations": evaluations})
        if len(found) < 2:
            raise ValueError("only the first agent has trajectories, so that there are no pairs yet")
        return {**journal.head, "agents": journal.head["agents"][: len(found)], "stopped": INTERRUPTED, "suites": found}

    def facts(self) -> dict[str, Any]:
        """Return the contents as JSON has them; see `Found`."""
        return {
            "agents": list(self.names),
            "stopped": self.stopped,
            "decide_on": self.decide_on,
            **({} if self.margin is None else {"margin": self.margin, "verdict": self.verdict().facts()}),
            "summary": [pairs.summary() for pairs in self.pairs],
            "suites": [suite.contents() for suite in self.suites],
        }

    @classmethod
    def of_facts(cls, facts: dict[str, Any]) -> SuiteComparison:
        """Return the comparison that has these facts; see `Found`."""
        return cls(
            names=tuple(map(str, facts["agents"])),
            suites=tuple(map(SuiteEvaluation.of_facts, facts["suites"])),
            stopped=str(facts["stopped"]),
            margin=None if facts.get("margin") is None else float(facts["margin"]),
            decide_on=facts["decide_on"],
        )
