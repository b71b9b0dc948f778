"""Interleaving, and what is made of the numbers."""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from harness.running import Broken, Contender, Running, start_all
from harness.speedometer import SpeedBetween, speedometer
from workloads import WORKLOADS

__all__ = ["Plan", "compared", "measured", "order_of_round", "ratios_to", "spread"]

Answer = dict[str, Any]
Value = Callable[[Answer], float | None]


@dataclass(frozen=True)
class Plan:
    """How to measure.

    Attributes:
        seconds: Of a measurement.
        rounds: How many rounds.
        peer_rounds: In how many of them the peers take part; what is far away needs fewer looks.
        fresh: After how many rounds all but the peers are started anew, so that what one process happens to be like
            is not taken for what its contender is like. Peers take too long to start.
        verbose: Whether to say on stderr what is being done.
    """

    seconds: float
    rounds: int
    peer_rounds: int
    fresh: int = 4
    verbose: bool = True


def order_of_round(names: Sequence[str], number: int) -> list[str]:
    """Who is measured when in a round: each comes first once, and last once."""
    start = number % len(names) if names else 0
    return [*names[start:], *names[:start]]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles, least and greatest of some values (the quartiles of fewer than four are the extremes)."""
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
    """What each round's value is of the same round's limit; rounds that lack one of them are left out."""
    pairs = itertools.zip_longest(limit, values)  # who never started has no rounds
    return [value / of for of, value in pairs if of is not None and value is not None and of > 0]


def measured(contenders: Sequence[Contender], workload: str, plan: Plan) -> dict[str, Any]:
    """Measure contenders in turn, one while all others are frozen.

    Returns:
        By name: `rounds`, the answer of each round or None; `versions`; `settings`; or `reason`, where it broke.
        Answers hold the speed of the `machine` meanwhile (`harness.speedometer`), unless the workload's sleep is what
        limits and not the machine.
    """
    with nullcontext(_unknown) if WORKLOADS[workload].ideal else speedometer() as machine:
        return _measured(contenders, workload, plan, machine)


def _unknown(begin: float, end: float) -> None:
    """Stands for the speedometer where there is none."""


def _measured(contenders: Sequence[Contender], workload: str, plan: Plan, machine: SpeedBetween) -> dict[str, Any]:
    _say(plan, f"{workload}: starting {', '.join(contender.name for contender in contenders)}")
    running, broken = start_all(contenders, workload)
    first = dict(running)
    answers: dict[str, list[Answer | None]] = {name: [None] * plan.rounds for name in running}
    try:
        for number in range(plan.rounds):
            _say(plan, f"{workload}: round {number + 1} of {plan.rounds}")
            if number and number % plan.fresh == 0:
                _start_anew(running, broken, workload)
            _one_round(running, broken, answers, number, plan, machine)
    finally:
        for contender in running.values():
            contender.end()
    results: dict[str, Any] = {}
    for contender in contenders:
        name = contender.name
        result = results[name] = {"settings": contender.settings, "peer": contender.peer}
        if name in broken:
            result["reason"] = broken[name]
        if name in first:
            result.update(rounds=answers[name], versions=first[name].versions, start_seconds=first[name].start_seconds)
    return results


def _start_anew(running: dict[str, Running], broken: dict[str, str], workload: str) -> None:
    """Replace the processes of all contenders but the peers; who has broken stays away."""
    own = [it.contender for it in running.values() if not it.contender.peer and it.contender.name not in broken]
    for contender in own:
        running[contender.name].end()
    started, failed = start_all(own, workload)
    # In its place: the limit and what is compared with it are to stay neighbours in time.
    running.update(started)
    broken.update(failed)


def _one_round(
    running: dict[str, Running],
    broken: dict[str, str],
    answers: dict[str, list[Answer | None]],
    number: int,
    plan: Plan,
    machine: SpeedBetween,
) -> None:
    for name in order_of_round(list(running), number):
        if name in broken or (running[name].contender.peer and number >= plan.peer_rounds):
            continue
        try:
            running[name].thaw()
            begin = time.perf_counter()
            answer = running[name].measure({"seconds": plan.seconds})
            speed = machine(begin, time.perf_counter())
            running[name].freeze()
            answers[name][number] = answer if speed is None else {**answer, "machine": speed}
        except Broken as why:
            broken[name] = str(why)
            running[name].end(kindly=False)


def compared(results: dict[str, Any], limit: str) -> dict[str, Any]:
    """Add what the numbers say: timesteps per second, CPU per timestep, and both as ratios to the limit's.

    Where the machine's speed is known for all answers, the ratios are those of timesteps and CPU time at one and the
    same speed of the machine.

    Args:
        results: What `measured` gave.
        limit: The name of the contender that all ratios are to.

    Returns:
        The same results, with `speed` (timesteps per second), `ratio` (to the limit's speed in the same round), `cpu`
        (seconds of CPU per timestep) and `cpu_ratio` (to the limit's), each a `spread`; and, where the machine's speed
        is known, with `plain_ratio`, which takes no account of it.
    """
    answers = [answer for result in results.values() for answer in result.get("rounds", []) if answer]
    known = all("machine" in answer for answer in answers)
    for result in results.values():
        for key, of in (("speed", _speed), ("cpu", _cost)):
            if values := [value for value in _per_round(result, of) if value is not None]:
                result[key] = spread(values)
    _add_ratios(results, limit, "ratio", _speed_of_equals if known else _speed)
    _add_ratios(results, limit, "cpu_ratio", _cost_of_equals if known else _cost)
    if known:
        _add_ratios(results, limit, "plain_ratio", _speed)
    return results


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


def _speed_of_equals(answer: Answer) -> float:
    return _speed(answer) / float(answer["machine"])


def _cost_of_equals(answer: Answer) -> float | None:
    cost = _cost(answer)
    return None if cost is None else cost * float(answer["machine"])


def _say(plan: Plan, text: str) -> None:
    if plan.verbose:
        print(text, file=sys.stderr, flush=True)
