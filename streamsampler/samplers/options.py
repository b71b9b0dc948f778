"""The arguments of samplers as types, and checks of their combinations.

The types are for `from_worker_factory`, hence without the worker factory's arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from streamsampler.agents.base import is_agent
from streamsampler.agents.filters import Filter, Filters
from streamsampler.agents.policies import Policies, PolicyOf, with_policies
from streamsampler.agents.updates import AgentTraits, has_rows_alone
from streamsampler.core.errors import CheckMode, UsageError, positive
from streamsampler.core.serialization import Payload
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.registry import PARENT, EngineName
from streamsampler.protocol.limits import Limits, Quota
from streamsampler.protocol.losses import OnFailure
from streamsampler.protocol.result import Order
from streamsampler.samplers.per_task import PerTask
from streamsampler.samplers.per_worker import PerWorker, items_by_worker
from streamsampler.samplers.provenance import EnvironmentFacts
from streamsampler.workers.base import Worker
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.factory import WorkerFactory, usable_cores
from streamsampler.workers.hooks import CREATED

if TYPE_CHECKING:
    from streamsampler.workers.vec.worker import VecWorker


_LOG = logging.getLogger("streamsampler")
_MUCH = 1 << 28
"""Bytes of an agent's copies in a worker from which a warning is logged."""

Inference = Literal["worker", "parent"]


def check_inference(inference: Any) -> Inference:
    if inference not in ("worker", "parent"):
        raise UsageError(f'inference must be "worker" or "parent", got {inference!r}')
    return "parent" if inference == "parent" else "worker"


def check_with_agent_here(
    options: Mapping[str, Any], limits: Mapping[str, Any], factory: WorkerFactory | None
) -> type[VecWorker]:
    """Refuse arguments incompatible with an agent in the sampler's process; return the kind of its worker."""
    from streamsampler.workers.vec.worker import VecWorker  # here, so that other samplers do not load it

    worker_class = options.get("worker_class", DefaultWorker)
    if factory is not None:
        raise UsageError('inference="parent" makes its own worker: pass its arguments to MultiprocessingSampler')
    if worker_class not in (DefaultWorker, VecWorker):
        raise UsageError(
            f'inference="parent" needs worker_class=VecWorker, or the default, got {worker_class.__name__}'
        )
    order = options.get("order", "index")
    given = {**limits, "staleness": options.get("staleness") or None, "order": None if order == "index" else order}
    PARENT.refuse_lacking('inference="parent"', given)
    _refuse_env_hooks(options.get("hooks"))
    return VecWorker


def refuse_items(agents: Any, envs: Any) -> None:
    if isinstance(agents, PerTask) or isinstance(envs, PerTask):
        raise UsageError('inference="parent" runs one task: use inference="worker", or a sampler for each task')
    for what, given in (("agent", agents), ("environment", envs)):
        if (items := items_by_worker(given)) is None:
            continue
        way_out = f'use inference="worker", or a sampler for each {what}'
        if what == "agent" and isinstance(given, list) and not any(map(is_agent, items)):
            way_out = "pass a tuple if these are the parameters of one agent"
        raise UsageError(f'inference="parent" needs one {what} for all workers, got one for each: {way_out}')


def _refuse_env_hooks(hooks: Any) -> None:
    """Refuse the hook called after making an environment: the environments' processes have no hooks."""
    if hasattr(hooks, CREATED):
        raise UsageError(
            f'{CREATED} is not supported with inference="parent", because environments are made in other processes: '
            'do its work in a callable that makes them, or use inference="worker"'
        )


def groups_for(worker_args: Mapping[str, Any], n_envs: int) -> int:
    """Return the number of groups of rows, served in turn; see `streamsampler/docs/vectorised.md`."""
    n_groups = positive("groups", worker_args.get("groups", 1))
    if n_groups > n_envs:
        raise UsageError(f"groups is {n_groups}, but there are only {n_envs} environments")
    return n_groups


def refuse_agents(
    traits: Iterable[AgentTraits], environments: Iterable[EnvironmentFacts], worker_class: type[Worker]
) -> None:
    """Refuse agents unsuitable for a kind of worker: asynchronous agents, and those with `get_actions` alone.

    A policy for several agents needs no `get_action`. If only the worker can count the environment's agents, by making
    it, the worker refuses the agent.
    """
    is_single = all(each.single for each in environments)
    for each in traits:
        if each.waits and not worker_class.waits:
            raise UsageError(
                f"{each.name} is asynchronous (async def get_action or get_actions), and {worker_class.__name__} does "
                'not await it: give it to a new sampler, with worker_args={"in_flight": 100} and without a worker_class'
            )
        if is_single and not (worker_class.asks_for_rows or each.acts_alone):
            raise has_rows_alone(each.name, worker_class.__name__)


