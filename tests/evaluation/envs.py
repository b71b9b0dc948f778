"""Environments and agents whose returns and successes are known beforehand."""

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 3


def value_of(seed, level=0.0):
    """Return the return of the trajectory from a seed: normal, but for the level."""
    return float(np.random.default_rng(seed).normal(10, 2)) + level


class Known(gymnasium.Env):
    """Has trajectories of three timesteps, whose return is `value_of(seed, level)`; some succeed.

    With `says="once"` a trajectory whose seed is a multiple of 3 succeeds in the middle, one whose seed is a multiple
    of 4 at its end. The options of a reset may have a `level`; of a trajectory that ends early, `length`.
    """

    observation_space = spaces.Box(-1e9, 1e9, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, success=None, fails=(), returns="normal"):
        self.success, self.fails, self.returns = success, fails, returns

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed in self.fails:
            raise ValueError(f"seed {seed} fails")
        self.seed, self.t = seed, 0
        self.level = (options or {}).get("level", 0.0)
        value = value_of(seed, self.level)
        self.value = value if self.returns == "normal" else float(seed % 10 > 0)
        return np.full(1, self.value), {}

    def step(self, action):
        self.t += 1
        ends = self.t == LENGTH
        info = {}
        if self.success is not None:
            info[self.success] = bool((self.t == 2 and self.seed % 3 == 0) or (ends and self.seed % 4 == 0))
        reward = self.value + float(np.asarray(action).sum()) if ends else 0.0
        return np.full(1, self.value), reward, ends and self.seed % 2 == 0, ends and self.seed % 2 == 1, info


def zero(observation):
    return 0


class Better:
    """Gets more than `zero`: its share of the return, with `predict` as Stable-Baselines3 has it."""

    def __init__(self, action=1):
        self.action = action
        self.asked = []

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        return np.asarray(self.action if deterministic else 0), state
