"""Compute confidence intervals of means, rates, medians and interquartile means.

An `Interval` has the name of its method. The table is the result of simulations, repeated by `.ci/prove coverage`:

| quantity | method | valid |
|---|---|---|
| rate | Clopper and Pearson's, exact | always |
| mean of two values | Clopper and Pearson's, scaled to them | from 10 trajectories on |
| mean | Student's t | from 10 trajectories on, unless returns are skewed or in two groups |
| mean of skewed returns | studentised bootstrap | from 30 trajectories on |
| mean, if more than half of the returns are equal | Gaffke's, scaled to them | from 10 trajectories on |
| mean of bounded returns | Gaffke's, if none of the others is valid | always |
| interquartile mean, median of two values | Clopper and Pearson's | from 10 trajectories on |
| interquartile mean, median | percentile bootstrap | from 30 trajectories on |
| mean of bounded returns, rate | betting | always, even if it decides when to stop |

Equal returns say nothing about the size of others, so only bounds give an interval; `unseen_share` says how many others
may exist.

Bootstraps and Gaffke's method draw from a generator with a fixed seed, so that the same data give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import UsageError
from streamsampler.core.words import count
from streamsampler.evaluation.quantiles import beta_quantile, student_quantile

Floats: TypeAlias = NDArray[np.float64]

LEVEL = 0.95
FEWEST, FEWEST_SKEWED = 10, 30
_N_RESAMPLES, _FEWEST_RESAMPLES, _N_WEIGHTS = 2_000, 200, 20_000
_MOST_DRAWN = 20_000_000  # numbers drawn by one bootstrap
_AT_ONCE = 1_000_000
_SEED = 0
_WIDE_GAP = 4.0  # standard deviations within the groups: of 10 normal returns 1 % have such a gap, of 30 0.1 %
_ROUNDING = 1e-12  # relative: the largest difference of sums of rewards that should be equal
_FEWEST_OTHERS = 10  # of nearly equal returns: with fewer, the unobserved returns decide
_FEW_DIFFER, _FARTHER = 2, 2.0
_NARROW = 0.25  # the width of both groups together, as a share of the whole range
_SURE_OF_SKEWNESS = 2.576  # standard errors of the skewness of normal returns
_NEGLIGIBLE_SKEWNESS = 0.01  # its square divided by n: the coverage of t is then 0.3 % too low


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    Attributes:
        low: The lower end.
        high: The upper end.
        method: The method, such as "t".
        level: Its confidence.
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
    """The absence of a confidence interval; false, so that `if evaluation.mean_interval:` asks for one.

    Attributes:
        why: The reason.
    """

    why: str

    def __bool__(self) -> bool:
        return False


Bounds: TypeAlias = tuple[float, float]
"""The least and the largest possible value."""


def mean_interval(
    values: Floats, level: float = LEVEL, *, bounds: Bounds | None = None, of: str = "return",
    rounding: float | None = None,
) -> Interval | Unknown:  # fmt: skip
    """Return a valid interval of a mean for such values, or the reason for its absence.

    Raises:
        UsageError: `values` is not one number per trajectory, or `level` is not between 0 and 1.
    """
    values = np.asarray(values)
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise UsageError(
            f"values has shape {values.shape} of {values.dtype}: pass one number for each trajectory, "
            "evaluation.returns, or for each run, such as returns.mean(axis=1)"
        )
    if not 0 < level < 1:
        raise UsageError(f"level must be between 0 and 1, such as 0.95, not {level}")
    n = len(values)
    rounding = rounding_of(values) if rounding is None else rounding
    if n < FEWEST:
        found: Interval | Unknown = Unknown(
            f"{count(n, 'trajectory' if of == 'return' else 'pair')}, fewer than {FEWEST}"
        )
    elif not np.isfinite(values).all():
        return Unknown(f"a {of} is not finite")
    else:
        found = _from_values_alone(values, level, of, rounding)
    if bounds is None:
        return found
    if isinstance(found, Interval) and found.method in _WITHOUT_SCALE:
        return replace(found, low=max(found.low, bounds[0]), high=min(found.high, bounds[1]))
    return bounded_interval(values, bounds, level, rounding)


_WITHOUT_SCALE = ("t", "studentised bootstrap")
"""Methods that do not scale an interval to the observed values."""


def _from_values_alone(values: Floats, level: float, of: str, rounding: float) -> Interval | Unknown:
    """Return the interval of the mean of ten or more finite, unbounded values, or the reason for its absence."""
    n, (found, counts) = len(values), counted(values, rounding)
    if len(found) == 1:
        return Unknown(f"all {of}s are equal")
    if len(found) == 2 or 2 * counts.max() > n:
        return _nearly_equal_interval(values, level, of, rounding)
    if n < FEWEST_SKEWED:
        what = "in two groups" if in_two_groups(values) else "skewed" if is_skewed(values) else None
        if what is not None:
            return Unknown(f"{of}s are {what}, and there are fewer than {FEWEST_SKEWED}")
    elif are_nearly_two(values):
        return bounded_interval(values, _scale(found, of), level, rounding)
    elif not is_symmetric_enough(values):
        return studentised_interval(values, level)
    return t_interval(values, level)


def _nearly_equal_interval(values: Floats, level: float, of: str, rounding: float) -> Interval:
    """Return the interval of the mean of two values, or of values of which more than half are equal.

    The method for bounded values, with the observed values as bounds: for two values Clopper and Pearson's.
    """
    found, counts = counted(values, rounding)
    usual, n_others = float(found[counts.argmax()]), len(values) - int(counts.max())
    interval = bounded_interval(values, seen_scale(found, counts, of, rounding), level, rounding)
    if len(found) == 2 and len(values) >= FEWEST_SKEWED:
        return interval
    return reaching(interval, usual, n_others)


def seen_scale(found: Floats, counts: NDArray[np.int64], of: str, rounding: float) -> Bounds:
    """Return the assumed bounds of unobserved values.

    These are the least and the largest observed value; for differences, which may be 0, of either sign. If more than
    half are equal, fewer than 10 are not, and these vary, others may be twice as far from the most frequent value.
    """
    low, high = _scale(found, of)
    usual, n_others = float(found[counts.argmax()]), int(counts.sum() - counts.max())
    is_known = len(found) == 2 or ((found - low <= rounding) | (high - found <= rounding) | (found == usual)).all()
    if is_known or n_others >= min(_FEWEST_OTHERS, counts.max()):
        return low, high
    return usual - _FARTHER * (usual - low), usual + _FARTHER * (high - usual)


def reaching(interval: Interval, usual: float, n_others: int) -> Interval:
    """Extend an interval to the most frequent value, if only one or two values differ from it.

    The interval is printed only because they were observed, and a rare value observed twice would otherwise suffice to
    miss the mean: of ten trajectories, and a share of 2 in 100, in 1 of 10 such intervals.
    """
    if n_others > _FEW_DIFFER:
        return interval
    return replace(interval, low=min(interval.low, usual), high=max(interval.high, usual))


def _scale(found: Floats, of: str) -> Bounds:
    """Return the least and the largest observed value; for differences, which may be 0, of either sign."""
    low, high = float(found[0]), float(found[-1])
    if of == "difference" and low <= 0 <= high:
        return min(low, -high), max(high, -low)
    return low, high


def t_interval(values: Floats, level: float = LEVEL) -> Interval:
    """Return Student's interval of the mean of at least two values."""
    n = len(values)
    mean = float(values.mean())
    halfwidth = student_quantile((1 + level) / 2, n - 1) * float(values.std(ddof=1)) / math.sqrt(n)
    return Interval(mean - halfwidth, mean + halfwidth, "t", level)


