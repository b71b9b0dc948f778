"""A comparison on a suite that goes on until it is decided errs as seldom as it says: part of the proof `gate`.

Tasks are correlated by their seeds, and agents as well. Rounds are those of `compare`, up to the most trajectories.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
from scipy import special

from streamsampler.core.words import count
from streamsampler.evaluation.sequential import ReturnTest
from streamsampler.evaluation.suites.improvement import TaskPairs
from streamsampler.evaluation.suites.sequential_suite import bounds_over_tasks, mean_pairs
from streamsampler.evaluation.suites.suite_rounds import next_round
from tests.proofs._suite_coverage import in_processes, room
from tests.proofs._suite_scores import latent

_ERROR, _MOST = 0.05, 300
_SUITES = ((1, 0.0), (2, 0.9), (5, 0.5), (20, 0.5), (20, 0.0))
_MARGINS = (0.0, 0.2)
_KINDS = ("returns", "skewed returns", "successes", "scores of unequal scales")


def _returns(kind: str, shared: Any, own: Any, loss: float) -> Any:
    """Return the returns of an agent, (T, N) between 0 and 1, from normal variables."""
    uniform = special.ndtr((shared + own) / np.sqrt(2))
    if kind == "successes":
        return (uniform < 0.7 - loss).astype(float)
    if kind == "skewed returns":
        return 0.2 + 0.8 * uniform**8 - loss
    return 0.2 + 0.8 * uniform - loss


def stopped(kind: str, n_tasks: int, correlation: float, margin: float, loss: float, number: int) -> tuple[str, int]:
    """Return the verdict of a comparison, and the round after which it stopped.

    Args:
        kind: The kind of returns.
        n_tasks: How many tasks there are.
        correlation: That of the tasks.
        margin: See `compare`.
        loss: By how much the second agent is worse in each task.
        number: What the returns are drawn from.
    """
    rng = np.random.default_rng([n_tasks, int(100 * margin), int(100 * loss), number, len(kind)])
    shared, first, second = (latent(rng, n_tasks, _MOST, correlation) for _ in range(3))
    one, other = _returns(kind, shared, first, 0.0), _returns(kind, shared, second, loss)
    seeds = tuple(range(_MOST))
    names = [str(task) for task in range(n_tasks)]
    scales = None
    if kind == "scores of unequal scales":  # a return of r has the score r / scale
        scales = {name: (0.0, 1.0 + position) for position, name in enumerate(names)}
        factors = np.array([[scale[1]] for scale in scales.values()])
        one, other = one * factors, other * factors
    of: Any = "success" if kind == "successes" else "return"
    highs = [1.0 if scales is None else scales[name][1] for name in names]
    limits = {name: None if of == "success" else (-high, high) for name, high in zip(names, highs, strict=True)}
    test = ReturnTest(0.05, bounds_over_tasks(of, limits, scales), margin)
    divisors = np.array([[high] for high in highs])
    tasks = [TaskPairs(a, b, seeds) for a, b in zip(one / divisors, other / divisors, strict=True)]
    pairs = list(zip(*(means.tolist() for means in mean_pairs(tasks)), strict=True))
    n = 0
    while test.outcome == "undecided" and n < _MOST:
        before, n = n, next_round(n, _MOST)
        for pair in pairs[before:n]:
            test.add(*pair)
    return test.outcome, n


def errors(
    kind: str, n_tasks: int, correlation: float, margin: float, n_comparisons: int
) -> tuple[str, int, int, float]:
    """Return what was compared, how often equal agents were called worse, and worse ones not worse; and the mean n."""
    numbers = range(n_comparisons)
    equal = [stopped(kind, n_tasks, correlation, margin, 0.0, number) for number in numbers]
    worse = [stopped(kind, n_tasks, correlation, margin, 2 * margin, number) for number in numbers]
    wrong = sum(outcome == "worse" for outcome, _ in equal), sum(outcome == "not worse" for outcome, _ in worse)
    mean = float(np.mean([n for _, n in worse]))
    what = f"{count(n_tasks, 'task')} ({kind}), correlation {correlation:g}, margin {margin:g}"
    return f"stopped when sure, {what}", *wrong, mean


def prove_stops(scale: str) -> None:
    """Try how often comparisons err that stop when they are sure."""
    is_long = scale == "long"
    n = 2_000 if is_long else 40
    wrong = []
    cells = [(kind, *suite, margin) for kind, suite, margin in itertools.product(_KINDS, _SUITES, _MARGINS)]
    jobs = [partial(errors, *cell, n) for cell in (cells if is_long else cells[::7])]
    for name, called_worse, accepted, mean in in_processes(jobs):
        print(
            f"{name}: {100 * called_worse / n:.1f} % of equal agents called worse, {100 * accepted / n:.1f} % of worse "
            f"ones accepted, should be at most {100 * _ERROR:g} %; worse ones took {mean:.0f} pairs",
            flush=True,
        )
        if max(called_worse, accepted) / n > _ERROR + (0.0 if is_long else room(n)):
            wrong.append(name)
    assert wrong == []
