"""Choose the connection between a manager and its worker processes. Imports nothing that only POSIX has."""

from __future__ import annotations

from functools import partial

from streamsampler.core.errors import UsageError
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.registry import STEPPING_ENGINES, EngineName
from streamsampler.stepping.links import NewPool


def new_pool_of(engine: EngineName, start_method: StartMethod) -> NewPool:
    """Return the starter of worker processes; `start_method` is `multiprocessing`'s.

    Raises UsageError for an engine of samplers alone, SamplerError if it cannot start processes here.
    """
    if engine not in STEPPING_ENGINES:
        known = " or ".join(f'engine="{name}"' for name in STEPPING_ENGINES)
        raise UsageError(f'engine="{engine}" cannot step environments from this process: use {known}')
    if engine == "processes":
        from streamsampler.stepping.pipe_links import PipeEnvPool  # imports modules that other systems lack

        return PipeEnvPool
    from streamsampler.engines.queued_workers import check_startable
    from streamsampler.stepping.queue_links import QueueEnvPool

    check_startable(start_method)
    return partial(QueueEnvPool, start_method=start_method)
