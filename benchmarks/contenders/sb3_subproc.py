"""Stable-Baselines3's VecEnvs, and this library's of that kind: stepped together, actions chosen in the parent.

An environment is reset within the step that ends its trajectory, so each environment delivers a timestep in each step.

Settings:
    n_envs: Environments (default: one for each process).
    kind: "subproc" for SubprocVecEnv, with a process for each environment (default); "dummy" for DummyVecEnv, with all
        in this process, and with the Monitor that `make_vec_env` adds; "ours" for `SerialEnvManager.sb3_env()`, which
        says in the infos what a Monitor says.
    start_method: How processes are started (default: the library's own, with which each imports torch).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from benchmarks.harness.contender import Measure, serve
from benchmarks.problems.workloads import Workload, checksum


class Collector:
    """Steps the environments, and keeps what they return."""

    def __init__(self, workload: Workload, envs: Any) -> None:
        self.workload, self.agent = workload, workload.make_agent()
        self.envs = envs
        self.envs.seed(0)
        self.observations = self.envs.reset()
        self.iteration = 0

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Collect batches for a while."""
        seconds, enough = request.get("seconds", 1e9), request.get("timesteps", 2**62)
        parameters = self.workload.parameters
        size = self.workload.batch if parameters else 10_000
        timesteps = trajectories = 0
        begin = time.perf_counter()
        end = begin + seconds
        while time.perf_counter() < end and timesteps < enough:
            if parameters:
                self.iteration += 1
                self.agent.set_param_values(parameters(self.iteration))
            n, ended = self._collect(min(size, enough - timesteps), np.inf if parameters else end)
            timesteps, trajectories = timesteps + n, trajectories + ended
        return {"timesteps": timesteps, "trajectories": trajectories, "seconds": time.perf_counter() - begin}

    def _collect(self, size: int, deadline: float) -> tuple[int, int]:
        """Return a batch of `size` timesteps, or as many as there are until the deadline, as arrays."""
        n_steps = -(-size // self.envs.num_envs)
        records: list[Any] = []
        clock, step, get_actions = time.perf_counter, self.envs.step, self.agent.get_actions
        while len(records) < n_steps and (clock() < deadline or not records):
            actions, _ = get_actions(self.observations)
            # These arrays are fresh: stacked from what the pipes bring, or copied.
            observations, rewards, ended, _ = step(actions)
            records.append((self.observations, actions, rewards, ended))
            self.observations = observations
        stored = [np.stack(column) for column in zip(*records, strict=True)]
        if self.workload.reads_batch:
            checksum(stored[0])
        return stored[2].size, int(stored[3].sum())


def _vec_env(workload: Workload, n_envs: int, settings: dict[str, Any]) -> Any:
    kind = settings.get("kind", "subproc")
    if kind == "ours":
        from streamsampler import SerialEnvManager  # its own requirements are those of this peer and setproctitle

        return SerialEnvManager(workload.make_env, n_envs=n_envs, autoreset="same_step").sb3_env()
    if kind == "dummy":
        return DummyVecEnv([lambda: Monitor(workload.make_env())] * n_envs)
    return SubprocVecEnv([workload.make_env] * n_envs, settings.get("start_method"))


@contextmanager
def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> Iterator[Measure]:
    """Start the environments."""
    collector = Collector(workload, _vec_env(workload, settings.get("n_envs", n_processes), settings))
    try:
        collector.measure({"seconds": 0.3})
        yield collector.measure
    finally:
        collector.envs.close()


if __name__ == "__main__":
    serve(contender, packages=["stable_baselines3", "gymnasium", "numpy", "torch"])
