"""Detect environments with asynchronous resets and steps."""

from __future__ import annotations

import functools
import sys
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from streamsampler.core.awaiting import has_coroutines
from streamsampler.environments.multi_agent import MultiAgentEnv, is_multi_agent

__all__ = ["inner_env", "is_asynchronous", "makes_asynchronous"]


def is_asynchronous(env: Any) -> bool:
    """Return whether an environment, a wrapper of it, or a class of environments has an async reset or step."""
    while env is not None:
        if has_coroutines(env, "reset", "step"):
            return True
        env = inner_env(env)
    return False


def inner_env(env: Any) -> Any:
    """Return the environment inside a wrapper of Gymnasium or PettingZoo; None for other objects."""
    if isinstance(env, gymnasium.Wrapper | MultiAgentEnv):
        return env.env
    # Not by `__dict__`: after a first access, Python looks up all attributes of the object more slowly.
    inner = getattr(env, "env", None) if is_multi_agent(env) else None
    return inner if is_multi_agent(inner) else None


def makes_asynchronous(source: Any) -> bool:
    """Return whether a source certainly makes an asynchronous environment, without making it or importing a module."""
    if isinstance(source, EnvSpec):
        entry: Any = source.entry_point
        if isinstance(entry, str):
            module, _, name = entry.partition(":")
            entry = getattr(sys.modules.get(module), name, None)
        return entry is not None and makes_asynchronous(entry)
    while isinstance(source, functools.partial):
        source = source.func
    return is_asynchronous(source)