def studentised_interval(values: Floats, level: float = LEVEL) -> Interval:
    """Return the studentised bootstrap's interval of the mean (Efron's bootstrap-t; Hall 1988).

    If resamples of a single value reach beyond an end of the interval, it is Student's.
    """
    n, mean = len(values), float(values.mean())
    tails = [(1 - level) / 2, (1 + level) / 2]
    errors = []
    least = _ROUNDING * float(np.abs(values - mean).max())  # a resample of a single value deviates by its rounding
    for indices in resampled_indices(n):
        chosen = values[indices]
        deviations = chosen.std(axis=1, ddof=1)
        varied = deviations > least
        errors.append((chosen.mean(axis=1)[varied] - mean) / deviations[varied])
    drawn = np.concatenate(errors)
    if len(drawn) < (1 - tails[0]) * n_resamples(n):  # an end of the interval is among the resamples of a single value
        return t_interval(values, level)
    low, high = np.quantile(drawn, tails) * float(values.std(ddof=1))
    return Interval(mean - float(high), mean - float(low), "studentised bootstrap", level)


def skewness(values: Floats) -> float:
    """Return the skewness of a sample, with the usual correction for its size; 0 if all values are equal."""
    n = len(values)
    deviations = values - values.mean()
    variance = float((deviations**2).mean())
    if n < 3 or variance <= (np.finfo(float).eps * float(np.abs(values).max())) ** 2:
        return 0.0
    return math.sqrt(n * (n - 1)) / (n - 2) * float((deviations**3).mean()) / math.pow(variance, 1.5)


