"""The sampler with workers in actors of a Ray cluster. Needs Ray: `pip install ray`.

Batches equal those of other samplers, even if actors or nodes are lost. Any program that can reach Ray's ports can run
code in the cluster. The guide is `streamsampler/docs/cluster.md`.
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
from streamsampler.protocol.losses import Policy
from streamsampler.samplers.base import Sampler, with_factory
from streamsampler.samplers.options import AllSamplerOptions, RaySamplerOptions
from streamsampler.samplers.per_worker import Agents, Envs
from streamsampler.samplers.processes import MultiprocessingSampler, started
from streamsampler.workers.factory import WorkerFactory, WorkerSetup

__all__ = ["RaySampler"]

_ONE_CPU: Mapping[str, Any] = {"num_cpus": 1}


@with_arguments_in_groups(Sampler, MultiprocessingSampler)
class RaySampler(Sampler[ObservationsT, ActionsT]):
    """Collect trajectories in actors of a Ray cluster, on any number of machines.

    Args:
        agents: See `Sampler`, as for all arguments not listed here.
        envs: See `Sampler`.
        step_timeout: See `MultiprocessingSampler`.
        ray_address: The address "host:port" printed by `ray start`, of a cluster that includes this machine; "auto" for
            a cluster running on this machine; "local" to start a cluster here. None uses the cluster of this process's
            connection, or of the variable RAY_ADDRESS, or starts a cluster here. Closing the last sampler disconnects
            from, or ends, a cluster that samplers connected to or started.
        worker_resources: Ray's resources for each worker: `num_cpus`, `num_gpus`, `memory`, `resources`,
            `accelerator_type`, `label_selector` and `scheduling_strategy`, in the form of Ray's `.options()`.
        runtime_env: Ray's runtime environment for the workers, such as `{"pip": [...], "env_vars": {...}}`.

    Raises:
        UsageError: An argument is invalid.
        SamplerError: No cluster answers at the address, or none can be started; or it lacks resources, or its nodes
            have other versions of Python or packages.
        ImportError: Ray is not installed; the message has the command.
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
        """Make a sampler with workers from `worker_factory`, as `Sampler.from_worker_factory` does."""
        return super().from_worker_factory(worker_factory, agents, envs, **options)  # type: ignore[misc]

    def make_engine(self, setup: WorkerSetup) -> Engine:
        """Connect to the cluster, or start one, and start the actors."""
        from streamsampler.engines.ray import RayEngine

        report_memory = self._setup.policy.max_worker_memory is not None
        return started(RayEngine, setup, self._setup.policy, report_memory=report_memory, **self._where)

    def worker_pids(self) -> list[int]:
        """Return the workers' process ids, on their machines, by worker number."""
        self._life.check_usable()
        return self._life.session.engine.pids()
