"""Make environments wait."""

from __future__ import annotations

import asyncio
from typing import Any

import gymnasium

from streamsampler import EnvUpdate
from streamsampler.environments.updates import as_env_update, describe

__all__ = ["Waiting", "waiting"]


class Waiting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Waits in each reset and step, in one for longer than in another: so that trajectories overtake one another."""

    _n_waits = 0

    async def _wait(self) -> None:
        self._n_waits += 1
        for _ in range(self._n_waits * 7 % 5):
            await asyncio.sleep(0)

    async def reset(self, **arguments: Any) -> Any:  # type: ignore[override]
        await self._wait()
        return self.env.reset(**arguments)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await self._wait()
        return self.env.step(action)


class _Waits(EnvUpdate):
    def __init__(self, source: EnvUpdate) -> None:
        self._source = source
        self.environment_name = describe(source)

    def __call__(self, old_env: Any) -> Any:
        return Waiting(self._source(old_env.env if isinstance(old_env, Waiting) else old_env))


def waiting(env: Any) -> EnvUpdate:
    """Return an update that makes an environment which waits in each reset and step."""
    return _Waits(as_env_update(env))