def is_skewed(values: Floats) -> bool:
    """Return whether values are more skewed than normal values in 1 of 100 cases."""
    n = len(values)
    return n > 2 and abs(skewness(values)) > _SURE_OF_SKEWNESS * math.sqrt(
        6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3))
    )


def is_symmetric_enough(values: Floats) -> bool:
    """Return whether the skewness is too small to matter to Student's interval of the mean."""
    return skewness(values) ** 2 <= _NEGLIGIBLE_SKEWNESS * len(values)


def in_two_groups(values: Floats) -> bool:
    """Return whether the widest gap between values is much wider than the spread on either side."""
    n = len(values)
    ordered = np.sort(values)
    gaps = np.diff(ordered)
    if n < 3 or not gaps.max() > 0:
        return False
    cut = int(gaps.argmax()) + 1
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in (ordered[:cut], ordered[cut:]))
    return bool(gaps.max() > _WIDE_GAP * math.sqrt(squares / (n - 2)))


def are_nearly_two(values: Floats) -> bool:
    """Return whether values form two groups that are narrow compared with the gap between them."""
    ordered = np.sort(values)
    return bool(np.diff(ordered).max(initial=0.0) > (1 - _NARROW) * (ordered[-1] - ordered[0]))


def rounding_of(values: Floats) -> float:
    """Return the largest rounding difference of equal sums of rewards."""
    return _ROUNDING * float(np.abs(values).max(initial=0.0))


def counted(values: Floats, rounding: float) -> tuple[Floats, NDArray[np.int64]]:
    """Return the distinct values, in order, and their counts."""
    found, counts = np.unique(values, return_counts=True)
    first = np.flatnonzero(np.diff(found, prepend=-np.inf) > rounding)
    return found[first], np.add.reduceat(counts, first)


def unseen_share(n: int, level: float = LEVEL) -> float:
    """Return the largest share of trajectories that may differ from n equal ones."""
    return 1 - math.pow(1 - level, 1 / n)


def interquartile_mean(values: Floats) -> float:
    """Return the mean without the lowest and the highest quarter, like `scipy.stats.trim_mean(values, 0.25)`."""
    cut = len(values) // 4
    return float(np.sort(values)[cut : len(values) - cut].mean())


def middle_intervals(
    values: Floats, level: float = LEVEL, *, bounds: Bounds | None = None
) -> dict[str, Interval | Unknown]:
    """Return the intervals of the median ("median") and the interquartile mean ("iqm"), or why they are absent."""
    n = len(values)
    if n < FEWEST:
        unknown = Unknown(f"{count(n, 'trajectory')}, fewer than {FEWEST}")
    elif not np.isfinite(values).all():
        unknown = Unknown("a return is not finite")
    elif len(found := counted(values, rounding_of(values))[0]) == 1:
        if bounds is not None:
            return _middle_of_one(float(values[0]), n, level, bounds)
        unknown = Unknown("all returns are equal")
    elif len(found) == 2:
        low, high = found.tolist()
        shares = proportion_interval(int((values > (low + high) / 2).sum()), n, level)
        return {
            name: replace(shares, low=low + at(shares.low) * (high - low), high=low + at(shares.high) * (high - low))
            for name, at in _MIDDLES.items()
        }
    elif n >= FEWEST_SKEWED:
        return bootstrap_intervals(values, level)
    else:
        unknown = Unknown(f"{count(n, 'trajectory')}, fewer than {FEWEST_SKEWED}")
    return {"median": unknown, "iqm": unknown}


