"""The sampler that has its workers in actors of a Ray cluster. Needs Ray: `pip install ray`.

Batches are those of the other samplers, also when actors or nodes are lost. Each program that reaches the ports of Ray
can run code there. The guide is `streamsampler/docs/cluster.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, Unpack

from streamsampler.core.arguments import with_arguments_in_groups
from streamsampler.core.errors import UsageError
from streamsampler.core.extras import needed
from streamsampler.core.keywords import suggesting
from streamsampler.data.batch_fields import ActionsT, ObservationsT
from streamsampler.engines.base import Engine
from streamsampler.protocol.restarts import Policy
from streamsampler.samplers.base import Sampler, with_factory
from streamsampler.samplers.options import AllSamplerOptions, RaySamplerOptions
from streamsampler.samplers.per_worker import Agents, Envs
from streamsampler.samplers.processes import MultiprocessingSampler, started
from streamsampler.workers.factory import WorkerFactory, WorkerSetup

__all__ = ["RaySampler"]

_ONE_CPU: Mapping[str, Any] = {"num_cpus": 1}


@with_arguments_in_groups(Sampler, MultiprocessingSampler)
class RaySampler(Sampler[ObservationsT, ActionsT]):
    """Collect trajectories in actors of a Ray cluster, on one machine or many.

    Args:
        agents: See `Sampler`, as all other arguments that are not named here.
        envs: See `Sampler`.
        step_timeout: See `MultiprocessingSampler`.
        ray_address: The cluster's address, "host:port" as `ray start` shows it, of which this machine is a node; "auto"
            for one that runs on this machine; "local" to start one here. None takes the cluster that this process is
            attached to already, or that the variable RAY_ADDRESS names, or starts one here. What this sampler attached
            to or started, the last sampler that is closed leaves or ends; nothing else.
        worker_resources: What Ray is asked for each worker: `num_cpus`, `num_gpus`, `memory`, `resources`,
            `accelerator_type`, `label_selector` and `scheduling_strategy`, as Ray's `.options()` takes them.
        runtime_env: Ray's runtime environment for the workers, such as `{"pip": [...], "env_vars": {...}}`.

    Raises:
        UsageError: An argument cannot work.
        SamplerError: There is no cluster at the address, none can be started, it lacks the room, or its nodes have
            other versions of Python or packages.
        ImportError: Ray is not there; says how to install it.
    """

    @with_factory
    @suggesting(AllSamplerOptions.__annotations__)
    def __init__(
        self,
        agents: Agents,
        envs: Envs,
        *,
        ray_address: str | None = None,
        worker_resources: Mapping[str, Any] = _ONE_CPU,
        runtime_env: Mapping[str, Any] | None = None,
        step_timeout: float | None = Policy.step_timeout,
        **options: Unpack[AllSamplerOptions],
    ) -> None:
        needed("ray", "RaySampler", "ray")
        if runtime_env is not None and not isinstance(runtime_env, Mapping):
            raise UsageError(f"runtime_env must be a dict, as Ray takes it, got {runtime_env!r}")
        self._step_timeout = step_timeout
        self._where: dict[str, Any] = {
            "address": ray_address,
            "worker_resources": worker_resources,
            "runtime_env": runtime_env,
        }
        super().__init__(agents, envs, **options)

    @classmethod
    def from_worker_factory(
        cls, worker_factory: WorkerFactory, agents: Agents, envs: Envs, **options: Unpack[RaySamplerOptions]
    ) -> Self:
        """Do what `Sampler.from_worker_factory` does, with this sampler's further options."""
        return super().from_worker_factory(worker_factory, agents, envs, **options)  # type: ignore[misc]

    def make_engine(self, setup: WorkerSetup) -> Engine:
        """Attach to the cluster, or start one, and start the actors."""
        from streamsampler.engines.ray import RayEngine

        report_memory = self._setup.policy.max_worker_memory is not None
        return started(RayEngine, setup, self._setup.policy, report_memory=report_memory, **self._where)

    def worker_pids(self) -> list[int]:
        """Return the workers' process ids, each on its own machine, by worker number."""
        self._life.check_usable()
        return self._life.session.engine.pids()
