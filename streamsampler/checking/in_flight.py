"""Tell how many trajectories in flight keep a worker busy, from what a timestep waits and computes. Pure."""

from __future__ import annotations

import math

from streamsampler.checking.costs import Costs

__all__ = ["enough_in_flight", "hint_of_in_flight", "numbers_in_flight", "why_in_flight"]

_OURS = 0.05e-3
"""Seconds that this library takes for a timestep in flight, about."""
_ALONE = 0.2e-3
"""Seconds that a timestep which runs alone computes for longer: a wait leaves processor caches cold, and measuring
runs the event loop for this timestep alone."""
_MOST = 200
"""The largest number that is measured unless it is asked for: a service may count requests, or take them for an
attack."""
_NUMBERS = 1, 2, 5, 10, 20, 50, 100, _MOST
_FURTHER = 2, 4
"""How many numbers below the largest the others are: about a fifth and a twentieth of it."""


def _computed(costs: Costs) -> float:
    """Return the seconds of a timestep in which nothing else runs in its process."""
    busy = costs.step - costs.waiting + costs.agent - costs.agent_waiting
    return max(0.0, costs.free_share * busy - _ALONE) + _OURS  # other programs had the rest of the core


def enough_in_flight(costs: Costs) -> int:
    """Return how many trajectories in flight let a process compute all the time.

    Args:
        costs: What a timestep takes.
    """
    waited, computed = costs.waiting + costs.agent_waiting, _computed(costs)
    return math.ceil((waited + computed) / computed)


def numbers_in_flight(costs: Costs) -> tuple[int, ...]:
    """Return the numbers in flight that are measured, from 1 up to what keeps a process busy.

    Between them are others, since a service may answer fewer requests at the same time.

    Args:
        costs: What a timestep takes.
    """
    enough = min(_MOST, enough_in_flight(costs))
    largest = next(at for at, number in enumerate(_NUMBERS) if number >= enough)
    others = (_NUMBERS[largest - below] for below in _FURTHER if largest >= below)
    return tuple(sorted({1, _NUMBERS[largest], *others}))


def why_in_flight(costs: Costs) -> str:
    """Return how the numbers in flight follow from what a timestep takes, in sentences."""
    waited, computed = 1e3 * (costs.waiting + costs.agent_waiting), 1e3 * _computed(costs)
    agents = ", the agent's included" if costs.agent_waiting else ""
    return (
        f"a timestep waits {waited:.3g} ms{agents}, and computes for about {computed:.2g} ms, sampler and agent "
        f"included. So about {enough_in_flight(costs):,} in flight keep a process busy. Fewer are as fast where the "
        "service answers no more at the same time"
    )


def hint_of_in_flight(costs: Costs, most: int) -> str:
    """Return that more in flight may be faster; empty where so many were measured that a process is busy.

    Args:
        costs: What a timestep takes.
        most: The largest number in flight that was measured.
    """
    enough = enough_in_flight(costs)
    if most >= enough:
        return ""
    return f"{enough:,} in flight in a worker, or as many as the service answers at the same time."
