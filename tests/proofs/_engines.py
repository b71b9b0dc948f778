"""Samplers of any engine, by its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from streamsampler import MultiprocessingSampler, RaySampler
from streamsampler.samplers.base import Sampler

__all__ = ["kept_open", "make_sampler"]

_ROOM = 8  # workers


def make_sampler(agents: Any, envs: Any, **options: Any) -> Sampler[Any, Any]:
    """Return a sampler of `engine`, which is among the options: "ray", or one of processes."""
    if options.get("engine") != "ray":
        return MultiprocessingSampler(agents, envs, **options)
    of_processes = ("engine", "start_method")
    return RaySampler(agents, envs, **{name: value for name, value in options.items() if name not in of_processes})


@contextmanager
def kept_open(engine: str | None) -> Iterator[None]:
    """Keep what samplers of an engine share: one cluster, which takes some 12 seconds to start."""
    if engine != "ray":
        yield
        return
    from streamsampler.engines.ray_cluster import Demand, attach

    lease = attach("local", Demand(_ROOM))
    try:
        yield
    finally:
        lease.release()
