"""Compare two samples: probability of improvement, and what it was worth that they share their seeds."""

from __future__ import annotations

import math

import numpy as np

from streamsampler.data.words import count
from streamsampler.evaluation.distributions import normal_quantile
from streamsampler.evaluation.intervals import (
    FEWEST,
    LEVEL,
    Floats,
    Interval,
    Unknown,
    resampled_indices,
)

__all__ = [
    "correlation",
    "improvement_interval",
    "probability_of_improvement",
    "rate_difference_interval",
    "unpaired_equivalent",
]

_ROUNDING = 1e-20  # of a variance, relative


def probability_of_improvement(first: Floats, second: Floats) -> float:
    """Return how probable it is that a value of `second` is above one of `first`; ties count half.

    Mann and Whitney's U, divided by the product of the two sizes.
    """
    ordered = np.sort(first)
    below = np.searchsorted(ordered, second, side="left") + np.searchsorted(ordered, second, side="right")
    return float(below.sum()) / (2 * len(first) * len(second))


def improvement_interval(first: Floats, second: Floats, level: float = LEVEL) -> Interval | Unknown:
    """Return the percentile bootstrap's interval of the probability of improvement of (N,) pairs."""
    n = len(first)
    if n < FEWEST:
        return Unknown(f"{count(n, 'pair')}, fewer than {FEWEST}")
    found = [
        probability_of_improvement(first[chosen], second[chosen])
        for many in resampled_indices(n)
        for chosen in many
    ]  # fmt: skip
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), "percentile bootstrap of pairs", level)


def correlation(first: Floats, second: Floats) -> float | None:
    """Return the correlation of (N,) pairs; None where one of the samples does not vary."""
    deviations = first - first.mean(), second - second.mean()
    scale = math.sqrt(float((deviations[0] ** 2).sum()) * float((deviations[1] ** 2).sum()))
    if len(first) < 2 or scale == 0 or first.min() == first.max() or second.min() == second.max():
        return None
    return float((deviations[0] * deviations[1]).sum()) / scale


def unpaired_equivalent(first: Floats, second: Floats) -> float | None:
    """Return how many trajectories of each agent, on seeds of their own, would compare the means as exactly.

    Args:
        first: (N,) values of the pairs.
        second: (N,) values of the pairs.

    Returns:
        N times the variance of unpaired differences over that of paired ones; infinite where all differences are
        equal, None where neither sample varies.
    """
    unpaired = float(first.var(ddof=1) + second.var(ddof=1)) if len(first) > 1 else 0.0
    if unpaired == 0:
        return None
    paired = float((second - first).var(ddof=1))
    return len(first) * unpaired / paired if paired > _ROUNDING * unpaired else math.inf


def rate_difference_interval(wins: int, losses: int, n: int, level: float = LEVEL) -> Interval | Unknown:
    """Return the interval of the difference of two success rates on the same seeds (Bonett and Price, 2012).

    Args:
        wins: Pairs in which the second agent alone succeeded.
        losses: Pairs in which the first agent alone succeeded.
        n: All pairs.
        level: How often the interval is to hold the difference.
    """
    if n < FEWEST:
        return Unknown(f"{count(n, 'pair')}, fewer than {FEWEST}")
    won, lost = (wins + 1) / (n + 2), (losses + 1) / (n + 2)
    halfwidth = normal_quantile((1 + level) / 2) * math.sqrt((won + lost - (won - lost) ** 2) / (n + 2))
    low, high = max(-1.0, won - lost - halfwidth), min(1.0, won - lost + halfwidth)
    return Interval(low, high, "Bonett-Price", level)
