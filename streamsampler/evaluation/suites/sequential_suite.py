"""Test the mean difference of two agents over the tasks of a suite, whenever one looks at it. Pure.

The means over tasks on each seed are a column of independent pairs, however the tasks of a seed depend on one another.
So the test is `sequential.ReturnTest`, within the mean of the tasks' bounds.
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
    """Return the least and the largest score there can be, from the bounds of returns."""
    if scale is None:
        return bounds
    low, high = scale
    first, second = sorted((bound - low) / (high - low) for bound in bounds)
    return first, second


def bounds_over_tasks(
    of: PrecisionOf, bounds: Mapping[str, Bounds | None], normalise: Mapping[str, Scale] | None
) -> Bounds:
    """Return the least and the largest mean over tasks there can be.

    Args:
        of: What the means are of: "return" or "success".
        bounds: The bounds of returns of each task; None where they are not known.
        normalise: The returns that become the scores 0 and 1, by task; None for returns as they are.

    Raises:
        UsageError: Bounds of returns are given for success rates, or the bounds of a task are missing or cannot be.
    """
    if of == "success":
        if any(it is not None for it in bounds.values()):
            raise UsageError('bounds are those of returns, and the "success" rate decides')
        return RATES
    if missing := [name for name, it in bounds.items() if it is None]:
        raise UsageError(
            "until_decided needs bounds=(least, largest) of returns, or a dict with those of each task: without, no "
            f"test holds whenever one stops; {missing[0]!r} has none"
        )
    checked = {name: with_task(name, checked_bounds, it) for name, it in bounds.items()}
    scaled = [bounds_of_scores(it, None if normalise is None else normalise[name]) for name, it in checked.items()]
    low, high = np.mean(scaled, axis=0).tolist()
    return low, high


def task_pairs(
    first: Evaluation, second: Evaluation, of: PrecisionOf, scale: Scale | None, n_rows: tuple[int, int]
) -> TaskPairs | None:
    """Return the scores, or successes, of both agents on a task, from the first trajectories of their evaluations.

    Args:
        first: The first agent's evaluation.
        second: The second agent's.
        of: "return" or "success".
        scale: The returns that become the scores 0 and 1; None for returns as they are.
        n_rows: How many trajectories of each evaluation count.

    Returns:
        None where there is no pair, or no info says whether trajectories succeeded.
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
    """Return the means over tasks of both agents, (N,) each, on the seeds that all tasks have; N is 0 without tasks."""
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

    Args:
        tasks: The scores, or successes, of both agents on each task.
        alpha: How often it may decide wrongly.
        bounds: The least and the largest mean over tasks there can be.
        margin: By how much the second agent may be worse and still count as not worse; None for 0.

    Raises:
        UsageError: A mean is outside of the bounds.
    """
    test = ReturnTest(alpha, bounds, margin or 0.0)
    for pair in zip(*(means.tolist() for means in mean_pairs(tasks)), strict=True):
        test.add(*pair)
    return test
