"""RLlib's env runners without a learner: each process samples fragments of episodes, and sends them as numpy arrays.

Each env runner has two requests queued, as RLlib's asynchronous algorithms do. With new parameters in each
iteration, all env runners get them and make their share of the batch, as its PPO does.

Settings:
    n_envs: Environments in each process, with batched actions (default 32; 1 where environments sleep).
    fragment: Timesteps of a request (default 1,000; 100 where environments sleep, so that no request takes seconds).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.tune.registry import register_env

from benchmarks.contenders.memory import check_memory
from benchmarks.harness.contender import Measure, Unsupported, repeated, serve
from benchmarks.problems.workloads import WORKLOADS, Workload, checksum

_STORE_BYTES = 1 << 30
_WAIT = 0.02
_MEGABYTES = 250


class AgentModule(TorchRLModule):
    """The workload's agent as RLlib's module."""

    def setup(self) -> None:
        """Make the agent."""
        self.agent = WORKLOADS[self.model_config["workload"]].make_agent()

    def set_state(self, state: dict[str, Any]) -> None:
        """Take new parameters."""
        self.agent.set_param_values(state)

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {Columns.ACTIONS: torch.as_tensor(self.agent.get_actions(batch[Columns.OBS].numpy())[0])}


class Driver:
    """Asks the env runners for samples."""

    def __init__(self, workload: Workload, n_processes: int, n_envs: int, fragment: int) -> None:
        self.workload, self.iteration = workload, 0
        share = -(-workload.batch // n_processes) if workload.parameters else fragment
        self.share = {"num_timesteps": share}
        register_env(workload.name, lambda _: self.make_env())
        config = (
            PPOConfig()
            .environment(workload.name, normalize_actions=False, clip_actions=False)
            .env_runners(
                num_env_runners=n_processes,
                num_envs_per_env_runner=n_envs,
                rollout_fragment_length=max(1, share // n_envs),
                max_requests_in_flight_per_env_runner=2,
            )
        )
        spec = RLModuleSpec(AgentModule, model_config={"workload": workload.name})
        self.runners = EnvRunnerGroup(config=self.with_module(config, spec), local_env_runner=False)

    def make_env(self) -> Any:
        """Make an environment, in an env runner."""
        return self.workload.make_env()

    def with_module(self, config: PPOConfig, spec: RLModuleSpec) -> PPOConfig:
        """Let the module choose the actions."""
        return config.rl_module(rl_module_spec=spec)

    def collect(self) -> tuple[int, int]:
        """Return the timesteps and trajectories that have arrived."""
        if self.workload.parameters:
            return self._take(self._iterate())
        return self._take(
            self.runners.foreach_env_runner_async_fetch_ready(
                "sample", kwargs=self.share, tag="sample", timeout_seconds=_WAIT
            )
        )

    def _iterate(self) -> list[Any]:
        assert self.workload.parameters is not None
        self.iteration += 1
        # Put into the object store once; the env runners fetch it there.
        parameters = ray.put(self.workload.parameters(self.iteration))
        state = {"state": {"rl_module": parameters, "weights_seq_no": self.iteration}}
        self.runners.foreach_env_runner("set_state", kwargs=state, local_env_runner=False, timeout_seconds=0.0)
        return self.runners.foreach_env_runner("sample", kwargs=self.share, local_env_runner=False)

    def _take(self, samples: list[Any]) -> tuple[int, int]:
        episodes = [episode for sample in samples for episode in sample]
        if self.workload.reads_batch:
            for episode in episodes:
                checksum(episode.get_observations(slice(0, len(episode))))
        return sum(map(self.timesteps_of, episodes)), int(sum(episode.is_done for episode in episodes))

    def timesteps_of(self, episode: Any) -> int:
        """Return the timesteps of a fragment."""
        return len(episode)


def _check_agent(workload: Workload) -> None:
    """Check that actions can be batched: RLlib restarts an env runner that fails, without end and without a message.

    Raises:
        Unsupported: They cannot.
    """
    env, agent = workload.make_env(), workload.make_agent()
    observation, _ = env.reset(seed=0)
    env.close()
    try:
        agent.get_actions(np.stack([observation, observation]))
    except (AttributeError, ValueError) as error:
        raise Unsupported(f"its module acts on batches, and the agent does not: {error}") from error


@contextmanager
def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> Iterator[Measure]:
    """Start Ray and the env runners.

    Raises:
        Unsupported: The agent cannot choose several actions at once, or memory is short.
    """
    sleeps = workload.ideal is not None
    _check_agent(workload)
    n_envs, fragment = settings.get("n_envs", 1 if sleeps else 32), settings.get("fragment", 100 if sleeps else 1000)
    with driving(Driver, workload, n_processes, n_envs, fragment) as measure:
        yield measure


@contextmanager
def driving(
    make: Callable[..., Driver], workload: Workload, n_processes: int, n_envs: int, fragment: int
) -> Iterator[Measure]:
    """Start Ray and the env runners of a driver.

    Raises:
        Unsupported: Memory is short.
    """
    check_memory(n_processes, _MEGABYTES)
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
            driver = make(workload, n_processes, n_envs, fragment)
            repeated(driver.collect)(
                {"timesteps": 2 * (workload.batch if workload.parameters else n_processes * fragment)}
            )
            yield repeated(driver.collect)
            driver.runners.stop()
        finally:
            ray.shutdown()


if __name__ == "__main__":
    serve(contender, packages=["ray", "gymnasium", "numpy", "torch"])
