"""The sampler whose workers are actors of a Ray cluster. Needs Ray: `pip install ray`.

```python
from streamsampler import RaySampler

with RaySampler(agent, "HalfCheetah-v5", n_workers=64, seed=1, ray_address="10.0.0.1:6379") as remote:
    batch = remote.obtain_samples(1_000_000)  # what LocalSampler returns, on any cluster
```

*The cluster.* This program runs on one of its nodes: `ray start --head` on the first machine, and `ray start
--address=…` on the others. Without `ray_address`, and if this process is not attached to a cluster already, Ray is
started on this machine for as long as a sampler uses it; that takes some ten seconds. A sampler ends no cluster that it
did not start.

*The same batches* need the same versions of Python, streamsampler, NumPy, Gymnasium and cloudpickle on all nodes, which
is an error otherwise, and processors on which a network gives the same numbers. The environment's package has to be
installed on all nodes, or named in `runtime_env`. What your main script defines travels by value. Environment variables
are those of the nodes: `runtime_env={"env_vars": {...}}` sets others.

*Losses.* Actors that die or hang, and nodes that are lost, are losses as processes are (`max_restarts`); Ray itself
restarts nothing. While the cluster lacks the room for a new actor, the other ones do the work.

*Speed.* A message costs some 1 ms, so tickets are made to take 20 ms and more where there is enough to do. Parameters
are put into Ray's object store once for all workers, and what was recorded comes back through it.

*Security.* Ray listens on all interfaces, whatever node address it is given, and checks no passwords: every program
that reaches its ports can run code as you. The dashboard is off where this sampler starts Ray. Keep to networks that
you trust.

*One SLURM job.* `ray symmetric-run` starts Ray on all nodes of the job, runs the program on the first one, and ends Ray
when the program ends:

```text
#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=1 --cpus-per-task=32 --exclusive
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun ray symmetric-run --address "$head:6379" --min-nodes 4 --num-cpus 32 -- \
    streamsampler sample HalfCheetah-v5 --num-samples 1e7 --engine ray --ray-address "$head:6379" --workers 128
```

*What Ray cannot do here.* Prints of environments stay in Ray's logs, environments do not run in a main thread, and
timesteps between the last look at an actor and its death are not counted. Ray prints by itself that a worker died.
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

    _kept_in_copies = *Sampler._kept_in_copies, "_where"

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

        report_memory = self._policy.max_worker_memory is not None
        return started(RayEngine, setup, self._policy, report_memory=report_memory, **self._where)

    def worker_pids(self) -> list[int]:
        """Return the workers' process ids, each on its own machine, by worker number."""
        self._check_usable()
        return self._session.engine.pids()
