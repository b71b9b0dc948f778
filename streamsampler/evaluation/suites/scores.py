"""Arrange the scores of tasks by seed: only trajectories of the same seed depend on one another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import UsageError
from streamsampler.core.words import count
from streamsampler.evaluation.intervals import Bounds, Floats, counted, rounding_of

_SEED = 0
_AT_ONCE = 1_000_000  # random numbers drawn at a time


@dataclass(frozen=True, eq=False)
class TaskScores:
    """The scores of one task's trajectories.

    Attributes:
        values: (N,) float64: returns, perhaps normalised; successes as 0 and 1; or differences of pairs.
        seeds: N different seeds. Scores of two tasks with the same seed may depend on one another. If a seed may be
            repeated, as in scenarios with different options, these are trajectory indices.
        bounds: The least and the largest possible score; None if unknown.
        rounding: Largest difference of equal scores; None for the rounding of sums of rewards.

    Raises:
        UsageError: No score is given, the numbers of scores and seeds differ, a seed is repeated, or a score is out of
            bounds.
    """

    values: Floats
    seeds: tuple[int, ...]
    bounds: Bounds | None = None
    rounding: float | None = None

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=np.float64)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "seeds", tuple(self.seeds))
        if self.rounding is None:
            object.__setattr__(self, "rounding", rounding_of(values))
        if values.ndim != 1 or not len(values):
            raise UsageError(f"a task's scores have shape {values.shape}: pass one number for each trajectory, (N,)")
        if len(self.seeds) != len(values):
            raise UsageError(
                f"{count(len(self.seeds), 'seed')} for {count(len(values), 'score')}: pass the seed of each trajectory"
            )
        if len(set(self.seeds)) < len(values):
            twice = next(seed for position, seed in enumerate(self.seeds) if seed in self.seeds[:position])
            raise UsageError(f"seed {twice} is repeated in a task's seeds: pass trajectory indices instead")
        if self.bounds is not None:
            self._check_bounds(self.bounds)

    def _check_bounds(self, bounds: Bounds) -> None:
        low, high = bounds
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise UsageError(
                f"bounds must be (least, largest), two finite numbers in ascending order, got ({low:g}, {high:g})"
            )
        room = rounding_of(np.array(bounds))
        outside = self.values[~((self.values >= low - room) & (self.values <= high + room))]
        if len(outside):
            raise UsageError(f"bounds are ({low:g}, {high:g}), and there is a score of {outside[0]:g}")

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def counted(self) -> tuple[Floats, NDArray[np.int64]]:
        """The distinct scores in ascending order, and their counts; see `intervals.counted`."""
        return counted(self.values, self.rounding or 0.0)

    @property
    def usual(self) -> float | None:
        """The score of more than half of the trajectories, or None."""
        found, counts = self.counted
        return float(found[counts.argmax()]) if 2 * counts.max() > len(self) else None

    @property
    def is_constant(self) -> bool:
        """Whether all scores are equal."""
        return len(self.counted[0]) == 1


class SuiteScores:
    """The scores of T tasks by their S seeds.

    Attributes:
        tasks: The scores of each task.
        n_trajectories: (T,) int64: number of trajectories of each task.
        has: (T, S) bool: whether a task has a trajectory of a seed.
        values: (T, S) float64: score of a task on a seed; 0 without a trajectory.

    Raises:
        UsageError: No task is given.
    """

    def __init__(self, tasks: Sequence[TaskScores]) -> None:
        if not tasks:
            raise UsageError("a suite has at least one task: pass the scores of each task")
        self.tasks = tuple(tasks)
        self.n_trajectories = np.array([len(task) for task in self.tasks])
        positions: dict[int, int] = {}
        for task in self.tasks:
            for seed in task.seeds:
                positions.setdefault(seed, len(positions))
        self.has = np.zeros((len(self.tasks), len(positions)), dtype=bool)
        self.values = np.zeros(self.has.shape)
        self._positions = [np.array([positions[seed] for seed in task.seeds]) for task in self.tasks]
        for number, (task, of_task) in enumerate(zip(self.tasks, self._positions, strict=True)):
            self.has[number, of_task] = True
            self.values[number, of_task] = task.values

    def __len__(self) -> int:
        return len(self.tasks)

    def positions_of(self, number: int) -> NDArray[np.int64]:
        """Return the positions of a task's seeds among all, (N,), in the order of its scores."""
        return self._positions[number]

    @property
    def n_seeds(self) -> int:
        """Number of different seeds."""
        return self.has.shape[1]

    @property
    def fewest(self) -> int:
        """Smallest number of trajectories of a task."""
        return int(self.n_trajectories.min())

    @property
    def is_complete(self) -> bool:
        """Whether all tasks have the same seeds."""
        return bool(self.has.all())

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.values).all())

    @property
    def rounding(self) -> float:
        """Largest difference of equal scores."""
        return max(task.rounding or 0.0 for task in self.tasks)

    @cached_property
    def mean(self) -> float:
        """The mean of the tasks' means."""
        return float(np.mean([task.values.mean() for task in self.tasks]))

    @cached_property
    def parts(self) -> tuple[NDArray[np.int64], ...]:
        """The positions of the seeds of each part of the suite; tasks of different parts have no common seed."""
        part_of = np.arange(self.n_seeds)
        for has in self.has:
            joined = np.isin(part_of, part_of[has])
            part_of[joined] = part_of[has].min()
        return tuple(np.flatnonzero(part_of == part) for part in np.unique(part_of))

    @cached_property
    def bounds(self) -> Bounds | None:
        """The least and the largest possible mean; None if the bounds of a task are unknown."""
        known = [task.bounds for task in self.tasks if task.bounds is not None]
        if len(known) < len(self):
            return None
        low, high = np.mean(known, axis=0).tolist()
        return low, high


def check_level(level: Any) -> None:
    """Check the confidence of an interval.

    Raises:
        UsageError: It is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise UsageError(f"level must be between 0 and 1, such as 0.95, not {level}")


def resampled_counts(suite: SuiteScores, n_resamples: int) -> Iterator[NDArray[np.int64]]:
    """Yield the count of each seed in resamples, (k, S) at a time: the same for the same seeds.

    A resample has as many seeds as the suite, with all their trajectories. Parts of the suite without common seeds are
    resampled separately: if no two tasks share a seed, this is the stratified bootstrap of Agarwal et al. (2021, "Deep
    reinforcement learning at the edge of the statistical precipice").
    """
    rng, left = np.random.default_rng(_SEED), n_resamples
    while left > 0:
        rows = min(left, max(1, _AT_ONCE // max(suite.n_seeds, int(suite.n_trajectories.sum()))))
        counts = np.empty((rows, suite.n_seeds), dtype=np.int64)
        for seeds in suite.parts:
            n = len(seeds)
            drawn = rng.integers(0, n, (rows, n)) + np.arange(rows)[:, np.newaxis] * n
            counts[:, seeds] = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)
        yield counts
        left -= rows
