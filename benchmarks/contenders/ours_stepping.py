"""This library: `EnvManager`, stepped with actions that are chosen in the parent.

What comes back is kept, and stacked to a batch now and then, as the contenders of AsyncVectorEnv and SubprocVecEnv do.

Settings:
    n_envs: Environments (default: one for each process).
    n_workers: Processes (default: as many as the workload says).
    asynchronous: Whether environments are stepped as soon as `least` of them are ready, and not all together.
    least: For how many the parent waits then (default 1).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.harness.contender import Measure, serve
from benchmarks.problems.workloads import Workload, checksum
from streamsampler import EnvManager, Steps

_SIZE = 10_000


class Collector:
    """Steps the environments, and keeps what they return."""

    def __init__(self, workload: Workload, manager: EnvManager, settings: dict[str, Any]) -> None:
        self.workload, self.manager, self.agent = workload, manager, workload.make_agent()
        self.least = settings.get("least", 1)
        self.advance = self._what_is_ready if settings.get("asynchronous") else self._together
        self.steps = manager.reset(seed=0)

    def _together(self, actions: Any) -> Steps:
        return self.manager.step(actions)

    def _what_is_ready(self, actions: Any) -> Steps:
        self.manager.send(actions, self.steps.env_ids)
        return self.manager.recv(min_envs=self.least)

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Collect batches for a while."""
        seconds, enough = request.get("seconds", 1e9), request.get("timesteps", 2**62)
        timesteps = trajectories = 0
        parent, begin = time.process_time(), time.perf_counter()
        end = begin + seconds
        while time.perf_counter() < end and timesteps < enough:
            n, ended = self._collect(min(_SIZE, enough - timesteps), end)
            timesteps, trajectories = timesteps + n, trajectories + ended
        return {
            "timesteps": timesteps,
            "trajectories": trajectories,
            "seconds": time.perf_counter() - begin,
            "parent_cpu": time.process_time() - parent,
        }

    def _collect(self, size: int, deadline: float) -> tuple[int, int]:
        """Return a batch of `size` timesteps, or as many as there are until the deadline, as arrays."""
        records: list[Any] = []
        clock, advance, get_actions = time.perf_counter, self.advance, self.agent.get_actions
        timesteps = 0
        while timesteps < size and (clock() < deadline or not records):
            steps = self.steps = advance(get_actions(self.steps.observations)[0])
            records.append(
                (steps.previous_observations, steps.actions, steps.rewards, steps.terminated, steps.truncated)
            )
            timesteps += len(steps)
        stored = [np.concatenate(column) for column in zip(*records, strict=True)]
        if self.workload.reads_batch:
            checksum(stored[0])
        return timesteps, int((stored[3] | stored[4]).sum())


@contextmanager
def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> Iterator[Measure]:
    """Start the environments."""
    n_envs = settings.get("n_envs", n_processes)
    n_workers = settings.get("n_workers", n_processes)
    with EnvManager(workload.make_env, n_envs=n_envs, n_workers=n_workers, seed=0, autoreset="same_step") as manager:
        collector = Collector(workload, manager, settings)
        collector.measure({"seconds": 0.3})
        yield collector.measure


if __name__ == "__main__":
    serve(contender, packages=["gymnasium", "numpy"])
