"""Test the mean difference of two agents over the tasks of a suite, at any number of seeds. Pure.

The means over tasks of each seed form a column of independent pairs, whatever the dependence between the tasks of a
seed. Therefore the test is `sequential.ReturnTest`, within the mean of the tasks' bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from streamsampler.core.errors import UsageError
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.intervals import Bounds, Floats
from streamsampler.evaluation.pairing import pairs_of
from streamsampler.evaluation.rules import PrecisionOf, checked_bounds
from streamsampler.evaluation.sequential import ReturnTest
from streamsampler.evaluation.suites.improvement import TaskPairs
from streamsampler.evaluation.suites.suite_arguments import with_task
from streamsampler.evaluation.suites.suite_evaluation import Scale

RATES: Bounds = (0.0, 1.0)


def bounds_of_scores(bounds: Bounds, scale: Scale | None) -> Bounds:
    """Return the least and the largest possible score, from the bounds of returns."""
    if scale is None:
        return bounds
    low, high = scale
    first, second = sorted((bound - low) / (high - low) for bound in bounds)
    return first, second


def bounds_over_tasks(
    of: PrecisionOf, bounds: Mapping[str, Bounds | None], normalise: Mapping[str, Scale] | None
) -> Bounds:
    """Return the least and the largest possible mean over tasks.

    Raises:
        UsageError: Bounds of returns are given for success rates, or a task's bounds are missing or invalid.
    """
    if of == "success":
        if any(it is not None for it in bounds.values()):
            raise UsageError('bounds are those of returns, and the "success" rate decides')
        return RATES
    if missing := [name for name, it in bounds.items() if it is None]:
        raise UsageError(
            "until_decided needs bounds=(least, largest) of returns, or a dict by tasks: without them no sequential "
            f"test is valid; {missing[0]!r} has none"
        )
    checked = {name: with_task(name, checked_bounds, it) for name, it in bounds.items()}
    scaled = [bounds_of_scores(it, None if normalise is None else normalise[name]) for name, it in checked.items()]
    low, high = np.mean(scaled, axis=0).tolist()
    return low, high


def task_pairs(
    first: Evaluation, second: Evaluation, of: PrecisionOf, scale: Scale | None, n_rows: tuple[int, int]
) -> TaskPairs | None:
    """Return the scores, or successes, of both agents on a task, from the first trajectories of their evaluations.

    Returns:
        None without any pair, or without success flags.
    """
    mine, others = pairs_of(first, second)
    counts = (mine < n_rows[0]) & (others < n_rows[1])
    mine, others = mine[counts], others[counts]
    if not len(mine):
        return None
    seeds = tuple(first.seeds[position] for position in mine)
    if of == "return":
        low, high = (0.0, 1.0) if scale is None else scale
        one, other = ((returns - low) / (high - low) for returns in (first.returns[mine], second.returns[others]))
        return TaskPairs(one, other, seeds)
    if first.successes is None or second.successes is None:
        return None
    return TaskPairs(np.asarray(first.successes[mine], float), np.asarray(second.successes[others], float), seeds)


def mean_pairs(tasks: Sequence[TaskPairs]) -> tuple[Floats, Floats]:
    """Return the means over tasks of both agents, (N,) each, on the common seeds of all tasks; N is 0 without tasks."""
    if not tasks:
        return np.zeros(0), np.zeros(0)
    positions = [{seed: position for position, seed in enumerate(task.seeds)} for task in tasks]
    seeds = [seed for seed in positions[0] if all(seed in other for other in positions)]
    columns = [[position[seed] for seed in seeds] for position in positions]
    each = zip(tasks, columns, strict=True)
    first, second = zip(*((task.first[column], task.second[column]) for task, column in each), strict=True)
    return np.mean(first, axis=0), np.mean(second, axis=0)


def tested(tasks: Sequence[TaskPairs], alpha: float, bounds: Bounds, margin: float | None) -> ReturnTest:
    """Return the test of two agents, with all pairs.

    Raises:
        UsageError: A mean is out of bounds.
    """
    test = ReturnTest(alpha, bounds, margin or 0.0)
    for pair in zip(*(means.tolist() for means in mean_pairs(tasks)), strict=True):
        test.add(*pair)
    return test
