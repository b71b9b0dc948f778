"""Intervals hold as often as they say: 2,000 seeded evaluations of each kind, every twentieth through `evaluate`.

Those of two values hold in 93 of 100 evaluations that print one, for each number of trajectories from 10 on: computed,
not drawn. So do those of pairs that are nearly all equal, and all that decide when to stop.

So do intervals over tasks that share seeds (`_suite_coverage`).

And tests that are looked at after each trajectory tell equal agents apart as seldom as they say. The short form has a
tenth of the evaluations, and as much more room for chance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from streamsampler import LocalSampler, compare, evaluate
from streamsampler.evaluation.agents import Row
from streamsampler.evaluation.comparison import improvement_interval, rate_difference_interval
from streamsampler.evaluation.intervals import (
    Interval,
    bootstrap_intervals,
    mean_interval,
    middle_intervals,
    proportion_interval,
)
from streamsampler.evaluation.rules import BettingSequence, DiscordantPairs, PrecisionOf, make_rule
from streamsampler.evaluation.sequential import ReturnTest
from tests.proofs._suite_coverage import prove_suites

Draw = Callable[[np.random.Generator], float]
_EVERY = 20  # how many evaluations there are for one through `evaluate`
_LOOKS = 300  # trajectories that a test looks at, one after the other
_luck = np.random.default_rng(99)


def success(rate: float, rng: np.random.Generator) -> float:
    return float(rng.random() < rate)


def normal(rng: np.random.Generator) -> float:
    return float(rng.normal(5, 2))


class Drawn(gymnasium.Env[Any, Any]):
    """Has trajectories of one timestep, whose return is drawn from their seed, or is the action; 1 is a success."""

    observation_space = spaces.Box(-1, 1, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, draw: Draw | None = None) -> None:
        self._draw = draw

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._seed = seed
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        value = self._draw(np.random.default_rng(self._seed)) if self._draw else float(action)
        return np.zeros(1), value, True, False, {"success": value == 1}


class Lucky:
    """Draws from a generator that no seed sets, as two agents of equal skill would differ."""

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return int(_luck.random() < 0.7), {}


def _seeds(case: str, number: int, n: int) -> range:
    """Return seeds that no other evaluation has."""
    first = int(np.random.SeedSequence([len(case), *case.encode(), number]).generate_state(1)[0]) * 1_000
    return range(first, first + n)


def _share(
    name: str, n_evaluations: int, n: int, draw: Draw, true: float, interval: Callable[[Any], tuple[Any, int]],
    through: str, **until: Any,
) -> float:  # fmt: skip
    """Return how often an interval of up to n trajectories holds the true value, where there is one.

    Args:
        interval: The function that is tried: of the values, the interval, and of how many of them.
        through: The attribute of an `Evaluation` that has the same interval.
        until: When the evaluation stops.
    """
    held = found = 0
    with LocalSampler(lambda _: 0, Drawn, env_kwargs={"draw": draw}, check=None) as sampler:
        for number in range(n_evaluations):
            seeds = _seeds(name, number, n)
            got, stop = interval(np.array([draw(np.random.default_rng(seed)) for seed in seeds]))
            if number % _EVERY == 0:
                evaluation = evaluate(sampler=sampler, seeds=seeds, **until)
                assert (len(evaluation), getattr(evaluation, through)) == (stop, got), (name, number)
            if isinstance(got, Interval):
                found += 1
                held += true in got
    return held / found


def _stopped(of: PrecisionOf, halfwidth: float, bounds: Any = None) -> Callable[[Any], tuple[Any, int]]:
    """Return what gives the interval that an evaluation of up to that many values reports, and after how many."""

    def interval(values: Any) -> tuple[Any, int]:
        rule = make_rule(halfwidth, of, guarantee=False, bounds=bounds, least=None)
        for n, value in enumerate(values.tolist(), start=1):
            if rule.add(Row(n, n, value, 1, terminated=True, truncated=False, success=value == 1)):
                return rule.reported, n
        return rule.reported, len(values)

    return interval


def outlier(share: float, rng: np.random.Generator) -> float:
    return 9.0 if rng.random() < share else 500.0


_LEAST = 0.93  # of the intervals that are printed
_RATES = (0.02, 0.5, 0.98)


# How many trajectories, what is drawn, its true value, the interval, where an evaluation has it, and the shares of
# intervals that hold which are right.
CASES: dict[str, tuple[int, Draw, float, Any, str, float, float]] = {
    **{f"mean of {n} normal returns": (n, normal, 5.0, lambda values: (mean_interval(values), len(values)),
                                       "mean_interval", 0.93, 0.97) for n in (10, 30, 100)},
    "mean of 100 exponential returns": (100, lambda rng: float(rng.exponential(3)), 3.0,
                                        lambda values: (mean_interval(values), 100), "mean_interval", 0.93, 0.97),
    **{f"interquartile mean of {n} normal returns": (
        n, normal, 5.0, lambda values: (bootstrap_intervals(values)["iqm"], len(values)),
        "interquartile_mean_interval", 0.925, 0.975) for n in (30, 100)},
    **{f"success rate {rate} of 50": (
        50, partial(success, rate), rate, lambda values: (proportion_interval(int(values.sum()), 50), 50),
        "success_interval", 0.93, 1.0) for rate in (0.5, 0.9, 0.95, 0.99)},
}  # fmt: skip

# What is drawn, its true value, and when an evaluation of it stops.
STOPPED: dict[str, tuple[Draw, float, dict[str, Any]]] = {
    **{f"success rate {rate}, stopped at {halfwidth}": (
        partial(success, rate), rate, {"until_halfwidth": halfwidth, "precision_of": "success"})
       for rate in (*_RATES, 0.9, 0.95) for halfwidth in (0.2, 0.06)},
    **{f"0/1 returns of mean {rate}, stopped at {halfwidth}": (
        partial(success, rate), rate, {"until_halfwidth": halfwidth})
       for rate in _RATES for halfwidth in ((0.1, 0.06) if rate == 0.5 else (0.1, 0.02))},
    "0/1 returns of mean 0.98 with bounds, stopped at 0.02": (
        partial(success, 0.98), 0.98, {"until_halfwidth": 0.02, "bounds": (0.0, 1.0)}),
    **{f"500 but for 9 in {share:.1%}, stopped at 5": (
        partial(outlier, share), 500 - 491 * share, {"until_halfwidth": 5.0}) for share in (0.001, 0.005, 0.02)},
}  # fmt: skip


def _binomial(n: int, rate: float) -> list[float]:
    """Return how probable each number of successes is."""
    return [math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(n + 1)]


def _exactly(n_most: int) -> dict[str, tuple[float, int]]:
    """Return the least share of printed intervals of two values that hold, and for how many trajectories it is."""
    found: dict[str, tuple[float, int]] = {}
    for n in range(10, n_most + 1):
        means, medians, iqms, rates = [], [], [], [proportion_interval(k, n) for k in range(n + 1)]
        for k in range(n + 1):
            values = np.repeat([1.0, 0.0], [k, n - k])
            middles = middle_intervals(values)
            means.append(mean_interval(values))
            medians.append(middles["median"])
            iqms.append(middles["iqm"])
        cases: dict[str, tuple[Any, float, float]] = {"one outlier, in each": (means, 1 / n, 1 / n)}
        for rate in _RATES:
            cases[f"mean of 0/1 returns, {rate}"] = means, rate, rate
            cases[f"success rate {rate}"] = rates, rate, rate
            cases[f"interquartile mean of 0/1 returns, {rate}"] = iqms, rate, min(1.0, max(0.0, 2 * rate - 0.5))
            cases[f"median of 0/1 returns, {rate}"] = medians, rate, 0.5 if rate == 0.5 else float(rate > 0.5)
        for name, (intervals, rate, true) in cases.items():
            printed = [(p, true in it) for p, it in zip(_binomial(n, rate), intervals, strict=True)
                       if isinstance(it, Interval)]  # fmt: skip
            share = sum(p for p, holds in printed if holds) / sum(p for p, _ in printed)
            found[name] = min(found.get(name, (1.0, 0)), (share, n))
    return found


@cache
def _of_differences(wins: int, losses: int, n: int) -> tuple[Any, Any]:
    differences = np.repeat([1.0, -1.0, 0.0], [wins, losses, n - wins - losses])
    return mean_interval(differences, of="difference"), rate_difference_interval(wins, losses, n)


def _of_pairs(n_evaluations: int) -> dict[str, tuple[float, int]]:
    """Return how often intervals of two equal agents hold, whose 0/1 returns seldom differ, of those that are printed.

    With each share, how many there were; of the probability of improvement it is tried for a tenth.
    """
    found: dict[str, tuple[float, int]] = {}
    for n, share in itertools.product((10, 11, 12, 15, 20, 30, 50, 100), (0.02, 0.1)):
        held: dict[str, list[bool]] = {}
        for number in range(n_evaluations):
            rng = np.random.default_rng([n, number])
            first = (rng.random(n) < 0.5).astype(float)
            second = np.where(rng.random(n) < share, 1 - first, first)
            mean, rates = _of_differences(int((second > first).sum()), int((second < first).sum()), n)
            tried = {"mean difference": (mean, 0.0), "difference of rates": (rates, 0.0)}
            if number % 10 == 0:
                tried["improvement"] = improvement_interval(first, second), 0.5
            for name, (interval, true) in tried.items():
                if isinstance(interval, Interval):
                    held.setdefault(name, []).append(true in interval)
        found |= {f"{name} of {n} pairs, {share:.0%} differ": (sum(it) / len(it), len(it)) for name, it in held.items()}
    return found


def _guaranteed(n_evaluations: int) -> dict[str, float]:
    """Return how often sequences of intervals are ever wrong."""
    cases: dict[str, tuple[Draw, float]] = {f"rate {rate}": (partial(success, rate), rate) for rate in (0.5, 0.9, 0.95)}
    cases["returns of a beta distribution"] = (lambda rng: float(rng.beta(2, 5))), 2 / 7
    wrong = dict.fromkeys(cases, 0)
    for name, (draw, true) in cases.items():
        for number in range(n_evaluations):
            rng, betting = np.random.default_rng([number, len(name)]), BettingSequence()
            for _ in range(_LOOKS):
                betting.add(draw(rng))
            # Each interval is in all that came before it: the last one is right only if all were.
            wrong[name] += true not in betting.interval
    return {f"guaranteed, {name}": n / n_evaluations for name, n in wrong.items()}


def _told_apart(n_evaluations: int) -> dict[str, float]:
    """Return how often equal agents are told apart: half of what decides is the seed's, the rest their own luck."""
    wrong = {"success rates": 0, "returns": 0, "through compare": 0}
    for number in range(n_evaluations):
        rng = np.random.default_rng([7, number])
        shared = rng.random(_LOOKS)
        first, second = ((shared + rng.random(_LOOKS)) / 2 for _ in range(2))
        rates, returns = DiscordantPairs(), ReturnTest(0.05, (0.0, 1.0))
        for mine, other in zip(first.tolist(), second.tolist(), strict=True):
            rates.add(mine > 0.4, other > 0.4)
            returns.add(mine, other)
        wrong["success rates"] += rates.p_value <= 0.05
        wrong["returns"] += returns.verdict is not None
        if number % _EVERY == 0:
            how: dict[str, Any] = {"until_decided": 0.05, "decide_on": "success", "n_workers": 0, "check": None}
            found = compare([Lucky(), Lucky()], Drawn, seeds=_seeds("luck", number, 200), **how)
            wrong["through compare"] += _EVERY * (found.pairs[0].verdict is not None)
    return {f"equal agents, {name}": n / n_evaluations for name, n in wrong.items()}


