"""Distributions of environments' parameters: values are drawn for each trajectory, from its seed."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from streamsampler.core.errors import UsageError
from streamsampler.core.keywords import suggesting


class Distribution(abc.ABC):
    """Draws values of a parameter.

    Your own subclass must draw only from the generator passed to `draw`, and should have a `__repr__`, which files
    record.
    """

    @abc.abstractmethod
    def draw(self, generator: np.random.Generator) -> Any:
        """Draw a value from the generator."""


@suggesting()
class Uniform(Distribution):
    """Draws floats between two numbers, all equally likely.

    Args:
        low: The smallest value.
        high: The largest value, at least `low`.

    Raises:
        UsageError: A number is not finite, or `low` is larger than `high`.
    """

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = _range("Uniform", low, high)

    def draw(self, generator: np.random.Generator) -> float:
        """Draw a float from the generator."""
        return float(generator.uniform(self.low, self.high))

    def __repr__(self) -> str:
        return f"Uniform({_exact(self.low)}, {_exact(self.high)})"


@suggesting()
class LogUniform(Distribution):
    """Draws positive floats, uniform in their logarithms: as many from 0.1 to 1 as from 1 to 10.

    Args:
        low: The smallest value, above 0.
        high: The largest value, at least `low`.

    Raises:
        UsageError: A number is not finite, `low` is not above 0, or larger than `high`.
    """

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = _range("LogUniform", low, high)
        if self.low <= 0.0:
            raise UsageError(f"LogUniform needs numbers above 0, got low={self.low:g}: use Uniform where 0 is included")

    def draw(self, generator: np.random.Generator) -> float:
        """Draw a float from the generator."""
        drawn = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        return min(max(drawn, self.low), self.high)  # the logarithm was rounded

    def __repr__(self) -> str:
        return f"LogUniform({_exact(self.low)}, {_exact(self.high)})"


@suggesting()
class Normal(Distribution):
    """Draws floats from a normal distribution.

    Args:
        mean: Its mean.
        std: Its standard deviation, at least 0.

    Raises:
        UsageError: A number is not finite, or `std` is negative.
    """

    def __init__(self, mean: float, std: float) -> None:
        self.mean, self.std = _number("Normal", "mean", mean), _number("Normal", "std", std)
        if self.std < 0.0:
            raise UsageError(f"Normal needs a standard deviation of at least 0, got std={self.std:g}")

    def draw(self, generator: np.random.Generator) -> float:
        """Draw a float from the generator."""
        return float(generator.normal(self.mean, self.std))

    def __repr__(self) -> str:
        return f"Normal({_exact(self.mean)}, {_exact(self.std)})"


@suggesting()
class Choice(Distribution):
    """Draws from a list of values.

    Args:
        values: The values, of any picklable kind.
        probabilities: The values' probabilities; None for equal probabilities.

    Raises:
        UsageError: The list is empty, the probabilities are of another number, or do not add up to 1.
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
        """Draw a value with the generator."""
        if self.probabilities is None:
            return self.values[int(generator.integers(len(self.values)))]
        bounds = np.cumsum(self.probabilities)
        number = int(np.searchsorted(bounds, generator.random() * bounds[-1], side="right"))
        return self.values[min(number, len(self.values) - 1)]

    def __repr__(self) -> str:
        chances = "" if self.probabilities is None else f", {list(self.probabilities)}"
        return f"Choice({list(self.values)}{chances})"


def _exact(number: float) -> str:
    """Return a number's shortest exact text: files compare it, so different numbers need different texts."""
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
