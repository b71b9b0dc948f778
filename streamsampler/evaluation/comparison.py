"""What a comparison found: the evaluations of agents on the same seeds, and their differences pair by pair."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from streamsampler.data.words import count
from streamsampler.errors import DataError
from streamsampler.evaluation.deciding import PairTest, Verdict, make_test
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.files import shown_interval
from streamsampler.evaluation.found import Found
from streamsampler.evaluation.intervals import LEVEL, Floats, Interval, Unknown, mean_interval
from streamsampler.evaluation.pairs import (
    correlation,
    improvement_interval,
    probability_of_improvement,
    rate_difference_interval,
    unpaired_equivalent,
)
from streamsampler.evaluation.printing import Line, aligned, number, percent, shown_seeds
from streamsampler.evaluation.rules import Bounds, PrecisionOf

__all__ = ["Comparison", "Pairs"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Pairs:
    """Two agents on the same N seeds. Differences are those of the second agent minus the first.

    Attributes:
        first: The first agent's name.
        second: The second agent's name.
        returns: The returns of both, (N,) float64 each.
        successes: The successes of both, (N,) bool each; None where no info says.
        level: How often each interval holds.
        test: The test that was to decide, with all pairs; None where none was.
    """

    first: str
    second: str
    returns: tuple[Floats, Floats]
    successes: tuple[Any, Any] | None
    level: float
    test: PairTest | None

    def __len__(self) -> int:
        return len(self.returns[0])

    @property
    def differences(self) -> Floats:
        """(N,) float64: the differences of returns."""
        return self.returns[1] - self.returns[0]

    @property
    def mean_difference(self) -> float:
        """The mean difference of returns."""
        return float(self.differences.mean())

    @cached_property
    def mean_difference_interval(self) -> Interval | Unknown:
        """The interval of the mean difference; where bets on it decided when to stop, that of the bets."""
        if self.test is not None and self.test.interval is not None:
            return self.test.interval
        return mean_interval(self.differences, self.level)

    @property
    def probability_of_improvement(self) -> float:
        """How probable it is that the second agent's return is above the first one's, on seeds of any kind."""
        return probability_of_improvement(*self.returns)

    @cached_property
    def improvement_interval(self) -> Interval | Unknown:
        """The interval of the probability of improvement."""
        return improvement_interval(*self.returns, self.level)

    @property
    def correlation(self) -> float | None:
        """The correlation of the pairs' returns; None where one of the agents always has the same return."""
        return correlation(*self.returns)

    @property
    def unpaired_equivalent(self) -> float | None:
        """How many trajectories of each agent would be needed on different seeds; see `pairs.unpaired_equivalent`."""
        return unpaired_equivalent(*self.returns)

    @property
    def discordant(self) -> tuple[int, int] | None:
        """In how many pairs the first agent alone succeeded, and the second alone; None where no info says."""
        if self.successes is None:
            return None
        first, second = self.successes
        return int((first & ~second).sum()), int((second & ~first).sum())

    @property
    def success_difference(self) -> float | None:
        """The difference of success rates; None where no info says."""
        return None if self.successes is None else float(self.successes[1].mean() - self.successes[0].mean())

    @cached_property
    def success_difference_interval(self) -> Interval | Unknown | None:
        """The interval of the difference of success rates; None where there is none."""
        if self.discordant is None:
            return None
        losses, wins = self.discordant
        return rate_difference_interval(wins, losses, len(self), self.level)

    @property
    def verdict(self) -> Verdict | None:
        """Which agent is better, as the test decided; None where it did not, or there was none."""
        return None if self.test is None else self.test.verdict

    def lines(self) -> list[Line]:
        """Return the numbers with their intervals, to be printed."""
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
        """Return the numbers as JSON has them."""
        worth = self.unpaired_equivalent
        return {
            "first": self.first,
            "second": self.second,
            "n_pairs": len(self),
            "mean_difference": self.mean_difference,
            "mean_difference_interval": shown_interval(self.mean_difference_interval),
            "probability_of_improvement": self.probability_of_improvement,
            "improvement_interval": shown_interval(self.improvement_interval),
            "success_difference": self.success_difference,
            "success_difference_interval": shown_interval(self.success_difference_interval),
            "discordant": self.discordant,
            "correlation": self.correlation,
            "unpaired_equivalent": None if worth is None or math.isinf(worth) else worth,
            "verdict": self.verdict,
        }


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Comparison(Found):
    """What `streamsampler.compare` found: an evaluation of each agent, and each agent's differences to the first.

    `print(comparison)` shows a table. Where there are more than two agents, each interval and each test holds so
    much more often that all of them together hold as often as one of two agents.

    Attributes:
        names: The agents' names.
        evaluations: The evaluation of each.
        stopped: Why there are no more trajectories.
        until_decided: How often equal agents may be told apart, if a test was to decide; None if none was.
        decide_on: What the test is about: "return" or "success".
        bounds: The least and the largest return that it relies on; None for none.

    Raises:
        DataError: There are fewer than two agents, or not as many names as evaluations.
    """

    KIND: ClassVar[str] = "comparison"

    names: tuple[str, ...]
    evaluations: tuple[Evaluation, ...]
    stopped: str
    until_decided: float | None = None
    decide_on: PrecisionOf = "return"
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        if len(self.names) != len(self.evaluations) or len(self.names) < 2:
            raise DataError(f"a comparison has at least two agents: {len(self.evaluations)}, {len(self.names)} names")

    def __getitem__(self, name: str) -> Evaluation:
        """Return an agent's evaluation, by its name."""
        try:
            return self.evaluations[self.names.index(name)]
        except ValueError:
            raise KeyError(name) from None

    @cached_property
    def pairs(self) -> tuple[Pairs, ...]:
        """Each other agent with the first one, on the seeds that both have."""
        return tuple(self._pairs(position) for position in range(1, len(self.names)))

    def _pairs(self, position: int) -> Pairs:
        first, second = self.evaluations[0], self.evaluations[position]
        _, mine, others = np.intersect1d(first.indices, second.indices, assume_unique=True, return_indices=True)
        if not len(mine):
            raise DataError(f"{self.names[0]} and {self.names[position]} have no trajectory in common")
        n_tests = len(self.names) - 1
        successes = None
        if first.successes is not None and second.successes is not None:
            successes = first.successes[mine], second.successes[others]
        returns = first.returns[mine], second.returns[others]
        test = None
        if self.until_decided is not None:
            test = make_test(self.until_decided / n_tests, self.decide_on, self.bounds)
            for pair in zip(*(returns if self.decide_on == "return" else successes or ((), ())), strict=True):
                test.add(*map(float, pair))
        return Pairs(
            first=self.names[0],
            second=self.names[position],
            returns=returns,
            successes=successes,
            level=1 - (1 - LEVEL) / n_tests,
            test=test,
        )

    def __str__(self) -> str:
        first = self.evaluations[0]
        texts = [_heading(self), *_columns(self)]
        for pairs in self.pairs:
            texts.append(f"{pairs.second} minus {pairs.first}: {count(len(pairs), 'pair')}")
            texts += aligned(pairs.lines())
            worth = pairs.unpaired_equivalent
            if worth is not None:
                texts.append(f"  {_worth(worth, len(pairs))}")
            if pairs.test is not None:
                texts.append(f"  {_decision(pairs)}")
        texts.append(f"seeds: {shown_seeds(first.seeds)}")
        texts.append(f"stopped: {self.stopped}")
        return "\n".join(texts)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.names)}: {len(self.evaluations[0])} trajectories)"

    def facts(self) -> dict[str, Any]:
        """Return what it holds as JSON has it; see `Found`."""
        return {
            "agents": list(self.names),
            "stopped": self.stopped,
            "until_decided": self.until_decided,
            "decide_on": self.decide_on,
            "bounds": None if self.bounds is None else list(self.bounds),
            "summary": [pairs.summary() for pairs in self.pairs],
            "evaluations": [evaluation.contents() for evaluation in self.evaluations],
        }

    @classmethod
    def of_facts(cls, facts: dict[str, Any]) -> Comparison:
        """Return the comparison that has these facts; see `Found`."""
        comparison = cls(
            names=tuple(map(str, facts["agents"])),
            evaluations=tuple(map(Evaluation.of_facts, facts["evaluations"])),
            stopped=str(facts["stopped"]),
            until_decided=facts["until_decided"],
            decide_on=facts["decide_on"],
            bounds=None if facts["bounds"] is None else (float(facts["bounds"][0]), float(facts["bounds"][1])),
        )
        _ = comparison.pairs
        return comparison


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


def _worth(worth: float, n: int) -> str:
    if math.isinf(worth):
        return "all differences are equal"
    if worth < n:
        return f"shared seeds did not help: as good as {worth:,.0f} unpaired trajectories of each agent"
    return f"as good as {worth:,.0f} unpaired trajectories of each agent"


def _decision(pairs: Pairs) -> str:
    assert pairs.test is not None
    if pairs.verdict is None:
        return f"not decided ({pairs.test.method})"
    better = pairs.second if pairs.verdict == "second" else pairs.first
    return f"decided: {better} is better ({pairs.test.method})"
