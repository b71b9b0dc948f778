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
from numpy.typing import NDArray

from streamsampler import LocalSampler, compare, evaluate
from streamsampler.evaluation.comparison import ReturnTest
from streamsampler.evaluation.intervals import (
    Interval,
    Unknown,
    bootstrap_intervals,
    mean_interval,
    wilson_interval,
)
from streamsampler.evaluation.rules import BettingSequence, DiscordantPairs

Values = NDArray[np.float64]
_EVERY = 20  # how many evaluations there are for one through `evaluate`
_LOOKS = 300  # trajectories that a test looks at, one after the other


def normal(rng: np.random.Generator) -> float:
    return float(rng.normal(5, 2))


def exponential(rng: np.random.Generator) -> float:
    return float(rng.exponential(3))


def beta(rng: np.random.Generator) -> float:
    return float(rng.beta(2, 5))


def success(rate: float, rng: np.random.Generator) -> float:
    return float(rng.random() < rate)


class Drawn(gymnasium.Env[Any, Any]):
    """Has trajectories of one timestep, whose return is drawn from their seed; 1 is a success."""

    observation_space = spaces.Box(-1, 1, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, draw: Callable[[np.random.Generator], float]) -> None:
        self._draw = draw

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._value = self._draw(np.random.default_rng(seed))
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1), self._value, True, False, {"success": self._value == 1}


def zero(observation: Any) -> int:
    return 0


def _seeds(case: str, number: int, n: int) -> range:
    """Return seeds that no other evaluation has."""
    first = int(np.random.SeedSequence([len(case), *case.encode(), number]).generate_state(1)[0]) * 1_000
    return range(first, first + n)


def _share(
    name: str, n_evaluations: int, n: int, draw: Callable[[np.random.Generator], float], true: float,
    interval: Callable[[Values], Interval | Unknown], through: str,
) -> tuple[float, float]:  # fmt: skip
    """Return how often an interval holds the true value, and how often there is one.

    Args:
        name: The case.
        n_evaluations: How many evaluations.
        n: Trajectories of each.
        draw: Draws a return.
        true: The true value.
        interval: The function that is tried.
        through: The attribute of an `Evaluation` that has the same interval.
    """
    held = found = 0
    with LocalSampler(zero, Drawn, env_kwargs={"draw": draw}, check=None) as sampler:
        for number in range(n_evaluations):
            seeds = _seeds(name, number, n)
            values = np.array([draw(np.random.default_rng(seed)) for seed in seeds])
            got = interval(values)
            if number % _EVERY == 0:
                assert getattr(evaluate(sampler=sampler, seeds=seeds), through) == got, (name, number)
            if isinstance(got, Interval):
                found += 1
                held += true in got
    return held / found, found / n_evaluations


def _check(name: str, share: float, low: float, high: float, n: int, scale: str) -> None:
    """Check a share; the short form allows three standard errors more."""
    room = 0.0 if scale == "long" else 3 * math.sqrt(0.05 * 0.95 / n)
    print(f"{name}: {100 * share:.1f} %, should be {100 * low:g} to {100 * high:g} %")
    assert low - room <= share <= high + room, name


def _fixed(scale: str, n_evaluations: int) -> None:
    for n in (10, 30, 100):
        share, found = _share("normal", n_evaluations, n, normal, 5.0, mean_interval, "mean_interval")
        print(f"  there is an interval in {100 * found:.1f} % of evaluations")
        _check(f"mean of {n} normal returns", share, 0.93, 0.97, n_evaluations, scale)
    share, _ = _share("exponential", n_evaluations, 100, exponential, 3.0, mean_interval, "mean_interval")
    _check("mean of 100 exponential returns", share, 0.93, 0.97, n_evaluations, scale)
    for n in (30, 100):
        share, _ = _share(
            "iqm", n_evaluations, n, normal, 5.0, lambda values: bootstrap_intervals(values)["iqm"],
            "interquartile_mean_interval",
        )  # fmt: skip
        _check(f"interquartile mean of {n} normal returns", share, 0.925, 0.975, n_evaluations, scale)
    for rate, low in ((0.5, 0.925), (0.9, 0.925), (0.95, 0.925), (0.99, 0.90)):
        share, _ = _share(
            f"rate {rate}", n_evaluations, 50, partial(success, rate), rate,
            lambda values: wilson_interval(int(values.sum()), len(values)), "success_interval",
        )  # fmt: skip
        _check(f"success rate {rate} of 50", share, low, 0.995, n_evaluations, scale)


