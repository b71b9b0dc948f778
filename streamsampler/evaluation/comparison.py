"""The result of a comparison: the evaluations of agents on the same seeds, and their differences pair by pair."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from streamsampler.core.errors import DataError, UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.core.words import count
from streamsampler.evaluation.evaluation import (
    Evaluation,
    Line,
    aligned,
    in_brackets,
    number,
    percent,
    plain,
    shown_seeds,
    unseen,
    warned,
)
from streamsampler.evaluation.found import Found
from streamsampler.evaluation.gate import (
    GateDecision,
    GateVerdict,
    checked_margin,
    gate_interval,
    name_of_difference,
)
from streamsampler.evaluation.intervals import (
    FEWEST,
    LEVEL,
    Bounds,
    Floats,
    Interval,
    Unknown,
    bounded_interval,
    counted,
    mean_interval,
    random_weights,
    rounding_of,
    unseen_share,
)
from streamsampler.evaluation.journal import INTERRUPTED, JournalContents
from streamsampler.evaluation.pairing import pairs_of
from streamsampler.evaluation.rules import PrecisionOf
from streamsampler.evaluation.sequential import (
    PairTest,
    SuccessTest,
    Verdict,
    anytime_interval,
    expected_pairs,
    make_test,
)

_ROUNDING = 1e-20  # of a variance, relative


def probability_of_improvement(first: Floats, second: Floats) -> float:
    """Return the probability that a value of `second` is above a value of `first`; ties count half.

    Mann and Whitney's U, divided by the product of the two sizes.
    """
    ordered = np.sort(first)
    below = np.searchsorted(ordered, second, side="left") + np.searchsorted(ordered, second, side="right")
    return float(below.sum()) / (2 * len(first) * len(second))


def improvement_interval(first: Floats, second: Floats, level: float = LEVEL) -> Interval | Unknown:
    """Return the interval of the probability of improvement of (N,) pairs.

    The pairs, and an additional unobserved pair in which an agent is below or above all others, have uniformly
    distributed random weights, as in `intervals.bounded_interval`. Therefore the interval has a width even if one agent
    is always better, or both are equal, where a bootstrap of pairs misses in 1 of 2 intervals.
    """
    n = len(first)
    if n < FEWEST:
        return Unknown(f"{count(n, 'pair')}, fewer than {FEWEST}")
    lows: list[Floats] = []
    highs: list[Floats] = []
    for weights in random_weights(np.ones(n + 1)):
        unseen = weights[:, -1]
        drawn = weighted_improvement(weights[:, :-1] / (1 - weights[:, -1:]), first, second)
        lows.append((1 - unseen) * drawn)
        highs.append(1 - (1 - unseen) * (1 - drawn))
    low = float(np.quantile(np.concatenate(lows), (1 - level) / 2))
    high = float(np.quantile(np.concatenate(highs), (1 + level) / 2))
    return Interval(max(0.0, low), min(1.0, high), "weighted pairs", level)


def weighted_improvement(weights: Floats, first: Floats, second: Floats) -> Floats:
    """Return the probabilities of improvement of (N,) weighted pairs, (k,) for (k, N) weights that add up to 1."""
    order = np.argsort(first, kind="stable")
    ordered = first[order]
    below, up_to = np.searchsorted(ordered, second, side="left"), np.searchsorted(ordered, second, side="right")
    sums = np.cumsum(np.insert(weights[:, order], 0, 0.0, axis=1), axis=1)
    drawn: Floats = (weights * (sums[:, below] + sums[:, up_to])).sum(axis=1) / 2
    return drawn


def correlation(first: Floats, second: Floats) -> float | None:
    """Return the correlation of (N,) pairs; None for a constant sample."""
    deviations = first - first.mean(), second - second.mean()
    scale = math.sqrt(float((deviations[0] ** 2).sum()) * float((deviations[1] ** 2).sum()))
    if len(first) < 2 or scale == 0 or first.min() == first.max() or second.min() == second.max():
        return None
    return float((deviations[0] * deviations[1]).sum()) / scale


def unpaired_equivalent(first: Floats, second: Floats) -> float | None:
    """Return how many trajectories of each agent, on independent seeds, would compare the means as precisely.

    Returns:
        N times the variance of unpaired differences divided by that of paired differences; infinite if all differences
        are equal, None if both samples are constant.
    """
    unpaired = float(first.var(ddof=1) + second.var(ddof=1)) if len(first) > 1 else 0.0
    if unpaired == 0:
        return None
    paired = float((second - first).var(ddof=1))
    return len(first) * unpaired / paired if paired > _ROUNDING * unpaired else math.inf


def rate_difference_interval(wins: int, losses: int, n: int, level: float = LEVEL) -> Interval | Unknown:
    """Return the interval of the difference of two success rates on the same seeds."""
    if n < FEWEST:
        return Unknown(f"{count(n, 'pair')}, fewer than {FEWEST}")
    differences = np.repeat([1.0, -1.0, 0.0], [wins, losses, n - wins - losses])
    return bounded_interval(differences, (-1.0, 1.0), level)


_NUMBERS = (
    "mean_difference", "mean_difference_interval", "probability_of_improvement", "improvement_interval",
    "success_difference", "success_difference_interval", "discordant", "correlation", "unseen_share",
)  # fmt: skip
"""Entries of the JSON of two agents, by the attributes of `Pairs`."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Pairs:
    """Two agents on the same N seeds. Differences are the second agent minus the first.

    Attributes:
        first: The first agent's name.
        second: The second agent's name.
        returns: The returns of both, (N,) float64 each.
        seeds: N Python ints: the seeds.
        successes: The successes of both, (N,) bool each; None without success flags.
        level: Confidence of each interval.
        test: The test with all pairs; None without a test.
        decide_on: Quantity of the test, and the default of a gate: "return" or "success".
        bounds: The least and the largest possible return; None if unknown.
        indices: N Python ints: the indices of the first agent's trajectories.
    """

    first: str
    second: str
    returns: tuple[Floats, Floats]
    successes: tuple[Any, Any] | None
    level: float
    test: PairTest | None
    decide_on: PrecisionOf = "return"
    bounds: Bounds | None = None
    seeds: tuple[int, ...] = ()
    indices: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.returns[0])

    @property
    def differences(self) -> Floats:
        """(N,) float64: the differences of returns."""
        with np.errstate(invalid="ignore"):  # NaN if both are infinite
            return self.returns[1] - self.returns[0]

    @property
    def mean_difference(self) -> float:
        """The mean difference of returns."""
        return float(self.differences.mean())

    @cached_property
    def mean_difference_interval(self) -> Interval | Unknown:
        """The interval of the mean difference; the interval of the test's bets if they decided when to stop."""
        if (interval := self._tested("return")) is not None:
            return interval
        bounds = self._bounds_of("return")
        return mean_interval(self.differences, self.level, bounds=bounds, of="difference", rounding=self._rounding)

    def _tested(self, of: PrecisionOf) -> Interval | None:
        """Return the interval of the test's bets on these differences, if any."""
        return self.test.interval if self.test is not None and self.decide_on == of else None

    def _bounds_of(self, of: PrecisionOf) -> Bounds | None:
        if of == "return" and self.bounds is None:
            return None
        span = 1.0 if of == "success" or self.bounds is None else self.bounds[1] - self.bounds[0]
        return -span, span

    @property
    def _rounding(self) -> float:
        return 2 * max(map(rounding_of, self.returns))

    @property
    def unseen_share(self) -> float | None:
        """The largest share of pairs that may have another difference, if all are equal; None if they differ."""
        differences = self.differences
        is_one = np.isfinite(differences).all() and len(counted(differences, self._rounding)[0]) == 1
        return unseen_share(len(self), self.level) if is_one else None

    @property
    def probability_of_improvement(self) -> float:
        """The probability that the second agent's return is above the first agent's, on independent seeds."""
        return probability_of_improvement(*self.returns)

    @cached_property
    def improvement_interval(self) -> Interval | Unknown:
        """The interval of the probability of improvement."""
        return improvement_interval(*self.returns, self.level)

    @property
    def correlation(self) -> float | None:
        """The correlation of the pairs' returns; None if an agent's returns are constant."""
        return correlation(*self.returns)

    @property
    def unpaired_equivalent(self) -> float | None:
        """Number of trajectories of each agent needed on different seeds; see `unpaired_equivalent`."""
        return unpaired_equivalent(*self.returns)

    @property
    def discordant(self) -> tuple[int, int] | None:
        """Numbers of pairs in which only the first agent succeeded, and only the second; None without success flags."""
        if self.successes is None:
            return None
        first, second = self.successes
        return int((first & ~second).sum()), int((second & ~first).sum())

    @property
    def success_difference(self) -> float | None:
        """The difference of success rates; None without success flags."""
        return None if self.successes is None else float(self.successes[1].mean() - self.successes[0].mean())

    @cached_property
    def success_difference_interval(self) -> Interval | Unknown | None:
        """The interval of the difference of success rates; None without a difference."""
        if self.discordant is None:
            return None
        if (interval := self._tested("success")) is not None:
            return interval
        losses, wins = self.discordant
        return rate_difference_interval(wins, losses, len(self), self.level)

    @property
    def verdict(self) -> Verdict | None:
        """The better agent by the test's decision; None without a decision, or without a test."""
        return None if self.test is None else self.test.verdict

    def decision(self, margin: float, of: PrecisionOf) -> GateDecision:
        """Decide whether the second agent is worse by more than a margin; see `Comparison.verdict`."""
        differences, rounding = self._differences_of(of), self._rounding if of == "return" else 0.0
        difference = float(differences.mean())
        is_one = math.isfinite(difference) and float(np.ptp(differences)) <= rounding
        decision = GateDecision(
            first=self.first,
            second=self.second,
            margin=margin,
            of=name_of_difference(of),
            n_pairs=len(self),
            difference=0.0 if is_one and abs(difference) <= rounding else difference,
            interval=self._gate_interval(differences, rounding, of),
            all_equal=is_one,
            tested=self.test.outcome if isinstance(self.test, SuccessTest) and (of, margin) == ("success", 0) else None,
        )
        bounds = self._bounds_of(of)
        is_open = decision.outcome == "undecided" and isinstance(decision.interval, Interval)
        if self.test is None or bounds is None or not is_open:
            return decision
        return replace(decision, expected=expected_pairs(differences, bounds, 1 - self.test.alpha, margin))

    def _differences_of(self, of: PrecisionOf) -> Floats:
        if of == "return":
            return self.differences
        first, second = (np.nan, np.full(len(self), np.nan)) if self.successes is None else self.successes
        return np.asarray(second, np.float64) - np.asarray(first, np.float64)

    def _gate_interval(self, differences: Floats, rounding: float, of: PrecisionOf) -> Interval | Unknown:
        if of == "success" and self.successes is None:
            return Unknown("the infos have no success flag")
        bounds = self._bounds_of(of)
        if self.test is not None and bounds is None:
            return Unknown("success rates decided when to stop, and returns have no bounds")
        if self.test is not None and bounds is not None:
            return self._tested(of) or anytime_interval(differences, bounds, 1 - self.test.alpha)
        found = self.success_difference_interval if of == "success" else None
        return gate_interval(differences, self.level, bounds=bounds, rounding=rounding) if found is None else found

    def __str__(self) -> str:
        texts = [f"{self.second} minus {self.first}: {count(len(self), 'pair')}", *aligned(self.lines())]
        if (note := _shared_seeds(self)) is not None:
            texts.append(f"  {note}")
        if self.test is not None and not self.test.margin:
            texts.append(f"  {_decision(self)}")
        return "\n".join(texts)

    def __repr__(self) -> str:
        interval = in_brackets(self.mean_difference_interval)
        pairs = f"{self.second} minus {self.first}: {count(len(self), 'pair')}"
        return f"Pairs({pairs}, mean difference {number(self.mean_difference)}{interval})"

    def lines(self) -> list[Line]:
        """Return the numbers with their intervals, for printing."""
        lines: list[Line] = [
            ("difference of means", number(self.mean_difference), self.mean_difference_interval),
            ("probability of improvement", number(self.probability_of_improvement), self.improvement_interval),
        ]
        if self.success_difference is not None:
            interval = self.success_difference_interval
            lines.append(("difference of success rates", number(self.success_difference), interval))
        r = self.correlation
        lines.append(("correlation of the pairs", "none" if r is None else number(r), None))
        return lines

    def summary(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        worth = self.unpaired_equivalent
        return {
            "first": self.first,
            "second": self.second,
            "n_pairs": len(self),
            **{name: plain(getattr(self, name)) for name in _NUMBERS},
            "unpaired_equivalent": None if worth is None or math.isinf(worth) else worth,
            "verdict": self.verdict,
        }


@suggesting()
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Comparison(Found):
    """The result of `streamsampler.compare`: an evaluation of each agent, and each agent's differences from the first.

    `print(comparison)` shows a table. With more than two agents the confidence of each interval and test is raised, so
    that all of them together hold as often as those of two agents.

    Attributes:
        names: The agents' names.
        evaluations: The evaluation of each agent.
        stopped: Reason for the end of the trajectories.
        until_decided: Probability of a wrong decision between equal agents; None without a test.
        decide_on: Quantity of the test and the verdict: "return" or "success".
        bounds: The least and the largest possible return for tests and intervals; None if unknown.
        margin: Largest tolerated loss of an agent; None without a verdict.

    Raises:
        DataError: Fewer than two agents are given, or the numbers of names and evaluations differ.
        UsageError: The margin is invalid.
    """

    KIND: ClassVar[str] = "comparison"

    names: tuple[str, ...]
    evaluations: tuple[Evaluation, ...]
    stopped: str
    until_decided: float | None = None
    decide_on: PrecisionOf = "return"
    bounds: Bounds | None = None
    margin: float | None = None

    def __post_init__(self) -> None:
        if len(self.names) != len(self.evaluations) or len(self.names) < 2:
            raise DataError(f"a comparison has at least two agents: {len(self.evaluations)}, {len(self.names)} names")
        if self.margin is not None:
            checked_margin(self.margin, self.decide_on, self.bounds)

    def __getitem__(self, name: str) -> Evaluation:
        """Return an agent's evaluation by its name."""
        try:
            return self.evaluations[self.names.index(name)]
        except ValueError:
            raise KeyError(f"{name!r}: the keys are the names of agents, {', '.join(self.names)}") from None

    @cached_property
    def pairs(self) -> tuple[Pairs, ...]:
        """Each other agent paired with the first, on their common seeds."""
        return tuple(self._pairs(position) for position in range(1, len(self.names)))

    def _pairs(self, position: int) -> Pairs:
        first, second = self.evaluations[0], self.evaluations[position]
        mine, others = pairs_of(first, second)
        if not len(mine):
            raise DataError(f"{self.names[0]} and {self.names[position]} have no common trajectory")
        n_tests = len(self.names) - 1
        successes = None
        if first.successes is not None and second.successes is not None:
            successes = first.successes[mine], second.successes[others]
        returns = first.returns[mine], second.returns[others]
        test = None
        if self.until_decided is not None:
            test = make_test(self.until_decided / n_tests, self.decide_on, self.bounds, self.margin)
            for pair in zip(*(returns if self.decide_on == "return" else successes or ((), ())), strict=True):
                test.add(*map(float, pair))
        return Pairs(
            first=self.names[0],
            second=self.names[position],
            returns=returns,
            seeds=tuple(first.seeds[position] for position in mine),
            indices=tuple(first.indices[mine].tolist()),
            successes=successes,
            level=1 - (1 - LEVEL) / n_tests,
            test=test,
            decide_on=self.decide_on,
            bounds=self.bounds,
        )

    def verdict(self, margin: float | None = None, *, decide_on: PrecisionOf | None = None) -> GateVerdict:
        """Decide whether any agent is worse than the first by more than a margin.

        An agent is "not worse" if the interval of its mean difference from the first agent lies above -margin, "worse"
        if it lies below, and otherwise "undecided", with an estimate of the pairs still needed. A difference of exactly
        0 in all pairs counts as not worse. All verdicts together are wrong in at most 5 of 100 comparisons, or with the
        probability `until_decided`: see `gate.gate_interval`, and `sequential` if a test decided when to stop.

        Args:
            margin: Largest tolerated loss of an agent, at least 0: of returns in their units, of success rates such as
                0.05. By default the requested margin.
            decide_on: The mean "return", or the "success" rate; by default the call's.

        Returns:
            The verdict: true only if it is certain that no agent is worse.

        Raises:
            UsageError: No margin is given, or it is invalid.
        """
        of = self.decide_on if decide_on is None else decide_on
        margin = self.margin if margin is None else margin
        if margin is None:
            raise UsageError("the margin is missing: give the largest tolerated loss, such as verdict(5)")
        margin = checked_margin(margin, of, self.bounds)
        return GateVerdict(tuple(pairs.decision(margin, of) for pairs in self.pairs))

    def __str__(self) -> str:
        first = self.evaluations[0]
        texts = [_heading(self), *_columns(self), *map(str, self.pairs)]
        each = zip(self.names, self.evaluations, strict=True)
        texts += [f"note: {name}: {note}" for name, evaluation in each for note in warned(evaluation)]
        texts += _unpaired(self)
        texts.append(f"seeds: {shown_seeds(first.seeds)}")
        texts.append(f"stopped: {self.stopped}")
        if self.margin is not None:
            texts.append(str(self.verdict()))
        return "\n".join(texts)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.names)}: {len(self.evaluations[0])} trajectories)"

    def by_position(self) -> dict[int, Evaluation]:
        """Return the evaluation of each agent, by the agent's position."""
        return dict(enumerate(self.evaluations))

    def names_by_position(self) -> tuple[str, ...]:
        return self.names

    @classmethod
    def names_in_journal(cls, head: Mapping[str, Any]) -> list[str]:
        return list(head["agents"])

    def facts(self) -> dict[str, Any]:
        """Return the contents as JSON values; see `Found`."""
        return {
            "agents": list(self.names),
            "stopped": self.stopped,
            "until_decided": self.until_decided,
            "decide_on": self.decide_on,
            "bounds": None if self.bounds is None else list(self.bounds),
            **({} if self.margin is None else {"margin": self.margin, "verdict": self.verdict().facts()}),
            "summary": [pairs.summary() for pairs in self.pairs],
            "evaluations": [evaluation.contents() for evaluation in self.evaluations],
        }

    @classmethod
    def of_facts(cls, facts: dict[str, Any]) -> Comparison:
        """Return the comparison with these contents; see `Found`."""
        comparison = cls(
            names=tuple(map(str, facts["agents"])),
            evaluations=tuple(map(Evaluation.of_facts, facts["evaluations"])),
            stopped=str(facts["stopped"]),
            until_decided=facts["until_decided"],
            decide_on=facts["decide_on"],
            bounds=None if facts["bounds"] is None else (float(facts["bounds"][0]), float(facts["bounds"][1])),
            margin=None if facts.get("margin") is None else float(facts["margin"]),
        )
        _ = comparison.pairs
        return comparison

    @classmethod
    def facts_of_journal(cls, journal: JournalContents) -> dict[str, Any]:
        """Return the trajectories of a journal as JSON values; see `Found`."""
        positions = list(journal.evaluations)
        if len(positions) < 2:
            raise ValueError("only the first agent has trajectories, so no pairs exist yet")
        names = journal.head["agents"]
        return {
            **journal.head,
            "agents": [names[position] for position in positions],
            "stopped": INTERRUPTED,
            "evaluations": list(journal.evaluations.values()),
        }


