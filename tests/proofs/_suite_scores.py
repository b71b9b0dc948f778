"""Scores of tasks that share seeds, with a true mean that is known: what `_suite_coverage` and `_suite_gate` draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy import special, stats

from streamsampler.evaluation.suites.scores import TaskScores

Shape: TypeAlias = Literal["same", "nested", "partly", "apart", "holes"]
"""Which seeds tasks have; see `seeds_of`."""


def _below(rate: float, z: Any) -> Any:
    return (special.ndtr(z) < rate).astype(float)


# Of a standard normal variable: scores, and their mean.
DISTRIBUTIONS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "normal": (lambda z: 5 + 2 * z, 5.0),
    "exponential": (lambda z: -3 * np.log(special.ndtr(-z)), 3.0),
    **{f"{rate:g}": (partial(_below, rate), rate) for rate in (0.5, 0.9, 0.98)},
}


def latent(rng: np.random.Generator, n_tasks: int, n_seeds: int, correlation: float) -> Any:
    """Return standard normal variables, (T, S), whose tasks correlate on each seed."""
    shared, own = rng.normal(size=n_seeds), rng.normal(size=(n_tasks, n_seeds))
    return np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own


@cache
def seeds_of(shape: Shape, n_tasks: int, n: int) -> tuple[tuple[int, ...], ...]:
    """Return the seeds of each task.

    Args:
        shape: "same": all the same n; "nested": every other task has 2 n; "partly": half of a task's seeds are the next
            task's; "apart": none is shared; "holes": each task lacks other ones.
        n_tasks: How many tasks there are.
        n: How many trajectories a task has at least.
    """
    drawn, most = np.random.default_rng(n_tasks * n), n + max(1, n // 10)
    return tuple(
        {
            "same": tuple(range(n)),
            "nested": tuple(range(n * (1 + task % 2))),
            "partly": tuple(range(task * (n // 2), task * (n // 2) + n)),
            "apart": tuple(range(task * n, task * n + n)),
            "holes": tuple(sorted(drawn.permutation(most)[:n].tolist())),
        }[shape]
        for task in range(n_tasks)
    )


@dataclass(frozen=True)
class SuiteKind:
    """A kind of suite to draw.

    Attributes:
        of: What is estimated: "mean", "rate", "interquartile mean", "profile".
        scores: The distributions that tasks have in turn, each with its scale.
        n_tasks: How many tasks there are.
        correlation: That of the variables behind the scores of two tasks on one seed.
        n: How many trajectories a task has at least.
        shape: Which seeds tasks have.
    """

    of: str
    scores: tuple[tuple[str, float], ...]
    n_tasks: int
    correlation: float
    n: int
    shape: Shape = "same"

    def __str__(self) -> str:
        scores = " and ".join(name if scale == 1 else f"{scale:g} x {name}" for name, scale in self.scores)
        tasks = f"{self.n_tasks} tasks ({scores}), {self.n} trajectories, correlation {self.correlation:g}"
        return f"{self.of} of {tasks}, seeds {self.shape}"

    def distribution(self, task: int) -> tuple[Callable[[Any], Any], float, float]:
        """Return the scores of a task as a function of normal variables, their mean, and their scale."""
        name, scale = self.scores[task % len(self.scores)]
        return (*DISTRIBUTIONS[name], scale)

    def draw(self, rng: np.random.Generator) -> list[TaskScores]:
        """Return the scores of an evaluation."""
        seeds = seeds_of(self.shape, self.n_tasks, self.n)
        variables = latent(rng, self.n_tasks, max(map(max, seeds)) + 1, self.correlation)
        tasks = []
        for number, of_task in enumerate(seeds):
            values, _, scale = self.distribution(number)
            tasks.append(TaskScores(scale * values(variables[number, list(of_task)]), of_task))
        return tasks

    @property
    def mean(self) -> float:
        """The true mean of the tasks' means."""
        return float(np.mean([mean * scale for _, mean, scale in map(self.distribution, range(self.n_tasks))]))

    @property
    def interquartile_mean(self) -> float:
        """The interquartile mean of the mixture of the tasks' distributions."""
        return _interquartile_mean(self.scores)

    def share_above(self, threshold: float) -> float:
        """Return the true share of runs above a threshold."""
        return _share_above(self.scores, threshold)


@cache
def _population(scores: tuple[tuple[str, float], ...]) -> Any:
    variables = special.ndtri((np.arange(400_000) + 0.5) / 400_000)
    return np.sort(np.concatenate([scale * DISTRIBUTIONS[name][0](variables) for name, scale in scores]))


@cache
def _interquartile_mean(scores: tuple[tuple[str, float], ...]) -> float:
    return float(stats.trim_mean(_population(scores), 0.25))


def _share_above(scores: tuple[tuple[str, float], ...], threshold: float) -> float:
    population = _population(scores)
    return 1 - float(np.searchsorted(population, threshold, side="right")) / len(population)
