"""Where the agent of a sampler is: in each worker, or once, in the sampler's own process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from streamsampler.agents.base import is_agent
from streamsampler.engines.launch.start_methods import has_processes
from streamsampler.engines.registry import PARENT
from streamsampler.errors import SamplerError, UsageError
from streamsampler.samplers.per_worker import items_by_worker
from streamsampler.workers.base import Worker
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.factory import usable_cores
from streamsampler.workers.vec.worker import VecWorker

__all__ = ["Inference", "check_inference", "check_with_agent_here", "processes_for", "refuse_items"]

Inference = Literal["worker", "parent"]


def check_inference(inference: Any) -> Inference:
    """Return where the agent is to be.

    Raises:
        UsageError: It is no such place.
    """
    if inference not in ("worker", "parent"):
        raise UsageError(f'inference must be "worker" or "parent", got {inference!r}')
    return "parent" if inference == "parent" else "worker"


def check_with_agent_here(
    engine: str | None, worker_class: type[Worker], options: Mapping[str, Any], *, has_factory: bool
) -> None:
    """Refuse arguments that do not go with an agent in the sampler's process.

    Args:
        engine: The engine that was asked for; None for none.
        worker_class: The kind of worker that was asked for.
        options: Other arguments, of which `registry.PARENT` says which are not taken; None where one is not asked for.
        has_factory: Whether the sampler is given a factory of workers.

    Raises:
        UsageError: There is one.
        SamplerError: This system lacks what is needed.
    """
    if not has_processes():
        raise SamplerError(
            'inference="parent" needs Linux or macOS: this system lacks what its processes are started and ended with. '
            "LocalSampler with worker_class=VecWorker returns the same batches"
        )
    if has_factory:
        raise UsageError('inference="parent" makes its own worker: pass its arguments to MultiprocessingSampler')
    if engine not in (None, "processes"):
        raise UsageError(f'inference="parent" takes no engine={engine!r}: leave it out')
    if worker_class not in (DefaultWorker, VecWorker):
        raise UsageError(
            f'inference="parent" runs trajectories as VecWorker does, and takes no worker_class={worker_class.__name__}'
        )
    for option, reason in PARENT.lacks.items():
        if options.get(option) is not None:
            way_out = "" if 'inference="worker"' in reason else '. Leave it out, or use inference="worker"'
            raise UsageError(f'inference="parent" takes no {option}: {reason}{way_out}')


def refuse_items(agents: Any, envs: Any) -> None:
    """Refuse an agent or an environment for each worker.

    Raises:
        UsageError: Either is a list, or `PerWorker`.
    """
    for what, given in (("agent", agents), ("environment", envs)):
        if (items := items_by_worker(given)) is None:
            continue
        way_out = 'use inference="worker", or a sampler for each'
        if what == "agent" and isinstance(given, list) and not any(map(is_agent, items)):
            way_out = "pass tuple(…) of the list if it is one set of parameters"
        raise UsageError(f'inference="parent" takes one {what}, and not one for each worker: {way_out}')


def processes_for(n_workers: int | None, n_envs: int) -> int:
    """Return how many processes environments live in.

    Args:
        n_workers: How many were asked for; None for as many as this process may use cores.
        n_envs: How many environments there are.

    Raises:
        UsageError: There are fewer environments than processes.
    """
    if n_workers is None:
        return min(n_envs, usable_cores())
    if isinstance(n_workers, int) and n_workers > n_envs:
        raise UsageError(
            f"n_workers is {n_workers}, but there are only {n_envs} environments: pass "
            f'worker_args={{"n_envs": {n_workers}}} or more'
        )
    return n_workers
