"""Decide which of two agents is better, or whether one is worse by more than a margin, after any pair. Pure."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any, Literal, TypeAlias

import numpy as np

from streamsampler.core.errors import UsageError
from streamsampler.evaluation.gate import Outcome, outcome_of
from streamsampler.evaluation.intervals import Bounds, Floats, Interval
from streamsampler.evaluation.rules import BettingSequence, DiscordantPairs, PrecisionOf, checked_bounds, within

_MOST_EXPECTED = 5_000

Verdict: TypeAlias = Literal["first", "second"]
"""The better of two agents."""


class ReturnTest:
    """Bets on the differences of bounded returns, or of successes as numbers.

    Attributes:
        alpha: The same.
        margin: The same.
    """

    method = "betting on the differences"

    def __init__(self, alpha: float, bounds: Bounds, margin: float = 0.0) -> None:
        self.alpha, self.margin = alpha, margin
        self._low, self._high = bounds
        span = self._high - self._low
        self._betting = BettingSequence(-span, span, 1 - alpha)

    @property
    def interval(self) -> Interval:
        """The interval of the difference, second minus first."""
        return self._betting.interval

    def add(self, first: float, second: float) -> None:
        """Add the next pair of values.

        Raises:
            UsageError: A value is out of bounds.
        """
        first, second = (within(value, (self._low, self._high), "return") for value in (first, second))
        self._betting.add(second - first)

    @property
    def verdict(self) -> Verdict | None:
        """The better agent; None if undecided."""
        return "second" if self.interval.low > 0 else "first" if self.interval.high < 0 else None

    @property
    def outcome(self) -> Outcome:
        """Whether the second agent is worse by more than the margin."""
        return outcome_of(self.interval, self.margin)


class SuccessTest(DiscordantPairs):
    """Bets on which agent succeeds where the other fails.

    Attributes:
        alpha: The same.
        verdict: The better agent; None if undecided.
        margin: The decided margin, which is 0.
    """

    method = "betting on discordant pairs"
    interval = None  # it is a test only
    margin = 0.0

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha
        self.verdict: Verdict | None = None

    def add(self, first: float, second: float) -> None:
        """Add the next pair of successes."""
        super().add(bool(first), bool(second))
        if self.verdict is None and self.p_value <= self.alpha:
            self.verdict = "second" if self.wins > self.losses else "first"

    @property
    def outcome(self) -> Outcome:
        """Whether the second agent is worse."""
        return "undecided" if self.verdict is None else "worse" if self.verdict == "first" else "not worse"


PairTest: TypeAlias = ReturnTest | SuccessTest
"""A test that may be evaluated after each pair; `method` is its name."""


def make_test(alpha: float, decide_on: PrecisionOf, bounds: Bounds | None, margin: float | None = None) -> PairTest:
    """Return the test requested by arguments of `compare`.

    Raises:
        UsageError: Arguments are out of range, or contradict each other.
    """
    if decide_on == "success":
        if bounds is not None:
            raise UsageError('bounds are those of returns, and the "success" rate decides')
        return ReturnTest(alpha, (0.0, 1.0), margin) if margin else SuccessTest(alpha)
    if bounds is None:
        raise UsageError(
            "until_decided needs bounds=(least, largest) of returns: without them no sequential test is valid"
        )
    return ReturnTest(alpha, checked_bounds(bounds), margin or 0.0)


def anytime_interval(differences: Floats, bounds: Bounds, level: float) -> Interval:
    """Return the interval of a mean difference that stays valid although the differences decided when to stop."""
    return _bets(differences, bounds, level).interval


def expected_pairs(differences: Floats, bounds: Bounds, level: float, margin: float) -> int | None:
    """Return how many more pairs decide about a margin if the present pairs are repeated.

    Bets are at most half of the capital, so that the interval of differences with little variation shrinks with the
    number of pairs instead of its root.

    Returns:
        None for more than 5,000.
    """
    betting = _bets(differences, bounds, level)
    for n, difference in enumerate(islice(cycle(np.clip(differences, *bounds).tolist()), _MOST_EXPECTED), start=1):
        betting.add(difference)
        if outcome_of(betting.interval, margin) != "undecided":
            return n
    return None


def _bets(differences: Floats, bounds: Bounds, level: float) -> BettingSequence:
    betting = BettingSequence(*bounds, level)
    for difference in np.clip(differences, *bounds).tolist():  # rounding may exceed the bounds
        betting.add(difference)
    return betting


def check_alpha(value: Any) -> float:
    """Return `until_decided` as a number.

    Raises:
        UsageError: It is no small probability.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 0.5:
        raise UsageError(
            "until_decided must be a small probability of a wrong decision between equal agents, such "
            f"as 0.05; got {value!r}"
        )
    return float(value)
