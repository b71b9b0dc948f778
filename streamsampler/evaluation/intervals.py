"""Compute confidence intervals of means, rates, medians and interquartile means.

An `Interval` has the name of its method. Which method holds where was simulated; `.ci/prove coverage` does so again:

| what | method | holds |
|---|---|---|
| mean | Student's t | from 10 trajectories on, unless returns are skewed or in two groups |
| mean of skewed returns | studentised bootstrap | from 30 trajectories on |
| interquartile mean, median | percentile bootstrap | from 30 trajectories on |
| rate | Wilson's | from 10 trajectories on |
| mean of bounded returns, rate | betting | always, also where one stops because of it |

Bootstraps draw from a generator of a fixed seed, so that the same data give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.words import count
from streamsampler.evaluation.distributions import normal_quantile, student_quantile

__all__ = [
    "FEWEST",
    "FEWEST_SKEWED",
    "LEVEL",
    "Floats",
    "Interval",
    "Unknown",
    "bootstrap_intervals",
    "in_two_groups",
    "interquartile_mean",
    "is_skewed",
    "mean_interval",
    "n_resamples",
    "resampled_indices",
    "skewness",
    "studentised_interval",
    "t_interval",
    "wilson_interval",
]

Floats: TypeAlias = NDArray[np.float64]

LEVEL = 0.95
FEWEST, FEWEST_SKEWED = 10, 30
_N_RESAMPLES, _FEWEST_RESAMPLES = 2_000, 200
_MOST_DRAWN = 20_000_000  # numbers that one bootstrap draws
_AT_ONCE = 1_000_000
_SEED = 0
_WIDE_GAP = 4.0  # standard deviations within the groups: of 10 normal returns 1 % have such a gap, of 30 0.1 %
_SURE_OF_SKEWNESS = 2.576  # standard errors of the skewness of normal returns
_NEGLIGIBLE_SKEWNESS = 0.01  # its square, divided by n: t then covers 0.3 % less than it says


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    Attributes:
        low: The lower end.
        high: The upper end.
        method: How it was computed, such as "t".
        level: How often such an interval holds the true value.
    """

    low: float
    high: float
    method: str
    level: float = LEVEL

    @property
    def halfwidth(self) -> float:
        """Half of its width."""
        return (self.high - self.low) / 2

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.level:.4g}".lstrip("0") + f" [{self.low:.5g}, {self.high:.5g}]"


@dataclass(frozen=True)
class Unknown:
    """Says why there is no confidence interval.

    Attributes:
        why: The reason.
    """

    why: str


_NOT_FINITE = Unknown("a return is not finite")

# ---------------------------------------------------------------------- means


def mean_interval(values: Floats, level: float = LEVEL) -> Interval | Unknown:
    """Return the interval of a mean that holds for such values, or why none does.

    Student's t; for skewed values the studentised bootstrap.

    Args:
        values: (N,) independent values.
        level: How often the interval is to hold the mean.
    """
    if len(values) < FEWEST:
        return Unknown(f"{count(len(values), 'trajectory')}, fewer than {FEWEST}")
    if not np.isfinite(values).all():
        return _NOT_FINITE
    if len(values) < FEWEST_SKEWED:
        what = "in two groups" if in_two_groups(values) else "skewed" if is_skewed(values) else None
        if what is not None:
            return Unknown(f"returns are {what}, and there are fewer than {FEWEST_SKEWED}")
    elif skewness(values) ** 2 > _NEGLIGIBLE_SKEWNESS * len(values):
        return studentised_interval(values, level)
    return t_interval(values, level)


def t_interval(values: Floats, level: float = LEVEL) -> Interval:
    """Return Student's interval of the mean of at least two values."""
    n = len(values)
    mean = float(values.mean())
    halfwidth = student_quantile((1 + level) / 2, n - 1) * float(values.std(ddof=1)) / math.sqrt(n)
    return Interval(mean - halfwidth, mean + halfwidth, "t", level)


def studentised_interval(values: Floats, level: float = LEVEL) -> Interval:
    """Return the studentised bootstrap's interval of the mean (Efron's bootstrap-t; Hall 1988).

    Where more resamples have one value only than are beyond an end of the interval, Student's.

    Args:
        values: (N,) values, not all equal.
        level: How often the interval is to hold the mean.
    """
    n, mean = len(values), float(values.mean())
    tails = [(1 - level) / 2, (1 + level) / 2]
    errors = []
    for chosen in _resamples(values):
        deviations = chosen.std(axis=1, ddof=1)
        varied = deviations > 0
        errors.append((chosen.mean(axis=1)[varied] - mean) / deviations[varied])
    drawn = np.concatenate(errors)
    if len(drawn) < (1 - tails[0]) * n_resamples(n):  # an end of the interval is among the resamples of one value
        return t_interval(values, level)
    low, high = np.quantile(drawn, tails) * float(values.std(ddof=1))
    return Interval(mean - float(high), mean - float(low), "studentised bootstrap", level)


