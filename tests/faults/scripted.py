"""Environments and agents that raise at a chosen place until they are cured, also in this process.

Deaths and hangs, and whatever is to happen so many times, are in `streamsampler.testing`.
"""

import os
import threading

import gymnasium
import numpy as np
from gymnasium import spaces


class Boom(Exception):
    pass


def boom(where):
    raise Boom(f"in {where}")


def exit_softly(where):
    raise SystemExit(3)


MISDEEDS = {
    "raise": boom,
    "exit": exit_softly,
    "unpicklable": lambda _: threading.Lock(),
}


class Env(gymnasium.Env):
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
