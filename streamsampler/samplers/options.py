"""The arguments of samplers as types, for `from_worker_factory`: without those that the worker factory has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from streamsampler.agents.policies import PolicyOf
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.registry import EngineName
from streamsampler.errors import CheckMode
from streamsampler.filters.base import Filter
from streamsampler.samplers.inference import Inference
from streamsampler.scheduling.restarts import OnFailure, Quota
from streamsampler.scheduling.result import Order

__all__ = ["ProcessSamplerOptions", "RaySamplerOptions", "SamplerOptions"]


class SamplerOptions(TypedDict, total=False):
    """What all samplers take; see `Sampler`."""

    env_kwargs: Mapping[str, Any] | None
    order: Order
    on_failure: OnFailure
    max_restarts: Quota
    restart_window: float | None
    max_lifetime_restarts: Quota
    restart_on: type[BaseException] | tuple[type[BaseException], ...]
    check: CheckMode
    fingerprint: CheckMode
    worker_threads: int | None
    observation_filter: Filter | Mapping[str, Filter] | None
    reward_filter: Filter | Mapping[str, Filter] | None
    hooks: Any
    drop_if: Callable[[dict[str, Any]], Any] | None
    staleness: int
    policy_of: PolicyOf | None


class ProcessSamplerOptions(SamplerOptions, total=False):
    """What `MultiprocessingSampler` takes besides; see there."""

    step_timeout: float | None
    construction_timeout: float | None
    max_worker_memory: int | None
    close_timeout: float
    engine: EngineName | None
    inference: Inference
    start_method: StartMethod | None


class RaySamplerOptions(SamplerOptions, total=False):
    """What `RaySampler` takes besides; see there."""

    step_timeout: float | None
    construction_timeout: float | None
    max_worker_memory: int | None
    close_timeout: float
    ray_address: str | None
    worker_resources: Mapping[str, Any]
    runtime_env: Mapping[str, Any] | None
