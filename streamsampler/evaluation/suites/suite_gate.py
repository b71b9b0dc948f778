"""Compute the interval for a gate's decision on a suite. Pure; `.ci/prove gate` simulates it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamsampler.core.words import count
from streamsampler.evaluation.gate import FEWEST_PAIRS, gate_interval
from streamsampler.evaluation.intervals import LEVEL, Interval, Unknown
from streamsampler.evaluation.suites.means import suite_mean_interval
from streamsampler.evaluation.suites.scores import SuiteScores, TaskScores


def suite_gate_interval(differences: Sequence[TaskScores], level: float = LEVEL) -> Interval | Unknown:
    """Return the interval of the mean difference over tasks for a gate's decision, or the reason for its absence.

    At either end it is the wider of two intervals: `means.suite_mean_interval` with half of the error rate, for any
    number of pairs, because tasks may be skewed even if their mean is not; and, if all tasks have the same seeds,
    `gate.gate_interval` of the column of means over tasks. For a single task it is the latter alone.

    Raises:
        UsageError: No task is given, or `level` is not between 0 and 1.
    """
    suite = SuiteScores(differences)
    if suite.fewest < FEWEST_PAIRS and suite.bounds is None:
        return Unknown(f"a task has {count(suite.fewest, 'pair')}, fewer than {FEWEST_PAIRS}")
    of_tasks = suite_mean_interval(suite.tasks, (1 + level) / 2, of="difference")
    if not suite.is_complete:
        return of_tasks
    column = suite.values.mean(axis=0)
    of_column = gate_interval(column, level, bounds=suite.bounds, rounding=suite.rounding)
    return of_column if len(suite) == 1 else _hull(of_tasks, of_column)


def _hull(one: Interval | Unknown, other: Interval | Unknown) -> Interval | Unknown:
    """Return the wider end of both on either side, or the reason if either is unknown."""
    if not isinstance(one, Interval) or not isinstance(other, Interval):
        return one if isinstance(one, Unknown) else other
    return replace(one, low=min(one.low, other.low), high=max(one.high, other.high))
