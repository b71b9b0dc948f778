"""Compute performance profiles: the share of runs with a score above each threshold, with a band."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from streamsampler.core.errors import UsageError
from streamsampler.evaluation.intervals import LEVEL, Floats, random_weights
from streamsampler.evaluation.suites.scores import SuiteScores, TaskScores, check_level


@dataclass(frozen=True, eq=False)
class PerformanceProfile:
    """The share of runs with a score above each of M thresholds, averaged over tasks.

    Attributes:
        thresholds: (M,) float64.
        shares: (M,) float64: the shares, which decrease with the threshold.
        low: (M,) float64: lower end of each share's interval.
        high: (M,) float64: upper end.
        level: Confidence of each single interval.
    """

    thresholds: Floats
    shares: Floats
    low: Floats
    high: Floats
    level: float


def profile(tasks: Sequence[TaskScores], thresholds: Floats, level: float = LEVEL) -> PerformanceProfile:
    """Return the performance profile of a suite (Agarwal et al., 2021): "score distributions", not those of means.

    The band is `means.weighted_interval` at each threshold: valid for any number of trajectories, at each threshold
    alone, and decreasing with the threshold, like the shares.

    Raises:
        UsageError: No task is given, a score or a threshold is no number, or `level` is not between 0 and 1.
    """
    check_level(level)
    suite, thresholds = SuiteScores(tasks), np.asarray(thresholds, dtype=np.float64)
    if thresholds.ndim != 1 or not len(thresholds):
        raise UsageError(f"thresholds have shape {thresholds.shape}: pass at least one number, (M,)")
    if np.isnan(suite.values).any() or np.isnan(thresholds).any():
        raise UsageError("a score or a threshold is no number (NaN), which cannot be compared with a threshold")
    above = [(task.values[:, np.newaxis] > thresholds).astype(np.float64) for task in suite.tasks]
    shares = np.mean([of_task.mean(axis=0) for of_task in above], axis=0)
    lows, highs = [], []
    for low, unseen in _weighted_shares(suite, above):
        lows.append(low)
        highs.append(low + unseen)
    low = np.quantile(np.concatenate(lows), (1 - level) / 2, axis=0)
    high = np.quantile(np.concatenate(highs), (1 + level) / 2, axis=0)
    return PerformanceProfile(thresholds, shares, low, high, level)


def _weighted_shares(suite: SuiteScores, above: list[Floats]) -> Iterator[tuple[Floats, Floats]]:
    """Yield the shares if the unobserved seed is never above, (k, M), and their increase if it always is."""
    n_tasks, n_seeds = len(suite), suite.n_seeds
    positions = [suite.positions_of(task) for task in range(n_tasks)]
    of_seed = np.zeros((n_seeds, above[0].shape[1]))
    if suite.is_complete:  # one product in place of T
        for of_task, seeds in zip(above, positions, strict=True):
            of_seed[seeds] += of_task / n_tasks
    for weights in random_weights(np.ones(n_seeds + 1)):
        if suite.is_complete:
            yield weights[:, :-1] @ of_seed, weights[:, -1:]
            continue
        shares, unseen = 0.0, 0.0
        for of_task, seeds in zip(above, positions, strict=True):
            seen = weights[:, seeds]
            total = seen.sum(axis=1, keepdims=True) + weights[:, -1:]
            shares = shares + seen @ of_task / total / n_tasks
            unseen = unseen + weights[:, -1:] / total / n_tasks
        yield np.asarray(shares), np.asarray(unseen)
