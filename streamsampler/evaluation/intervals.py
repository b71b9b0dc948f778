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
from functools import lru_cache
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.words import count

# ----------------------------------------------------------------------
# Compute quantiles of the normal distribution and of Student's t, and the logarithm of the beta function.
#
# SciPy has all of these; a package that samples should not need it. Tests compare them with SciPy's to 1e-9.


_NORMAL = NormalDist()
_CLOSE_ENOUGH = 1e-15
_SMALLEST = 1e-300
_MANY = 5_000  # degrees of freedom


def normal_quantile(probability: float) -> float:
    """Return the quantile of the standard normal distribution."""
    return _NORMAL.inv_cdf(probability)


def log_beta(a: float, b: float) -> float:
    """Return the logarithm of the beta function."""
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def student_tail(t: float, df: int) -> float:
    """Return the probability that Student's t with `df` degrees of freedom is above `t`, which is at least 0."""
    # Of the two incomplete beta functions that say the same, the one whose argument does not cancel near 1.
    if t * t < df:
        return 0.5 - 0.5 * _incomplete_beta(0.5, df / 2, t * t / (df + t * t))
    return 0.5 * _incomplete_beta(df / 2, 0.5, df / (df + t * t))


@lru_cache(maxsize=1024)
def student_quantile(probability: float, df: int) -> float:
    """Return the quantile of Student's t.

    Newton's method on the upper tail, which is convex: from the normal quantile, which is smaller, it rises to the
    quantile and never passes it. With thousands of degrees of freedom, where gamma functions cancel, the expansion
    of Cornish and Fisher (Abramowitz and Stegun 26.7.5).

    Args:
        probability: Between 0 and 1.
        df: The degrees of freedom, at least 1.
    """
    if probability < 0.5:
        return -student_quantile(1 - probability, df)
    if df >= _MANY:
        return _expanded(normal_quantile(probability), df)
    log_scale = -log_beta(df / 2, 0.5) - 0.5 * math.log(df)
    t, wanted = normal_quantile(probability), 1 - probability
    for _ in range(200):
        density = math.exp(log_scale - (df + 1) / 2 * math.log1p(t * t / df))
        step = (student_tail(t, df) - wanted) / density
        t += step
        if abs(step) <= 1e-14 * max(1.0, abs(t)):
            break
    return t


def _expanded(z: float, df: int) -> float:
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum([z, *(term / math.pow(df, power) for power, term in enumerate(terms, start=1))])


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function, by Lentz's method on its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # there the fraction of the other tail converges, and this one's does not
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta(a, b)) / a
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 1000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _not_zero(1 + numerator * d)
            c = _not_zero(1 + numerator / c)
            fraction *= d * c
        if abs(d * c - 1) < _CLOSE_ENOUGH:
            break
    return front * fraction


def _not_zero(value: float) -> float:
    return value if abs(value) > _SMALLEST else _SMALLEST


# ----------------------------------------------------------------------


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
    for indices in resampled_indices(n):
        chosen = values[indices]
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
    for indices in resampled_indices(n):
        chosen = np.sort(values[indices], axis=1)
        medians.append((chosen[:, (n - 1) // 2] + chosen[:, n // 2]) / 2)
        iqms.append(chosen[:, n // 4 : n - n // 4].mean(axis=1))
    tails = [(1 - level) / 2, (1 + level) / 2]
    ends = {"median": np.quantile(np.concatenate(medians), tails), "iqm": np.quantile(np.concatenate(iqms), tails)}
    return {
        name: Interval(float(low), float(high), "percentile bootstrap", level) for name, (low, high) in ends.items()
    }


def n_resamples(n: int) -> int:
    """Return how many resamples of n values a bootstrap draws: the more values there are, the fewer are needed."""
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
