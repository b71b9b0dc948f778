"""Compute the interval by which a gate decides about agents on a suite. Pure; `.ci/prove gate` simulates it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamsampler.core.words import count
from streamsampler.evaluation.gate import FEWEST_PAIRS, gate_interval
from streamsampler.evaluation.intervals import LEVEL, Interval, Unknown
from streamsampler.evaluation.suites.means import suite_mean_interval
from streamsampler.evaluation.suites.scores import SuiteScores, TaskScores


def suite_gate_interval(differences: Sequence[TaskScores], level: float = LEVEL) -> Interval | Unknown:
    """Return the interval of the mean of the tasks' mean differences that a gate decides by, or why there is none.

    At either end the wider one of two: that of `means.suite_mean_interval`, which leaves half of the share that `level`
    leaves, for any number of pairs, because tasks may be skewed where their mean is not; and, where all tasks have the
    same seeds, `gate.gate_interval` of the column of means over tasks. Of a single task it is the latter alone.

    Args:
        differences: The differences of each task, second agent minus first.
        level: How often the interval is to hold the mean difference.

    Raises:
        UsageError: There is no task, or `level` is no share.
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
    """Return the wider end of both on either side; where one is unknown, why it is."""
    if not isinstance(one, Interval) or not isinstance(other, Interval):
        return one if isinstance(one, Unknown) else other
    return replace(one, low=min(one.low, other.low), high=max(one.high, other.high))
