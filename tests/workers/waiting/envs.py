"""Environments and agents that wait, and their twins that do not."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Game(gymnasium.Env[Any, Any]):
    """Ends after 1 to 12 timesteps; all that it shows is drawn."""

    observation_space, action_space = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.length, self.t = int(self.np_random.integers(1, 13)), 0
        return self._drawn(), {"length": self.length} | (options or {})

    def step(self, action: Any) -> Any:
        self.t += 1
        info = {"action": int(action)} if self.t % 2 else {}
        return self._drawn(), float(action) + self.t, self.t >= self.length, False, info

    def _drawn(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


class Waits(Game):
    """Waits for a time that depends on the process and on nothing that a trajectory is."""

    def __init__(self, longest: float = 3e-4) -> None:
        self._dice, self._longest = np.random.default_rng(os.getpid()), longest

    async def _wait(self) -> None:
        await asyncio.sleep(self._dice.uniform(0, self._longest))

    async def reset(self, **arguments: Any) -> Any:  # type: ignore[override]
        await self._wait()
        result = super().reset(**arguments)
        await self._wait()
        return result

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await self._wait()
        return super().step(action)


class Draws:
    """Draws its actions from a generator of its own."""

    def reset(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def get_action(self, observation: Any) -> Any:
        return int(self.generator.integers(3)), {"value": float(observation[0])}

    def get_value(self, observation: Any) -> float:
        return float(observation[1])


class DrawsLater(Draws):
    """Waits before it draws."""

    async def get_action(self, observation: Any) -> Any:
        await asyncio.sleep(1e-4)
        return super().get_action(observation)

    async def get_value(self, observation: Any) -> float:  # type: ignore[override]
        await asyncio.sleep(1e-4)
        return super().get_value(observation)


class Breaks(Game):
    """Raises in the trajectories of some seeds."""

    def step(self, action: Any) -> Any:
        if self.t == 2 and self.length % 4 == 0:
            raise ValueError(f"broken in a trajectory of {self.length}")
        return super().step(action)


class BreaksLater(Waits, Breaks):
    """Does so after a wait."""


class Told:
    """Letters, in the order in which processes and threads wrote them.

    Args:
        folder: Where the pipe lies.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "told"
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self._path)
        self._pipe = os.open(self._path, os.O_RDWR)

    def tell(self, letter: str) -> None:
        os.write(self._pipe, letter.encode())

    def wait_for(self, n: int) -> str:
        """Wait for so many letters, and return them."""
        return b"".join(os.read(self._pipe, 1) for _ in range(n)).decode()

    def close(self) -> None:
        os.close(self._pipe)


class Stuck(Game):
    """Waits in its first step for ever, unless an option says otherwise.

    It tells when it waits (w), is cancelled (c), and has closed (x).
    """

    def __init__(self, folder: Path, *, heeds: bool = True) -> None:
        self._told, self._heeds = Told(folder), heeds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._ends = bool(options)
        return super().reset(seed=seed)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if self._ends:
            return super().step(action)
        self._told.tell("w")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self._told.tell("c")
            if self._heeds:
                raise
            await asyncio.Event().wait()

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self._told.tell("x")
        self._told.close()
