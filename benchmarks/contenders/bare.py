"""The limit: `env.step(agent(observation))` in one process per core, all at once, and nothing else.

Settings:
    seeded: Whether each trajectory's environment, agent and global generators are seeded, as the library does, from
        the same seeds (default True).
    storing: Whether all observations, actions, rewards and ends are kept, as arrays, and the observations read to the
        last byte afterwards if the workload says so. "fresh" stores each batch in memory of its own, which its user
        may keep; "reused" overwrites the last batch.
    variant: If given, which of the workload's `variants` of its environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from benchmarks.harness.contender import Measure, serve
from benchmarks.harness.forked import Loop, all_at_once, batch_after_batch
from benchmarks.problems.workloads import Workload, checksum
from streamsampler.agents.base import reset_agent_function
from streamsampler.core.seeding import SeedUse, TrajectorySeeds, derived_seed
from streamsampler.workers.generators import seed_generators

_SEEDS_AT_ONCE = 64
_LONGEST = 1000

Begin = Callable[[], Any]


def seeded_begin(env: Any, agent: Any, number: int) -> Begin:
    """Make the function that begins a trajectory with everything seeded, and returns its first observation."""
    seeds_of, reset_agent = TrajectorySeeds(number, 1), reset_agent_function(agent)
    waiting: list[int] = []
    index = 0

    def begin() -> Any:
        nonlocal index
        if not waiting:
            waiting.extend(reversed(seeds_of.of(range(index, index + _SEEDS_AT_ONCE))))
            index += _SEEDS_AT_ONCE
        seed = waiting.pop()
        seed_generators(seed)
        observation, _ = env.reset(seed=seed)
        if reset_agent is not None:
            reset_agent(derived_seed(seed, SeedUse.AGENT))
        return observation

    return begin


def unseeded_begin(env: Any) -> Begin:
    """Make the function that begins a trajectory without seeding anything."""
    env.reset(seed=0)
    return lambda: env.reset()[0]


def bare_loop(env: Any, agent: Any, begin: Begin) -> Loop:
    """Make the loop that records nothing."""

    def loop(seconds: float, enough: int) -> tuple[int, int, float]:
        step, get_action, clock = env.step, agent.get_action, time.perf_counter
        timesteps = trajectories = 0
        now = start = clock()
        while now - start < seconds and timesteps < enough:
            observation = begin()
            while True:
                action, _ = get_action(observation)
                observation, _, terminated, truncated, _ = step(action)
                timesteps += 1
                if terminated or truncated:
                    break
            trajectories += 1
            now = clock()
        return timesteps, trajectories, now - start

    return loop


class StoringLoop:
    """Store observations in rows of a preallocated array, and the small values in lists."""

    def __init__(self, env: Any, agent: Any, begin: Begin, batch: int, *, reused: bool, read: bool) -> None:
        self.env, self.agent, self.begin, self.batch, self.reused, self.read = env, agent, begin, batch, reused, read
        self.rows: np.ndarray | None = None

    def collect(self) -> tuple[int, int]:
        """Make a batch, and return its timesteps and trajectories."""
        step, get_action = self.env.step, self.agent.get_action
        rows = self._room()
        rewards: list[float] = []
        actions, ends = [], []
        t = 0
        while t < self.batch:
            observation = self.begin()
            while True:
                rows[t] = observation
                action, _ = get_action(observation)
                observation, reward, terminated, truncated, _ = step(action)
                actions.append(action)
                rewards.append(reward)
                t += 1
                if terminated or truncated:
                    ends.append((t, terminated, truncated))
                    break
        batch = rows[:t], np.array(actions), np.array(rewards, np.float64), np.array(ends)
        if self.read:
            checksum(batch[0])
        return t, len(ends)

    def _room(self) -> np.ndarray:
        if self.rows is None or not self.reused:
            space = self.env.observation_space
            self.rows = np.empty((self.batch + _LONGEST, *space.shape), space.dtype)
        return self.rows


def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> AbstractContextManager[Measure]:
    """Fork the processes."""
    seeded, storing = settings.get("seeded", True), settings.get("storing")

    def make_loop(number: int) -> Loop:
        env, agent = workload.env_function(settings)(), workload.bare_agent()
        if workload.parameters is not None:
            agent.set_param_values(workload.parameters(0))
        begin = seeded_begin(env, agent, number) if seeded else unseeded_begin(env)
        if storing:
            batch = -(-workload.batch // n_processes)
            loop = StoringLoop(env, agent, begin, batch, reused=storing == "reused", read=workload.reads_batch)
            return batch_after_batch(loop.collect)
        return bare_loop(env, agent, begin)

    return all_at_once(n_processes, make_loop)


if __name__ == "__main__":
    serve(contender, packages=["gymnasium", "numpy", "torch"])
