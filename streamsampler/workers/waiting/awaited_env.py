"""Await the resets and steps of an environment below Gymnasium's outermost wrappers.

`gymnasium.make` puts `TimeLimit`, `OrderEnforcing` and `PassiveEnvChecker` around an environment. They unpack a step's
result, and a coroutine cannot be unpacked. So the environment below them is stepped and awaited first; then the
wrappers are called around an object that returns this result.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from streamsampler.core.awaiting import has_coroutines, is_awaitable
from streamsampler.core.errors import UsageError
from streamsampler.environments.asynchronous import inner_env, is_asynchronous
from streamsampler.environments.closing import close_env
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.environments.updates import AnyEnv, EnvUpdate, apply_env_update
from streamsampler.workers.explain import name_of_env

__all__ = ["AwaitedEnv", "EnvsOnLoop"]

_PASS_ON_ACTIONS = (TimeLimit, OrderEnforcing, PassiveEnvChecker)
_STEPPED = ("reset", "step")


class _Resolved:
    """Stands for the environment below wrappers, and returns its finished result."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.result: Any = None

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # not set yet while a copy is made
            raise AttributeError(name)
        return getattr(self._env, name)

    def __reduce__(self) -> Any:  # a copy of the wrappers belongs to no worker, and contains the environment
        return _as_it_is, (self._env,)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:  # noqa: ARG002
        return self.result

    def step(self, action: Any) -> Any:  # noqa: ARG002
        return self.result


def _as_it_is(env: Any) -> Any:
    return env


class AwaitedEnv:
    """An environment with `reset` and `step` as coroutines; all other attributes are the environment's.

    The outermost wrappers of `gymnasium.make`, and this package's own (`sees_results`), see only results from now on.

    Attributes:
        given: The environment.

    Raises:
        UsageError: The `reset` or `step` of another wrapper is no `async def`.
    """

    def __init__(self, env: Any) -> None:
        self.given = env
        innermost, below = None, env
        self._first: list[Callable[..., None]] = []  # called before a reset
        while type(below) in _PASS_ON_ACTIONS or getattr(type(below), "sees_results", False):
            if hasattr(below, "before_reset"):
                self._first.append(below.before_reset)
            innermost, below = below, below.env
        if isinstance(below, _Resolved):  # an update returned the same environment again
            below = below._env
        _refuse_synchronous(below)
        self._below = below
        self._outer, self._resolved = None if innermost is None else env, _Resolved(below)
        if innermost is not None:
            innermost.env = self._resolved

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)

    async def reset(self, **arguments: Any) -> Any:
        for prepare in self._first:
            prepare(**arguments)
        result = await _result_of(self._below.reset(**arguments), "reset")
        if self._outer is None:
            return result
        self._resolved.result = result
        return self._outer.reset(**arguments)

    async def step(self, action: Any) -> Any:
        result = await _result_of(self._below.step(action), "step")
        if self._outer is None:
            return result
        self._resolved.result = result
        return self._outer.step(action)


class EnvsOnLoop:
    """Makes, awaits and closes environments on the event loop's thread.

    Attributes:
        why_still_running: Why a cancelled trajectory may not end, for a warning.
    """

    why_still_running = "its reset or step catches asyncio.CancelledError, and should raise it again"

    def apply(self, update: EnvUpdate, old_env: AnyEnv | None) -> AnyEnv:
        return apply_env_update(update, old_env, several=True, waits=True)

    def awaited(self, env: AnyEnv) -> AwaitedEnv:
        return AwaitedEnv(env)

    def begin_close(self, env: AnyEnv) -> Any:
        """Close an environment; return a coroutine if its `close` is asynchronous."""
        return env.close()

    def close(self, env: AnyEnv) -> None:
        close_env(env)

    def abandon(self, env: AnyEnv) -> None:
        """Do nothing: the pending reset or step keeps the environment."""


async def _result_of(pending: Any, name: str) -> Any:
    result = await pending if is_awaitable(pending) else pending
    if is_awaitable(result):
        _close(result)
        raise UsageError(f"awaiting {name} returned another awaitable: await it in {name}")
    if isinstance(result, tuple):
        if CoroutineType in map(type, result):
            for part in result:
                _close(part)
            raise UsageError(f"a part of the result of {name} is a coroutine: await it in {name}")
        for part in result:  # infos; with several agents all parts are dicts
            if part.__class__ is dict and CoroutineType in map(type, part.values()):
                raise UsageError(f"{_closed_in(part)!r} in the result of {name} is a coroutine: await it in {name}")
    return result


def _closed_in(part: dict[Any, Any]) -> Any:
    """Close the coroutines in a dict; return the key of the first."""
    for value in part.values():
        _close(value)
    return next(key for key, value in part.items() if isinstance(value, CoroutineType))


def _close(value: Any) -> None:
    """Close a coroutine without an awaiter, so that Python does not warn."""
    if isinstance(value, CoroutineType):
        value.close()


def _refuse_synchronous(env: Any) -> None:
    """Refuse synchronous wrappers around an asynchronous environment: they would unpack a coroutine."""
    below = env
    while is_asynchronous(inner := inner_env(below)):
        for name in () if isinstance(below, MultiAgentEnv) else _STEPPED:  # `MultiAgentEnv` awaits its environment
            function = getattr(type(below), name, None)  # None if `__getattr__` delegates it
            passes_on = function is None or function is getattr(gymnasium.Wrapper, name)
            if not passes_on and not has_coroutines(below, name):
                known = (
                    "make the wrapper the outermost, as gymnasium.make does" if type(below) in _PASS_ON_ACTIONS else ""
                )
                raise UsageError(
                    f"the environment {name_of_env(env)} is asynchronous, but the {name} of its wrapper "
                    f"{type(below).__qualname__} is not: it would take a coroutine for a result. Write it as "
                    f"async def {name}, which awaits self.env.{name}(…), or {known or 'remove the wrapper'}"
                )
        below = inner
