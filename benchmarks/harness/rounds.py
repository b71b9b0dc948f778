"""Measure contenders in turn, in interleaved rounds."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.running import Broken, Contender, FragmentEnvs, start_all
from benchmarks.harness.speedometer import SpeedBetween, speedometer
from benchmarks.problems.workloads import WORKLOADS

__all__ = ["Plan", "measured", "order_of_round"]

Answer = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """Describe how to measure.

    Attributes:
        seconds: The length of a measurement.
        rounds: How many rounds.
        peer_rounds: In how many of them the peers take part: larger differences need fewer rounds.
        fresh: After how many rounds all contenders but the peers are restarted, so that one process does not decide
            the result by chance. Peers take too long to start.
        verbose: Whether to report on stderr.
    """

    seconds: float
    rounds: int
    peer_rounds: int
    fresh: int = 4
    verbose: bool = True


def order_of_round(names: Sequence[str], number: int) -> list[str]:
    """Return the order of contenders in a round: each comes first once, and last once."""
    start = number % len(names) if names else 0
    return [*names[start:], *names[:start]]


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
    """Stand for the speedometer where there is none."""


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


def _start_anew(running: dict[str, FragmentEnvs], broken: dict[str, str], workload: str) -> None:
    """Restart the processes of all contenders but the peers and the broken ones."""
    own = [it.contender for it in running.values() if not it.contender.peer and it.contender.name not in broken]
    for contender in own:
        running[contender.name].end()
    started, failed = start_all(own, workload)
    # In its place: the limit and what is compared with it are to stay neighbours in time.
    running.update(started)
    broken.update(failed)


def _one_round(
    running: dict[str, FragmentEnvs],
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
            begin = time.perf_counter()
            answer = running[name].measure({"seconds": plan.seconds})
            speed = machine(begin, time.perf_counter())
            answers[name][number] = answer if speed is None else {**answer, "machine": speed}
        except Broken as why:
            broken[name] = str(why)
            running[name].end(kindly=False)


def _say(plan: Plan, text: str) -> None:
    if plan.verbose:
        print(text, file=sys.stderr, flush=True)
