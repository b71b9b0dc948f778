"""Say which versions of Python and of libraries trajectories were made with."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

from gymnasium.envs.registration import EnvSpec

from streamsampler.environments.parameters import SetParameters
from streamsampler.environments.updates import EnvUpdate, ExistingEnvUpdate, NewEnvUpdate, SetTaskUpdate, SpecEnvUpdate
from streamsampler.version import __version__

__all__ = ["packages_of", "versions_of"]

_OF_AGENTS = ("torch", "stable_baselines3", "sb3_contrib")
_DISTRIBUTIONS = {"stable_baselines3": "stable-baselines3", "sb3_contrib": "sb3-contrib", "ale_py": "ale-py"}


def versions_of(packages: Iterable[str], need: Callable[[str], bool] = lambda _: False) -> dict[str, str]:
    """Return versions by name: Python, this package, NumPy, Gymnasium, libraries that agents need, and these.

    What else a process has loaded does not matter: files of one run are the same bytes, whichever process writes them.

    Args:
        packages: The packages that environments come from.
        need: Whether an agent or an environment needs a package.
    """
    versions = {"python": platform.python_version(), "streamsampler": __version__}
    names = ["numpy", "gymnasium", *filter(need, _OF_AGENTS), *packages]
    for name in dict.fromkeys(names):
        if (version := _version(name)) is not None:
            versions[name] = version
    return versions


def packages_of(update: EnvUpdate) -> tuple[str, ...]:
    """Return the top-level packages that an environment comes from, as far as its spec, class or function says."""
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