_MIDDLES: dict[str, Callable[[float], float]] = {
    "median": lambda share: 0.0 if share < 0.5 else 0.5 if share == 0.5 else 1.0,
    "iqm": lambda share: min(1.0, max(0.0, 2 * share - 0.5)),
}
"""The median and the interquartile mean of a share of ones, with zeros otherwise."""


def _middle_of_one(value: float, n: int, level: float, bounds: Bounds) -> dict[str, Interval | Unknown]:
    """Return the intervals for a single observed value: as many others as may exist are at one of the bounds."""
    share = 1 - proportion_interval(n, n, level).low
    return {
        name: Interval(
            value - at(share) * (value - bounds[0]), value + at(share) * (bounds[1] - value), "Clopper-Pearson", level
        )
        for name, at in _MIDDLES.items()
    }


def bootstrap_intervals(values: Floats, level: float = LEVEL) -> dict[str, Interval | Unknown]:
    """Return the percentile bootstrap's intervals of the median ("median") and the interquartile mean ("iqm")."""
    n = len(values)
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
    """Return the number of a bootstrap's resamples of n values: more values need fewer."""
    return _resamples(n, _N_RESAMPLES)


def _resamples(n: int, most: int) -> int:
    return max(_FEWEST_RESAMPLES, min(most, _MOST_DRAWN // n))


def resampled_indices(n: int) -> Iterator[NDArray[np.int64]]:
    """Yield the positions of resamples of n values, (k, n) at a time: a function of n alone."""
    rng = np.random.default_rng(_SEED)
    for rows in _rows(n, n_resamples(n)):
        yield rng.integers(0, n, (rows, n))


def _rows(n: int, left: int) -> Iterator[int]:
    """Yield how many resamples of n numbers are drawn at once."""
    while left > 0:
        rows = min(left, max(1, _AT_ONCE // n))
        yield rows
        left -= rows


def proportion_interval(n_successes: int, n: int, level: float = LEVEL) -> Interval:
    """Return the exact interval of a rate (Clopper and Pearson, 1934), valid for all rates and all n."""
    tail, n_failures = (1 - level) / 2, n - n_successes
    low = beta_quantile(tail, n_successes, n_failures + 1) if n_successes else 0.0
    high = beta_quantile(1 - tail, n_successes + 1, n_failures) if n_failures else 1.0
    return Interval(low, high, "Clopper-Pearson", level)


def bounded_interval(values: Floats, bounds: Bounds, level: float = LEVEL, rounding: float = 0.0) -> Interval:
    """Return the interval of the mean of bounded values, valid for all distributions and all n.

    Gaffke's (2005; Learned-Miller and Thomas, 2019, "A new confidence interval for the mean of a bounded random
    variable"): the values and one of the bounds have uniformly distributed random weights with sum 1, and an end is a
    quantile of the weighted mean with the bound on its side. For values at the bounds it is Clopper and Pearson's; for
    equal values it has a closed form, too.
    """
    n, (lowest, highest) = len(values), bounds
    found, counts = counted(values, rounding)
    if ((found - lowest <= rounding) | (highest - found <= rounding)).all():
        shares = proportion_interval(int((values > (lowest + highest) / 2).sum()), n, level)
        width = highest - lowest
        return replace(shares, low=lowest + shares.low * width, high=lowest + shares.high * width)
    if len(found) == 1:
        value, share = float(values[0]), 1 - proportion_interval(n, n, level).low
        return Interval(value - share * (value - lowest), value + share * (highest - value), "Gaffke", level)
    lows: list[Floats] = []
    highs: list[Floats] = []
    for weights in random_weights(np.append(counts, 1.0)):
        means = weights[:, :-1] @ found
        lows.append(means + weights[:, -1] * lowest)
        highs.append(means + weights[:, -1] * highest)
    low, high = (
        float(np.quantile(np.concatenate(drawn), tail))
        for drawn, tail in ((lows, (1 - level) / 2), (highs, (1 + level) / 2))
    )
    return Interval(low, high, "Gaffke", level)


def random_weights(counts: Floats) -> Iterator[Floats]:
    """Yield weights with sum 1, (k, n) at a time, each the sum of `counts` (n,) weights: always the same."""
    rng, n = np.random.default_rng(_SEED), len(counts)
    for rows in _rows(n, _resamples(n, _N_WEIGHTS)):
        weights = rng.standard_gamma(counts, (rows, n))
        yield weights / weights.sum(axis=1, keepdims=True)
