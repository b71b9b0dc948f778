"""Compute quantiles of the normal, Student's t and the beta distribution, and the logarithm of the beta function.

SciPy has all of these, but sampling should not need it. Tests compare them with SciPy's to 1e-9.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

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
    # Of two equal incomplete beta functions, the one without cancellation near 1.
    if t * t < df:
        return 0.5 - 0.5 * _incomplete_beta(0.5, df / 2, t * t / (df + t * t))
    return 0.5 * _incomplete_beta(df / 2, 0.5, df / (df + t * t))


@lru_cache(maxsize=1024)
def student_quantile(probability: float, df: int) -> float:
    """Return the quantile of Student's t.

    Newton's method on the upper tail, which is convex: from the normal quantile, which is smaller, it rises to the
    quantile and never passes it. With thousands of degrees of freedom, where gamma functions cancel, the expansion of
    Cornish and Fisher (Abramowitz and Stegun 26.7.5).
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


@lru_cache(maxsize=4096)
def beta_quantile(probability: float, a: float, b: float) -> float:
    """Return the quantile of the beta distribution.

    Newton's method, and bisection wherever a step would leave the bracket.
    """
    if not 0 < probability < 1:
        return float(probability >= 1)
    low, high, x = 0.0, 1.0, a / (a + b)
    scale = log_beta(a, b)
    for _ in range(200):
        error = _incomplete_beta(a, b, x) - probability
        low, high = (low, x) if error > 0 else (x, high)
        density = math.exp((a - 1) * math.log(x) + (b - 1) * math.log1p(-x) - scale)
        step = x - error / density if density > 0 else low
        step = step if low < step < high else (low + high) / 2
        if abs(step - x) <= _CLOSE_ENOUGH * x or step in (low, high):
            return step
        x = step
    return x


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
    if x > (a + 1) / (a + b + 2):  # only the fraction of the other tail converges here
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
