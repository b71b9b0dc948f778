"""Lay out the scores of tasks by their seeds: trajectories of one seed depend on one another, other ones do not."""

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
_AT_ONCE = 1_000_000  # numbers that are drawn at once


@dataclass(frozen=True, eq=False)
class TaskScores:
    """The scores of one task's trajectories.

    Attributes:
        values: (N,) float64: returns, perhaps normalised; successes as 0 and 1; or differences of pairs.
        seeds: N seeds, each once. Scores of two tasks with the same seed may depend on one another. Where a seed may
            be repeated, as in scenarios of different options, the trajectories' indices stand for it.
        bounds: The least and the largest score there can be; None where they are not known.
        rounding: How much equal scores may differ; None for what sums of rewards differ by.

    Raises:
        UsageError: There is no score, not one seed for each score, a seed twice, or a score outside of the bounds.
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
            raise UsageError(f"seed {twice} stands twice in a task's seeds: pass the indices of trajectories instead")
        if self.bounds is not None:
            self._check_bounds(self.bounds)

    def _check_bounds(self, bounds: Bounds) -> None:
        low, high = bounds
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise UsageError(f"bounds must be (least, largest), two finite numbers that rise, got ({low:g}, {high:g})")
        room = rounding_of(np.array(bounds))
        outside = self.values[~((self.values >= low - room) & (self.values <= high + room))]
        if len(outside):
            raise UsageError(f"bounds are ({low:g}, {high:g}), and there is a score of {outside[0]:g}")

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def counted(self) -> tuple[Floats, NDArray[np.int64]]:
        """The different scores, in order, and how many there are of each; see `intervals.counted`."""
        return counted(self.values, self.rounding or 0.0)

    @property
    def usual(self) -> float | None:
        """The score that more than half of the trajectories have; None where there is none."""
        found, counts = self.counted
        return float(found[counts.argmax()]) if 2 * counts.max() > len(self) else None

    @property
    def is_constant(self) -> bool:
        """Whether all scores are equal."""
        return len(self.counted[0]) == 1


class SuiteScores:
    """The scores of T tasks by their S seeds.

    Args:
        tasks: The scores of each task.

    Attributes:
        tasks: The scores of each task.
        n_trajectories: (T,) int64: the number of trajectories of each task.
        has: (T, S) bool: whether a task has a trajectory of a seed.
        values: (T, S) float64: the score of a task on a seed; 0 where it has none.

    Raises:
        UsageError: There is no task.
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
        """The number of different seeds."""
        return self.has.shape[1]

    @property
    def fewest(self) -> int:
        """The number of trajectories of the task that has the fewest."""
        return int(self.n_trajectories.min())

    @property
    def is_complete(self) -> bool:
        """Whether all tasks have the same seeds."""
        return bool(self.has.all())

    @property
    def is_finite(self) -> bool:
        """Whether all scores are finite."""
        return bool(np.isfinite(self.values).all())

    @property
    def rounding(self) -> float:
        """How much equal scores may differ."""
        return max(task.rounding or 0.0 for task in self.tasks)

    @cached_property
    def mean(self) -> float:
        """The mean of the tasks' means."""
        return float(np.mean([task.values.mean() for task in self.tasks]))

    @cached_property
    def parts(self) -> tuple[NDArray[np.int64], ...]:
        """The positions of the seeds of each part of the suite; tasks of two parts have no seed in common."""
        part_of = np.arange(self.n_seeds)
        for has in self.has:
            joined = np.isin(part_of, part_of[has])
            part_of[joined] = part_of[has].min()
        return tuple(np.flatnonzero(part_of == part) for part in np.unique(part_of))

    @cached_property
    def bounds(self) -> Bounds | None:
        """The least and the largest mean there can be; None where the bounds of a task are not known."""
        known = [task.bounds for task in self.tasks if task.bounds is not None]
        if len(known) < len(self):
            return None
        low, high = np.mean(known, axis=0).tolist()
        return low, high


def check_level(level: Any) -> None:
    """Check how often an interval is to hold.

    Raises:
        UsageError: It is no share.
    """
    if not 0 < level < 1:
        raise UsageError(f"level must be between 0 and 1, such as 0.95, not {level}")


def resampled_counts(suite: SuiteScores, n_resamples: int) -> Iterator[NDArray[np.int64]]:
    """Yield how often each seed is in a resample, (k, S) at a time: always the same for one suite's seeds.

    A resample has as many seeds as the suite, and all trajectories of each. In parts of the suite that have no seed in
    common, seeds are drawn apart: where no two tasks share one, as in the stratified bootstrap of Agarwal et al. (2021,
    "Deep reinforcement learning at the edge of the statistical precipice").
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
