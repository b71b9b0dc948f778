"""Environments and agents that raise, at a chosen place until they are cured or in some trajectories.

Deaths and hangs, and what is to happen so many times, are in `streamsampler.testing`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Boom(Exception):
    pass


def boom(where):
    raise Boom(f"in {where}")


def exit_softly(where):
    raise SystemExit(3)


MISDEEDS: dict[str, Callable[[str], Any]] = {
    "raise": boom,
    "exit": exit_softly,
    "unpicklable": lambda _: threading.Lock(),
}


class Env(gymnasium.Env[Any, Any]):
    """Five steps a trajectory; raises, or does something else, at the chosen place, until the file `cure` exists."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, where=None, what="raise", cure=None, length=5, at_step=2):
        self.where, self.what, self.cure = where, what, cure
        self.length, self.at_step = length, at_step
        self.t = 0
        self.maybe("make")

    def maybe(self, where):
        if where != self.where or (self.cure is not None and os.path.exists(self.cure)):
            return None
        return MISDEEDS[self.what](where)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.maybe("reset")
        return self.observation(), {}

    def observation(self):
        return self.np_random.normal(size=2).astype(np.float32)

    def step(self, action):
        assert self.action_space.contains(action)
        self.t += 1
        info = {}
        if self.t == self.at_step:
            strange = self.maybe("step")
            if strange is not None:
                info["lock"] = strange
        if self.where == "shape" and self.t == self.at_step:
            return np.zeros(3, np.float32), 0.0, False, False, {}
        return self.observation(), 1.0, self.t >= self.length, False, info

    def close(self):
        self.maybe("close")


class Brittle(gymnasium.Env[Any, Any]):
    """Lasts 1 to `longest` timesteps; in some trajectories something is wrong. What raised cannot be used any more.

    Args:
        longest: The most timesteps.
        one_in: In one trajectory of so many something is wrong; 0 for none.
        wrong: What: "step" and "reset" raise, "shape" shows another shape, "lock" has an info that cannot be pickled.
        width: Numbers in an observation; from a thousand on they travel in shared memory.
        pause: Seconds of each step.
        error: What is raised.
    """

    action_space: spaces.Space[Any] = spaces.Discrete(3)

    def __init__(
        self,
        longest: int = 12,
        one_in: int = 30,
        wrong: str = "step",
        width: int = 2,
        pause: float = 0.0,
        error: type[BaseException] = OSError,
    ) -> None:
        self.longest, self.one_in, self.wrong, self.pause, self.error = longest, one_in, wrong, pause, error
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 2, (width,), np.float32)
        self.width, self.task = width, 0.0
        self.broken = False

    def set_task(self, task: float) -> None:
        """Add so much to each reward."""
        self.task = task

    def observe(self) -> Any:
        observation = self.np_random.random(self.width, np.float32)
        return observation[:-1] if self.wrong == "shape" and self.left == self.wrong_at else observation

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        assert not self.broken, "used after it raised"
        self.left = int(self.np_random.integers(1, self.longest + 1))
        is_wrong = self.one_in > 0 and self.np_random.integers(self.one_in) == 0
        self.wrong_at = int(self.np_random.integers(self.left)) if is_wrong else -1
        if is_wrong and self.wrong == "reset":
            self.fail()
        return self.observe(), {"left": self.left} if self.left % 2 else {}

    def fail(self) -> None:
        self.broken = True
        raise self.error(f"the arm is stuck, {self.left} before the end")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.pause:
            time.sleep(self.pause)
        self.left -= 1
        info: dict[str, Any] = {"left": self.left} if self.left % 3 == 0 else {}
        if self.left == self.wrong_at and self.wrong == "step":
            self.fail()
        if self.left == self.wrong_at and self.wrong == "lock":
            info["lock"] = threading.Lock()
        return self.observe(), float(action) + self.task, self.left == 0, False, info

    def close(self) -> None:
        if self.broken:
            raise OSError("the arm cannot be parked")


class Agent:
    """Raises at the chosen place, until the file `cure` exists."""

    def __init__(self, where=None, cure=None, action=1):
        self.where, self.cure, self.action = where, cure, action

    def maybe(self, where):
        if where == self.where and not (self.cure and os.path.exists(self.cure)):
            raise Boom(f"in {where}")

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.maybe("construct")

    def reset(self, seed):
        self.maybe("reset")

    def get_action(self, observation):
        self.maybe("action")
        return self.action, {}

    def set_param_values(self, values):
        self.maybe("update")
        self.action = values["action"]


class Unpicklable:
    def __init__(self):
        self.lock = threading.Lock()

    def get_action(self, observation):
        return 1, {}
