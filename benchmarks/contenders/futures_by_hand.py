"""Collect as one does without a library: `concurrent.futures`, tasks of 1,000 timesteps, trajectories pickled back.

Settings:
    chunk: Timesteps of a task (default 1,000; 100 where environments sleep, so that no task takes seconds).
    infos: Whether infos and last observations come back, too, as from this library (default False).
    seeded: Whether each trajectory is seeded as in the bare loop (default False, as in most such programs).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.contenders.bare import seeded_begin, unseeded_begin
from benchmarks.harness.contender import Measure, serve
from benchmarks.problems.workloads import WORKLOADS, Workload, checksum, marks

Chunk = dict[str, np.ndarray]


class _Process:
    """Hold what a process of the pool keeps between tasks."""

    def __init__(self, workload: Workload, *, seeded: bool, infos: bool) -> None:
        self.infos = infos
        self.env, self.agent = workload.make_env(), workload.make_agent()
        self.begin = seeded_begin(self.env, self.agent, os.getpid()) if seeded else unseeded_begin(self.env)
        self.observation = self.begin()

    def collect(self, size: int) -> Chunk:
        """Run `size` timesteps; the next task continues the last trajectory."""
        observations, actions, rewards, ends, infos, last = [], [], [], [], [], []
        step, get_action, begin, observation = self.env.step, self.agent.get_action, self.begin, self.observation
        for _ in range(size):
            observations.append(observation)
            action, _ = get_action(observation)
            observation, reward, terminated, truncated, info = step(action)
            actions.append(action)
            rewards.append(reward)
            ends.append((terminated, truncated))
            infos.append(info)
            if terminated or truncated:
                last.append(observation)
                observation = begin()
        self.observation = observation
        chunk = {
            "observations": np.array(observations),
            "actions": np.array(actions),
            "rewards": np.array(rewards),
            "ends": np.array(ends),
        }
        if self.infos:
            chunk["last_observations"] = np.array(last)
            chunk.update({key: np.array([info[key] for info in infos]) for key in infos[0]})
        return chunk


_process: list[_Process] = []


def _initialize(name: str, seeded: bool, infos: bool) -> None:
    _process.append(_Process(WORKLOADS[name], seeded=seeded, infos=infos))


def _task(size: int, parameters: dict[str, Any] | None) -> Chunk:
    process = _process[0]
    if parameters is not None:
        process.agent.set_param_values(parameters)
    return process.collect(size)


class Collector:
    """Keep two tasks in the pool for each process, or collect batch by batch where there are new parameters."""

    def __init__(self, workload: Workload, pool: ProcessPoolExecutor, n_processes: int, chunk: int) -> None:
        self.workload, self.pool, self.n_processes, self.chunk = workload, pool, n_processes, chunk
        self.tasks: set[Future[Chunk]] = set()
        self.iteration = 0
        self.called: dict[int, float] = {}

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Collect for a while."""
        collect = self._stream if self.workload.parameters is None else self._iterate
        seconds, enough = request.get("seconds", 1e9), request.get("timesteps", 2**62)
        timesteps = trajectories = 0
        self.called = {}
        begin = now = time.perf_counter()
        while now - begin < seconds and timesteps < enough:
            n, k = collect()
            timesteps, trajectories = timesteps + n, trajectories + k
            now = time.perf_counter()
        return {
            "timesteps": timesteps,
            "trajectories": trajectories,
            "seconds": now - begin,
            "delays": [[when - called for _, when in marks(number)] for number, called in self.called.items()],
        }

    def _stream(self) -> tuple[int, int]:
        while len(self.tasks) < 2 * self.n_processes:
            self.tasks.add(self.pool.submit(_task, self.chunk, None))
        done, self.tasks = wait(self.tasks, return_when=FIRST_COMPLETED)
        return self._take(done)

    def _iterate(self) -> tuple[int, int]:
        assert self.workload.parameters is not None
        self.iteration += 1
        parameters = self.workload.parameters(self.iteration)
        self.called[self.iteration] = time.monotonic()
        share = -(-self.workload.batch // self.n_processes)
        return self._take({self.pool.submit(_task, share, parameters) for _ in range(self.n_processes)})

    def _take(self, tasks: set[Future[Chunk]]) -> tuple[int, int]:
        timesteps = trajectories = 0
        for task in tasks:
            chunk = task.result()
            if self.workload.reads_batch:
                checksum(chunk["observations"])
            timesteps += len(chunk["rewards"])
            trajectories += int(chunk["ends"].any(axis=1).sum())
        return timesteps, trajectories


@contextmanager
def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> Iterator[Measure]:
    """Start the pool."""
    chunk = settings.get("chunk", 1000 if workload.ideal is None else 100)
    initial = workload.name, settings.get("seeded", False), settings.get("infos", False)
    with ProcessPoolExecutor(n_processes, initializer=_initialize, initargs=initial) as pool:
        collector = Collector(workload, pool, n_processes, chunk)
        collector.measure({"timesteps": n_processes * chunk})
        yield collector.measure
        pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    serve(contender, packages=["numpy", "gymnasium"])
