"""Environments whose data show what was lost, repeated or mixed up."""

import os
import signal
import threading

import gymnasium
import numpy as np
from gymnasium import spaces


class Counting(gymnasium.Env):
    """Shows its seed and its timestep in a buffer that it uses again; ends after `length` timesteps."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(10)

    def __init__(self, length=3, raises_at=None, info_at=None, key="note"):
        self.length, self.raises_at, self.info_at, self.key = length, raises_at, info_at, key
        self.level = 0
        self.options = None
        self._buffer = np.zeros(2)
        self._t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options = options
        self._t = 0
        self._buffer[:] = seed, 0
        return self._buffer, {}

    def step(self, action):
        self._t += 1
        if action == 9 or self._t == self.raises_at:
            raise RuntimeError("the gearbox is stuck")
        self._buffer[1] = self._t
        info = {self.key: self._t} if self._t == self.info_at else {}
        return self._buffer, float(action), self._t == self.length, False, info

    def set_level(self, level, *, factor=1):
        self.level = level * factor
        return self.level

    def render(self):
        return f"frame {self._t}"


class Doomed(Counting):
    """Kills its process, or hangs, at an action."""

    def step(self, action):
        if action == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == 8:
            threading.Event().wait()
        return super().step(action)
