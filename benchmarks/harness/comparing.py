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
    return [value / of for of, value in _pairs(limit, values) if of > 0]


def _pairs(limit: Sequence[float | None], values: Sequence[float | None]) -> list[tuple[float, float]]:
    both = itertools.zip_longest(limit, values)  # who never started has no rounds
    return [(of, value) for of, value in both if of is not None and value is not None]


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
    """Add to the measurements what they say of each contender, alone and next to the limit in the same round.

    Where the machine's speed is known for all answers, everything is at one speed of the machine, the median, by the
    `influence` estimated from these answers, 0 at least and 1 at most.

    Args:
        results: The return value of `rounds.measured`.
        limit: The name of the contender that all are compared with.

    Returns:
        The same results, with these, each a `spread`: `speed`, timesteps per second as measured, and `ratio`, to the
        limit's; `cpu`, seconds of CPU per timestep of all processes as measured, `cpu_share`, the limit's as a share of
        it, and `over`, nanoseconds that it is over the limit's; `report_ratio`, the CPU time of a contender's parent
        for a report to that of the limit's parent. Where the machine's speed is known, `plain_ratio` is `ratio` without
        the adjustment.
    """
    for result in results.values():
        for key, of in (("speed", _speed), ("cpu", _cost)):
            if values := [value for value in _per_round(result, of) if value is not None]:
                result[key] = spread(values)
    if limit not in results:
        return results
    slowdown = _slowdown([[it for it in result.get("rounds", []) if it] for result in results.values()])
    if slowdown is not None:
        _add(results, limit, "plain_ratio", _speed)
    _add(results, limit, "ratio", _adjusted(_speed, slowdown, -1))
    _add(results, limit, "cpu_share", _adjusted(_cost, slowdown, 1), lambda of, values: ratios_to(values, of))
    _add(results, limit, "over", _adjusted(_cost, slowdown, 1), _nanoseconds_over)
    _add(results, limit, "report_ratio", _adjusted(_report_cost, slowdown, 1))
    return results


def _slowdown(answers: list[list[Answer]]) -> Callable[[Answer], float] | None:
    """Return by what factor an answer's speed would differ at the median speed of the machine, if that is known."""
    flat = [answer for of_one in answers for answer in of_one]
    if not flat or not all("machine" in answer for answer in flat):
        return None
    power = influence([(_speed(it), it["machine"]) for it in of_one if it["timesteps"]] for of_one in answers)
    power = min(1.0, max(0.0, power))  # few answers may fit another one by chance, which no machine has
    usual = statistics.median(answer["machine"] for answer in flat)
    return lambda answer: float((answer["machine"] / usual) ** power)


def _adjusted(of: Value, slowdown: Callable[[Answer], float] | None, sign: int) -> Value:
    def value(answer: Answer) -> float | None:
        found = of(answer)
        return found if found is None or slowdown is None else found * slowdown(answer) ** sign

    return value


def _nanoseconds_over(limit: Sequence[float | None], values: Sequence[float | None]) -> list[float]:
    return [1e9 * (value - of) for of, value in _pairs(limit, values)]


def _add(
    results: dict[str, Any],
    limit: str,
    key: str,
    of: Value,
    compare: Callable[[Sequence[float | None], Sequence[float | None]], list[float]] = ratios_to,
) -> None:
    limits = _per_round(results[limit], of)
    for result in results.values():
        if found := compare(limits, _per_round(result, of)):
            result[key] = {**spread(found), "all": found}


def _per_round(result: dict[str, Any], of: Value) -> list[float | None]:
    return [None if answer is None else of(answer) for answer in result.get("rounds", [])]


def _speed(answer: Answer) -> float:
    return float(answer["timesteps"] / answer["seconds"])


def _cost(answer: Answer) -> float | None:
    return float(answer["cpu"] / answer["timesteps"]) if answer["timesteps"] else None


def _report_cost(answer: Answer) -> float | None:
    return float(answer["parent_cpu"] / answer["reports"]) if answer.get("reports") else None