def skewness(values: Floats) -> float:
    """Return the skewness of a sample, corrected for its size as usual; 0 where all values are equal."""
    n = len(values)
    deviations = values - values.mean()
    variance = float((deviations**2).mean())
    if n < 3 or variance <= (np.finfo(float).eps * float(np.abs(values).max())) ** 2:
        return 0.0
    return math.sqrt(n * (n - 1)) / (n - 2) * float((deviations**3).mean()) / math.pow(variance, 1.5)


def is_skewed(values: Floats) -> bool:
    """Return whether values are more skewed than normal ones are by chance in 1 of 100 cases."""
    n = len(values)
    return n > 2 and abs(skewness(values)) > _SURE_OF_SKEWNESS * math.sqrt(
        6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3))
    )


def in_two_groups(values: Floats) -> bool:
    """Return whether the widest gap between values is much wider than the spread on either side of it."""
    n = len(values)
    ordered = np.sort(values)
    gaps = np.diff(ordered)
    if n < 3 or not gaps.max() > 0:
        return False
    cut = int(gaps.argmax()) + 1
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in (ordered[:cut], ordered[cut:]))
    return bool(gaps.max() > _WIDE_GAP * math.sqrt(squares / (n - 2)))


# ---------------------------------------------------------------------- quantiles of the middle


def interquartile_mean(values: Floats) -> float:
    """Return the mean without the lowest and the highest quarter, as `scipy.stats.trim_mean(values, 0.25)` does."""
    cut = len(values) // 4
    return float(np.sort(values)[cut : len(values) - cut].mean())


def bootstrap_intervals(values: Floats, level: float = LEVEL) -> dict[str, Interval | Unknown]:
    """Return the percentile bootstrap's intervals of the median ("median") and the interquartile mean ("iqm")."""
    n = len(values)
    if n < FEWEST_SKEWED:
        unknown = Unknown(f"{count(n, 'trajectory')}, fewer than {FEWEST_SKEWED}")
        return {"median": unknown, "iqm": unknown}
    if not np.isfinite(values).all():
        return {"median": _NOT_FINITE, "iqm": _NOT_FINITE}
    medians: list[Floats] = []
    iqms: list[Floats] = []
    for chosen in _resamples(values):
        chosen.sort(axis=1)
        medians.append((chosen[:, (n - 1) // 2] + chosen[:, n // 2]) / 2)
        iqms.append(chosen[:, n // 4 : n - n // 4].mean(axis=1))
    tails = [(1 - level) / 2, (1 + level) / 2]
    ends = {"median": np.quantile(np.concatenate(medians), tails), "iqm": np.quantile(np.concatenate(iqms), tails)}
    return {
        name: Interval(float(low), float(high), "percentile bootstrap", level) for name, (low, high) in ends.items()
    }


def _resamples(values: Floats) -> Iterator[Floats]:
    """Yield resamples, (k, N) at a time; the more values there are, the fewer resamples are needed."""
    for chosen in resampled_indices(len(values)):
        yield values[chosen]


def n_resamples(n: int) -> int:
    """Return how many resamples of n values a bootstrap draws."""
    return max(_FEWEST_RESAMPLES, min(_N_RESAMPLES, _MOST_DRAWN // n))


def resampled_indices(n: int) -> Iterator[NDArray[np.int64]]:
    """Yield the positions of resamples of n values, (k, n) at a time: always the same for one n."""
    rng = np.random.default_rng(_SEED)
    left = n_resamples(n)
    while left > 0:
        rows = min(left, max(1, _AT_ONCE // n))
        yield rng.integers(0, n, (rows, n))
        left -= rows


# ---------------------------------------------------------------------- rates


def wilson_interval(n_successes: int, n: int, level: float = LEVEL) -> Interval:
    """Return Wilson's interval of a rate.

    Args:
        n_successes: How many of the trajectories succeeded.
        n: How many there are, at least 1.
        level: How often the interval is to hold the rate.
    """
    z = normal_quantile((1 + level) / 2)
    rate, weight = n_successes / n, z * z / n
    centre = (rate + weight / 2) / (1 + weight)
    halfwidth = z / (1 + weight) * math.sqrt(rate * (1 - rate) / n + weight / (4 * n))
    low = 0.0 if n_successes == 0 else centre - halfwidth
    high = 1.0 if n_successes == n else centre + halfwidth
    return Interval(low, high, "Wilson", level)
