"""Vector environments of all autoreset modes."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.scripted.envs import LINE, Counting


class Vector:
    """Makes `n` environments that are stepped together, in an autoreset mode; their arrays are used again."""

    def __init__(self, mode: str, env: type[gymnasium.Env[Any, Any]] = Counting, n: int = 3) -> None:
        self.mode, self.env, self.n = mode, env, n

    def __call__(self) -> SyncVectorEnv:
        return SyncVectorEnv([self.env] * self.n, autoreset_mode=AutoresetMode[self.mode], copy=False)


class OneSeed(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Counts up to a number of its own in each slot; takes one seed for all, and reuses its arrays."""

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # type: ignore[misc]

    def __init__(self, num_envs: int = 3) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = LINE, spaces.Discrete(2)
        self.observations = np.zeros((num_envs, 1), np.float32)
        self.ended = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if not isinstance(seed, int):
            raise TypeError("one seed, please")
        super().reset(seed=seed)
        self.lengths = self.np_random.integers(1, 6, self.num_envs)
        self.observations[:] = 0
        self.ended[:] = False
        return self.observations, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        fresh = self.ended.copy()
        self.lengths[fresh] = self.np_random.integers(1, 6, int(fresh.sum()))
        self.observations[:, 0] = np.where(fresh, 0, self.observations[:, 0] + 1)
        self.ended = ~fresh & (self.observations[:, 0] == self.lengths)
        rewards = self.observations[:, 0].astype(np.float32)
        return self.observations, rewards, self.ended, np.zeros_like(self.ended), {"length": self.lengths}


class Deaf(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Draws from the seed that it is made with, and ignores those of its resets, as EnvPool's environments do.

    Attributes:
        living: How many there are that were not closed.
    """

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # type: ignore[misc]
    living = 0

    def __init__(self, seed: int | None = None, num_envs: int = 3) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = LINE, spaces.Discrete(2)
        self.rng = np.random.default_rng(seed)
        self.shown = np.zeros((num_envs, 1), np.float32)  # used again
        Deaf.living += 1

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            warnings.warn("the seed is ignored", stacklevel=2)
        self.ended = np.zeros(self.num_envs, np.bool_)
        self.values = self.rng.random(self.num_envs)
        return self.observations(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        fresh, draws = self.ended, self.rng.random(self.num_envs)
        self.values = np.where(fresh, draws, self.values + 1)
        self.ended = ~fresh & (draws < 0.3)
        return self.observations(), draws, self.ended, np.zeros_like(fresh), {}

    def observations(self) -> Any:
        self.shown[:, 0] = self.values
        return self.shown

    def close_extras(self, **kwargs: Any) -> None:
        Deaf.living -= 1