def _stopped(scale: str, n_evaluations: int) -> None:
    """Stop at a half-width: by the interval's own definition, every twentieth time by `evaluate` itself."""
    for rate in (0.5, 0.9, 0.95):
        held = 0
        draw = partial(success, rate)
        with LocalSampler(zero, Drawn, env_kwargs={"draw": draw}, check=None) as sampler:
            for number in range(n_evaluations):
                seeds = _seeds(f"stopped {rate}", number, 400)
                values = [draw(np.random.default_rng(seed)) for seed in seeds]
                totals = np.cumsum(values)
                stop = next(
                    n for n in range(10, 401) if wilson_interval(int(totals[n - 1]), n).halfwidth <= 0.06
                )  # fmt: skip
                got = wilson_interval(int(totals[stop - 1]), stop)
                if number % _EVERY == 0:
                    stopped = evaluate(sampler=sampler, seeds=seeds, until_halfwidth=0.06, precision_of="success")
                    assert (len(stopped), stopped.success_interval) == (stop, got), (rate, number)
                held += rate in got
        _check(f"success rate {rate}, stopped at 0.06", held / n_evaluations, 0.925, 0.995, n_evaluations, scale)


def _guaranteed(scale: str, n_evaluations: int) -> None:
    cases: dict[str, tuple[Callable[[np.random.Generator], float], float]] = {}
    cases |= {f"success rate {rate}": (partial(success, rate), rate) for rate in (0.5, 0.9, 0.95)}
    cases["returns of a beta distribution"] = (beta, 2 / 7)
    for name, (draw, true) in cases.items():
        wrong = 0
        for number in range(n_evaluations):
            rng = np.random.default_rng([number, len(name)])
            betting = BettingSequence()
            for _ in range(_LOOKS):
                betting.add(draw(rng))
            # Each interval is in all that came before it: the last one is right only if all were.
            wrong += true not in betting.interval
        _check(f"guaranteed, {name}: ever wrong", wrong / n_evaluations, 0.0, 0.05, n_evaluations, scale)


def _compared(scale: str, n_evaluations: int) -> None:
    """Compare equal agents: half of what decides is the seed's, the rest each agent's own luck."""
    wrong = {"success rates": 0, "returns": 0}
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
    for name, n_wrong in wrong.items():
        _check(f"equal {name}: ever told apart", n_wrong / n_evaluations, 0.0, 0.05, n_evaluations, scale)
    told_apart = 0
    for number in range(n_evaluations // _EVERY):
        found = compare(
            [Lucky(), Lucky()], Luck, until_decided=0.05, decide_on="success", seeds=_seeds("luck", number, 200),
            n_workers=0, check=None,
        )  # fmt: skip
        told_apart += found.pairs[0].verdict is not None
    print(f"equal agents through compare: {told_apart} of {n_evaluations // _EVERY} told apart")
    assert told_apart <= 0.05 * n_evaluations / _EVERY + 3 * math.sqrt(0.05 * n_evaluations / _EVERY)


_luck = np.random.default_rng(99)


class Lucky:
    """Draws from a generator that no seed sets, as two agents of equal skill would differ."""

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return int(_luck.random() < 0.7), {}


class Luck(gymnasium.Env[Any, Any]):
    """A trajectory succeeds if the action is 1."""

    observation_space = spaces.Box(-1, 1, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1), float(action), True, False, {"success": bool(action)}


def prove(scale: str) -> None:
    """Try all kinds of intervals and tests."""
    n_evaluations = 2_000 if scale == "long" else 200
    _fixed(scale, n_evaluations)
    _stopped(scale, n_evaluations)
    _guaranteed(scale, n_evaluations if scale == "long" else 100)
    _compared(scale, n_evaluations if scale == "long" else 100)
