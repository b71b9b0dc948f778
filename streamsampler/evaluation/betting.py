"""Tests and intervals that hold whenever one stops, also because of what they show.

Each is a bet against a hypothesis that is fair, or worse, if the hypothesis is true. By Ville's inequality the capital
of such a bet ever reaches 1/alpha with a probability of at most alpha.
"""

from __future__ import annotations

import math

import numpy as np

from streamsampler.errors import UsageError
from streamsampler.evaluation.distributions import log_beta
from streamsampler.evaluation.intervals import LEVEL, Interval

__all__ = ["BettingSequence", "DiscordantPairs"]

_N_MEANS = 2_000
_MOST_BET = 0.5  # of the capital, in one round
_HALF = math.log(0.5)


class BettingSequence:
    """A confidence sequence of the mean of bounded values: all its intervals hold at once.

    The hedged capital of Waudby-Smith and Ramdas (2023, "Estimating means of bounded random variables by betting"),
    with their predictable bets. For each of 2,001 means, half of the capital bets that the true one is above, half that
    it is below. The interval is all means that the bets have not refuted, rounded outwards.

    Args:
        low: The least value there can be.
        high: The largest value.
        level: How often all intervals are to hold the mean.

    Attributes:
        interval: The interval so far.

    Raises:
        UsageError: The bounds are no two finite numbers that rise.
    """

    def __init__(self, low: float = 0.0, high: float = 1.0, level: float = LEVEL) -> None:
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise UsageError(f"bounds must be (least, largest), two finite numbers that rise, got ({low}, {high})")
        self._low, self._high = low, high
        self._level = level
        self._means = np.linspace(0.0, 1.0, _N_MEANS + 1)
        with np.errstate(divide="ignore"):
            self._most_above = _MOST_BET / self._means
            self._most_below = _MOST_BET / (1 - self._means)
        self._above = np.zeros(_N_MEANS + 1)  # logarithms of capital
        self._below = np.zeros(_N_MEANS + 1)
        self._n = 0
        self._sum, self._squares = 0.5, 0.25  # as if one value had been seen
        self._first, self._last = 0, _N_MEANS
        self.interval = Interval(low, high, "betting", level)

    def add(self, value: float) -> None:
        """Add the next value.

        Raises:
            UsageError: It is outside of the bounds.
        """
        if not self._low <= value <= self._high:
            raise UsageError(f"bounds are ({self._low:g}, {self._high:g}), and there is a value of {value:g}")
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
        if first > last:  # which happens with the probability that the level leaves
            return
        self._first, self._last = first, last
        width = self._high - self._low
        low, high = (self._low + width * float(self._means[end]) for end in (first, last))
        self.interval = Interval(low, high, "betting", self._level)


class DiscordantPairs:
    """A test of whether two success rates on shared seeds differ, which holds whenever one stops.

    Of the pairs in which one agent alone succeeds, each agent wins half if the rates are equal. The bet is the mixture
    over all other shares with Jeffreys' prior.

    Attributes:
        wins: Pairs in which the second agent alone succeeded.
        losses: Pairs in which the first agent alone succeeded.
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