def _unpaired(comparison: Comparison) -> list[str]:
    """Return the numbers of pairs and trajectories, for each agent with unpaired trajectories."""
    first, notes = comparison.evaluations[0], []
    for name, each, pairs in zip(comparison.names[1:], comparison.evaluations[1:], comparison.pairs, strict=True):
        if len(pairs) < max(len(first), len(each)):
            numbers = f"{comparison.names[0]} has {count(len(first), 'trajectory')}, and {name} {len(each):,}"
            notes.append(f"note: {count(len(pairs), 'pair')} with common seeds: {numbers}")
    return notes


def _heading(comparison: Comparison) -> str:
    environment = comparison.evaluations[0].environment
    part = "" if (it := comparison.evaluations[0].part) is None else f", {it}"
    return f"{', '.join(comparison.names)} in {environment}, on the same seeds{part}"


def _columns(comparison: Comparison) -> list[str]:
    """Return a table with a column for each agent."""
    evaluations = comparison.evaluations
    rows: Mapping[str, list[str]] = {
        "": list(comparison.names),
        "trajectories": [f"{len(each):,}" for each in evaluations],
        "mean return": [number(each.mean) for each in evaluations],
        "standard error": [number(each.standard_error) for each in evaluations],
        "median": [number(each.median) for each in evaluations],
        "interquartile mean": [number(each.interquartile_mean) for each in evaluations],
        "success rate": ["" if each.success_rate is None else percent(each.success_rate) for each in evaluations],
    }
    kept = {name: cells for name, cells in rows.items() if any(cells)}
    widths = [max(len(cells[column]) for cells in kept.values()) for column in range(len(evaluations))]
    first = max(map(len, kept))
    return [
        f"  {name:{first}}  {'  '.join(f'{cell:>{width}}' for cell, width in zip(cells, widths, strict=True))}"
        for name, cells in kept.items()
    ]


def _shared_seeds(pairs: Pairs) -> str | None:
    """Return the benefit of common seeds in words; or that all differences are equal."""
    worth = pairs.unpaired_equivalent
    if pairs.unseen_share is not None and len(pairs) > 1:
        return f"all differences are equal; {unseen(pairs.unseen_share, 'pairs', pairs.level)}"
    if worth is None or math.isinf(worth):
        return None
    if worth < len(pairs):
        return f"shared seeds did not help: as precise as {worth:,.0f} unpaired trajectories of each agent"
    return f"as good as {worth:,.0f} unpaired trajectories of each agent"


def _decision(pairs: Pairs) -> str:
    assert pairs.test is not None
    if pairs.verdict is None:
        return f"undecided ({pairs.test.method})"
    better = pairs.second if pairs.verdict == "second" else pairs.first
    return f"decided: {better} is better ({pairs.test.method})"
