"""The ways to step an environment with an agent, each measurable for a short time."""

from __future__ import annotations

from streamsampler.checking.manager_ways import manager_ways
from streamsampler.checking.sampler_ways import (
    of_samplers,
    run_sampler,
    way_of_native,
    way_of_vec_workers,
    way_of_workers,
    way_with_agent_here,
    ways_in_flight,
)
from streamsampler.checking.way import Problem, Way
from streamsampler.samplers.processes import LocalSampler


def ways_of(problem: Problem) -> list[Way]:
    """Return all ways, in ascending order of their needs."""
    if problem.is_vector or problem.in_flight:
        return ways_in_workers(problem)
    local = Way(
        "LocalSampler", f"LocalSampler(agent, {problem.env_code})",
        lambda: LocalSampler(problem.agent, problem.env, **of_samplers(problem)), run_sampler, "--workers 0",
    )  # fmt: skip
    return [local, *ways_in_workers(problem), way_with_agent_here(problem), *manager_ways(problem)]


def ways_in_workers(problem: Problem) -> list[Way]:
    """Return the ways with agent and environments in worker processes, which may hang or die."""
    if problem.in_flight:
        return ways_in_flight(problem)
    return (
        [way_of_native(problem)]
        if problem.is_vector
        else [way_of_workers(problem), way_of_vec_workers(problem), way_of_native(problem)]
    )
