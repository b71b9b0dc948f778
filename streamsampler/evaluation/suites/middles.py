"""Compute the interquartile mean over runs and tasks, and bootstraps over seeds.

The interquartile mean is that of the mixture of the tasks' distributions (Agarwal et al., 2021, "Deep reinforcement
learning at the edge of the statistical precipice"). Its interval is the percentile bootstrap's, from 30 trajectories
per task on. With fewer, and tasks of very different scales, such intervals hold in 88 to 92 of 100 simulations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.words import count
from streamsampler.evaluation.intervals import (
    FEWEST_SKEWED,
    LEVEL,
    Floats,
    Interval,
    Unknown,
    middle_intervals,
    n_resamples,
)
from streamsampler.evaluation.quantiles import student_quantile
from streamsampler.evaluation.suites.scores import SuiteScores, TaskScores, check_level, resampled_counts

Statistic: TypeAlias = Literal["mean", "interquartile mean"]
"""The statistic of `stratified_bootstrap`."""

_NORMAL = NormalDist()


def suite_interquartile_mean(tasks: Sequence[TaskScores]) -> float:
    """Return the mean of the scores of all tasks without the lowest and the highest quarter.

    Each task has the same weight. Of N scores, N // 4 are left out at either end, as by
    `scipy.stats.trim_mean(scores, 0.25)`; with unequal numbers of trajectories, scores with this share of the weight.

    Raises:
        UsageError: No task is given.
    """
    suite = SuiteScores(tasks)
    once = np.ones((1, suite.n_seeds), dtype=np.int64)
    return float(next(_interquartile_means(suite, iter([once])))[0])


def suite_interquartile_mean_interval(tasks: Sequence[TaskScores], level: float = LEVEL) -> Interval | Unknown:
    """Return the interval of the interquartile mean, or the reason for its absence.

    It is the expanded percentile bootstrap's (Hesterberg, 2015, "What teachers should know about the bootstrap"):
    resamples vary less than samples, by n - 1 of n, and have normal quantiles in place of Student's, with the degrees
    of freedom of a trimmed mean (Tukey and McLaughlin, 1963). Both together widen it by 11 % at 30 trajectories, and by
    3 % at 100.

    Raises:
        UsageError: No task is given, or `level` is not between 0 and 1.
    """
    check_level(level)
    suite = SuiteScores(tasks)
    if len(suite) == 1:
        return middle_intervals(suite.tasks[0].values, level, bounds=suite.bounds)["iqm"]
    n = suite.fewest
    if n < FEWEST_SKEWED:
        return Unknown(f"a task has {count(n, 'trajectory')}, fewer than {FEWEST_SKEWED}")
    if not suite.is_finite:
        return Unknown("a return is not finite")
    if all(task.is_constant for task in suite.tasks):
        return Unknown("all returns of each task are equal")
    n_kept = n - 2 * (n // 4)
    tail = _NORMAL.cdf(-student_quantile((1 + level) / 2, n_kept - 1) * math.sqrt(n / (n - 1)))
    low, high = _percentiles(suite, "interquartile mean", tail)
    return Interval(low, high, "percentile bootstrap", level)


def stratified_bootstrap(tasks: Sequence[TaskScores], statistic: Statistic, level: float = LEVEL) -> Interval:
    """Return the plain percentile bootstrap's interval, which resamples seeds with all their tasks.

    Without common seeds it is rliable's stratified bootstrap. Below 50 trajectories per task its coverage is too low:
    the printed intervals are `suite_interquartile_mean_interval` and `means.suite_mean_interval`.

    Raises:
        UsageError: No task is given, or `level` is not between 0 and 1.
    """
    check_level(level)
    low, high = _percentiles(SuiteScores(tasks), statistic, (1 - level) / 2)
    return Interval(low, high, "percentile bootstrap", level)


def _percentiles(
    suite: SuiteScores, statistic: Literal["mean", "interquartile mean"], tail: float
) -> tuple[float, float]:
    of_resamples = _means if statistic == "mean" else _interquartile_means
    resamples = resampled_counts(suite, n_resamples(int(suite.n_trajectories.sum())))
    low, high = np.quantile(np.concatenate(list(of_resamples(suite, resamples))), [tail, 1 - tail]).tolist()
    return low, high


def _means(suite: SuiteScores, resamples: Iterator[NDArray[np.int64]]) -> Iterator[Floats]:
    """Yield the means of resamples, (k,) for (k, S) counts of seeds."""
    has = suite.has.astype(np.float64).T
    for counts in resamples:
        yield ((counts @ suite.values.T) / _sizes(counts, has)).mean(axis=1)


def _interquartile_means(suite: SuiteScores, resamples: Iterator[NDArray[np.int64]]) -> Iterator[Floats]:
    """Yield the interquartile means of resamples, (k,) for (k, S) counts of seeds."""
    tasks, seeds = np.nonzero(suite.has)
    order = np.argsort(suite.values[tasks, seeds], kind="stable")
    tasks, seeds = tasks[order], seeds[order]
    scores, has, n = suite.values[tasks, seeds], suite.has.astype(np.float64).T, len(order)
    cut = n // 4 / n
    for counts in resamples:
        weights = 1.0 / (len(suite) * _sizes(counts, has))
        up_to = np.cumsum(counts[:, seeds] * weights[:, tasks], axis=1)
        within = np.diff(np.clip(up_to, cut, 1 - cut), axis=1, prepend=cut)
        yield within @ scores / (1 - 2 * cut)


def _sizes(counts: NDArray[np.int64], has: Floats) -> Floats:
    """Return the number of trajectories of each task in resamples, (k, T); 1 for a task without any."""
    return np.maximum(counts @ has, 1.0)
