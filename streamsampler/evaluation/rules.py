"""Decide when an evaluation is precise enough. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np

from streamsampler.core.errors import UsageError, positive
from streamsampler.evaluation.agents import SUCCESS_KEYS, Row
from streamsampler.evaluation.intervals import (
    LEVEL,
    Bounds,
    Floats,
    Interval,
    Unknown,
    mean_interval,
    proportion_interval,
    rounding_of,
    unseen_share,
)
from streamsampler.evaluation.quantiles import log_beta, normal_quantile


def checked_bounds(bounds: Any) -> Bounds:
    """Return bounds as two floats.

    Raises:
        UsageError: The bounds are not two finite numbers in ascending order.
    """
    if not isinstance(bounds, Sequence) or len(bounds) != 2 or not all(isinstance(end, Real) for end in bounds):
        raise UsageError(f"bounds must be (least, largest), two numbers, got {bounds!r}")
    low, high = map(float, bounds)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(
            f"bounds must be (least, largest), two finite numbers in ascending order, got ({low:g}, {high:g})"
        )
    return low, high


def within(value: float, bounds: Bounds, what: str = "value", where: str = "") -> float:
    """Return a value, clipped if rounding took it beyond its bounds.

    Raises:
        UsageError: It is farther outside, or no number.
    """
    low, high = bounds
    room = rounding_of(np.array(bounds))
    if not low - room <= value <= high + room:
        raise UsageError(f"bounds are ({low:g}, {high:g}), but a {what} is {value:g}{where}")
    return min(high, max(low, value))


# Bets against a hypothesis are fair, or worse, if the hypothesis is true. By Ville's inequality the capital of such a
# bet ever reaches 1/alpha with a probability of at most alpha, so that tests stay valid whenever they stop.


_N_MEANS = 2_000
_MOST_BET = 0.5  # of the capital, in one round
_HALF = math.log(0.5)


class BettingSequence:
    """A confidence sequence of the mean of bounded values: all its intervals hold at once.

    The hedged capital of Waudby-Smith and Ramdas (2023, "Estimating means of bounded random variables by betting"),
    with their predictable bets. For each of 2,001 means, half of the capital bets that the true mean is above, half
    that it is below. The interval is all means that the bets have not refuted, rounded outwards.

    Attributes:
        interval: The interval so far.

    Raises:
        UsageError: The bounds are not two finite numbers in ascending order.
    """

    def __init__(self, low: float = 0.0, high: float = 1.0, level: float = LEVEL) -> None:
        self._low, self._high = low, high = checked_bounds((low, high))
        self._level = level
        self._means = np.linspace(0.0, 1.0, _N_MEANS + 1)
        with np.errstate(divide="ignore"):
            self._most_above = _MOST_BET / self._means
            self._most_below = _MOST_BET / (1 - self._means)
        self._above = np.zeros(_N_MEANS + 1)  # logarithms of capital
        self._below = np.zeros(_N_MEANS + 1)
        self._n = 0
        self._sum, self._squares = 0.5, 0.25  # as if one value had been observed
        self._first, self._last = 0, _N_MEANS
        self.interval = Interval(low, high, "betting", level)

    def add(self, value: float) -> None:
        """Add the next value.

        Raises:
            UsageError: It is out of bounds.
        """
        value = within(value, (self._low, self._high))
        x = (value - self._low) / (self._high - self._low)
        self._bet(x)
        self._n += 1
        self._sum += x
        self._squares += (x - self._sum / (self._n + 1)) ** 2
        self._narrow()

    def _bet(self, x: float) -> None:
        n = self._n + 1
        variance = self._squares / n
        bet = math.sqrt(2 * math.log(2 / (1 - self._level)) / (variance * n * math.log(n + 1)))
        gains = x - self._means
        self._above += np.log1p(np.minimum(bet, self._most_above) * gains)
        self._below += np.log1p(-np.minimum(bet, self._most_below) * gains)

    def _narrow(self) -> None:
        enough = -math.log(1 - self._level)
        above = np.flatnonzero(self._above + _HALF >= enough)
        below = np.flatnonzero(self._below + _HALF >= enough)
        first = max(self._first, int(above[-1])) if len(above) else self._first
        last = min(self._last, int(below[0])) if len(below) else self._last
        if first > last:  # happens with the error probability of the level
            return
        self._first, self._last = first, last
        width = self._high - self._low
        low, high = (self._low + width * float(self._means[end]) for end in (first, last))
        self.interval = Interval(low, high, "betting", self._level)


class DiscordantPairs:
    """A test of two success rates on shared seeds, valid whenever it stops.

    Of the pairs in which one agent alone succeeds, each agent wins half if the rates are equal. The bet is the mixture
    over all other shares with Jeffreys' prior.

    Attributes:
        wins: Pairs in which only the second agent succeeded.
        losses: Pairs in which only the first agent succeeded.
        p_value: The smallest alpha at which it has decided so far, at most 1.
    """

    def __init__(self) -> None:
        self.wins = self.losses = 0
        self.p_value = 1.0

    def add(self, first: bool, second: bool) -> None:
        """Add the next pair: whether each agent succeeded."""
        self.wins += second and not first
        self.losses += first and not second
        self.p_value = min(self.p_value, math.exp(-self.log_capital))

    @property
    def log_capital(self) -> float:
        """The logarithm of the bet's capital."""
        wins, losses = self.wins, self.losses
        return log_beta(wins + 0.5, losses + 0.5) - log_beta(0.5, 0.5) + (wins + losses) * math.log(2)


