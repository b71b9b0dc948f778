"""Compare two agents on a suite by pairs: differences, and the probability of improvement averaged over tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamsampler.core.errors import UsageError
from streamsampler.core.words import count
from streamsampler.evaluation.comparison import improvement_interval, probability_of_improvement, weighted_improvement
from streamsampler.evaluation.intervals import (
    FEWEST,
    LEVEL,
    Bounds,
    Floats,
    Interval,
    Unknown,
    random_weights,
    rounding_of,
)
from streamsampler.evaluation.suites.scores import SuiteScores, TaskScores, check_level

_MOST_WEIGHTS, _FEWEST_DRAWN = 120_000_000, 4_000  # some seconds; with more trajectories, fewer are drawn


@dataclass(frozen=True, eq=False)
class TaskPairs:
    """The scores of two agents on one task, seed by seed.

    Attributes:
        first: (N,) float64: the first agent's scores.
        second: (N,) float64: the second agent's scores.
        seeds: N different seeds; see `TaskScores`.
        bounds: The least and the largest possible score; None if unknown.

    Raises:
        UsageError: The numbers of scores differ, or as for `TaskScores`.
    """

    first: Floats
    second: Floats
    seeds: tuple[int, ...]
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        for name in ("first", "second"):
            scores = TaskScores(getattr(self, name), self.seeds, self.bounds)
            object.__setattr__(self, name, scores.values)
        object.__setattr__(self, "seeds", tuple(self.seeds))

    @property
    def differences(self) -> TaskScores:
        """The second agent's scores minus the first agent's."""
        span = None if self.bounds is None else self.bounds[1] - self.bounds[0]
        rounding = 2 * max(rounding_of(self.first), rounding_of(self.second))
        bounds = None if span is None else (-span, span)
        with np.errstate(invalid="ignore"):  # of two infinite scores, for which no interval is computed
            return TaskScores(self.second - self.first, self.seeds, bounds, rounding)


def suite_improvement(pairs: Sequence[TaskPairs]) -> float:
    """Return the probability that the second agent's score is above the first agent's, averaged over tasks.

    For each task: Mann and Whitney's U, divided by the product of the two numbers of scores (Agarwal et al., 2021).

    Raises:
        UsageError: No task is given.
    """
    _check(pairs)
    return float(np.mean([probability_of_improvement(task.first, task.second) for task in pairs]))


def suite_improvement_interval(pairs: Sequence[TaskPairs], level: float = LEVEL) -> Interval | Unknown:
    """Return the interval of the probability of improvement, averaged over tasks, or the reason for its absence.

    The method is that of `comparison.improvement_interval`, with one weight per seed for all its tasks.

    Raises:
        UsageError: No task is given, or `level` is not between 0 and 1.
    """
    check_level(level)
    _check(pairs)
    suite = SuiteScores([TaskScores(task.first, task.seeds) for task in pairs])
    if suite.fewest < FEWEST:
        return Unknown(f"a task has {count(suite.fewest, 'pair')}, fewer than {FEWEST}")
    if any(np.isnan(scores).any() for task in pairs for scores in (task.first, task.second)):
        return Unknown("a return is no number")
    if len(pairs) == 1:
        return improvement_interval(pairs[0].first, pairs[0].second, level)
    lows: list[Floats] = []
    highs: list[Floats] = []
    positions = [suite.positions_of(number) for number in range(len(suite))]
    most, n_drawn = max(_FEWEST_DRAWN, _MOST_WEIGHTS // int(suite.n_trajectories.sum())), 0
    for weights in random_weights(np.ones(suite.n_seeds + 1)):
        low, high = np.zeros((2, len(weights)))
        for task, of_task in zip(pairs, positions, strict=True):
            seen = weights[:, of_task]
            total = seen.sum(axis=1)
            share = total / (total + weights[:, -1])
            improved = weighted_improvement(seen / total[:, np.newaxis], task.first, task.second)
            low += share * improved
            high += 1 - share * (1 - improved)
        lows.append(low / len(suite))
        highs.append(high / len(suite))
        n_drawn += len(weights)
        if n_drawn >= most:
            break
    low_end = float(np.quantile(np.concatenate(lows), (1 - level) / 2))
    high_end = float(np.quantile(np.concatenate(highs), (1 + level) / 2))
    return Interval(max(0.0, low_end), min(1.0, high_end), "weighted pairs", level)


def _check(pairs: Sequence[TaskPairs]) -> None:
    if not pairs:
        raise UsageError("a suite has at least one task: pass the pairs of each task")
