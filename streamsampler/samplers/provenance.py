"""Describe environments, workers and versions of packages in JSON's types, for files and error messages."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from streamsampler.core.version import __version__
from streamsampler.environments.asynchronous import makes_asynchronous
from streamsampler.environments.multi_agent import is_multi_agent
from streamsampler.environments.parameters import SetParameters
from streamsampler.environments.per_env import PerEnv
from streamsampler.environments.updates import (
    EnvUpdate,
    ExistingEnvUpdate,
    NewEnvUpdate,
    SetTaskUpdate,
    SpecEnvUpdate,
    describe,
)
from streamsampler.protocol.losses import Policy
from streamsampler.protocol.result import Order
from streamsampler.samplers.updates import Updates
from streamsampler.workers.base import Worker
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.factory import WorkerSetup

_OF_AGENTS = ("torch", "stable_baselines3", "sb3_contrib")
_DISTRIBUTIONS = {"stable_baselines3": "stable-baselines3", "sb3_contrib": "sb3-contrib", "ale_py": "ale-py"}


def versions_of(packages: Iterable[str], need: Callable[[str], bool] = lambda _: False) -> dict[str, str]:
    """Return versions by name: Python, this package, NumPy, Gymnasium, agents' libraries if needed, and `packages`.

    Other loaded libraries are left out: files of a run are the same bytes, whichever process writes them.
    """
    versions = {"python": platform.python_version(), "streamsampler": __version__}
    names = ["numpy", "gymnasium", *filter(need, _OF_AGENTS), *packages]
    for name in dict.fromkeys(names):
        if (version := _version(name)) is not None:
            versions[name] = version
    return versions


def packages_of(update: EnvUpdate) -> tuple[str, ...]:
    match update:
        case SpecEnvUpdate(spec=spec):
            return _packages(spec)
        case NewEnvUpdate(factory=factory):
            while isinstance(factory, functools.partial):
                factory = factory.func
            return _packages(factory)
        case ExistingEnvUpdate(env=env):
            return _packages(env.unwrapped)
        case SetTaskUpdate() | SetParameters():
            return packages_of(update.source)
        case PerEnv(items=items):
            return tuple(dict.fromkeys(name for item in items for name in packages_of(item)))
    return _packages(type(update))


def _packages(origin: Any) -> tuple[str, ...]:
    spec = origin if isinstance(origin, EnvSpec) else getattr(origin, "spec", None)
    entry = getattr(spec, "entry_point", None)
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry or origin, "__module__", None)
    if not isinstance(module, str):
        return ()
    return (module.partition(".")[0], *(["mujoco"] if ".mujoco" in module else []))


@functools.cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(_DISTRIBUTIONS.get(name, name))
    except metadata.PackageNotFoundError:
        return None


class EnvironmentFacts(NamedTuple):
    """The facts about an environment for provenance and checks."""

    name: str  # its id, or else the name of its class or factory
    kwargs: dict[str, Any]  # its own, besides the registered ones
    packages: tuple[str, ...]
    parameters: dict[str, Any] | None = None  # of `SetParameters`, storable
    of_slots: tuple[EnvironmentFacts, ...] = ()  # the facts of each of several environments of a worker
    single: bool = False  # whether it certainly has a single agent; unknown for a callable
    waits: bool = False  # whether it is certainly asynchronous

    @classmethod
    def of(cls, update: EnvUpdate) -> EnvironmentFacts:
        parameters = None
        packages = packages_of(update)
        if update.n_slots is not None:
            each = tuple(cls.of(update.of_slot(slot)) for slot in range(update.n_slots))
            return cls(describe(update), {}, packages, of_slots=each)
        if isinstance(update, SetParameters):
            parameters, update = storable(update.parameters), update.source
        waits = makes_asynchronous(_made_from(update))
        single = isinstance(update, SpecEnvUpdate) or (
            isinstance(update, ExistingEnvUpdate) and not is_multi_agent(update.env)
        )
        return cls(describe(update), storable(_kwargs_of(update)), packages, parameters, single=single, waits=waits)


def _made_from(update: EnvUpdate) -> Any:
    match update:
        case NewEnvUpdate():
            return update.factory
        case SpecEnvUpdate():
            return update.spec
        case ExistingEnvUpdate():
            return update.env
        case SetTaskUpdate():
            return _made_from(update.source)
    return None


def _kwargs_of(update: EnvUpdate) -> dict[str, Any]:
    if isinstance(update, NewEnvUpdate):
        return update.env_kwargs
    if not isinstance(update, SpecEnvUpdate):
        return {}
    spec, registered = update.spec, gymnasium.registry.get(update.spec.id)
    if registered is None:
        return dict(spec.kwargs)
    # Arrays have no truth value: equal repr counts as equal.
    own = {name: value for name, value in spec.kwargs.items() if repr(registered.kwargs.get(name)) != repr(value)}
    if spec.max_episode_steps != registered.max_episode_steps:
        own["max_episode_steps"] = -1 if spec.max_episode_steps is None else spec.max_episode_steps
    return own


def provenance_of(
    setup: WorkerSetup, policy: Policy, order: Order, updates: Updates[Any], version: int, fingerprints: Sequence[str],
    need: Callable[[str], bool],
) -> dict[str, Any]:  # fmt: skip
    environments: list[EnvironmentFacts] = []
    for whole in updates.about("env"):
        for facts in whole.of_slots or (whole,):
            if facts not in environments or whole.of_slots:
                environments.append(facts)
    names = [facts.name for facts in environments]
    if len(set(names)) == 1 or not any(whole.of_slots for whole in updates.about("env")):
        names = list(dict.fromkeys(names))
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
        **({"record_taken": setup.record_taken} if setup.record_taken is not None else {}),
        **({"agent_version": version} if version > 1 else {}),
        **({"n_workers": setup.n_workers} if updates.differ else {}),
        **({"worker_class": name_of_worker(worker_class)} if worker_class is not DefaultWorker else {}),
        **({"worker_args": storable(factory.worker_args)} if factory.worker_args else {}),
        **({"worker": f"{worker_class.__name__}: {worker_class.revision}"} if worker_class.revision else {}),
        "versions": versions_of((name for facts in environments for name in facts.packages), need),
        **({"fingerprints": list(fingerprints)} if fingerprints else {}),
    }


def name_of_worker(worker_class: type[Worker]) -> str:
    module, name = worker_class.__module__, worker_class.__qualname__
    return name if module.partition(".")[0] == __package__.partition(".")[0] else f"{module}:{name}"


def shown_name(value: Any) -> str:
    """Return a value's short name, the same in each process."""
    if (name := getattr(value, "__qualname__", None)) is not None:
        return str(name)
    text = repr(value)
    # Python's default repr contains an address, different in each process.
    return text if " at 0x" not in text and len(text) <= 80 else type(value).__qualname__


def storable(value: Any) -> Any:
    """Return a value in JSON's types; other objects are replaced by their names."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        return {str(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return shown_name(value)