PrecisionOf: TypeAlias = Literal["return", "success"]

FLOORS: dict[PrecisionOf, int] = {"return": 30, "success": 10}
"""The fewest trajectories before a narrow interval ends an evaluation."""
ENOUGH_UNSEEN = 0.01
"""The share of trajectories that may differ from equal returns when an evaluation stops: after 299."""


class Rule:
    """Decides after each trajectory, in index order, whether there are enough.

    Attributes:
        interval: The interval so far, or an estimate of it; None without any.
        what: Quantity of the interval, in words.
        floor: The fewest trajectories.
    """

    def __init__(self, of: PrecisionOf, halfwidth: float, floor: int, bounds: Bounds | None = None) -> None:
        self.of, self.halfwidth, self.bounds = of, halfwidth, bounds
        self.what = "mean return" if of == "return" else "success rate"
        self.interval: Interval | None = None
        self.floor = floor
        self._n = 0
        self._known = of == "return"  # or whether any trajectory has a success flag

    def add(self, row: Row) -> bool:
        """Add the next trajectory; return whether there are enough.

        Raises:
            UsageError: Its return is out of bounds; or the rule is about success rates, and the first trajectories have
                no success flags.
        """
        self._n += 1
        self._known = self._known or row.success is not None
        if not self._known:
            check_successes(self._n)
        value = row.value
        if self.of == "success":
            value = float(bool(row.success))
        elif self.bounds is not None:
            value = within(value, self.bounds, where=row.where)
        reported = self._narrow(value)
        is_narrow = reported is not None and reported.halfwidth <= self.halfwidth
        return (is_narrow or self._ends_without()) and self._known and self._n >= self.floor

    def _narrow(self, value: float) -> Interval | None:
        """Return the interval with the next value for the report, or None."""
        raise NotImplementedError

    def _ends_without(self) -> bool:
        """Return whether no interval can become narrow, and there are enough trajectories to know."""
        return False

    @property
    def reported(self) -> Interval | Unknown:
        """The interval of the trajectories so far for the report, or the reason for its absence."""
        raise NotImplementedError

    def expected(self, most: int) -> int:
        """Estimate the number of trajectories: an interval shrinks with its root."""
        if self.interval is None:
            return most
        estimate = self._n * (self.interval.halfwidth / self.halfwidth) ** 2
        return min(most, max(self._n + 1, math.ceil(estimate))) if math.isfinite(estimate) else most


def check_successes(n_silent: int) -> None:
    """Raise a `UsageError` if so many trajectories without success flag are enough to know."""
    if n_silent >= FLOORS["success"]:
        raise no_success_rate(n_silent)


def no_success_rate(n_silent: int) -> UsageError:
    """Return the error for so many trajectories without success flag."""
    keys = " or ".join(map(repr, SUCCESS_KEYS))
    return UsageError(f"no success rate: no info of the first {n_silent} trajectories has a key {keys}")


