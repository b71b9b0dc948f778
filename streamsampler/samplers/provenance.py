"""Describe what decides about a sampler's trajectories, as JSON can hold it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from streamsampler.environments.parameters import SetParameters
from streamsampler.environments.updates import EnvUpdate, NewEnvUpdate, SpecEnvUpdate, describe
from streamsampler.samplers.updates import Updates
from streamsampler.samplers.versions import packages_of, versions_of
from streamsampler.scheduling.restarts import Policy
from streamsampler.scheduling.result import Order
from streamsampler.workers.base import Worker
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.factory import WorkerSetup

__all__ = ["EnvironmentFacts", "name_of_worker", "provenance_of", "shown_name", "storable"]


class EnvironmentFacts(NamedTuple):
    """What provenance says of an environment.

    Attributes:
        name: Its id where there is one, else the name of its class or factory.
        kwargs: The arguments that it is made with, besides those that it is registered with.
        packages: The packages that it comes from.
        parameters: The parameters that are set before each trajectory, as they are shown; None for none.
    """

    name: str
    kwargs: dict[str, Any]
    packages: tuple[str, ...]
    parameters: dict[str, Any] | None = None

    @classmethod
    def of(cls, update: EnvUpdate) -> EnvironmentFacts:
        """Return the facts of an environment update."""
        parameters = None
        packages = packages_of(update)
        if isinstance(update, SetParameters):
            parameters, update = storable(update.parameters), update.source
        return cls(describe(update), storable(_kwargs_of(update)), packages, parameters)


def _kwargs_of(update: EnvUpdate) -> dict[str, Any]:
    if isinstance(update, NewEnvUpdate):
        return update.env_kwargs
    if not isinstance(update, SpecEnvUpdate):
        return {}
    spec, registered = update.spec, gymnasium.registry.get(update.spec.id)
    if registered is None:
        return dict(spec.kwargs)
    # Arrays among them have no truth value: two that are written alike are taken for equal.
    own = {name: value for name, value in spec.kwargs.items() if repr(registered.kwargs.get(name)) != repr(value)}
    if spec.max_episode_steps != registered.max_episode_steps:
        own["max_episode_steps"] = -1 if spec.max_episode_steps is None else spec.max_episode_steps
    return own


def provenance_of(
    setup: WorkerSetup, policy: Policy, order: Order, updates: Updates[Any], version: int, fingerprints: Sequence[str],
    need: Callable[[str], bool],
) -> dict[str, Any]:  # fmt: skip
    """Return what decides about the trajectories of an agent version besides the seed; see `Sampler.provenance`."""
    environments: list[EnvironmentFacts] = []
    for facts in updates.about("env"):
        if facts not in environments:
            environments.append(facts)
    names = list(dict.fromkeys(facts.name for facts in environments))
    kwargs = [facts.kwargs for facts in environments]
    parameters = [facts.parameters for facts in environments]
    factory = setup.factory
    worker_class = factory.worker_class
    return {
        "environment": names[0] if len(names) == 1 else names,
        **({"env_kwargs": kwargs[0] if len(kwargs) == 1 else kwargs} if any(kwargs) else {}),
        **({"env_parameters": parameters[0] if len(parameters) == 1 else parameters} if any(parameters) else {}),
        "max_episode_length": factory.max_episode_length,
        "order": order,
        "on_failure": policy.on_failure,
        "worker_threads": setup.threads,
        **({"agent_version": version} if version > 1 else {}),
        **({"n_workers": setup.n_workers} if updates.differ else {}),
        **({"worker_class": name_of_worker(worker_class)} if worker_class is not DefaultWorker else {}),
        **({"worker_args": storable(factory.worker_args)} if factory.worker_args else {}),
        **({"worker": f"{worker_class.__name__}: {worker_class.revision}"} if worker_class.revision else {}),
        "versions": versions_of((name for facts in environments for name in facts.packages), need),
        **({"fingerprints": list(fingerprints)} if fingerprints else {}),
    }


def name_of_worker(worker_class: type[Worker]) -> str:
    """Return the name of a kind of worker: of this package's its own, of others with their module."""
    module, name = worker_class.__module__, worker_class.__qualname__
    return name if module.partition(".")[0] == __package__.partition(".")[0] else f"{module}:{name}"


def shown_name(value: Any) -> str:
    """Return a value's short name, the same in each process."""
    if (name := getattr(value, "__qualname__", None)) is not None:
        return str(name)
    text = repr(value)
    # What Python prints by itself has an address, which is another one each time.
    return text if " at 0x" not in text and len(text) <= 80 else type(value).__qualname__


def storable(value: Any) -> Any:
    """Return a value as JSON can hold it: what JSON has no word for by its name."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        return {str(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return shown_name(value)
