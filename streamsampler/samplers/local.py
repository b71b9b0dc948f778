"""The sampler whose workers live in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamsampler.data.generics import ActionsT, ObservationsT
from streamsampler.engines.base import Engine
from streamsampler.engines.local import LocalEngine
from streamsampler.errors import CheckMode
from streamsampler.samplers.base import Sampler
from streamsampler.scheduling.restarts import OnFailure, Quota
from streamsampler.scheduling.result import Order
from streamsampler.workers.base import Worker
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.factory import WorkerSetup

__all__ = ["LocalSampler"]


class LocalSampler(Sampler[ObservationsT, ActionsT]):
    """Collects trajectories in this process: the same batches as any other sampler, without any parallelism.

    For debugging (exceptions keep their frames), for tests and for small jobs. The generators of `random`,
    `numpy.random` and torch are left as they were found. `n_workers` defaults to 1.

    See `Sampler` for the arguments. There are no limits of time and memory: no process can be ended and replaced.
    """

    _default_workers = 1

    def __init__(
        self,
        agents: Any,
        envs: Any,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        n_workers: int | None = None,
        seed: int | None = None,
        max_episode_length: float | None = None,
        worker_class: type[Worker] = DefaultWorker,
        worker_args: Mapping[str, Any] | None = None,
        order: Order = "index",
        on_failure: OnFailure = "raise",
        max_restarts: Quota = "auto",
        restart_window: float | None = 60.0,
        max_lifetime_restarts: Quota = "auto",
        restart_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        check: CheckMode = "warn",
        worker_threads: int | None = 1,
    ) -> None:
        super().__init__(
            agents,
            envs,
            env_kwargs=env_kwargs,
            n_workers=n_workers,
            seed=seed,
            max_episode_length=max_episode_length,
            worker_class=worker_class,
            worker_args=worker_args,
            order=order,
            on_failure=on_failure,
            max_restarts=max_restarts,
            restart_window=restart_window,
            max_lifetime_restarts=max_lifetime_restarts,
            restart_on=restart_on,
            check=check,
            worker_threads=worker_threads,
        )

    def make_engine(self, setup: WorkerSetup) -> Engine:
        """Make an engine whose workers take turns in this process."""
        return LocalEngine(setup.n_workers, setup.make_worker, setup.seed, threads=setup.threads)