class MeanRule(Rule):
    """Waits for the reported interval of the mean return (see `intervals.mean_interval`), and for Student's.

    If these differ, the former would take longer to compute for each trajectory than the trajectories. If all returns
    are equal and bounds are unknown, no interval exists: then it waits until few trajectories may have another return.
    A return that is not finite ends it, too.

    Attributes:
        all_equal: Whether all returns are equal so far.
    """

    def __init__(self, halfwidth: float, floor: int, bounds: Bounds | None) -> None:
        super().__init__("return", halfwidth, floor, bounds)
        self._values = np.empty(64)
        self._z = normal_quantile((1 + LEVEL) / 2)
        self._least, self._largest = math.inf, -math.inf
        self._is_finite = True

    @property
    def all_equal(self) -> bool:
        """Whether all returns are equal so far, up to rounding."""
        ends = np.array([self._least, self._largest])
        return self._is_finite and self._largest - self._least <= rounding_of(ends)

    @property
    def reported(self) -> Interval | Unknown:
        """The interval of the mean return so far for the report, or the reason for its absence."""
        return mean_interval(self._seen, bounds=self.bounds)

    @property
    def _seen(self) -> Floats:
        return self._values[: self._n]

    def _narrow(self, value: float) -> Interval | None:
        if self._n > len(self._values):
            self._values = np.concatenate([self._values, np.empty_like(self._values)])
        self._values[self._n - 1] = value
        self._least, self._largest = min(self._least, value), max(self._largest, value)
        self._is_finite = self._is_finite and math.isfinite(value)
        if self._n < self.floor or not self._is_finite:
            return None
        values = self._seen
        mean, quick = float(values.mean()), self._z * float(values.std(ddof=1)) / math.sqrt(self._n)
        self.interval = Interval(mean - quick, mean + quick, "t")
        if not quick <= self.halfwidth:
            return None
        found = self.reported
        self.interval = found if isinstance(found, Interval) else None
        return self.interval

    def _ends_without(self) -> bool:
        if not self._is_finite:
            return True
        return self.all_equal and self.bounds is None and unseen_share(self._n) <= ENOUGH_UNSEEN

    def expected(self, most: int) -> int:
        """Estimate the number of trajectories, also for equal returns so far."""
        if self.all_equal and self.bounds is None:
            return min(most, math.ceil(math.log(1 - LEVEL) / math.log(1 - ENOUGH_UNSEEN)))
        return super().expected(most)


class SuccessRule(Rule):
    """Waits for the exact interval of the success rate: others stop by chance when all trajectories are alike."""

    def __init__(self, halfwidth: float, floor: int) -> None:
        super().__init__("success", halfwidth, floor)
        self._n_successes = 0
        self._z = normal_quantile((1 + LEVEL) / 2)

    @property
    def reported(self) -> Interval:
        """The interval of the success rate so far."""
        return proportion_interval(self._n_successes, self._n)

    def _narrow(self, value: float) -> Interval | None:
        self._n_successes += int(value)
        rate = self._n_successes / self._n
        quick = self._z * math.sqrt(rate * (1 - rate) / self._n)
        if quick > self.halfwidth:  # the exact interval, which is slower, is wider
            self.interval = Interval(max(0.0, rate - quick), min(1.0, rate + quick), "normal")
            return None
        self.interval = self.reported
        return self.interval


class BettingRule(Rule):
    """Waits for a confidence sequence, which stays valid although it decides when to stop."""

    def __init__(self, of: PrecisionOf, halfwidth: float, floor: int, bounds: Bounds | None) -> None:
        super().__init__(of, halfwidth, floor, bounds)
        self._betting = BettingSequence(*(bounds or (0.0, 1.0)))
        self.interval = self._betting.interval

    @property
    def reported(self) -> Interval:
        """The interval so far."""
        return self._betting.interval

    def _narrow(self, value: float) -> Interval:
        self._betting.add(value)
        self.interval = self._betting.interval
        return self.interval


def make_rule(
    until_halfwidth: Any, precision_of: PrecisionOf, *, guarantee: bool, bounds: Bounds | None, least: Any
) -> Rule:
    """Return the rule requested by arguments of `evaluate`.

    Raises:
        UsageError: Arguments are out of range, or contradict each other.
    """
    halfwidth = _halfwidth(until_halfwidth)
    if precision_of == "success" and halfwidth >= 0.5:
        raise UsageError(f"until_halfwidth of a success rate must be below 0.5, got {halfwidth:g}")
    if bounds is not None and precision_of == "success":
        raise UsageError('bounds are those of returns, and the precision is that of the "success" rate')
    if guarantee:
        if bounds is None and precision_of == "return":
            raise UsageError(
                "guarantee=True needs bounds=(least, largest) of returns: without them nothing is guaranteed"
            )
        floor = 1 if least is None else positive("min_trajectories", least)
        return BettingRule(precision_of, halfwidth, floor, bounds)
    lowest = FLOORS[precision_of]
    floor = lowest if least is None else positive("min_trajectories", least)
    if floor < lowest:
        raise UsageError(
            f"min_trajectories must be at least {lowest}, got {floor}: an interval that stops the evaluation earlier "
            "is wrong far too often. guarantee=True has no such limit"
        )
    return MeanRule(halfwidth, floor, bounds) if precision_of == "return" else SuccessRule(halfwidth, floor)


def _halfwidth(value: Any) -> float:
    try:
        halfwidth = float(value) if not isinstance(value, bool | str) else math.nan
    except (TypeError, ValueError):
        halfwidth = math.nan
    if not 0 < halfwidth < math.inf:
        raise UsageError(f"until_halfwidth must be a number above 0, got {value!r}")
    return halfwidth
