"""Samplers on this machine, with workers in processes or in the calling process.

Arguments of all samplers are documented in `Sampler`; for type checkers they are repeated in `AllSamplerOptions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, Unpack

from streamsampler.core.arguments import with_arguments_in_groups
from streamsampler.core.errors import keywords
from streamsampler.core.keywords import suggesting
from streamsampler.core.serialization import dumps
from streamsampler.data.batch_fields import ActionsT, ObservationsT
from streamsampler.engines.base import Engine
from streamsampler.engines.launch.start_methods import StartMethod, check_start_method
from streamsampler.engines.local import LocalEngine
from streamsampler.engines.registry import ENGINES, PARENT, EngineName, check_engine
from streamsampler.protocol.limits import DEFAULT_LIMITS, limits_of
from streamsampler.protocol.losses import Policy
from streamsampler.samplers.base import Sampler, with_factory
from streamsampler.samplers.options import (
    AllSamplerOptions,
    Inference,
    ProcessSamplerOptions,
    check_inference,
    check_with_agent_here,
    groups_for,
    processes_for,
    refuse_items,
)
from streamsampler.samplers.per_worker import Agents, Envs
from streamsampler.workers.factory import WorkerFactory, WorkerSetup


def started(engine: Callable[..., Engine], setup: WorkerSetup, policy: Policy, **options: Any) -> Engine:
    make_worker = dumps(setup.make_worker, "the worker class or its arguments")
    limits = {"close_timeout": policy.close_timeout, "threads": setup.threads}
    return engine(setup.n_workers, make_worker, setup.seed, **limits, **options)


@with_arguments_in_groups(Sampler)
class MultiprocessingSampler(Sampler[ObservationsT, ActionsT]):
    """Collect trajectories in worker processes on this machine.

    Args:
        agents: See `Sampler`, as for all arguments not listed here.
        envs: See `Sampler`.
        step_timeout: Seconds allowed for a reset, an action or a timestep. While this process waits, a worker without
            progress for this time is killed, at the latest half as much later, and counts as a loss (see
            `max_restarts`), with its Python stacks in the log or the error. In waiting environments (`AsyncWorker`)
            only the trajectory is cancelled, as with `trajectory_timeout`. None for no limit.
        engine: The connection to the workers. "processes" (the default on Linux): pipes and shared memory. "queues"
            (the default elsewhere): only queues of Python's `multiprocessing`, without `limits.max_worker_memory`.
            Batches are the same.
        inference: "worker" gives each worker a copy of the agent. "parent" keeps a single agent in this process, and
            only environments in the workers: for large agents, accelerators, or services. Batches equal those of a
            single `VecWorker` with `n_envs` environments (`worker_args={"n_envs": 32}`, default 8), for any number of
            workers; see `streamsampler/docs/vectorised.md`.
        start_method: "forkserver" (the default; on macOS and Windows "spawn"), "spawn" or "fork"; the latter two select
            the engine "queues". None of them runs the main script again, so a main guard is unnecessary. "fork" is
            unsafe with threads.

    Raises:
        ResourceLimitError: The system does not allow this process enough file descriptors for the workers (an OSError).
        OSError: No more processes can be started; those started are ended.
        SamplerError: This system lacks a requirement of the engine.
        UsageError: An argument needs a capability missing in the engine.
    """

    _n_groups = 1

    @with_factory
    @suggesting(AllSamplerOptions.__annotations__)
    def __init__(
        self,
        agents: Agents,
        envs: Envs,
        *,
        engine: EngineName | None = None,
        inference: Inference = "worker",
        start_method: StartMethod | None = None,
        step_timeout: float | None = Policy.step_timeout,
        **options: Unpack[AllSamplerOptions],
    ) -> None:
        self._start_method = check_start_method(start_method)
        self._step_timeout = step_timeout
        limits = limits_of(options.get("limits", DEFAULT_LIMITS), type(self).__name__)
        self._engine = check_engine(engine, self._start_method, limits)
        self._inference = check_inference(inference)
        self._holds_agent = inference == "parent"
        if inference == "parent":
            options["worker_class"] = vec_worker = check_with_agent_here(options, limits, self._given_factory)
            refuse_items(agents, envs)
            worker_args = keywords("worker_args", options.get("worker_args"))
            rows = vec_worker.layout(worker_args).rows
            self._n_groups = groups_for(worker_args, rows)
            # Trajectories do not depend on `groups`, and the worker made for a replay does not accept it.
            options["worker_args"] = {name: value for name, value in worker_args.items() if name != "groups"}
            options["n_workers"] = processes_for(options.get("n_workers"), rows)
        super().__init__(agents, envs, **options)

    @classmethod
    def from_worker_factory(
        cls, worker_factory: WorkerFactory, agents: Agents, envs: Envs, **options: Unpack[ProcessSamplerOptions]
    ) -> Self:
        """Make a sampler with workers from `worker_factory`, as `Sampler.from_worker_factory` does."""
        return super().from_worker_factory(worker_factory, agents, envs, **options)  # type: ignore[misc]

    def make_engine(self, setup: WorkerSetup) -> Engine:
        """Start the worker processes."""
        if self._inference == "parent":
            how = {"engine": self._engine, "start_method": self._start_method}
            return PARENT.load()(setup, policy=self._setup.policy, n_groups=self._n_groups, **how)
        options: dict[str, Any] = {"report_memory": True} if self._setup.policy.max_worker_memory is not None else {}
        able = ENGINES[self._engine]
        if "start_method" in able.takes:
            options["start_method"] = self._start_method
        return started(able.load(), setup, self._setup.policy, **options)

    def worker_pids(self) -> list[int]:
        """Return the workers' process ids, by worker number; for a dead worker, its last until it is replaced."""
        self._life.check_usable()
        return self._life.session.engine.pids()


@with_arguments_in_groups(Sampler)
class LocalSampler(Sampler[ObservationsT, ActionsT]):
    """Collect trajectories in the calling process: the same batches as other samplers, without parallelism.

    For debugging (exceptions keep their frames), tests and small jobs. The generators of `random`, `numpy.random` and
    torch are restored after each call. `n_workers` defaults to 1.

    Such samplers in different threads take turns, ticket by ticket, because they share these generators; so do samplers
    with `inference="parent"`, whose agents draw from them.

    See `Sampler` for the arguments. Limits of time and memory do not apply, because no process can be killed and
    replaced; nor is an endless trajectory reported.
    """

    _default_workers = 1
    _lacks_limits = dict.fromkeys(
        ("construction_timeout", "close_timeout", "max_worker_memory"),
        "it has no worker processes, which could be killed",
    )

    def make_engine(self, setup: WorkerSetup) -> Engine:
        """Make an engine with workers taking turns in this process."""
        return LocalEngine(setup.n_workers, setup.make_worker, setup.seed, threads=setup.threads)
