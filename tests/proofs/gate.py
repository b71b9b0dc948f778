"""The gate is seldom wrong: an agent equal to the first one is called worse in at most 5 of 100 comparisons.

And an agent that is worse by twice the margin is called not worse in at most 5 of 100: 2,000 seeded comparisons of each
kind of differences, for each number of pairs, some of them through `compare`. Two agents that are equal in all pairs
count as not worse by definition, so that the second share is one of the comparisons in which a pair differs. The short
form has a tenth of the comparisons, fewer numbers of pairs, and as much more room for chance. `_suite_gate` and
`_suite_stops` have suites of tasks that share seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from streamsampler import compare
from streamsampler.evaluation.gate import GateDecision, Outcome, gate_interval
from streamsampler.evaluation.intervals import Floats, Interval, Unknown, bounded_interval
from streamsampler.evaluation.rules import PrecisionOf
from streamsampler.evaluation.sequential import make_test
from tests.proofs._suite_gate import prove_gate
from tests.proofs._suite_stops import prove_stops

Draw = Callable[[np.random.Generator, int], Floats]
_MOST_WRONG = 0.05
_LOOKS = 400  # pairs that a test looks at, one after the other
_N_PAIRS = {"short": (20, 30, 50, 200), "long": (20, 22, 25, 29, 30, 35, 50, 70, 100, 150, 199, 200, 400)}


class Kind(NamedTuple):
    """Differences of pairs of two agents.

    Attributes:
        draw: Draws n of them; their mean is 0, or minus twice the margin.
        margin: The margin.
        wrong: The verdicts that are wrong: "worse" of an equal agent, "not worse" of one that is worse by twice the
            margin; where that is 0, both.
        bounds: Those of differences of successes; None for differences of returns.
    """

    draw: Draw
    margin: float
    wrong: tuple[Outcome, ...]
    bounds: tuple[float, float] | None = None


def _shifted(draw: Draw, shift: float) -> Draw:
    return lambda rng, n: draw(rng, n) + shift


def _mostly_zero(share: float, draw: Draw) -> Draw:
    return lambda rng, n: np.where(rng.random(n) < share, draw(rng, n), 0.0)


def _successes(rate: float, worse_by: float, correlation: float) -> Draw:
    """Return differences of successes whose rates differ by so much; the seed decides both in a share of pairs."""

    def draw(rng: np.random.Generator, n: int) -> Floats:
        shared, first, second = rng.random((3, n))
        is_shared = rng.random(n) < correlation
        first, second = np.where(is_shared, shared, first), np.where(is_shared, shared, second)
        return (second < rate - worse_by).astype(float) - (first < rate)

    return draw


_CENTRED: dict[str, Draw] = {
    "normal": lambda rng, n: rng.normal(0, 1, n),
    "long tail of losses": lambda rng, n: 1 - rng.exponential(1, n),
    "long tail of gains": lambda rng, n: rng.exponential(1, n) - 1,
    "lognormal losses": lambda rng, n: math.exp(0.125) - rng.lognormal(0, 0.5, n),
    "lognormal gains": lambda rng, n: rng.lognormal(0, 1, n) - math.exp(0.5),
    "exponential for normal returns": lambda rng, n: rng.exponential(1, n) - rng.normal(1, 0.5, n),
    "lognormal for exponential returns": lambda rng, n: (
        (rng.lognormal(0, 1, n) - math.exp(0.5)) / 2.161 - (rng.exponential(1, n) - 1) / 2
    ),
    "exponential for lognormal returns": lambda rng, n: (
        (math.exp(0.5) - rng.lognormal(0, 1, n)) / 2.161 - (1 - rng.exponential(1, n)) / 2
    ),
    "heavy tails": lambda rng, n: rng.standard_t(3, n),
    "1 of 10 fails": lambda rng, n: rng.normal(0, 1, n) - 3 * (rng.random(n) < 0.1) + 0.3,
}
_LOSSES: dict[str, Draw] = {  # of mean 1
    "lose 1": lambda _, n: -np.ones(n),
    "lose about 1": lambda rng, n: rng.normal(-1, 0.5, n),
    "lose much or little": lambda rng, n: -rng.exponential(1, n),
}
_OF_BOTH_SIGNS: dict[str, Draw] = {
    "win or lose 1": lambda rng, n: rng.choice([-1.0, 1.0], n),
    "win or lose about 1": lambda rng, n: rng.normal(0, 1, n),
}


def _kinds() -> Iterator[tuple[str, Kind]]:
    """Yield all kinds of differences with their names."""
    for name, draw in _CENTRED.items():
        yield name, Kind(draw, 0.0, ("worse", "not worse"))
        yield f"{name}, margin 0.2", Kind(draw, 0.2, ("worse",))
        yield f"{name}, margin 0.2, worse", Kind(_shifted(draw, -0.4), 0.2, ("not worse",))
    for rate, correlation in ((0.5, 0.0), (0.5, 0.8), (0.9, 0.5), (0.98, 0.5)):
        name = f"{rate} succeed, correlation {correlation}"
        for worse_by, margin in ((0.0, 0.0), (0.0, 0.05), (0.1, 0.05)):
            draw = _successes(rate, worse_by, correlation)
            wrong: tuple[Outcome, ...] = (
                ("not worse",) if worse_by else ("worse",) if margin else ("worse", "not worse")
            )
            of = f"{name}, margin {margin}{', worse' if worse_by else ''}"
            yield of, Kind(draw, margin, wrong, (-1.0, 1.0))
            yield f"{of}, as returns", Kind(draw, margin, wrong)
    for share in (0.02, 0.1, 0.3):
        for name, draw in _LOSSES.items():
            yield f"{share:.0%} {name}, worse", Kind(_mostly_zero(share, draw), share / 2, ("not worse",))
        for name, draw in _OF_BOTH_SIGNS.items():
            yield f"{share:.0%} {name}", Kind(_mostly_zero(share, draw), 0.0, ("worse", "not worse"))


@cache
def _interval_of_counts(found: tuple[float, ...], counts: tuple[int, ...], bounds: Any) -> Interval | Unknown:
    differences = np.repeat(found, counts)
    return gate_interval(differences) if bounds is None else bounded_interval(differences, bounds)


def _decision(kind: Kind, differences: Floats) -> GateDecision:
    found, counts = np.unique(differences, return_counts=True)
    if len(found) <= 3:
        interval = _interval_of_counts(tuple(found.tolist()), tuple(counts.tolist()), kind.bounds)
    else:
        interval = gate_interval(differences)
    return GateDecision(
        first="first", second="second", margin=kind.margin, of="mean returns", n_pairs=len(differences),
        difference=float(differences.mean()), interval=interval, all_equal=len(found) == 1,
    )  # fmt: skip


class Paired(gymnasium.Env[Any, Any]):
    """Has trajectories of one timestep; the seed is the position of the pair.

    Action 1 gets the difference there, and succeeds where it is above 0; action 0 gets 0, and succeeds where it is
    below.
    """

    observation_space = spaces.Box(-1, 1, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, differences: Floats) -> None:
        self._differences = differences

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._difference = float(self._differences[seed or 0])
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        succeeds = self._difference > 0 if action else self._difference < 0
        return np.zeros(1), self._difference * int(action), True, False, {"success": succeeds}


def _compared(kind: Kind, differences: Floats) -> GateDecision:
    found = compare(
        {"first": lambda _: 0, "second": lambda _: 1}, Paired, env_kwargs={"differences": differences},
        seeds=range(len(differences)), n_workers=0, check=None, margin=kind.margin,
        decide_on="return" if kind.bounds is None else "success",
    )  # fmt: skip
    return found.verdict().decisions[0]


def _wrong(name: str, kind: Kind, n: int, n_comparisons: int) -> tuple[dict[Outcome, int], int]:
    """Return how often the gate gives each wrong verdict, and in how many comparisons all pairs are equal."""
    rng = np.random.default_rng([n, len(name), *name.encode()])
    wrong, all_zero = dict.fromkeys(kind.wrong, 0), 0
    for number in range(n_comparisons):
        differences = np.sort(kind.draw(rng, n))  # bootstraps depend on the order
        decision = _decision(kind, differences)
        if number == 0:
            through = _compared(kind, differences)
            assert (through.outcome, through.interval) == (decision.outcome, decision.interval), (name, n)
        if not differences.any():
            all_zero += 1
        elif decision.outcome in wrong:
            wrong[decision.outcome] += 1
    return wrong, all_zero


def _sequential(n_comparisons: int) -> dict[str, float]:
    """Return how often tests are wrong that are looked at after each pair."""
    found: dict[str, float] = {}
    cases: dict[str, tuple[PrecisionOf, float]] = {
        "returns, 0": ("return", 0.0), "returns, 0.1": ("return", 0.1),
        "successes, 0": ("success", 0.0), "successes, 0.1": ("success", 0.1),
    }  # fmt: skip
    for name, (of, margin) in cases.items():
        for worse_by, wrong_verdict in ((0.0, "worse"), (2 * margin, "not worse")):
            wrong = 0
            for number in range(n_comparisons):
                rng = np.random.default_rng([number, len(name), int(100 * worse_by)])
                shared, first, second = rng.random((3, _LOOKS))
                if of == "success":
                    is_shared = shared < 0.5
                    second = np.where(is_shared, first, second)
                    first, second = (first < 0.6).astype(float), (second < 0.6 - worse_by).astype(float)
                else:
                    first, second = 0.3 + (shared + first) / 3, 0.3 + (shared + second) / 3 - worse_by
                test = make_test(0.05, of, (0.0, 1.0) if of == "return" else None, margin)
                for mine, other in zip(first.tolist(), second.tolist(), strict=True):
                    test.add(mine, other)
                    if test.outcome != "undecided":
                        break
                wrong += test.outcome == wrong_verdict
            found[f"stopped when sure, {name}, {wrong_verdict}"] = wrong / n_comparisons
    return found


def _room(n: int) -> float:
    """Return three standard errors of a share of n."""
    return 3 * math.sqrt(_MOST_WRONG * (1 - _MOST_WRONG) / max(1, n))


def prove(scale: str) -> None:
    """Try all kinds of differences, with each number of pairs."""
    is_long = scale == "long"
    n_comparisons = 2_000 if is_long else 200
    for name, kind in _kinds():
        print(f"{name}:", flush=True)
        for n in _N_PAIRS[scale]:
            wrong, all_zero = _wrong(name, kind, n, n_comparisons)
            n_counted = {"worse": n_comparisons, "not worse": max(1, n_comparisons - all_zero)}
            shares = {outcome: times / n_counted[outcome] for outcome, times in wrong.items()}
            shown = [f"{outcome} {share:.1%}" for outcome, share in shares.items()]
            print(f"  {n} pairs: {', '.join(shown)}; all equal {all_zero / n_comparisons:.1%}")
            for outcome, share in shares.items():
                room = 0.0 if is_long and n_counted[outcome] > 1_000 else _room(n_counted[outcome])
                assert share <= _MOST_WRONG + room, (name, n, outcome)
    n_comparisons = 2_000 if is_long else 60
    for name, share in _sequential(n_comparisons).items():
        print(f"{name}: {share:.1%}")
        assert share <= _MOST_WRONG + (0.0 if is_long else _room(n_comparisons)), name
    prove_gate(scale)
    prove_stops(scale)
