"""Compute performance profiles: the share of runs whose score is above each threshold, with a band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import UsageError
from streamsampler.evaluation.intervals import LEVEL, Floats, random_weights
from streamsampler.evaluation.suites.scores import SuiteScores, TaskScores, check_level


@dataclass(frozen=True, eq=False)
class PerformanceProfile:
    """The share of runs with a score above each of M thresholds, averaged over tasks.

    Attributes:
        thresholds: (M,) float64.
        shares: (M,) float64: the shares, which fall where thresholds rise.
        low: (M,) float64: the lower end of each share's interval.
        high: (M,) float64: the upper end.
        level: How often the interval of each single share holds it.
    """

    thresholds: Floats
    shares: Floats
    low: Floats
    high: Floats
    level: float


def profile(tasks: Sequence[TaskScores], thresholds: Floats, level: float = LEVEL) -> PerformanceProfile:
    """Return the performance profile of a suite (Agarwal et al., 2021): "score distributions", not those of means.

    The band is that of `means.weighted_interval` at each threshold: it holds for any number of trajectories, at each
    threshold alone, and it falls where thresholds rise, as the shares do.

    Args:
        tasks: The scores of each task.
        thresholds: (M,) scores.
        level: How often the interval of each share is to hold it.

    Raises:
        UsageError: There is no task, a score or a threshold is no number, or `level` is no share.
    """
    check_level(level)
    suite, thresholds = SuiteScores(tasks), np.asarray(thresholds, dtype=np.float64)
    if thresholds.ndim != 1 or not len(thresholds):
        raise UsageError(f"thresholds have shape {thresholds.shape}: pass at least one number, (M,)")
    if np.isnan(suite.values).any() or np.isnan(thresholds).any():
        raise UsageError("a score or a threshold is no number (NaN), which is neither above nor below others")
    above = (suite.values[:, :, np.newaxis] > thresholds) & suite.has[:, :, np.newaxis]
    shares = (above.sum(axis=1) / suite.n_trajectories[:, np.newaxis]).mean(axis=0)
    lows, highs = [], []
    for weights in random_weights(np.ones(suite.n_seeds + 1)):
        low, unseen = _weighted_shares(suite, above, weights)
        lows.append(low)
        highs.append(low + unseen)
    low = np.quantile(np.concatenate(lows), (1 - level) / 2, axis=0)
    high = np.quantile(np.concatenate(highs), (1 + level) / 2, axis=0)
    return PerformanceProfile(thresholds, shares, low, high, level)


def _weighted_shares(suite: SuiteScores, above: NDArray[np.bool_], weights: Floats) -> tuple[Floats, Floats]:
    """Return shares if the seed that was not seen is never above, (k, M), and by how much they rise if it always is."""
    seen, unseen = weights[:, :-1], weights[:, -1:]
    if suite.is_complete:  # one product in the place of T
        return seen @ above.mean(axis=0), unseen
    of_task = seen @ suite.has.astype(np.float64).T + unseen
    shares = sum(seen @ of.astype(np.float64) / of_task[:, [task]] for task, of in enumerate(above))
    return np.asarray(shares) / len(suite), (unseen / of_task).mean(axis=1, keepdims=True)
