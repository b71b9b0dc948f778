"""tianshou's Collector: one process per environment, stepped together, actions chosen in the parent, into its buffer.

The asynchronous collector, which steps the environments that are ready, is used where environments sleep.
The buffer does not store next observations twice, and is not searched for NaN: both are faster.

Settings:
    n_envs: Environments, each in its own process (default: 8, or one for each process if those are more).
    memory: Whether observations come through shared memory (default: where there are more than 4 KB of them).
    asynchronous: See above.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import AsyncCollector, Batch, Collector, VectorReplayBuffer
from tianshou.env import ShmemVectorEnv, SubprocVectorEnv

from benchmarks.harness.contender import Measure, repeated, serve
from benchmarks.problems.workloads import Workload, checksum

_SIZE = 2_000
_LARGE = 4_096


class AgentPolicy(Policy):
    """The workload's agent as tianshou's policy.

    The asynchronous collector works with a hidden state only, so the state is zeros.
    """

    def __init__(self, agent: Any, env: Any, stateful: bool) -> None:
        super().__init__(env.action_space, env.observation_space, action_scaling=False, action_bound_method=None)
        self.agent, self.stateful = agent, stateful

    def forward(self, batch: Any, state: Any = None, **_: Any) -> Any:
        """Choose an action for each observation."""
        hidden = np.zeros((len(batch.obs), 1)) if self.stateful else state
        return Batch(act=self.agent.get_actions(batch.obs)[0], state=hidden)


class Gatherer:
    """Calls the collector, batch after batch."""

    def __init__(self, workload: Workload, n_envs: int, memory: bool | None, asynchronous: bool) -> None:
        self.workload, self.agent, self.iteration = workload, workload.make_agent(), 0
        env = workload.make_env()
        policy = AgentPolicy(self.agent, env, stateful=asynchronous)
        large = int(np.prod(env.observation_space.shape)) * env.observation_space.dtype.itemsize > _LARGE
        env.close()
        least = workload.batch if workload.parameters else min(_SIZE, workload.batch)
        self.size = -(-least // n_envs) * n_envs
        vector = ShmemVectorEnv if (large if memory is None else memory) else SubprocVectorEnv
        self.envs = vector([workload.make_env] * n_envs, **({"wait_num": 1} if asynchronous else {}))
        # How many timesteps each environment makes is not known beforehand if they do not wait for each other.
        room = self.size * n_envs if asynchronous else self.size
        self.buffer = VectorReplayBuffer(room, n_envs, ignore_obs_next=True)
        kind = AsyncCollector if asynchronous else Collector
        self.collector = kind(policy, self.envs, self.buffer, raise_on_nan_in_buffer=False)
        self.collector.reset()

    def collect(self) -> tuple[int, int]:
        """Fill the buffer once."""
        if self.workload.parameters:
            self.iteration += 1
            self.agent.set_param_values(self.workload.parameters(self.iteration))
        self.collector.reset_buffer(keep_statistics=True)
        stats = self.collector.collect(n_step=self.size)
        if self.workload.reads_batch:
            # The buffer has exactly as many rows as a batch has timesteps.
            checksum(self.buffer.obs)
        return int(stats.n_collected_steps), int(stats.n_collected_episodes)


@contextmanager
def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> Iterator[Measure]:
    """Start the environments."""
    torch.set_num_threads(1)
    asynchronous = settings.get("asynchronous", workload.ideal is not None)
    gatherer = Gatherer(workload, settings.get("n_envs", max(8, n_processes)), settings.get("memory"), asynchronous)
    try:
        gatherer.collect()
        yield repeated(gatherer.collect)
    finally:
        gatherer.collector.close()


if __name__ == "__main__":
    serve(contender, packages=["tianshou", "gymnasium", "numpy", "torch"])
