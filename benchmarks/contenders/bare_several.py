"""The limit of several agents: step one environment in a process per core, all at once, and nothing else.

In each step, the observations of all that act go to one call of the agent that plays them. Nothing is recorded.
Timesteps are those of all agents together.

Settings:
    one_by_one: Whether the agent is asked for one action at a time (default False).
    seeded: As in `bare` (default True).
    variant: If given, which of the workload's `variants` of its environment.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

from benchmarks.contenders.bare import Begin, seeded_begin, unseeded_begin
from benchmarks.harness.contender import Measure, serve
from benchmarks.harness.forked import Loop, all_at_once
from benchmarks.problems.games import chosen, chosen_one_by_one
from benchmarks.problems.workloads import Workload


def bare_loop(env: Any, agent: Any, begin: Begin, *, one_by_one: bool) -> Loop:
    """Make the loop."""

    def loop(seconds: float, enough: int) -> tuple[int, int, float]:
        step, clock, choose = env.step, time.perf_counter, chosen_one_by_one if one_by_one else chosen
        timesteps = episodes = 0
        now = start = clock()
        while now - start < seconds and timesteps < enough:
            observations = begin()
            while acting := env.agents:
                timesteps += len(acting)
                observations, _, _, _, _ = step(choose(agent, observations, acting))
            episodes += 1
            now = clock()
        return timesteps, episodes, now - start

    return loop


def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> AbstractContextManager[Measure]:
    """Fork the processes."""
    make_env, one_by_one = workload.env_function(settings), bool(settings.get("one_by_one"))

    def make_loop(number: int) -> Loop:
        env, agent = make_env(), workload.bare_agent()
        begin = seeded_begin(env, agent, number) if settings.get("seeded", True) else unseeded_begin(env)
        return bare_loop(env, agent, begin, one_by_one=one_by_one)

    return all_at_once(n_processes, make_loop)


if __name__ == "__main__":
    serve(contender, packages=["gymnasium", "numpy", "torch"])
