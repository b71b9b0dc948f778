"""Compute ratios from the measurements, adjusted to one speed of the machine where it is known. No I/O."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["compared", "influence", "ratios_to", "spread"]

Answer = dict[str, Any]
Value = Callable[[Answer], float | None]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, quartiles, least and greatest of some values (fewer than four have the extremes as quartiles)."""
    ordered = sorted(values)
    quarters = (
        statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 3 else [ordered[0], 0, ordered[-1]]
    )
    return {
        "median": statistics.median(ordered),
        "low": quarters[0],
        "high": quarters[2],
        "least": ordered[0],
        "greatest": ordered[-1],
    }


def ratios_to(limit: Sequence[float | None], values: Sequence[float | None]) -> list[float]:
    """Return each round's value as a ratio to the limit's in that round; rounds without either are left out."""
    pairs = itertools.zip_longest(limit, values)  # who never started has no rounds
    return [value / of for of, value in pairs if of is not None and value is not None and of > 0]


def influence(series: Iterable[Sequence[tuple[float, float]]]) -> float:
    """Estimate the power of the machine's speed that contenders' speeds follow.

    A machine that is half as fast at additions is not half as fast at everything: additions and environments use
    different resources. The power is that of the straight line, common to all contenders, that fits the logarithms best
    within each of them (an analysis of covariance; R. A. Fisher, Statistical Methods for Research Workers, 1932).

    Args:
        series: Of each contender, its speeds with the machine's.

    Returns:
        The power; 0 where the machine's speed did not vary.
    """
    both = alone = 0.0
    for pairs in filter(None, series):
        speeds, machine = ([math.log(value) for value in values] for values in zip(*pairs, strict=True))
        middle, mean = statistics.fmean(machine), statistics.fmean(speeds)
        both += sum((x - middle) * (y - mean) for x, y in zip(machine, speeds, strict=True))
        alone += sum((x - middle) ** 2 for x in machine)
    return both / alone if alone else 0.0


def compared(results: dict[str, Any], limit: str) -> dict[str, Any]:
    """Add to the measurements timesteps per second, CPU per timestep, and both as ratios to the limit's.

    Where the machine's speed is known for all answers, the ratios are those of timesteps and CPU time at one
    speed of the machine, by the `influence` estimated from these answers.

    Args:
        results: The return value of `rounds.measured`.
        limit: The name of the contender that all ratios are to.

    Returns:
        The same results, with `speed` (timesteps per second), `ratio` (to the limit's speed in the same round), `cpu`
        (seconds of CPU per timestep) and `cpu_ratio` (to the limit's), each a `spread`; and, where the machine's speed
        is known, with `plain_ratio`, without that adjustment.
    """
    for result in results.values():
        for key, of in (("speed", _speed), ("cpu", _cost)):
            if values := [value for value in _per_round(result, of) if value is not None]:
                result[key] = spread(values)
    answers = [[it for it in result.get("rounds", []) if it] for result in results.values()]
    known = all("machine" in answer for of_one in answers for answer in of_one)
    if not known:
        _add_ratios(results, limit, "ratio", _speed)
        _add_ratios(results, limit, "cpu_ratio", _cost)
        return results
    power = influence([(_speed(it), it["machine"]) for it in of_one if it["timesteps"]] for of_one in answers)
    _add_ratios(results, limit, "ratio", lambda answer: _speed(answer) / answer["machine"] ** power)
    _add_ratios(results, limit, "cpu_ratio", lambda answer: _times(_cost(answer), answer["machine"] ** power))
    _add_ratios(results, limit, "plain_ratio", _speed)
    return results


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _add_ratios(results: dict[str, Any], limit: str, key: str, of: Value) -> None:
    if limit not in results:
        return
    limits = _per_round(results[limit], of)
    for result in results.values():
        if ratios := ratios_to(limits, _per_round(result, of)):
            result[key] = {**spread(ratios), "all": ratios}


def _per_round(result: dict[str, Any], of: Value) -> list[float | None]:
    return [None if answer is None else of(answer) for answer in result.get("rounds", [])]


def _speed(answer: Answer) -> float:
    return float(answer["timesteps"] / answer["seconds"])


def _cost(answer: Answer) -> float | None:
    return float(answer["cpu"] / answer["timesteps"]) if answer["timesteps"] else None
