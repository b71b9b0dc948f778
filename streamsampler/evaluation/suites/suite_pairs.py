"""Two agents on the tasks of a suite: differences over tasks and by task, and the decision of a gate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from streamsampler.core.words import count
from streamsampler.evaluation.comparison import Pairs
from streamsampler.evaluation.evaluation import (
    Line,
    aligned,
    in_brackets,
    number,
    percent,
    plain,
)
from streamsampler.evaluation.gate import GateDecision, name_of_difference
from streamsampler.evaluation.intervals import Bounds, Interval, Unknown
from streamsampler.evaluation.rules import PrecisionOf
from streamsampler.evaluation.sequential import ReturnTest, anytime_interval, expected_pairs
from streamsampler.evaluation.suites.holm import TaskDifference, holm
from streamsampler.evaluation.suites.improvement import TaskPairs, suite_improvement, suite_improvement_interval
from streamsampler.evaluation.suites.means import suite_mean, suite_mean_interval, task_interval
from streamsampler.evaluation.suites.scores import SuiteScores, TaskScores
from streamsampler.evaluation.suites.sequential_suite import RATES, bounds_of_scores, mean_pairs, tested
from streamsampler.evaluation.suites.suite_evaluation import Scale
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
        tasks: The pairs of each common task, by name; differences of returns.
        normalise: The returns of the scores 0 and 1, by task; None for returns as they are.
        level: Confidence of each interval.
        alpha: Probability of a wrong decision of the test; None without a test.
        decide_on: The tested quantity: "return" or "success".
        margin: Largest loss of the second agent that the test tolerates.
    """

    first: str
    second: str
    tasks: Mapping[str, Pairs]
    normalise: Mapping[str, Scale] | None
    level: float
    alpha: float | None = None
    decide_on: PrecisionOf = "return"
    margin: float | None = None

    def __len__(self) -> int:
        return sum(map(len, self.tasks.values()))

    def __getitem__(self, name: str) -> Pairs:
        """Return the pairs of a task by its name."""
        if name not in self.tasks:
            raise KeyError(f"no pairs of {name!r}; the tasks with pairs are {', '.join(self.tasks)}")
        return self.tasks[name]

    @cached_property
    def scores(self) -> dict[str, TaskPairs]:
        """The scores, or returns, of both agents in each task, on the same seeds in the same order."""
        found = {}
        for name, pairs in self.tasks.items():
            scale = None if self.normalise is None else self.normalise[name]
            low, high = scale or (0.0, 1.0)
            first, second = ((returns - low) / (high - low) for returns in pairs.returns)
            bounds = None if pairs.bounds is None else bounds_of_scores(pairs.bounds, scale)
            found[name] = TaskPairs(first, second, _keys(pairs), bounds)
        return found

    @cached_property
    def test(self) -> ReturnTest | None:
        """The test with all pairs; None without a test."""
        if self.alpha is None:
            return None
        bounds = self._bounds_of(self.decide_on)
        assert bounds is not None
        return tested(self._pairs_of(self.decide_on) or [], self.alpha, bounds, self.margin)

    def _pairs_of(self, of: PrecisionOf) -> list[TaskPairs] | None:
        """Return the scores, or the successes, of both agents in each task; None without success flags."""
        if of == "return":
            return list(self.scores.values())
        found = []
        for pairs in self.tasks.values():
            if pairs.successes is None:
                return None
            first, second = (np.asarray(each, np.float64) for each in pairs.successes)
            found.append(TaskPairs(first, second, _keys(pairs), RATES))
        return found

    def _bounds_of(self, of: PrecisionOf) -> Bounds | None:
        """Return the bounds of the mean over tasks; None if a task's bounds are unknown."""
        if of == "success":
            return RATES
        return SuiteScores([TaskScores(it.first, it.seeds, it.bounds) for it in self.scores.values()]).bounds

    def _interval_of_test(self, of: PrecisionOf) -> Interval | Unknown | None:
        """Return the mean difference's interval, valid although a test decided when to stop; None without a test."""
        if self.test is None:
            return None
        if of == self.decide_on:
            return self.test.interval
        pairs, bounds = self._pairs_of(of), self._bounds_of(of)
        if pairs is None or bounds is None:
            return Unknown("success rates decided when to stop, and returns have no bounds")
        return tested(pairs, self.test.alpha, bounds, None).interval

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
        """The interval of the mean difference; the test's interval if a test decided when to stop."""
        if (interval := self._interval_of_test("return")) is not None:
            return interval
        return suite_mean_interval(self.differences, self.level, of="difference")

    @property
    def probability_of_improvement(self) -> float:
        """The mean over tasks of the probability that the second agent's score is above the first agent's."""
        return suite_improvement(list(self.scores.values()))

    @cached_property
    def improvement_interval(self) -> Interval | Unknown:
        """The interval of the probability of improvement."""
        return suite_improvement_interval(list(self.scores.values()), self.level)

    @cached_property
    def _successes(self) -> list[TaskScores] | None:
        pairs = self._pairs_of("success")
        return None if pairs is None else [task.differences for task in pairs]

    @property
    def success_difference(self) -> float | None:
        """The mean of the tasks' differences of success rates; None without success flags."""
        return None if self._successes is None else suite_mean(self._successes)

    @cached_property
    def success_difference_interval(self) -> Interval | Unknown | None:
        """The interval of the difference of success rates; None without a difference."""
        if self._successes is None:
            return None
        if (interval := self._interval_of_test("success")) is not None:
            return interval
        if len(self.tasks) == 1:
            return next(iter(self.tasks.values())).success_difference_interval
        return suite_mean_interval(self._successes, self.level, of="difference")

    @cached_property
    def judged(self) -> dict[str, TaskDifference]:
        """The difference of each task, with the interval of its turn in Holm's method (1979)."""
        each = [partial(task_interval if self.test is None else _stopped_interval, task) for task in self.differences]
        return dict(zip(self.tasks, holm(each, self.level), strict=True))

    @property
    def sure(self) -> dict[str, str]:
        """The tasks with a significantly "better" or "worse" second agent, at the level for all tasks together.

        Equal agents differ significantly in any task in at most 5 of 100 comparisons.
        """
        return {name: each.sure for name, each in self.judged.items() if each.sure is not None}

    def decision(self, margin: float, of: PrecisionOf) -> GateDecision:
        """Decide whether the second agent is worse by more than a margin; see `SuiteComparison.verdict`."""
        differences = self.differences if of == "return" else self._successes
        what = f"{name_of_difference(of)} over tasks" if self.normalise is None or of == "success" else "mean scores"
        decision = GateDecision(
            first=self.first, second=self.second, margin=margin, of=what, n_pairs=len(self), difference=math.nan,
            interval=Unknown("the infos have no success flag"), all_equal=False,
        )  # fmt: skip
        if differences is None:
            return decision
        suite = SuiteScores(differences)
        is_zero = all(float(np.abs(task.values).max()) <= suite.rounding for task in differences)
        interval = self._interval_of_test(of)
        decision = replace(
            decision,
            n_pairs=suite.fewest,
            difference=0.0 if is_zero else suite.mean,
            interval=suite_gate_interval(differences, self.level) if interval is None else interval,
            all_equal=is_zero,
        )
        is_open = decision.outcome == "undecided" and isinstance(decision.interval, Interval)
        return replace(decision, expected=self._expected(margin, of)) if is_open else decision

    def _expected(self, margin: float, of: PrecisionOf) -> int | None:
        """Return the estimated number of further pairs for a test; None without a test."""
        pairs, bounds = self._pairs_of(of), self._bounds_of(of)
        if self.test is None or pairs is None or bounds is None:
            return None
        first, second = mean_pairs(pairs)
        span = bounds[1] - bounds[0]
        return expected_pairs(second - first, (-span, span), 1 - self.test.alpha, margin)

    def __str__(self) -> str:
        sure = self.sure
        better, worse = ([name for name, it in sure.items() if it == each] for each in ("better", "worse"))
        texts = [f"{self.second} minus {self.first}: {count(len(self), 'pair')} in {count(len(self.tasks), 'task')}"]
        texts += [*self._grid(), *aligned(self.lines())]
        texts.append(f"  better in {_named(better)}, worse in {_named(worse)}, sure for all tasks together (Holm)")
        if self.test is not None and self.margin is None:
            verdict = self.test.verdict
            agent = self.second if verdict == "second" else self.first
            texts.append(f"  {f'decided: {agent} is better' if verdict else 'undecided'} ({self.test.method})")
        return "\n".join(texts)

    def __repr__(self) -> str:
        interval = in_brackets(self.mean_difference_interval)
        tasks = f"{self.second} minus {self.first}: {count(len(self.tasks), 'task')}"
        return f"SuitePairs({tasks}, mean difference {number(self.mean_difference)}{interval})"

    def _grid(self) -> list[str]:
        """Return a line for each task: its difference, and its significance."""
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
        """Return the statistics over tasks with their intervals, for printing."""
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
        """Return the statistics as JSON values."""
        return {
            "first": self.first,
            "second": self.second,
            "n_pairs": len(self),
            **{name: plain(getattr(self, name)) for name in _NUMBERS},
            "sure": self.sure,
            "tasks": {name: pairs.summary() for name, pairs in self.tasks.items()},
        }


def _keys(pairs: Pairs) -> tuple[int, ...]:
    """Return the key by which pairs of different tasks depend on one another: the seed.

    Scenarios may repeat a seed with other options, so their key is the index.
    """
    return pairs.seeds if len(set(pairs.seeds)) == len(pairs.seeds) else pairs.indices


def _stopped_interval(task: TaskScores, level: float) -> Interval | Unknown:
    """Return the interval of a task's mean difference, valid although the tasks' mean decided when to stop."""
    if task.bounds is None:
        return Unknown("success rates decided when to stop, and returns have no bounds")
    return anytime_interval(task.values, task.bounds, level)


def _named(names: list[str]) -> str:
    return f"{count(len(names), 'task')} ({', '.join(names)})" if names else "no task"
