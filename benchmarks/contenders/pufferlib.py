"""PufferLib's multiprocessing: processes step several environments each and exchange arrays through shared memory.

The actions are chosen in the parent, for one process's environments at a time, while the others step theirs: its
fastest way, a batch being one process's environments. Its processes spin while they wait.

PufferLib resets an environment in the step after a trajectory's end, and gives the first observation in that step's
place: such steps are not counted as timesteps. It resets at termination only, so the environment's wrapper here makes
it reset at truncation too. What comes back is copied into preallocated rows, as its own trainer does: observations, the
actions they lead to, and the rewards of the actions before.

Settings:
    n_envs: Environments in all (default 128 for each process; one for each process where environments sleep).
    workers: Processes (default: the number of processes).
    batch: Processes whose environments make a batch (default 1).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import pufferlib.emulation
import pufferlib.vector

from benchmarks.harness.contender import Measure, Unsupported, serve
from benchmarks.problems.workloads import Workload, checksum

_SIZE = 10_000


class Env(pufferlib.emulation.GymnasiumPufferEnv):
    """PufferLib's environment, which is also reset where a trajectory is truncated."""

    def step(self, action: Any) -> Any:
        """Step, and record termination and truncation as an end."""
        result = super().step(action)
        self.done = result[2] or result[3]
        return result


class Rows:
    """Hold a batch; the next batch overwrites it."""

    def __init__(self, n_rows: int, envs: Any) -> None:
        observation, action = envs.single_observation_space, envs.single_action_space
        self.observations = np.empty((n_rows, *observation.shape), observation.dtype)
        self.actions = np.empty((n_rows, *action.shape), action.dtype)
        self.rewards = np.empty(n_rows, np.float32)
        self.ended = np.empty(n_rows, bool)


class Collector:
    """Sends actions, and keeps what comes back."""

    def __init__(self, workload: Workload, n_envs: int, workers: int, batch: int) -> None:
        self.workload, self.agent, self.iteration = workload, workload.make_agent(), 0
        self.envs = pufferlib.vector.make(
            Env,
            env_kwargs={"env_creator": workload.make_env},
            backend=pufferlib.vector.Multiprocessing,
            num_envs=n_envs,
            num_workers=workers,
            batch_size=n_envs // workers * batch,
        )
        self.envs.async_reset(0)
        # Whether an environment's next step gives its first observation.
        self.fresh = np.ones(n_envs, bool)
        self.size = workload.batch if workload.parameters else _SIZE
        # Trajectories have five timesteps at least, and each begins with a row without one.
        self.rows = Rows(self.size + self.size // 5 + 2 * n_envs, self.envs)

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Collect batches for a while."""
        seconds, enough = request.get("seconds", 1e9), request.get("timesteps", 2**62)
        parameters = self.workload.parameters
        timesteps = trajectories = 0
        begin = time.perf_counter()
        end = begin + seconds
        while time.perf_counter() < end and timesteps < enough:
            if parameters:
                self.iteration += 1
                self.agent.set_param_values(parameters(self.iteration))
            n, ended = self._collect(min(self.size, enough - timesteps), np.inf if parameters else end)
            timesteps, trajectories = timesteps + n, trajectories + ended
        return {"timesteps": timesteps, "trajectories": trajectories, "seconds": time.perf_counter() - begin}

    def _collect(self, size: int, deadline: float) -> tuple[int, int]:
        """Return a batch of `size` timesteps, or as many as there are until the deadline, as arrays."""
        rows, filled, timesteps, trajectories = self.rows, 0, 0, 0
        while timesteps < size and (time.perf_counter() < deadline or not timesteps):
            observations, rewards, terminated, truncated, _, ids, _ = self.envs.recv()
            here = slice(filled, filled + len(observations))
            filled = here.stop
            # The next step overwrites what came back.
            rows.observations[here] = observations
            rows.rewards[here] = rewards
            ended = np.logical_or(terminated, truncated, out=rows.ended[here])
            rows.actions[here] = self.agent.get_actions(rows.observations[here])[0]
            self.envs.send(rows.actions[here])
            timesteps += len(observations) - int(np.count_nonzero(self.fresh[ids]))
            trajectories += int(np.count_nonzero(ended))
            self.fresh[ids] = ended
        if self.workload.reads_batch:
            checksum(rows.observations[:filled])
        return timesteps, trajectories


def _first_sentence(error: Exception) -> str:
    return str(error).partition(". ")[0]


@contextmanager
def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> Iterator[Measure]:
    """Start the processes.

    Raises:
        Unsupported: Its Gymnasium does not have the workload's environment, or the actions are not discrete.
    """
    try:
        env = workload.make_env()
    except gymnasium.error.Error as error:
        raise Unsupported(f"it needs Gymnasium {gymnasium.__version__}, where {_first_sentence(error)}") from error
    env.close()
    if not isinstance(env.action_space, (gymnasium.spaces.Discrete, gymnasium.spaces.MultiDiscrete)):
        raise Unsupported("this release has no continuous actions")
    workers = settings.get("workers", n_processes)
    n_envs = settings.get("n_envs", workers if workload.ideal else 128 * workers)
    collector = Collector(workload, n_envs, workers, settings.get("batch", 1))
    try:
        collector.measure({"seconds": 0.3})
        yield collector.measure
    finally:
        collector.envs.close()


if __name__ == "__main__":
    serve(contender, packages=["pufferlib", "gymnasium", "numpy", "torch"])
