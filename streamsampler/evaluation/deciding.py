"""Decide which of two agents is better, whenever that is sure. Pure."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

from streamsampler.errors import UsageError
from streamsampler.evaluation.betting import BettingSequence, DiscordantPairs
from streamsampler.evaluation.intervals import Interval
from streamsampler.evaluation.rules import Bounds, PrecisionOf

__all__ = ["PairTest", "Verdict", "check_alpha", "make_test"]

Verdict: TypeAlias = Literal["first", "second"]
"""Which of two agents is better."""


class PairTest(Protocol):
    """A test that may be looked at after each pair.

    Attributes:
        interval: What the test knows of the difference, second minus first; None where it is a test alone.
        method: What it is called.
    """

    interval: Interval | None
    method: str

    def add(self, first: float, second: float) -> None:
        """Add the next pair."""

    @property
    def verdict(self) -> Verdict | None:
        """Which agent is better; None while that is not sure."""


class ReturnTest:
    """Bets on the differences of bounded returns."""

    method = "betting on the differences"

    def __init__(self, alpha: float, bounds: Bounds) -> None:
        self._low, self._high = bounds
        span = self._high - self._low
        self._betting = BettingSequence(-span, span, 1 - alpha)
        self.interval: Interval | None = self._betting.interval

    def add(self, first: float, second: float) -> None:
        """Add the next pair of returns.

        Raises:
            UsageError: One is outside of the bounds.
        """
        for value in (first, second):
            if not self._low <= value <= self._high:
                raise UsageError(f"bounds are ({self._low:g}, {self._high:g}), and there is a return of {value:g}")
        self._betting.add(second - first)
        self.interval = self._betting.interval

    @property
    def verdict(self) -> Verdict | None:
        """Which agent is better; None while that is not sure."""
        interval = self._betting.interval
        return "second" if interval.low > 0 else "first" if interval.high < 0 else None


class SuccessTest:
    """Bets on which agent succeeds where the other one fails."""

    method = "betting on discordant pairs"
    interval: Interval | None = None

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self._pairs = DiscordantPairs()
        self._verdict: Verdict | None = None

    def add(self, first: float, second: float) -> None:
        """Add the next pair of successes."""
        self._pairs.add(bool(first), bool(second))
        if self._verdict is None and self._pairs.p_value <= self._alpha:
            self._verdict = "second" if self._pairs.wins > self._pairs.losses else "first"

    @property
    def verdict(self) -> Verdict | None:
        """Which agent is better; None while that is not sure."""
        return self._verdict


def make_test(alpha: float, decide_on: PrecisionOf, bounds: Bounds | None) -> PairTest:
    """Return the test that the arguments of `compare` ask for.

    Raises:
        UsageError: They cannot work.
    """
    if decide_on == "success":
        if bounds is not None:
            raise UsageError('bounds are those of returns, and the "success" rate decides')
        return SuccessTest(alpha)
    if bounds is None:
        raise UsageError(
            "until_decided needs bounds=(least, largest) of returns: without, no test holds whenever one stops"
        )
    BettingSequence(*bounds)  # refuses bounds that are none
    return ReturnTest(alpha, bounds)


def check_alpha(value: Any) -> float:
    """Return `until_decided` as a number.

    Raises:
        UsageError: It is no probability, or not small.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 0.5:
        raise UsageError(f"until_decided is how often equal agents may be told apart, such as 0.05; got {value!r}")
    return float(value)
