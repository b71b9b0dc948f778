"""Compare what is computed over runs and tasks with rliable's: estimates to 1e-9, bootstraps to their own error.

Run by `.ci/full rliable` in an environment of its own: rliable 1.2 needs pandas below 3 and arch below 8.

    python tests/evaluation/with_rliable.py
"""

import math
from functools import partial
from typing import Any

import numpy as np
from rliable import library, metrics

from streamsampler.evaluation.comparison import probability_of_improvement
from streamsampler.evaluation.intervals import Interval, interquartile_mean
from streamsampler.evaluation.suites.improvement import TaskPairs, suite_improvement
from streamsampler.evaluation.suites.means import suite_mean, suite_mean_interval
from streamsampler.evaluation.suites.middles import (
    Statistic,
    stratified_bootstrap,
    suite_interquartile_mean,
    suite_interquartile_mean_interval,
)
from streamsampler.evaluation.suites.profiles import profile
from streamsampler.evaluation.suites.scores import TaskScores

CLOSE = 1e-9
N_RESAMPLES = 5_000  # rliable's; ours has 2,000
# Of half of an interval: the standard error of a 2.5 % quantile of 2,000 resamples is 3 % of it. Four of them.
NEAR = 0.12
SAMPLES = {
    "normal": lambda rng, n: rng.normal(10, 3, n),
    "exponential": lambda rng, n: rng.exponential(50, n),
    "with ties": lambda rng, n: rng.integers(0, 5, n).astype(float),
    "mostly equal": lambda rng, n: np.where(rng.random(n) < 0.9, 500.0, rng.normal(100, 50, n)),
    "successes": lambda rng, n: (rng.random(n) < 0.7).astype(float),
}
STATISTICS: dict[Statistic, Any] = {"mean": metrics.aggregate_mean, "interquartile mean": metrics.aggregate_iqm}


def close(ours: float, theirs: float) -> bool:
    """Whether two numbers agree, relative to the larger one where that is above 1."""
    return abs(ours - theirs) <= CLOSE * max(1.0, abs(theirs))


def check(what: str, ours: float, theirs: float) -> int:
    """Raise AssertionError if two numbers differ; count them."""
    assert close(ours, float(theirs)), f"{what}: {ours} here, and {theirs} of rliable"
    return 1


def apart(scores: Any) -> list[TaskScores]:
    """Return the tasks of a matrix of runs and tasks, with no seed in common."""
    n = len(scores)
    return [TaskScores(column, tuple(range(task * n, task * n + n))) for task, column in enumerate(scores.T)]


def single_tasks(rng: Any) -> int:
    """Compare estimates of one task."""
    n_compared = 0
    for name, sample in SAMPLES.items():
        for n in (1, 2, 3, 4, 5, 10, 30, 99, 1_000):
            first, second = sample(rng, n), sample(rng, max(1, n - n // 3)) + rng.choice([0.0, 1.0])
            n_compared += check(f"IQM of {n} {name}", interquartile_mean(first), metrics.aggregate_iqm(first[:, None]))
            theirs = metrics.probability_of_improvement(second[:, None], first[:, None])
            n_compared += check(f"probability, {n} {name}", probability_of_improvement(first, second), theirs)
    return n_compared


def suites(rng: Any) -> int:
    """Compare estimates of suites, whether their tasks share seeds or not."""
    n_compared = 0
    for name, sample in SAMPLES.items():
        for n, n_tasks in ((1, 2), (3, 5), (10, 3), (33, 7), (50, 20)):
            first, second = (sample(rng, n * n_tasks).reshape(n, n_tasks) * np.arange(1, n_tasks + 1) for _ in range(2))
            what, seeds = f"{n_tasks} tasks of {n} {name}", tuple(range(n))
            for tasks in (apart(first), [TaskScores(column, seeds) for column in first.T]):
                n_compared += check(f"mean of {what}", suite_mean(tasks), metrics.aggregate_mean(first))
                n_compared += check(f"IQM of {what}", suite_interquartile_mean(tasks), metrics.aggregate_iqm(first))
                thresholds = np.quantile(first, [0, 0.1, 0.5, 0.9, 1])
                theirs = library.score_distributions(first, thresholds)
                for ours, share in zip(profile(tasks, thresholds).shares.tolist(), theirs, strict=True):
                    n_compared += check(f"profile of {what}", ours, share)
            pairs = [TaskPairs(*both, seeds) for both in zip(first.T, second.T, strict=True)]
            theirs = metrics.probability_of_improvement(second, first)
            n_compared += check(f"probability, {what}", suite_improvement(pairs), theirs)
    return n_compared


def near(what: str, ours: Any, low: float, high: float, room: float = NEAR) -> int:
    """Raise AssertionError if an interval's ends are not those of rliable but for what is drawn."""
    assert isinstance(ours, Interval), (what, ours)
    error = max(abs(ours.low - low), abs(ours.high - high)) / ((high - low) / 2)
    assert error <= room, f"{what}: {ours} here, and [{low:.5g}, {high:.5g}] of rliable: {error:.3f}"
    return 1


def bootstraps(rng: Any) -> int:
    """Compare intervals of suites whose tasks have no seed in common."""
    n_compared = 0
    for name in ("normal", "exponential", "with ties"):
        for n, n_tasks in ((8, 5), (10, 20), (30, 5), (50, 4), (100, 3)):
            scores = SAMPLES[name](rng, n * n_tasks).reshape(n, n_tasks) + np.arange(n_tasks)
            for statistic, function in STATISTICS.items():
                of = partial(lambda function, scores: np.array([function(scores)]), function)
                _, found = library.get_interval_estimates({"": scores}, of, reps=N_RESAMPLES)
                low, high = found[""].ravel().tolist()
                what = f"{statistic} of {n_tasks} tasks of {n} {name}"
                n_compared += near(what, stratified_bootstrap(apart(scores), statistic), low, high)
                if n < 30:
                    continue
                # What is printed holds from fewer trajectories on, and is wider for it: by t, and by n - 1 of n.
                printed = suite_mean_interval if statistic == "mean" else suite_interquartile_mean_interval
                room = NEAR + 2.13 / 1.96 * math.sqrt(n / (n - 1)) - 1 + (0.1 if name == "exponential" else 0.0)
                n_compared += near(f"printed {what}", printed(apart(scores)), low, high, room)
    return n_compared


def main() -> None:
    """Raise AssertionError at the first number that differs."""
    rng = np.random.default_rng(1)
    np.random.seed(1)  # rliable draws from the global generator
    print(f"{single_tasks(rng) + suites(rng)} numbers agree with rliable's to {CLOSE}")
    print(f"{bootstraps(rng)} intervals agree with rliable's stratified bootstrap but for what is drawn")


if __name__ == "__main__":
    main()
