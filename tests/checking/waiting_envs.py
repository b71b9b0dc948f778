"""Environments and agents that wait, and break one rule at a time."""

import asyncio
import random
from time import thread_time

from tests.checking.envs import Agent, Rule


class Waits(Rule):
    """Waits in each reset and step, and breaks one rule."""

    in_flight = 0
    left_behind = False

    async def wait(self):
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            match self.breaks:
                case "returns":
                    return
                case "goes on":
                    await asyncio.Event().wait()
                case "raises when cancelled":
                    raise ConnectionError("the line is dead") from None
            self.left_behind = True
            raise

    async def reset(self, **arguments):  # type: ignore[override]
        await self.wait()
        if self.left_behind and self.breaks == "next":
            raise ConnectionError("an answer is on its way")
        type(self).in_flight = 0
        return super().reset(**arguments)

    async def step(self, action):  # type: ignore[override]
        await self.wait()
        observation, reward, *rest = super().step(action)
        match self.breaks:
            case "parts":
                return observation, self.wait(), *rest
            case "twice":
                return self.wait()
            case "global":
                reward = random.random()
            case "left behind":
                reward = float(self.left_behind)
            case "shared":
                type(self).in_flight += 1
                reward = float(type(self).in_flight)
            case "computes" if (self.t, self.resets) == (4, 1):
                began = thread_time()
                while thread_time() - began < 0.15:
                    pass
        return observation, reward, *rest


class WaitsAtClose(Waits):
    """Waits there, too."""

    async def close(self):  # type: ignore[override]
        await self.wait()
        super().close()


class Idle(Rule):
    """Has nothing to wait for."""

    async def reset(self, **arguments):  # type: ignore[override]
        return super().reset(**arguments)

    async def step(self, action):  # type: ignore[override]
        return super().step(action)


class Later(Agent):
    """Waits before it acts."""

    async def get_action(self, observation):
        await asyncio.sleep(0)
        return super().get_action(observation)
