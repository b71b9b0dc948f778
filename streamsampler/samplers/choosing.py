"""Choose the sampler that arguments ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamsampler.samplers.base import Sampler
from streamsampler.samplers.processes import LocalSampler, MultiprocessingSampler
from streamsampler.samplers.ray import RaySampler


def make_sampler(agents: Any, envs: Any, options: Mapping[str, Any]) -> Sampler[Any, Any]:
    """Make a `LocalSampler` for no worker process, a `RaySampler` for Ray, and else a `MultiprocessingSampler`.

    Args:
        agents: See `streamsampler.Sampler`.
        envs: See `streamsampler.Sampler`.
        options: The sampler's other arguments, with `n_workers` 0 for none but this process, and also the engine "ray".

    Raises:
        SamplerError: As the sampler says.
        ImportError: Ray is missing.
    """
    options = dict(options)
    n_workers = options.get("n_workers")
    if n_workers == 0 and n_workers is not False:
        del options["n_workers"]
        return LocalSampler(agents, envs, **options)
    if options.get("engine") == "ray":
        del options["engine"]
        return RaySampler(agents, envs, **options)
    return MultiprocessingSampler(agents, envs, **options)
