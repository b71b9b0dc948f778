"""Hold what the two TorchRL contenders share: environments and policy, and the loop over a multi-process collector.

Each worker process holds an environment and the policy, and returns one batch at a time through shared memory. Next
observations are not stored twice (`compact_obs`), which is faster.

Settings:
    n_envs: Environments in each process, stepped one after the other with batched actions (default 32; 1 where
        environments sleep).
    frames: Timesteps of a batch (default: 1,000 for each process; 20 where environments sleep, so that no batch takes
        seconds; the workload's where there are new parameters for each batch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs import SerialEnv
from torchrl.envs.libs.gym import GymWrapper

from benchmarks.contenders.memory import check_memory
from benchmarks.harness.contender import Measure, repeated
from benchmarks.problems.workloads import WORKLOADS, Workload, checksum

__all__ = ["PACKAGES", "collecting"]

PACKAGES = ["torchrl", "tensordict", "torch", "gymnasium", "numpy"]


_MEGABYTES = 250


class AgentModule(nn.Module):
    """The workload's agent as a module; its parameters, if it has new ones in each iteration, are the module's."""

    def __init__(self, workload: Workload, batched: bool) -> None:
        super().__init__()
        self.agent, self.batched, self.iteration_seen = workload.make_agent(), batched, -1
        self.parametrised = workload.parameters is not None
        if workload.parameters is not None:
            values = workload.parameters(0)
            self.weights = nn.Parameter(torch.tensor(values["weights"]), requires_grad=False)
            self.iteration = nn.Parameter(torch.tensor(0), requires_grad=False)

    def take(self, values: dict[str, Any]) -> None:
        """Load an iteration's parameters."""
        self.weights.copy_(torch.from_numpy(values["weights"]))
        self.iteration.fill_(values["iteration"])

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Choose an action, or one for each row."""
        if self.parametrised:
            self._look_at_parameters()
        choose = self.agent.get_actions if self.batched else self.agent.get_action
        return torch.as_tensor(choose(observation.numpy())[0])

    def _look_at_parameters(self) -> None:
        iteration = int(self.iteration)
        if iteration != self.iteration_seen:
            self.iteration_seen = iteration
            self.agent.set_param_values({"weights": self.weights.numpy(), "iteration": iteration})


def make_one(name: str) -> GymWrapper:
    """Make the workload's environment as TorchRL's; actions of a Discrete space are integers."""
    return GymWrapper(WORKLOADS[name].make_env(), categorical_action_encoding=True)


def make_env(name: str, n_envs: int) -> Any:
    """Make a process's environments."""
    return make_one(name) if n_envs == 1 else SerialEnv(n_envs, partial(make_one, name))


class Driver:
    """Takes batch after batch from the collector."""

    def __init__(self, workload: Workload, module: AgentModule, collector: Any) -> None:
        self.workload, self.module, self.collector, self.iteration = workload, module, collector, 0
        self.batches = iter(collector)

    def collect(self) -> tuple[int, int]:
        """Take one batch, made under new parameters if there are any."""
        if self.workload.parameters is not None:
            self.iteration += 1
            self.module.take(self.workload.parameters(self.iteration))
            self.collector.update_policy_weights_()
        batch = next(self.batches)
        if self.workload.reads_batch:
            checksum(batch["observation"].numpy())
        return batch.numel(), int(batch["next", "done"].sum())


def frames_of(workload: Workload, n_processes: int, n_envs: int) -> int:
    """Timesteps of a batch of all processes, a multiple of their environments."""
    share = 1000 if workload.ideal is None else 20
    least = workload.batch if workload.parameters else share * n_processes
    n = n_processes * n_envs
    return -(-least // n) * n


@contextmanager
def collecting(
    kind: Callable[..., Any], workload: Workload, n_processes: int, settings: dict[str, Any], share: bool
) -> Iterator[Measure]:
    """Start a collector's processes.

    Args:
        kind: The collector's class.
        workload: What is measured.
        n_processes: How many processes.
        settings: See the module.
        share: Whether a batch is one process's share, rather than all processes'.

    Raises:
        Unsupported: There is too little memory for so many processes.
    """
    check_memory(n_processes, _MEGABYTES)
    torch.set_num_threads(1)
    n_envs = settings.get("n_envs", 32 if workload.ideal is None else 1)
    frames = settings.get("frames", frames_of(workload, n_processes, n_envs))
    module = AgentModule(workload, batched=n_envs > 1)
    collector = kind(
        [partial(make_env, workload.name, n_envs)] * n_processes,
        TensorDictModule(module, in_keys=["observation"], out_keys=["action"]),
        frames_per_batch=frames // n_processes if share else frames,
        total_frames=-1,
        device="cpu",
        num_threads=1,
        compact_obs=True,
        **({} if share else {"cat_results": 0}),
    )
    try:
        driver = Driver(workload, module, collector)
        for _ in range(n_processes if share else 1):
            driver.collect()
        yield repeated(driver.collect)
    finally:
        collector.shutdown()
