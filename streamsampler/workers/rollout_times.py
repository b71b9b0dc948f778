"""Divide the time of rollouts among their parts."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from streamsampler.protocol.messages import Times

__all__ = ["shares", "timed"]


def timed(rebuild: Callable[[], None]) -> Times:
    """Replace agent and environment, and count the time as a reset's."""
    began = perf_counter()
    rebuild()
    return Times(perf_counter() - began)


def shares(seconds: float, reset: float, agent: float, step: float) -> Times:
    """Divide the time that was not measured between agent and steps, in proportion; or count it as resets'."""
    timed = agent + step
    if not timed:
        return Times(seconds)
    share = (seconds - reset) / timed
    return Times(reset, share * agent, share * step)
