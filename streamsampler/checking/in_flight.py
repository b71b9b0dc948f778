"""Choose how many trajectories in flight keep a worker busy, from a timestep's waiting and computing. Pure."""

from __future__ import annotations

import math

from streamsampler.checking.costs import Costs

__all__ = ["enough_in_flight", "hint_of_in_flight", "numbers_in_flight", "why_in_flight"]

_OURS = 0.05e-3
"""This library's seconds per timestep in flight, about."""
_ALONE = 0.2e-3
"""Additional computing of a timestep that runs alone, in seconds: its waits leave processor caches cold, and the whole
event loop runs for it.
"""
_MOST = 200
"""The largest number measured without request: a service may count requests, or take them for an attack."""
_NUMBERS = 1, 2, 5, 10, 20, 50, 100, _MOST
_FURTHER = 2, 4
"""Positions of the other numbers below the largest: about a fifth and a twentieth of it."""


def _computed(costs: Costs) -> float:
    """Return the seconds of computing per timestep."""
    busy = costs.step - costs.waiting + costs.agent - costs.agent_waiting
    return max(0.0, costs.free_share * busy - _ALONE) + _OURS  # other programs had the rest of the core


def enough_in_flight(costs: Costs) -> int:
    """Return how many trajectories in flight let a process compute all the time."""
    waited, computed = costs.waiting + costs.agent_waiting, _computed(costs)
    return math.ceil((waited + computed) / computed)


def numbers_in_flight(costs: Costs) -> tuple[int, ...]:
    """Return the numbers in flight to measure, from 1 up to the number that keeps a process busy.

    Smaller numbers are included, since a service may answer fewer requests at the same time.
    """
    enough = min(_MOST, enough_in_flight(costs))
    largest = next(at for at, number in enumerate(_NUMBERS) if number >= enough)
    others = (_NUMBERS[largest - below] for below in _FURTHER if largest >= below)
    return tuple(sorted({1, _NUMBERS[largest], *others}))


def why_in_flight(costs: Costs) -> str:
    """Explain the numbers in flight by a timestep's costs, in sentences."""
    waited, computed = 1e3 * (costs.waiting + costs.agent_waiting), 1e3 * _computed(costs)
    agents = ", the agent's included" if costs.agent_waiting else ""
    return (
        f"a timestep waits {waited:.3g} ms{agents}, and computes for about {computed:.2g} ms, sampler and agent "
        f"included. So about {enough_in_flight(costs):,} in flight keep a process busy. Fewer are as fast if the "
        "service answers fewer requests at the same time"
    )


def hint_of_in_flight(costs: Costs, most: int) -> str:
    """Return the hint that more in flight may be faster; empty if the measured numbers keep a process busy."""
    enough = enough_in_flight(costs)
    if most >= enough:
        return ""
    return f"{enough:,} in flight in a worker, or as many as the service answers at the same time."
