"""Collect as one does with Ray's core alone: an actor per process, 1,000 timesteps a call, trajectories as arrays back.

Each actor has two calls queued, so that none is idle while the driver reads a chunk. Arrays come back through
Ray's object store, and are read in place. With new parameters in each iteration, these are put into the store once, and
each actor makes its share of the batch in one call.

Settings:
    chunk: Timesteps of a call (default 1,000; 100 where environments sleep, so that no call takes seconds).
    seeded: Whether each trajectory is seeded as in the bare loop (default False, as in most such programs).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray

from benchmarks.harness.contender import Measure, serve
from benchmarks.problems.workloads import WORKLOADS, Workload, checksum

Chunk = dict[str, np.ndarray]
_STORE_BYTES = 1 << 30


class Roller:
    """An environment and an agent in a process of their own."""

    def __init__(self, name: str, seeded: bool) -> None:
        workload = WORKLOADS[name]
        self.env, self.agent = workload.make_env(), workload.make_agent()
        self.begin: Callable[[], Any] = lambda: self.env.reset()[0]
        if seeded:
            from benchmarks.contenders.bare import seeded_begin  # seeds as this library does, with its functions

            self.begin = seeded_begin(self.env, self.agent, os.getpid())
        self.observation = self.begin()

    def collect(self, size: int, parameters: dict[str, Any] | None) -> Chunk:
        """Run `size` timesteps; the next call continues the last trajectory."""
        if parameters is not None:
            self.agent.set_param_values(parameters)
        observations, actions, rewards, ends = [], [], [], []
        step, get_action, begin, observation = self.env.step, self.agent.get_action, self.begin, self.observation
        for _ in range(size):
            observations.append(observation)
            action, _ = get_action(observation)
            observation, reward, terminated, truncated, _ = step(action)
            actions.append(action)
            rewards.append(reward)
            ends.append((terminated, truncated))
            if terminated or truncated:
                observation = begin()
        self.observation = observation
        return {
            "observations": np.array(observations),
            "actions": np.array(actions),
            "rewards": np.array(rewards),
            "ends": np.array(ends),
        }


class Driver:
    """Keep two calls queued at each actor, or collect batch by batch where there are new parameters."""

    def __init__(self, workload: Workload, n_processes: int, chunk: int, *, seeded: bool = False) -> None:
        self.workload, self.chunk, self.iteration = workload, chunk, 0
        actor = ray.remote(num_cpus=1)(Roller)
        self.actors = [actor.remote(workload.name, seeded) for _ in range(n_processes)]
        self.calls: dict[Any, Any] = {}

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Collect for a while."""
        collect = self._stream if self.workload.parameters is None else self._iterate
        seconds, enough = request.get("seconds", 1e9), request.get("timesteps", 2**62)
        timesteps = trajectories = 0
        begin = now = time.perf_counter()
        while now - begin < seconds and timesteps < enough:
            n, k = collect()
            timesteps, trajectories = timesteps + n, trajectories + k
            now = time.perf_counter()
        return {"timesteps": timesteps, "trajectories": trajectories, "seconds": now - begin}

    def _stream(self) -> tuple[int, int]:
        if not self.calls:
            self.calls = {actor.collect.remote(self.chunk, None): actor for actor in self.actors * 2}
        (done,), _ = ray.wait(list(self.calls), num_returns=1)
        actor = self.calls.pop(done)
        self.calls[actor.collect.remote(self.chunk, None)] = actor
        return self._take(ray.get(done))

    def _iterate(self) -> tuple[int, int]:
        assert self.workload.parameters is not None
        self.iteration += 1
        parameters = ray.put(self.workload.parameters(self.iteration))
        share = -(-self.workload.batch // len(self.actors))
        taken = [self._take(chunk) for chunk in ray.get([a.collect.remote(share, parameters) for a in self.actors])]
        return sum(n for n, _ in taken), sum(k for _, k in taken)

    def _take(self, chunk: Chunk) -> tuple[int, int]:
        if self.workload.reads_batch:
            checksum(chunk["observations"])
        return len(chunk["rewards"]), int(chunk["ends"].any(axis=1).sum())


@contextmanager
def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> Iterator[Measure]:
    """Start Ray and its actors."""
    chunk = settings.get("chunk", 1000 if workload.ideal is None else 100)
    # A folder of its own, removed at the end: Ray does not delete its logs. Its sockets allow a path of 107 bytes only.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        ray.init(
            num_cpus=max(n_processes, os.cpu_count() or 1),
            object_store_memory=_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
            runtime_env={"env_vars": {"PYTHONPATH": str(Path.cwd())}},
        )
        try:
            driver = Driver(workload, n_processes, chunk, seeded=settings.get("seeded", False))
            # Twice round: the first call at an actor is slow.
            driver.measure({"timesteps": 2 * (workload.batch if workload.parameters else n_processes * chunk)})
            yield driver.measure
        finally:
            ray.shutdown()


if __name__ == "__main__":
    serve(contender, packages=["ray", "gymnasium", "numpy", "torch"])