def say_size_of_copies(agents: Iterable[Payload | None], in_flight: int) -> None:
    """Warn, before workers start, if the agent's copies for all trajectories in flight take much memory."""
    sizes = [payload.nbytes for payload in agents if payload is not None and payload.about.is_copied]
    total = in_flight * max(sizes, default=0)
    if in_flight > 1 and total >= _MUCH:
        _LOG.warning(
            "each of %d trajectories in flight has a copy of the agent (%.0f MB), because it has a reset: %.1f GB in "
            "each worker. Reduce in_flight, remove reset to share the agent, or share its parameters with "
            "sharing_parameters",
            in_flight, max(sizes) / 1e6, total / 1e9,
        )  # fmt: skip


def processes_for(n_workers: int | None, n_envs: int) -> int:
    if n_workers is None:
        return min(n_envs, usable_cores())
    if isinstance(n_workers, int) and n_workers > n_envs:
        raise UsageError(
            f"n_workers is {n_workers}, but there are only {n_envs} environments: pass "
            f'worker_args={{"n_envs": {n_workers}}} or more'
        )
    return n_workers


class SamplerOptions(TypedDict, total=False):
    """Arguments of all samplers; see `Sampler`."""

    env_kwargs: Mapping[str, Any] | None
    policy_of: PolicyOf | None
    observation_filter: Filter | Mapping[str, Filter] | None
    reward_filter: Filter | Mapping[str, Filter] | None
    hooks: Any
    worker_threads: int | None
    order: Order
    staleness: int
    check: CheckMode
    fingerprint: CheckMode
    drop_if: Callable[[dict[str, Any]], Any] | None
    record_taken: str | None
    on_failure: OnFailure
    max_restarts: Quota
    restart_on: type[BaseException] | tuple[type[BaseException], ...]
    trajectory_timeout: float | None
    limits: Limits


class AllSamplerOptions(SamplerOptions, total=False):
    """Arguments of all samplers made without a `WorkerFactory`; see `Sampler`."""

    n_workers: int | None
    seed: int | None
    max_episode_length: float | None
    worker_class: type[Worker]
    worker_args: Mapping[str, Any] | None


class LimitedSamplerOptions(SamplerOptions, total=False):
    """Arguments of samplers with workers that can be killed; see `MultiprocessingSampler`."""

    step_timeout: float | None


class ProcessSamplerOptions(LimitedSamplerOptions, total=False):
    """Arguments of `MultiprocessingSampler`."""

    engine: EngineName | None
    inference: Inference
    start_method: StartMethod | None


class RaySamplerOptions(LimitedSamplerOptions, total=False):
    """Arguments of `RaySampler`."""

    ray_address: str | None
    worker_resources: Mapping[str, Any]
    runtime_env: Mapping[str, Any] | None


ANY_SAMPLERS_OPTIONS = frozenset().union(
    *(kind.__annotations__ for kind in (AllSamplerOptions, ProcessSamplerOptions, RaySamplerOptions))
)
"""Names of all samplers' arguments except agents and environments."""


def policies_of(agents: Any, policy_of: PolicyOf | None) -> Any:
    if isinstance(agents, list | PerWorker):
        return PerWorker([with_policies(each, policy_of) for each in agents])
    return with_policies(agents, policy_of)


def check_policies(agents: Any, worker_class: type[Worker], filters: Filters) -> tuple[str, ...]:
    """Refuse arguments that need several policies, or exclude them; return the policies' names."""
    all_of = [each for each in (agents if isinstance(agents, PerWorker) else [agents]) if isinstance(each, Policies)]
    names = {name for each in all_of for name in each.agents}
    for name, given in (("observation_filter", filters.observation), ("reward_filter", filters.reward)):
        if given is not None and all_of and not isinstance(given, Mapping):
            raise UsageError(
                f"with several policies, {name} must be a dict by policy name ({', '.join(map(repr, names))}), got "
                f"{type(given).__name__}"
            )
        if isinstance(given, Mapping) and (unknown := sorted(map(repr, given.keys() - names))):
            raise UsageError(f"{name} has unknown policies {', '.join(unknown)}: agents has {sorted(names) or 'none'}")
    if not all_of:
        return ()
    if not worker_class.can_play_several:
        raise UsageError(
            f"agents={{…}} needs a worker for environments of several agents, and {worker_class.__name__} is none: "
            "leave worker_class out"
        )
    return tuple(sorted(names))
