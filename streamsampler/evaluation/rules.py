"""Decide when an evaluation that is to have a precision is done. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from streamsampler.errors import UsageError, positive
from streamsampler.evaluation.betting import BettingSequence
from streamsampler.evaluation.distributions import normal_quantile
from streamsampler.evaluation.intervals import LEVEL, Interval, mean_interval, wilson_interval
from streamsampler.evaluation.rows import SUCCESS_KEYS, Row

__all__ = ["DEFAULT_CAP", "FLOORS", "Bounds", "PrecisionOf", "Rule", "make_rule"]

PrecisionOf: TypeAlias = Literal["return", "success"]
Bounds: TypeAlias = tuple[float, float]

FLOORS: dict[PrecisionOf, int] = {"return": 30, "success": 10}
"""The fewest trajectories that an evaluation may stop after because of an interval that is narrow enough."""
DEFAULT_CAP = 10_000


class Rule(Protocol):
    """Says after each trajectory, in index order, whether an interval is narrow enough.

    Attributes:
        interval: The interval so far; None where there is none.
        what: What the interval is of.
        halfwidth: How narrow it is to be.
    """

    interval: Interval | None
    what: str
    halfwidth: float

    def add(self, row: Row) -> bool:
        """Add the next trajectory; return whether the interval is narrow enough."""


class MeanRule:
    """Waits for the interval that is reported for the mean return (see `intervals.mean_interval`), and for Student's.

    Where those are two, to compute the former for each trajectory would take longer than the trajectories.
    """

    what = "mean return"

    def __init__(self, halfwidth: float, floor: int) -> None:
        self.halfwidth = halfwidth
        self.interval: Interval | None = None
        self._floor = floor
        self._values = np.empty(64)
        self._n = 0
        self._z = normal_quantile((1 + LEVEL) / 2)

    def add(self, row: Row) -> bool:
        """Add the next trajectory; return whether the interval is narrow enough."""
        if self._n == len(self._values):
            self._values = np.concatenate([self._values, np.empty_like(self._values)])
        self._values[self._n] = row.value
        self._n += 1
        values = self._values[: self._n]
        if self._n < self._floor:
            return False
        quick = self._z * float(values.std(ddof=1)) / math.sqrt(self._n)
        mean = float(values.mean())
        self.interval = Interval(mean - quick, mean + quick, "t")
        if not quick <= self.halfwidth:
            return False
        found = mean_interval(values)
        self.interval = found if isinstance(found, Interval) else None
        return self.interval is not None and self.interval.halfwidth <= self.halfwidth


class _Successes:
    """Counts trajectories and successes, until it is clear that there is nothing to count."""

    def __init__(self) -> None:
        self.n = self.n_successes = 0
        self._known = False

    def add(self, row: Row) -> bool:
        """Add a trajectory; return whether it succeeded.

        Raises:
            UsageError: None of the trajectories says.
        """
        self.n += 1
        self.n_successes += bool(row.success)
        self._known = self._known or row.success is not None
        if not self._known and self.n >= FLOORS["success"]:
            keys = " or ".join(map(repr, SUCCESS_KEYS))
            raise UsageError(f"there is no success rate: no info of the first {self.n} trajectories has a key {keys}")
        return bool(row.success)

    @property
    def known(self) -> bool:
        """Whether any trajectory said."""
        return self._known


class SuccessRule:
    """Waits for Wilson's interval of the success rate: others stop by chance when all trajectories were alike."""

    what = "success rate"

    def __init__(self, halfwidth: float, floor: int) -> None:
        self.halfwidth = halfwidth
        self.interval: Interval | None = None
        self._floor = floor
        self._seen = _Successes()

    def add(self, row: Row) -> bool:
        """Add the next trajectory; return whether the interval is narrow enough."""
        self._seen.add(row)
        self.interval = wilson_interval(self._seen.n_successes, self._seen.n)
        return self._seen.n >= self._floor and self.interval.halfwidth <= self.halfwidth


class BettingRule:
    """Waits for a confidence sequence, which holds although it decides when to stop.

    Attributes:
        of: What its interval is of.
        bounds: The least and the largest value there can be.
    """

    def __init__(self, halfwidth: float, floor: int, of: PrecisionOf, bounds: Bounds) -> None:
        self.halfwidth = halfwidth
        self.what = "mean return" if of == "return" else "success rate"
        self.of = of
        self.bounds = float(bounds[0]), float(bounds[1])
        self._floor = floor
        self._n = 0
        self._successes = _Successes()
        self._betting = BettingSequence(*bounds)
        self.interval: Interval | None = self._betting.interval

    def add(self, row: Row) -> bool:
        """Add the next trajectory; return whether the interval is narrow enough."""
        self._n += 1
        self._betting.add(row.value if self.of == "return" else float(self._successes.add(row)))
        self.interval = self._betting.interval
        known = self.of == "return" or self._successes.known
        return known and self._n >= self._floor and self.interval.halfwidth <= self.halfwidth


def make_rule(
    until_halfwidth: Any, precision_of: PrecisionOf, *, guarantee: bool, bounds: Bounds | None, least: Any
) -> Rule:
    """Return the rule that the arguments of `evaluate` ask for.

    Raises:
        UsageError: They cannot work.
    """
    halfwidth = _halfwidth(until_halfwidth)
    if precision_of not in FLOORS:
        raise UsageError(f'precision_of must be "return" or "success", got {precision_of!r}')
    if precision_of == "success" and halfwidth >= 0.5:
        raise UsageError(f"until_halfwidth of a success rate must be below 0.5, got {halfwidth:g}")
    _check_bounds(precision_of, guarantee=guarantee, bounds=bounds)
    if guarantee:
        floor = 1 if least is None else positive("min_trajectories", least)
        return BettingRule(halfwidth, floor, precision_of, (0.0, 1.0) if bounds is None else bounds)
    lowest = FLOORS[precision_of]
    floor = lowest if least is None else positive("min_trajectories", least)
    if floor < lowest:
        raise UsageError(
            f"min_trajectories must be at least {lowest}, got {floor}: an interval that stops the evaluation earlier "
            "is wrong far too often. guarantee=True has no such limit"
        )
    return (MeanRule if precision_of == "return" else SuccessRule)(halfwidth, floor)


def _check_bounds(precision_of: PrecisionOf, *, guarantee: bool, bounds: Any) -> None:
    if bounds is None:
        if guarantee and precision_of == "return":
            raise UsageError("guarantee=True needs bounds=(least, largest) of returns: without, nothing is certain")
        return
    if precision_of == "success":
        raise UsageError('bounds are those of returns, and the precision is that of the "success" rate')
    if not guarantee:
        raise UsageError("bounds are for guarantee=True")
    if not isinstance(bounds, Sequence) or len(bounds) != 2 or not all(isinstance(end, int | float) for end in bounds):
        raise UsageError(f"bounds must be (least, largest), two numbers, got {bounds!r}")


def _halfwidth(value: Any) -> float:
    try:
        halfwidth = float(value) if not isinstance(value, bool | str) else math.nan
    except (TypeError, ValueError):
        halfwidth = math.nan
    if not 0 < halfwidth < math.inf:
        raise UsageError(f"until_halfwidth must be a number above 0, got {value!r}")
    return halfwidth
