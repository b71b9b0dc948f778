"""The limit of batched actions: several environments in each process, one after the other, one `get_actions` for all.

Nothing is recorded. A trajectory's environment is seeded at its start; the generators are seeded once, since what is
batched together draws from them together.

Settings:
    n_envs: Environments in each process (default 32).
    whole: Whether there are batches of the workload's size, that end with whole trajectories (default False): a process
        that has run its share starts no more trajectories, and finishes those that are running. No process waits for
        the others. This is the cost of batches of whole trajectories, without any other cost.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from benchmarks.harness.contender import Measure, serve
from benchmarks.harness.forked import Loop, all_at_once, batch_after_batch
from benchmarks.problems.workloads import Workload
from streamsampler.seeding import TrajectorySeeds
from streamsampler.workers.generators import seed_generators

_SEEDS_AT_ONCE = 64


class BatchedLoop:
    """One process's environments."""

    def __init__(self, workload: Workload, n_envs: int, number: int) -> None:
        self.envs = [workload.make_env() for _ in range(n_envs)]
        self.agent = workload.make_agent()
        self._seeds = TrajectorySeeds(number, 1)
        self._waiting: list[int] = []
        self._index = 0
        seed_generators(self._seeds[0])
        first = [env.reset(seed=self._seed())[0] for env in self.envs]
        self._observations = np.stack(first)

    def _seed(self) -> int:
        if not self._waiting:
            self._waiting = self._seeds.of(range(self._index, self._index + _SEEDS_AT_ONCE))
            self._index += _SEEDS_AT_ONCE
        return self._waiting.pop()

    def __call__(self, seconds: float, enough: int) -> tuple[int, int, float]:
        """Step all environments until the deadline."""
        observations, get_actions, clock = self._observations, self.agent.get_actions, time.perf_counter
        steps = [env.step for env in self.envs]
        timesteps = trajectories = 0
        now = start = clock()
        while now - start < seconds and timesteps < enough:
            actions, _ = get_actions(observations)
            # As the environments of a library that gives each its action as the space has it.
            for number, (step, action) in enumerate(zip(steps, actions, strict=True)):
                observation, _, terminated, truncated, _ = step(action)
                if terminated or truncated:
                    observation, _ = self.envs[number].reset(seed=self._seed())
                    trajectories += 1
                observations[number] = observation
            timesteps += len(steps)
            now = clock()
        return timesteps, trajectories, now - start


class WholeBatches(BatchedLoop):
    """One process's environments, which begin together and end together."""

    def __init__(self, workload: Workload, n_envs: int, number: int, share: int) -> None:
        super().__init__(workload, n_envs, number)
        self.share = share

    def collect(self) -> tuple[int, int]:
        """Make a batch, and return its timesteps and trajectories."""
        get_actions = self.agent.get_actions
        active = [(env, env.step) for env in self.envs]
        observations = np.stack([env.reset(seed=self._seed())[0] for env in self.envs])
        timesteps = trajectories = 0
        while active:
            actions, _ = get_actions(observations)
            over = []
            for number, ((env, step), action) in enumerate(zip(active, actions, strict=True)):
                observation, _, terminated, truncated, _ = step(action)
                if terminated or truncated:
                    trajectories += 1
                    if timesteps < self.share:
                        observation, _ = env.reset(seed=self._seed())
                    else:
                        over.append(number)
                observations[number] = observation
            timesteps += len(active)
            if over:
                observations = np.delete(observations, over, 0)
                active = [one for number, one in enumerate(active) if number not in over]
        return timesteps, trajectories


def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> AbstractContextManager[Measure]:
    """Fork the processes."""
    n_envs = settings.get("n_envs", 32)

    def make_loop(number: int) -> Loop:
        if settings.get("whole"):
            return batch_after_batch(WholeBatches(workload, n_envs, number, -(-workload.batch // n_processes)).collect)
        return BatchedLoop(workload, n_envs, number)

    return all_at_once(n_processes, make_loop)


if __name__ == "__main__":
    serve(contender, packages=["gymnasium", "numpy", "torch"])
