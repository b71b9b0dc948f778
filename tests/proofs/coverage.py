"""Intervals hold as often as they say: 2,000 seeded evaluations of each kind, every twentieth through `evaluate`.

And tests that are looked at after each trajectory tell equal agents apart as seldom as they say. The short form has a
tenth of the evaluations, and as much more room for chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from streamsampler import LocalSampler, compare, evaluate
from streamsampler.evaluation.comparison import ReturnTest
from streamsampler.evaluation.intervals import Interval, bootstrap_intervals, mean_interval, wilson_interval
from streamsampler.evaluation.rules import BettingSequence, DiscordantPairs

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


def _stopped(values: Any) -> tuple[Any, int]:
    """Return the first interval of ten values or more that is narrow enough."""
    totals = np.cumsum(values)
    for n in range(10, 401):
        if (found := wilson_interval(int(totals[n - 1]), n)).halfwidth <= 0.06:
            return found, n
    raise AssertionError("it never is")


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
        50, partial(success, rate), rate, lambda values: (wilson_interval(int(values.sum()), 50), 50),
        "success_interval", 0.90 if rate == 0.99 else 0.925, 0.995) for rate in (0.5, 0.9, 0.95, 0.99)},
    **{f"success rate {rate}, stopped at 0.06": (
        400, partial(success, rate), rate, _stopped, "success_interval", 0.925, 0.995) for rate in (0.5, 0.9, 0.95)},
}  # fmt: skip


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
    n = 2_000 if scale == "long" else 200
    for name, (*case, low, high) in CASES.items():
        until: Any = {"until_halfwidth": 0.06, "precision_of": "success"} if "stopped" in name else {}
        _check(name, _share(name, n, *case, **until), low, high, n, scale)
    n = 2_000 if scale == "long" else 100
    for name, share in (_guaranteed(n) | _told_apart(n)).items():
        _check(name, share, 0.0, 0.05, n / _EVERY if "compare" in name else n, scale)
