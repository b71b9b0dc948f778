"""A gate on a suite errs in at most 5 of 100 comparisons: part of the proof `gate`.

A gate takes a margin, and calls an agent "not worse" if the interval of its mean difference lies above -margin, "worse"
if it lies below. An agent whose differences are all 0 is not worse by definition: such comparisons count as right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy import special

from streamsampler.core.words import count
from streamsampler.evaluation.intervals import Interval
from streamsampler.evaluation.suites.scores import TaskScores
from streamsampler.evaluation.suites.suite_gate import suite_gate_interval
from tests.proofs._suite_coverage import in_processes, remember_draws, room
from tests.proofs._suite_scores import latent

ERROR = 0.05
_SUITES = ((1, 0.0), (2, 0.5), (5, 0.5), (20, 0.5), (20, 0.0))
_ALL_N = (20, 50, 100)
_IN_SHORT = 4  # the short form has every fourth cell


def normal(seed: Any, own: Any, loss: float) -> Any:
    return own[0] - loss


def exponential(seed: Any, own: Any, loss: float) -> Any:
    """Both agents have exponential returns, which the seed makes alike."""
    first, second = (seed + own[0]) / np.sqrt(2), (seed + own[1]) / np.sqrt(2)
    return np.log(special.ndtr(-first)) - np.log(special.ndtr(-second)) - loss


def seldom_much(seed: Any, own: Any, loss: float) -> Any:
    """Of equal agents the second often loses a little, and seldom gains much; otherwise the other way round."""
    gain = -1 - np.log(special.ndtr(-seed))
    return -gain - loss if loss else gain


def successes(rate: float, seed: Any, own: Any, loss: float) -> Any:
    first, second = ((seed + each) / np.sqrt(2) for each in own)
    return (special.ndtr(second) < rate - loss).astype(float) - (special.ndtr(first) < rate)


def seldom_different(share: float, seed: Any, own: Any, loss: float) -> Any:
    """A share of the pairs differs by 1: of equal agents in either direction, otherwise to the second agent's loss."""
    at = special.ndtr(seed)
    return np.where(at < share / 2, -1.0, np.where(at > 1 - share / 2, -1.0 if loss else 1.0, 0.0))


# Differences, (T, N), of normal variables of the seeds and of each agent, and of how much the second one loses; and the
# margin: the agent that is worse loses twice as much.
KINDS: dict[str, tuple[Callable[[Any, Any, float], Any], float]] = {
    "normal": (normal, 0.05),
    "exponential returns": (exponential, 0.05),
    "seldom much": (seldom_much, 0.05),
    **{f"successes of rate {rate}": (partial(successes, rate), 0.05) for rate in (0.5, 0.9)},
    "1 of 10 pairs differs": (partial(seldom_different, 0.1), 0.05),
    "1 of 50 pairs differs": (partial(seldom_different, 0.02), 0.01),
}


def cells() -> Iterator[tuple[str, int, float, int]]:
    """Yield kinds of differences, how many tasks, their correlation, and how many pairs."""
    for name, (tasks, correlation), n in itertools.product(KINDS, _SUITES, _ALL_N):
        yield name, tasks, correlation, n


def errors(name: str, n_tasks: int, correlation: float, n: int, n_comparisons: int) -> tuple[str, int, int, int]:
    """Return what was compared, and how often a gate was wrong.

    Returns:
        The name; how often equal agents were called worse without a margin, and worse ones not worse; and how often
        differences of worse ones that were all 0 made them not worse, which is no error.
    """
    remember_draws()
    differences, margin = KINDS[name]
    called_worse = accepted = all_zero = 0
    for number in range(n_comparisons):
        rng = np.random.default_rng([n_tasks, n, number, len(name)])
        seed = latent(rng, n_tasks, n, correlation)
        own = np.stack([latent(rng, n_tasks, n, correlation) for _ in range(2)])
        equal = _interval(differences(seed, own, 0.0))
        called_worse += isinstance(equal, Interval) and equal.high < 0
        of_worse = differences(seed, own, 2 * margin)
        if not of_worse.any():
            all_zero += 1
            continue
        worse = _interval(of_worse)
        accepted += isinstance(worse, Interval) and worse.low > -margin
    what = f"gate on {count(n_tasks, 'task')} ({name}), {n} pairs, correlation {correlation:g}"
    return what, called_worse, accepted, all_zero


def _interval(differences: Any) -> Any:
    seeds = tuple(range(differences.shape[1]))
    return suite_gate_interval([TaskScores(column, seeds, rounding=1e-9) for column in differences])


def prove_gate(scale: str) -> None:
    """Try how often a gate errs."""
    is_long = scale == "long"
    n = 2_000 if is_long else 200
    wrong = []
    jobs = [partial(errors, *cell, n) for cell in cells()]
    for name, called_worse, accepted, all_zero in in_processes(jobs if is_long else jobs[::_IN_SHORT]):
        zero = f"; {100 * all_zero / n:.1f} % had no difference" if all_zero else ""
        print(
            f"{name}: {100 * called_worse / n:.1f} % of equal agents called worse, {100 * accepted / n:.1f} % of worse "
            f"ones accepted, should be at most {100 * ERROR:g} %{zero}",
            flush=True,
        )
        if max(called_worse, accepted) / n > ERROR + (0.0 if is_long else room(n)):
            wrong.append(name)
    assert wrong == []
