"""Decide whether an agent is worse than another by more than a margin. Pure.

An agent is not worse if the interval of its difference lies above -margin, worse if it lies below, and otherwise
undecided. From 20 pairs on, equal agents are called worse, and agents worse by twice the margin are accepted, in at
most 5 of 100 cases each. `.ci/prove gate` simulates both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np

from streamsampler.core.errors import UsageError
from streamsampler.core.words import count
from streamsampler.evaluation.evaluation import in_brackets, number, plain, unseen
from streamsampler.evaluation.intervals import (
    FEWEST_SKEWED,
    LEVEL,
    Bounds,
    Floats,
    Interval,
    Unknown,
    bounded_interval,
    counted,
    mean_interval,
    rounding_of,
    unseen_share,
)
from streamsampler.evaluation.rules import PrecisionOf
from streamsampler.evaluation.suites.means import task_interval
from streamsampler.evaluation.suites.scores import TaskScores

FEWEST_PAIRS = 20
_ENOUGH_SKEWED = 200
_FEWEST_OTHERS, _FARTHER = 10, 2.0
_FAR = 1_000.0  # times the present pairs: beyond, the number is not predictable
_NAMES: dict[PrecisionOf, str] = {"return": "mean returns", "success": "success rates"}


def gate_interval(
    differences: Floats, level: float = LEVEL, *, bounds: Bounds | None = None, rounding: float | None = None
) -> Interval | Unknown:
    """Return the interval of a mean difference for a gate's decision, or the reason for its absence.

    From 200 pairs on it is `intervals.mean_interval`. With fewer pairs, that interval holds for both sides together,
    but misses too often on the side of the longer tail: the skewness of so few differences says little about their
    distribution. Therefore, below 200 pairs it is `suites.means.task_interval`, at either end the wider of Student's t
    and the studentised bootstrap, with half of the error rate.

    If more than half of the differences are equal, it is `intervals.mean_interval` for any number of pairs. If fewer
    than 10 pairs differ from the others, it reaches twice as far from these, unless at least three do by the same
    amount: the observed differences may be small by chance.
    """
    n = len(differences)
    rounding = rounding_of(differences) if rounding is None else rounding
    if n < FEWEST_PAIRS:
        if bounds is None or not np.isfinite(differences).all():
            return Unknown(f"{count(n, 'pair')}, fewer than {FEWEST_PAIRS}")
        return bounded_interval(differences, bounds, level, rounding)
    found = mean_interval(differences, level, bounds=bounds, of="difference", rounding=rounding)
    if isinstance(found, Interval) and found.method not in ("t", "studentised bootstrap"):
        return found if bounds is not None else _farther(found, differences, rounding)
    if n >= _ENOUGH_SKEWED or not np.isfinite(differences).all():
        return found
    scores = TaskScores(differences, tuple(range(n)), bounds, rounding)
    return found if scores.is_constant else task_interval(scores, (1 + level) / 2)


def _farther(interval: Interval, differences: Floats, rounding: float) -> Interval:
    """Widen an interval away from the most frequent difference, if too few others show their size."""
    found, counts = counted(differences, rounding)
    usual = float(found[counts.argmax()])
    n_others = len(differences) - int(counts.max())
    sizes = np.abs(np.delete(found, counts.argmax()) - usual)
    is_one_size = n_others > 2 and float(np.ptp(sizes)) <= 2 * rounding
    if n_others >= _FEWEST_OTHERS or is_one_size:
        return interval
    low, high = (usual + _FARTHER * (end - usual) for end in (interval.low, interval.high))
    return replace(interval, low=min(low, interval.low), high=max(high, interval.high))


Outcome: TypeAlias = Literal["not worse", "worse", "undecided"]
"""The outcome for an agent."""


def outcome_of(interval: Interval, margin: float) -> Outcome:
    return "not worse" if interval.low > -margin else "worse" if interval.high < -margin else "undecided"


@dataclass(frozen=True, kw_only=True)
class GateDecision:
    """Whether an agent is worse than the first by more than a margin, and the reason.

    Attributes:
        first: The first agent's name.
        second: The other agent's name.
        margin: Largest tolerated loss of the other agent, in units of the difference, at least 0.
        of: Quantity of the difference, such as "mean returns".
        n_pairs: Number of common seeds.
        difference: The difference, second agent minus first.
        interval: The interval of the difference, or the reason for its absence.
        all_equal: Whether all pairs have the same difference, up to rounding.
        tested: The outcome of a test without interval; None if the interval decides.
        expected: Number of further pairs for a test, if they resemble the present ones; None without a test.
        advice: Advice for an undecided outcome; empty to request more pairs, or bounds.
    """

    first: str
    second: str
    margin: float
    of: str
    n_pairs: int
    difference: float
    interval: Interval | Unknown
    all_equal: bool
    tested: Outcome | None = None
    expected: int | None = None
    advice: str = ""

    @property
    def outcome(self) -> Outcome:
        """Whether the other agent is "not worse", "worse", or "undecided".

        A difference of 0 in all pairs counts as not worse, by definition: it has no interval without bounds.
        """
        if self._all_zero:
            return "not worse"
        if self.tested is not None:
            return self.tested
        return outcome_of(self.interval, self.margin) if isinstance(self.interval, Interval) else "undecided"

    @property
    def more(self) -> int | None:
        """About how many more pairs would decide, if the true difference is the observed one.

        The distance of the interval's end on the side of -margin shrinks with the root of the number of pairs. None if
        the pairs decide already, or if no number can be given: the difference is at -margin, or more pairs alone give
        no interval.
        """
        if self.advice or self.outcome != "undecided" or not math.isfinite(self.difference):
            return None
        if self.expected is not None:
            return self.expected
        n = self.n_pairs
        if not isinstance(self.interval, Interval):
            enough = FEWEST_PAIRS if n < FEWEST_PAIRS else FEWEST_SKEWED
            return None if self.all_equal or n >= enough else enough - n
        distance = self.difference + self.margin
        reach = self.difference - self.interval.low if distance > 0 else self.interval.high - self.difference
        if not abs(distance) * math.sqrt(_FAR) > reach:
            return None
        return max(1, math.ceil(n * (reach / distance) ** 2) - n)

    @property
    def _all_zero(self) -> bool:
        return self.all_equal and self.difference == 0

    def __str__(self) -> str:
        by = f" by more than {number(self.margin)}" if self.margin else ""
        claim = f"{self.second} {'is' if self.outcome != 'undecided' else 'may be'} {{}} than {self.first}{by}"
        if self._all_zero:
            others = unseen(unseen_share(self.n_pairs), "pairs", LEVEL)
            all_pairs = f"the difference of {self.of} is 0 in all {count(self.n_pairs, 'pair')}"
            return f"{claim.format('not worse')}: {all_pairs}; {others}"
        why = in_brackets(self.interval) if self.tested in (None, "undecided") else ", as the test decided"
        seen = f"difference of {self.of} {number(self.difference)}{why}"
        if self.outcome != "undecided":
            return f"{claim.format(self.outcome)}: {seen}"
        return f"undecided: {claim.format('worse')}: {seen}{self._advice}"

    @property
    def _advice(self) -> str:
        if self.advice:
            return self.advice
        if self.more is not None:
            least = "about" if isinstance(self.interval, Interval) else "at least"
            return f"; it likely takes {least} {count(self.more, 'more pair')}"
        if not isinstance(self.interval, Interval):
            return "; with bounds of returns there is one" if math.isfinite(self.difference) else ""
        return f"; too near to {number(0.0 - self.margin)} to predict the number of further pairs"

    def facts(self) -> dict[str, Any]:
        """Return this as JSON values."""
        return {
            "agent": self.second,
            "outcome": self.outcome,
            "n_pairs": self.n_pairs,
            "difference": self.difference if math.isfinite(self.difference) else None,
            "interval": plain(self.interval),
            "more_pairs": self.more,
        }


@dataclass(frozen=True, repr=False)
class GateVerdict:
    """Whether any agent is worse than the first by more than a margin; true only if none is.

    `print(verdict)` shows a line for each agent. Iteration yields the decisions.

    Attributes:
        decisions: A decision for each agent but the first.
    """

    decisions: tuple[GateDecision, ...]

    @property
    def outcome(self) -> Outcome:
        """The common outcome: "worse" if any agent is, otherwise "undecided" if any is, otherwise "not worse"."""
        outcomes = {decision.outcome for decision in self.decisions}
        return "worse" if "worse" in outcomes else "undecided" if "undecided" in outcomes else "not worse"

    @property
    def margin(self) -> float:
        """Largest tolerated loss of each agent."""
        return self.decisions[0].margin

    @property
    def more(self) -> int | None:
        """About how many more pairs would decide about all agents; None if unknown, or if all are decided."""
        open_ones = [decision.more for decision in self.decisions if decision.outcome == "undecided"]
        known = [more for more in open_ones if more is not None]
        return max(known) if known and len(known) == len(open_ones) else None

    def __bool__(self) -> bool:
        return self.outcome == "not worse"

    def __iter__(self) -> Iterator[GateDecision]:
        return iter(self.decisions)

    def __str__(self) -> str:
        return "\n".join(f"verdict: {decision}" for decision in self.decisions)

    def __repr__(self) -> str:
        return f"GateVerdict({'; '.join(map(str, self.decisions))})"

    def facts(self) -> dict[str, Any]:
        """Return this as JSON values."""
        return {
            "margin": self.margin,
            "outcome": self.outcome,
            "more_pairs": self.more,
            "agents": [decision.facts() for decision in self.decisions],
        }


def name_of_difference(of: PrecisionOf) -> str:
    return _NAMES[of]


def checked_margin(margin: Any, of: PrecisionOf, bounds: Bounds | None = None) -> float:
    """Return a margin as a number.

    Raises:
        UsageError: It is no finite number, below 0, or as large as the largest possible difference; or `of` is invalid.
    """
    if of not in _NAMES:
        raise UsageError(f'decide_on must be "return" or "success", got {of!r}')
    number_given = isinstance(margin, Real) and not isinstance(margin, bool)
    value = float(margin) if number_given else math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"margin must be a number of at least 0, the largest tolerated loss, got {margin!r}")
    if of == "success" and value >= 1:
        raise UsageError(f"margin of success rates must be below 1, such as 0.05, got {value:g}")
    if of == "return" and bounds is not None and value >= bounds[1] - bounds[0]:
        raise UsageError(f"margin is {value:g}, and bounds are ({bounds[0]:g}, {bounds[1]:g}): no agent can lose more")
    return value
