"""Intervals over tasks that share seeds hold in 93 of 100 evaluations that print one: part of the proof `coverage`."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from typing import Any

import numpy as np
from scipy import special

from streamsampler.core.words import count
from streamsampler.evaluation import intervals
from streamsampler.evaluation.intervals import Interval, random_weights, resampled_indices
from streamsampler.evaluation.suites import improvement, means, profiles
from streamsampler.evaluation.suites.holm import holm
from streamsampler.evaluation.suites.improvement import TaskPairs, suite_improvement_interval
from streamsampler.evaluation.suites.means import suite_mean_interval, suite_success_interval, task_interval
from streamsampler.evaluation.suites.middles import suite_interquartile_mean_interval
from streamsampler.evaluation.suites.profiles import profile
from streamsampler.evaluation.suites.scores import TaskScores
from tests.proofs._suite_scores import Shape, SuiteKind, latent, seeds_of

LEAST = 0.93
_ALL_N = (10, 20, 30, 50, 100)
# How many tasks, and their correlation: of more than two tasks at 1, the column is that of two.
_SUITES = ((2, 0.0), (2, 0.5), (2, 1.0), (5, 0.0), (5, 0.5), (20, 0.0), (20, 0.5))
_FEWER_SUITES = ((2, 1.0), (5, 0.5), (20, 0.5))
_TWO_VALUES = ("0.5", "0.9", "0.98")
_SHAPES: tuple[Shape, ...] = ("same", "nested", "apart")
_UNEQUAL: tuple[Shape, ...] = ("nested", "partly", "apart", "holes")
# A rare failure beside returns that vary, of the same scale and of a larger one; very different scales.
_MIXED: tuple[tuple[tuple[str, float], ...], ...] = (
    (("0.98", 1.0), ("normal", 1.0)),
    (("0.98", 100.0), ("normal", 1.0)),
    (("exponential", 1.0), ("normal", 10.0)),
)
_RATES = (*(((name, 1.0),) for name in _TWO_VALUES), (("0.5", 1.0), ("0.98", 1.0)))
_PAIRS_OF_RATES = ((0.5, 0.5), (0.9, 0.9), (0.98, 0.98), (0.9, 0.7))
_IN_SHORT = 7  # the short form has every seventh kind
_THRESHOLDS = np.array([-1.0, 0.5, 2.0, 4.0, 6.0, 9.0])


def kinds() -> Iterator[SuiteKind]:
    """Yield all kinds of suites whose intervals are tried."""
    for name, (tasks, r), n in itertools.product((*_TWO_VALUES, "exponential", "normal"), _SUITES, _ALL_N):
        yield SuiteKind("mean", ((name, 1.0),), tasks, r, n)
    for shape, name, (tasks, r), n in itertools.product(
        _UNEQUAL, (*_TWO_VALUES, "exponential"), _FEWER_SUITES, (10, 30)
    ):
        yield SuiteKind("mean", ((name, 1.0),), tasks, r, n, shape)
    for scores, (tasks, r), n in itertools.product(_MIXED, ((2, 0.0), (20, 0.5)), (10, 30, 100)):
        yield SuiteKind("mean", scores, tasks, r, n)
    for scores, (tasks, r), n in itertools.product(_RATES, (*_FEWER_SUITES, (20, 0.0)), (5, 10, 50)):
        yield SuiteKind("rate", scores, tasks, r, n)
        if n == 10:
            yield SuiteKind("rate", scores, tasks, r, n, "nested")
    yield from _middles()
    for name, (tasks, r), n in itertools.product(("normal", "exponential"), _FEWER_SUITES, (10, 50)):
        yield SuiteKind("profile", ((name, 1.0),), tasks, r, n)
        yield SuiteKind("profile", ((name, 1.0),), tasks, r, n, "nested")


def _middles() -> Iterator[SuiteKind]:
    for name, (tasks, r), n in itertools.product(("normal", "exponential", "0.5", "0.9"), _SUITES, (30, 50, 100)):
        if tasks * n <= 600:  # a minute each in the long form, with more
            yield SuiteKind("interquartile mean", ((name, 1.0),), tasks, r, n)
    for shape, (tasks, r), n in itertools.product(_SHAPES, ((2, 0.0), (2, 1.0), (20, 0.5)), (30, 50)):
        if tasks * n <= 600:
            yield SuiteKind("interquartile mean", _MIXED[2], tasks, r, n, shape)


def remember_draws() -> None:
    """Draw random weights and resamples of a number of seeds once: they are the same ones each time."""
    weights = lru_cache(maxsize=2)(lambda counts: list(random_weights(np.array(counts))))
    indices = lru_cache(maxsize=2)(lambda n: list(resampled_indices(n)))
    for module in (means, improvement, profiles):
        module.random_weights = lambda counts: weights(tuple(counts.tolist()))  # type: ignore[attr-defined]
    intervals.resampled_indices = indices  # type: ignore[assignment]


def held(kind: SuiteKind, n_evaluations: int) -> tuple[str, int, int]:
    """Return a kind's name, how many intervals held the true value, and how many there were."""
    remember_draws()
    rng = np.random.default_rng([len(str(kind)), *str(kind).encode()])
    n_held = n_found = 0
    for _ in range(n_evaluations):
        for holds in _tried(kind, rng):
            n_held, n_found = n_held + holds, n_found + 1
    return str(kind), n_held, n_found


