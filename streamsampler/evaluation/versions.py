"""Say which versions of Python and of libraries an evaluation was made with."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from gymnasium.envs.registration import EnvSpec

from streamsampler.version import __version__

__all__ = ["versions_of"]

_LOADED = ("torch", "stable_baselines3", "sb3_contrib")
_DISTRIBUTIONS = {"stable_baselines3": "stable-baselines3", "sb3_contrib": "sb3-contrib", "ale_py": "ale-py"}


def versions_of(env: Any) -> dict[str, str]:
    """Return versions by name: Python, this package, NumPy, Gymnasium, and what agent and environment are made of.

    Args:
        env: What a sampler takes for an environment; the package that it comes from is looked for in its id's spec, or
            in its class or function.
    """
    versions = {"python": platform.python_version(), "streamsampler": __version__}
    names = ["numpy", "gymnasium", *(name for name in _LOADED if name in sys.modules), *_packages_of(env)]
    for name in dict.fromkeys(names):
        if (version := _version(name)) is not None:
            versions[name] = version
    return versions


def _packages_of(env: Any) -> Iterable[str]:
    """Return the top-level packages that an environment comes from."""
    spec = env if isinstance(env, EnvSpec) else getattr(env, "spec", None)
    entry = getattr(spec, "entry_point", None)
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry or env, "__module__", None)
    if not isinstance(module, str):
        return []
    return [module.partition(".")[0], *(["mujoco"] if ".mujoco" in module else [])]


def _version(name: str) -> str | None:
    try:
        return metadata.version(_DISTRIBUTIONS.get(name, name))
    except metadata.PackageNotFoundError:
        return None
