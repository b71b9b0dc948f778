"""The sampler whose workers live in this process."""

from __future__ import annotations

from streamsampler.data.generics import ActionsT, ObservationsT
from streamsampler.engines.base import Engine
from streamsampler.engines.local import LocalEngine
from streamsampler.samplers.base import Sampler, with_all_arguments
from streamsampler.workers.factory import WorkerSetup

__all__ = ["LocalSampler"]


@with_all_arguments(Sampler)
class LocalSampler(Sampler[ObservationsT, ActionsT]):
    """Collect trajectories in the calling process: the same batches as any other sampler, without any parallelism.

    For debugging (exceptions keep their frames), for tests and for small jobs. The generators of `random`,
    `numpy.random` and torch are restored after each call. `n_workers` defaults to 1.

    See `Sampler` for the arguments. Time and memory have no limits, because no process can be killed and replaced; nor
    is a trajectory reported that seems never to end, because nothing else runs while it does.
    """

    _default_workers = 1

    def make_engine(self, setup: WorkerSetup) -> Engine:
        """Make an engine whose workers take turns in this process."""
        return LocalEngine(setup.n_workers, setup.make_worker, setup.seed, threads=setup.threads)