def _check(name: str, share: float, low: float, high: float, n: float, scale: str) -> None:
    """Check a share; of few, and in the short form, three standard errors more are allowed."""
    room = 0.0 if scale == "long" and "compare" not in name else 3 * math.sqrt(0.05 * 0.95 / n)
    print(f"{name}: {100 * share:.1f} %, should be {100 * low:g} to {100 * high:g} %")
    assert low - room <= share <= high + room, name


def prove(scale: str) -> None:
    """Try all kinds of intervals and tests."""
    is_long = scale == "long"
    for name, (share, trajectories) in _exactly(400 if is_long else 60).items():
        print(f"{name}: at least {100 * share:.1f} %, which is of {trajectories} trajectories")
        assert share >= _LEAST, name
    n = 2_000 if is_long else 200
    for name, (*case, low, high) in CASES.items():
        _check(name, _share(name, n, *case), low, high, n, scale)
    for name, (draw, true, until) in STOPPED.items():
        of = until.get("precision_of", "return")
        through = "mean_interval" if of == "return" else "success_interval"
        interval = _stopped(of, until["until_halfwidth"], until.get("bounds"))
        _check(name, _share(name, n, 600, draw, true, interval, through, **until), _LEAST, 1.0, n, scale)
    for name, (share, printed) in _of_pairs(n).items():
        _check(name, share, _LEAST, 1.0, printed, scale)
    n = 2_000 if is_long else 100
    for name, share in (_guaranteed(n) | _told_apart(n)).items():
        _check(name, share, 0.0, 0.05, n / _EVERY if "compare" in name else n, scale)
    prove_suites(scale)
