"""All the ways to step an environment with an agent that are measured."""

from __future__ import annotations

from collections.abc import Sequence

from streamsampler.benchmarking.sampled import Local, NativeWorkers, ParentAgent, VecWorkers, Workers
from streamsampler.benchmarking.stepped import Asynchronous, Serial, Synchronous
from streamsampler.benchmarking.way import Problem, Way

__all__ = ["ways_in_workers", "ways_of"]


def ways_of(problem: Problem) -> Sequence[Way]:
    """Return all ways, those that need least first."""
    return (
        Local(problem), Workers(problem), VecWorkers(problem), NativeWorkers(problem), ParentAgent(problem),
        Serial(problem), Synchronous(problem), Asynchronous(problem),
    )  # fmt: skip


def ways_in_workers(problem: Problem) -> Sequence[Way]:
    """Return those in which agent and environments run in worker processes, where they may hang, or end them."""
    if problem.is_vector:
        return (NativeWorkers(problem),)
    return Workers(problem), VecWorkers(problem), NativeWorkers(problem)
