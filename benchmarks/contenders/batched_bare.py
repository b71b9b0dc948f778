"""The limit of batched actions: several environments in each process, one after the other, one `get_actions` for all.

Nothing is recorded. A trajectory's environment is seeded at its start; the generators are seeded once, since what is
batched together draws from them together.

Settings:
    n_envs: Environments in each process (default 32).
    native: If given, one environment, which is so many copies vectorised natively, in place of several environments.
    whole: Whether there are batches of the workload's size, that end with whole trajectories (default False): a process
        that has run its share starts no more trajectories, and finishes those that are running. No process waits for
        the others. This is the cost of batches of whole trajectories, without any other cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.harness.contender import Measure, Unsupported, serve
from benchmarks.harness.forked import Loop, all_at_once, batch_after_batch
from benchmarks.problems.workloads import Workload
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.workers.generators import seed_generators

_SEEDS_AT_ONCE = 64


class BatchedLoop:
    """One process's environments."""

    def __init__(self, workload: Workload, n_envs: int, number: int) -> None:
        self.envs = [workload.make_env() for _ in range(n_envs)]
        self.agent = workload.bare_agent()
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


def vector_env_function(workload: Workload, n_envs: int) -> Callable[[], Any]:
    """Return the function that makes the workload's environment of so many copies.

    Raises:
        Unsupported: There is none, or what it needs is not installed.
    """
    if workload.make_vector_env is None:
        raise Unsupported("this workload has no environment that is vectorised natively")
    if missing := [name for name in workload.needs if find_spec(name) is None]:
        raise Unsupported(f"pip install {' '.join(missing)}")
    return partial(workload.make_vector_env, n_envs)


def native_loop(env: Any, agent: Any) -> Loop:
    """Make the loop over an environment that is vectorised natively; it resets itself."""
    n_envs = env.num_envs
    # In this mode the step after a trajectory's end brings the next one's first observation, and is no timestep.
    loses_a_step = "same" not in str(env.metadata.get("autoreset_mode")).lower()
    last = [env.reset(seed=1)[0]]

    def loop(seconds: float, enough: int) -> tuple[int, int, float]:
        step, get_actions, clock, count = env.step, agent.get_actions, time.perf_counter, np.count_nonzero
        steps = trajectories = timesteps = 0
        observations = last[0]
        now = start = clock()
        while now - start < seconds and timesteps < enough:
            observations, _, terminated, truncated, _ = step(get_actions(observations)[0])
            trajectories += int(count(terminated | truncated))
            steps += 1
            timesteps = n_envs * steps - (trajectories if loses_a_step else 0)
            now = clock()
        last[0] = observations
        return timesteps, trajectories, now - start

    return loop


def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> AbstractContextManager[Measure]:
    """Fork the processes."""
    n_envs = settings.get("n_envs", 32)

    make_env = vector_env_function(workload, settings["native"]) if settings.get("native") else None

    def make_loop(number: int) -> Loop:
        if make_env is not None:
            return native_loop(make_env(), workload.bare_agent())
        if settings.get("whole"):
            return batch_after_batch(WholeBatches(workload, n_envs, number, -(-workload.batch // n_processes)).collect)
        return BatchedLoop(workload, n_envs, number)

    return all_at_once(n_processes, make_loop)


if __name__ == "__main__":
    serve(contender, packages=["gymnasium", "numpy", "torch"])
