"""Decide which tasks of a suite need more trajectories, until its mean is precise enough. Pure.

The variance of the mean over T tasks is the sum over all pairs of tasks of their covariance, divided by the larger of
their two numbers of trajectories, and by T squared: trajectory i has the same seed in each task, so that two tasks have
as many common seeds as the smaller has trajectories. The next trajectories go to the task in which they reduce this
variance most, as in Neyman's allocation (1934) for tasks without common seeds.

Trajectories are added in rounds of at most a quarter of the earlier trajectories, because the covariances are
estimates. A round depends on the trajectories of earlier rounds, and on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streamsampler.core.words import count
from streamsampler.evaluation.evaluation import number
from streamsampler.evaluation.intervals import LEVEL, Floats, Interval, Unknown, unseen_share
from streamsampler.evaluation.quantiles import normal_quantile
from streamsampler.evaluation.rules import ENOUGH_UNSEEN
from streamsampler.evaluation.suites.means import suite_mean_interval
from streamsampler.evaluation.suites.scores import TaskScores

_ROUND = 0.25
"""The trajectories of a round, as a share of the earlier trajectories."""


@dataclass(frozen=True)
class SuitePrecision:
    """The requested precision of a suite's mean.

    Attributes:
        halfwidth: Largest half-width of its interval.
        fewest: The fewest trajectories of a task.
        most: The most trajectories of a task.
        of: Quantity of the mean: "return" or "success".
    """

    halfwidth: float
    fewest: int
    most: int
    of: str = "return"

    def more(self, tasks: Mapping[str, TaskScores]) -> dict[str, int]:
        """Return the number of new trajectories of each task in the next round; empty if there are enough."""
        room = {name: self.most - len(it.values) for name, it in tasks.items()}
        if not any(left > 0 for left in room.values()):
            return {}
        interval = suite_mean_interval(list(tasks.values()), of=self.of)
        if isinstance(interval, Interval) and interval.halfwidth <= self.halfwidth:
            return {}
        covariances = covariance_of(list(tasks.values()))
        if not covariances.any():
            return self._more_of_equal(tasks, room)
        added = self._added(covariances, np.array([len(it.values) for it in tasks.values()]), [*room.values()])
        return {name: n for name, n in zip(tasks, added, strict=True) if n}

    def _more_of_equal(self, tasks: Mapping[str, TaskScores], room: Mapping[str, int]) -> dict[str, int]:
        """Return the next round if all values of each task are equal: until few trajectories may have another value."""
        wanted = math.ceil(math.log(1 - LEVEL) / math.log(1 - ENOUGH_UNSEEN))
        grown = {name: math.ceil(_ROUND * len(it.values)) for name, it in tasks.items()}
        lacking = {name: min(grown[name], room[name], wanted - len(it.values)) for name, it in tasks.items()}
        return {name: n for name, n in lacking.items() if n > 0}

    def _added(self, covariances: Floats, numbers: Floats, room: Sequence[int]) -> list[int]:
        """Return the number of new trajectories of each task, added in turn where they reduce the variance most."""
        n_tasks, z = len(numbers), normal_quantile((1 + LEVEL) / 2)
        left = np.array(room)
        before = numbers.copy()
        numbers = numbers.astype(np.float64)
        for _ in range(math.ceil(_ROUND * int(before.sum()))):
            largest = np.maximum.outer(numbers, numbers)
            error = z * math.sqrt(max(0.0, float((covariances / largest).sum()))) / n_tasks
            if (error <= self.halfwidth and (numbers > before).any()) or not (left > 0).any():
                break
            # An additional trajectory of a task changes its pairs with tasks of at most as many trajectories.
            reached = numbers[None, :] <= numbers[:, None]
            doubled = np.where(np.eye(n_tasks, dtype=bool), covariances, 2 * covariances)
            gains = (doubled * reached).sum(axis=1) * (1 / numbers - 1 / (numbers + 1))
            best = int(np.where(left > 0, gains, -np.inf).argmax())
            numbers[best] += 1
            left[best] -= 1
        return [int(n) for n in numbers - before]

    def reason(self, tasks: Mapping[str, TaskScores]) -> str:
        """Return the reason for the end of the trajectories, in words."""
        what = "mean" if self.of == "return" else "success rate"
        interval = suite_mean_interval(list(tasks.values()), of=self.of)
        n = min(len(it.values) for it in tasks.values())
        is_most = all(len(it.values) >= self.most for it in tasks.values())
        most = f"there were {count(self.most, 'trajectory')} of each task, the most; " if is_most else ""
        if isinstance(interval, Unknown):
            share = f", and at most {100 * unseen_share(n):.3g} % of a task's trajectories may have another value"
            return f"{most}no interval of the {what} holds: {interval.why}{'' if most else share}"
        shown = f"{number(interval.halfwidth)}, "
        if interval.halfwidth <= self.halfwidth:
            return f"the half-width of the {what}'s interval, {shown}is at most {number(self.halfwidth)}"
        return f"{most}the half-width of the {what}'s interval is {shown}not {number(self.halfwidth)}"


def covariance_of(tasks: Sequence[TaskScores]) -> Floats:
    """Return the covariances of tasks, from the common seeds of each pair of tasks.

    Returns:
        (T, T) float64; 0 for two tasks with fewer than two common seeds, and for values that are not finite.
    """
    columns = [dict(zip(it.seeds, it.values.tolist(), strict=True)) for it in tasks]
    found = np.zeros((len(tasks), len(tasks)))
    for first in range(len(tasks)):
        for second in range(first + 1):
            common = [seed for seed in columns[first] if seed in columns[second]]
            if len(common) < 2:
                continue
            one, other = (np.array([columns[task][seed] for seed in common]) for task in (first, second))
            with np.errstate(invalid="ignore"):
                covariance = float(((one - one.mean()) * (other - other.mean())).sum()) / (len(common) - 1)
            found[first, second] = found[second, first] = covariance if math.isfinite(covariance) else 0.0
    return found