def _tried(kind: SuiteKind, rng: np.random.Generator) -> list[bool]:
    """Return whether each interval of an evaluation that is printed holds."""
    tasks = kind.draw(rng)
    if kind.of == "profile":
        band = profile(tasks, _THRESHOLDS)
        true = np.array([kind.share_above(threshold) for threshold in _THRESHOLDS])
        return list((band.low <= true) & (true <= band.high))
    found: Any = {
        "mean": suite_mean_interval,
        "rate": suite_success_interval,
        "interquartile mean": suite_interquartile_mean_interval,
    }[kind.of](tasks)
    true_value = kind.interquartile_mean if kind.of == "interquartile mean" else kind.mean
    # An interquartile mean at a bound is a sum that may be rounded.
    return [found.low - 1e-9 <= true_value <= found.high + 1e-9] if isinstance(found, Interval) else []


def improved(n_tasks: int, n: int, n_evaluations: int) -> tuple[str, int, int]:
    """Return how often intervals of the probability of improvement of equal agents hold, and how many there were."""
    remember_draws()
    n_held = 0
    for number in range(n_evaluations):
        rng = np.random.default_rng([n_tasks, n, number])
        seed, first, second = (latent(rng, n_tasks, n, 0.5) for _ in range(3))
        pairs = [TaskPairs(a, b, tuple(range(n))) for a, b in zip(seed + first, seed + second, strict=True)]
        interval: Any = suite_improvement_interval(pairs)
        n_held += 0.5 in interval
    return f"improvement of {n_tasks} tasks, {n} pairs", n_held, n_evaluations


def differences_of_rates(
    rates: tuple[float, float], n_tasks: int, correlation: float, n: int, shape: Shape, n_evaluations: int
) -> tuple[str, int, int]:
    """Return how often intervals of the difference of two agents' success rates hold, and how many there were.

    The seed decides in a part of each trajectory, of both agents and all tasks.
    """
    remember_draws()
    n_held = n_found = 0
    seeds = seeds_of(shape, n_tasks, n)
    for number in range(n_evaluations):
        rng = np.random.default_rng([n_tasks, n, number, *(int(100 * it) for it in (*rates, correlation))])
        n_seeds = max(map(max, seeds)) + 1
        shared = rng.normal(size=n_seeds)
        first, second = (
            (special.ndtr((shared + latent(rng, n_tasks, n_seeds, correlation)) / np.sqrt(2)) < rate).astype(float)
            for rate in rates
        )
        tasks = [TaskScores((second - first)[task, list(it)], it, (-1.0, 1.0)) for task, it in enumerate(seeds)]
        interval = suite_mean_interval(tasks, of="difference")
        if isinstance(interval, Interval):
            n_found += 1
            n_held += interval.low - 1e-9 <= rates[1] - rates[0] <= interval.high + 1e-9
    what = f"difference of success rates {rates[0]:g} and {rates[1]:g} of {count(n_tasks, 'task')}"
    return f"{what}, {n} pairs, correlation {correlation:g}, seeds {shape}", n_held, n_found


def _differences_of_rates() -> Iterator[tuple[tuple[float, float], int, float, int, Shape]]:
    """Yield rates of two agents, numbers of tasks, their correlation, numbers of pairs, and the seeds of tasks."""
    for rates, (tasks, r), n in itertools.product(_PAIRS_OF_RATES, ((2, 0.0), (5, 0.5), (20, 0.0)), (5, 10, 20, 50)):
        yield rates, tasks, r, n, "same"
        if n == 10:
            yield rates, tasks, r, n, "nested"


def none_called_sure(n_tasks: int, n: int, n_evaluations: int) -> tuple[str, int, int]:
    """Return how often Holm's method calls no task of equal agents sure, and how often it was tried."""
    remember_draws()
    n_right, seeds = 0, tuple(range(n))
    for number in range(n_evaluations):
        rng = np.random.default_rng([n, n_tasks, number])
        seed, first, second = (latent(rng, n_tasks, n, 0.5) for _ in range(3))
        differences = [TaskScores(column, seeds) for column in np.exp(seed + second) - np.exp(seed + first)]
        n_right += all(it.sure is None for it in holm([partial(task_interval, task) for task in differences]))
    return f"none of {n_tasks} tasks of equal agents is sure, {n} pairs", n_right, n_evaluations


def in_processes(jobs: Sequence[Callable[[], Any]]) -> Iterator[Any]:
    """Yield what jobs return, in their order."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=os.cpu_count(), mp_context=context) as pool:
        yield from pool.map(_run, jobs)


def _run(job: Callable[[], Any]) -> Any:
    return job()


def room(n: int) -> float:
    """Return by how much a share of few may miss what it should be: three standard errors."""
    return 3 * math.sqrt(0.05 * 0.95 / max(1, n))


def prove_suites(scale: str) -> None:
    """Try intervals of all kinds of suites."""
    is_long = scale == "long"
    n = 2_000 if is_long else 200
    jobs: list[Callable[[], tuple[str, int, int]]] = [partial(held, kind, n) for kind in kinds()]
    jobs += [partial(differences_of_rates, *kind, n) for kind in _differences_of_rates()]
    if not is_long:
        jobs = jobs[::_IN_SHORT]
    jobs += [partial(improved, *size, n // 10) for size in itertools.product((2, 20), (10, 50))]
    jobs += [partial(none_called_sure, *size, n // 2) for size in itertools.product((5, 20), (20, 50))]
    wrong = []
    for name, n_held, n_found in in_processes(jobs):
        share = n_held / n_found if n_found else math.nan
        print(f"{name}: {100 * share:.1f} % of {n_found:,}, should be {100 * LEAST:g} % or more", flush=True)
        if share < LEAST - (0.0 if n_found >= 1_000 else room(n_found)):
            wrong.append(name)
    assert wrong == []
