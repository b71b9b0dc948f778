"""Gymnasium's vector environments, and this library's of that kind: stepped together, actions chosen in the parent.

Settings:
    n_envs: Environments (default: one for each process).
    kind: "async" for AsyncVectorEnv, with a process for each environment (default); "sync" for SyncVectorEnv, with all
        in this process; "ours" for this library's `vector_env()`.
    n_workers: Of "ours": in how many processes the environments are (default 0: in this one).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np

from benchmarks.harness.contender import Measure, serve
from benchmarks.problems.workloads import Workload, checksum


class Collector:
    """Steps the environments, and keeps what they return."""

    def __init__(self, workload: Workload, envs: Any) -> None:
        self.envs = envs
        self.workload, self.agent = workload, workload.make_agent()
        self.iteration = 0
        self.observations, _ = self.envs.reset(seed=0)

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Collect batches for a while."""
        seconds, enough = request.get("seconds", 1e9), request.get("timesteps", 2**62)
        workload = self.workload
        size = workload.batch if workload.parameters else 10_000
        timesteps = trajectories = 0
        begin = time.perf_counter()
        end = begin + seconds
        while time.perf_counter() < end and timesteps < enough:
            if workload.parameters:
                self.iteration += 1
                self.agent.set_param_values(workload.parameters(self.iteration))
            n, ended = self._collect(size, end if workload.parameters is None else np.inf)
            timesteps, trajectories = timesteps + n, trajectories + ended
        return {"timesteps": timesteps, "trajectories": trajectories, "seconds": time.perf_counter() - begin}

    def _collect(self, size: int, deadline: float) -> tuple[int, int]:
        """Return a batch of `size` timesteps, or as many as there are until the deadline, as arrays."""
        n_steps = -(-size // self.envs.num_envs)
        records: list[Any] = []
        clock, step, get_actions = time.perf_counter, self.envs.step, self.agent.get_actions
        while len(records) < n_steps and (clock() < deadline or not records):
            actions, _ = get_actions(self.observations)
            # These are copies, whichever the vector environment is.
            observations, rewards, terminated, truncated, _ = step(actions)
            records.append((self.observations, actions, rewards, terminated, truncated))
            self.observations = observations
        stored = [np.stack(column) for column in zip(*records, strict=True)]
        if self.workload.reads_batch:
            checksum(stored[0])
        return stored[2].size, int((stored[3] | stored[4]).sum())


def _vector_env(workload: Workload, n_envs: int, kind: str, n_workers: int) -> Any:
    if kind == "ours":
        # Which peers with other versions of Gymnasium cannot import.
        from streamsampler import EnvManager, SerialEnvManager

        options: dict[str, Any] = {"n_envs": n_envs, "autoreset": "same_step"}
        if n_workers:
            return EnvManager(workload.make_env, n_workers=n_workers, **options).vector_env()
        return SerialEnvManager(workload.make_env, **options).vector_env()
    made = {"async": gymnasium.vector.AsyncVectorEnv, "sync": gymnasium.vector.SyncVectorEnv}[kind]
    # The autoreset mode that resets within the step: no step is spent on resetting.
    return made([workload.make_env] * n_envs, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)


@contextmanager
def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> Iterator[Measure]:
    """Start the environments."""
    n_envs, kind = settings.get("n_envs", n_processes), settings.get("kind", "async")
    collector = Collector(workload, _vector_env(workload, n_envs, kind, settings.get("n_workers", 0)))
    try:
        collector.measure({"seconds": 0.3})
        yield collector.measure
    finally:
        collector.envs.close()


if __name__ == "__main__":
    serve(contender, packages=["gymnasium", "numpy"])
