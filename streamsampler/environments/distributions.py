"""Distributions that the values of environments' parameters are drawn from."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from streamsampler.errors import UsageError

__all__ = ["Choice", "Distribution", "LogUniform", "Normal", "Uniform"]


class Distribution(abc.ABC):
    """Draws values of a parameter. A subclass of your own must draw from the generator that it gets, and nothing else.

    It should have a `__repr__`, which files show.
    """

    @abc.abstractmethod
    def draw(self, generator: np.random.Generator) -> Any:
        """Return a value, drawn from the generator."""


class Uniform(Distribution):
    """Draws floats between two numbers, each equally likely.

    Args:
        low: The smallest.
        high: The largest; it may be equal to `low`.

    Raises:
        UsageError: One is no finite number, or `low` is larger than `high`.
    """

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = _range("Uniform", low, high)

    def draw(self, generator: np.random.Generator) -> float:
        """Return a float, drawn from the generator."""
        return float(generator.uniform(self.low, self.high))

    def __repr__(self) -> str:
        return f"Uniform({_exact(self.low)}, {_exact(self.high)})"


class LogUniform(Distribution):
    """Draws positive floats whose logarithms are equally likely: as many from 0.1 to 1 as from 1 to 10.

    Args:
        low: The smallest, above 0.
        high: The largest; it may be equal to `low`.

    Raises:
        UsageError: One is no finite number, `low` is not above 0, or it is larger than `high`.
    """

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = _range("LogUniform", low, high)
        if self.low <= 0.0:
            raise UsageError(f"LogUniform needs numbers above 0, got low={self.low:g}: use Uniform where 0 is included")

    def draw(self, generator: np.random.Generator) -> float:
        """Return a float, drawn from the generator."""
        drawn = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        return min(max(drawn, self.low), self.high)  # a logarithm is rounded

    def __repr__(self) -> str:
        return f"LogUniform({_exact(self.low)}, {_exact(self.high)})"


class Normal(Distribution):
    """Draws floats from a normal distribution.

    Args:
        mean: Its mean.
        std: Its standard deviation, at least 0.

    Raises:
        UsageError: One is no finite number, or `std` is negative.
    """

    def __init__(self, mean: float, std: float) -> None:
        self.mean, self.std = _number("Normal", "mean", mean), _number("Normal", "std", std)
        if self.std < 0.0:
            raise UsageError(f"Normal needs a standard deviation of at least 0, got std={self.std:g}")

    def draw(self, generator: np.random.Generator) -> float:
        """Return a float, drawn from the generator."""
        return float(generator.normal(self.mean, self.std))

    def __repr__(self) -> str:
        return f"Normal({_exact(self.mean)}, {_exact(self.std)})"


class Choice(Distribution):
    """Draws one of several values.

    Args:
        values: The values, of any kind that can be pickled.
        probabilities: How likely each is; None for equally likely.

    Raises:
        UsageError: There are no values; or there are not as many probabilities, or they do not add up to 1.
    """

    def __init__(self, values: Sequence[Any], probabilities: Sequence[float] | None = None) -> None:
        if isinstance(values, str | bytes) or not isinstance(values, Sequence | np.ndarray | range):
            raise UsageError(f"Choice needs a list of values, got {values!r:.60}")
        self.values = tuple(values)
        if not self.values:
            raise UsageError("Choice needs at least one value, got an empty list")
        self.probabilities: tuple[float, ...] | None = None
        if probabilities is None:
            return
        self.probabilities = tuple(_number("Choice", "probabilities", each) for each in probabilities)
        if len(self.probabilities) != len(self.values):
            raise UsageError(f"Choice has {len(self.values)} values, but {len(self.probabilities)} probabilities")
        total = math.fsum(self.probabilities)
        if min(self.probabilities) < 0.0 or not math.isclose(total, 1.0, abs_tol=1e-9):
            raise UsageError(f"Choice needs probabilities of at least 0 that add up to 1, got a sum of {total:g}")

    def draw(self, generator: np.random.Generator) -> Any:
        """Return one of the values, drawn from the generator."""
        if self.probabilities is None:
            return self.values[int(generator.integers(len(self.values)))]
        bounds = np.cumsum(self.probabilities)
        number = int(np.searchsorted(bounds, generator.random() * bounds[-1], side="right"))
        return self.values[min(number, len(self.values) - 1)]

    def __repr__(self) -> str:
        chances = "" if self.probabilities is None else f", {list(self.probabilities)}"
        return f"Choice({list(self.values)}{chances})"


def _exact(number: float) -> str:
    """Return a number's shortest text: files compare it, so no other number has the same."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _number(kind: str, name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise UsageError(f"{kind} needs a finite number for {name}, got {value!r:.60}")
    return number


def _range(kind: str, low: Any, high: Any) -> tuple[float, float]:
    low, high = _number(kind, "low", low), _number(kind, "high", high)
    if low > high:
        raise UsageError(f"{kind} needs low <= high, got low={low:g} and high={high:g}: exchange the two")
    if not math.isfinite(high - low):
        raise UsageError(f"{kind} needs a range that a float can hold, got {low:g} to {high:g}")
    return low, high
