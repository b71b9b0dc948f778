"""An environment that breaks one rule at a time, and agents that break others."""

import os
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 8


class Rule(gymnasium.Env):
    """Has trajectories of eight timesteps, and breaks one rule.

    Args:
        breaks: The rule; "" for none.
    """

    observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, breaks=""):
        if breaks == "hangs in construction":
            threading.Event().wait()
        if breaks == "construction":
            raise RuntimeError("no robot is here")
        self.breaks = breaks
        self.resets = 0

    def observe(self):
        observation = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        match self.breaks:
            case "bounds" if self.t == 5:
                observation[1] = 7
            case "nan" if self.t == 5:
                observation[1] = np.nan
            case "shape":
                return observation[:2]
            case "carries":
                observation[0] = 1 / (1 + self.resets)
            case "process":
                observation[0] = os.getpid() / 2**22
        return observation

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.resets += 1
        if self.breaks == "raises in reset":
            raise RuntimeError("the robot fell over")
        if self.breaks == "reset returns":
            return self.observe()
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        if self.t == 4:
            self.fail()
        reward = {"reward": "high", "nan reward": np.nan}.get(self.breaks, 1.0)
        ended: Any = self.t == LENGTH and self.breaks != "endless"
        if self.breaks == "flags":
            ended = None
        if self.breaks == "step returns":
            return self.observe(), reward, ended, {}
        return self.observe(), reward, ended, False, None if self.breaks == "info" else {}

    def fail(self):
        match self.breaks:
            case "raises":
                raise RuntimeError("the robot stumbled")
            case "hangs":
                threading.Event().wait()
            case "dies":
                os._exit(3)

    def close(self):
        if self.breaks == "hangs in close":
            threading.Event().wait()
        if self.breaks == "close":
            raise RuntimeError("the door is stuck")


class Nested(Rule):
    """Has nested observations, and breaks the rule in one of their parts."""

    observation_space = spaces.Dict(a=spaces.Tuple((spaces.Discrete(9), Rule.observation_space)), b=spaces.Text(5))

    def observe(self):
        return {"a": (4, super().observe()), "b": "word"}


class Ball(gymnasium.Env):
    """Takes actions in a box."""

    observation_space = action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 1).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        return self.np_random.uniform(-1, 1, 1).astype(np.float32), float(action[0]), self.t == LENGTH, False, {}


class Agent:
    """Acts at random, and breaks one rule."""

    def __init__(self, breaks=""):
        self.breaks = breaks
        self.rng = np.random.default_rng(0)
        self.n = 0

    def reset(self, seed):
        if self.breaks != "unseeded":
            self.rng = np.random.default_rng(seed)
        if self.breaks != "remembers":
            self.n = 0

    def get_action(self, observation):
        self.n += 1
        match self.breaks:
            case "outside":
                return 3, {}
            case "raises":
                raise RuntimeError("no idea")
            case "hangs":
                threading.Event().wait()
            case "dies":
                os._exit(4)
            case "remembers":
                return self.n // 5 % 3, {}
            case "returns":
                return 1
        return int(self.rng.integers(3)), {}


class Batched(Agent):
    """Has `get_actions`; with `breaks="mixes"` each action depends on all rows."""

    def __init__(self, breaks="", says=True):
        super().__init__(breaks)
        self.row_independent = says

    def get_action(self, observation):
        return int(observation[0] > 0), {}

    def get_actions(self, observations):
        if self.breaks == "mixes":
            return (observations[:, 0] > observations.mean()).astype(np.int64), {}
        return (observations[:, 0] > 0).astype(np.int64), {}
