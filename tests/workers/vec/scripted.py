"""Agents with `get_actions`, and vector environments of all autoreset modes, for the tests of `VecWorker`."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.contracts.scripted import LINE, Linear, Steps


class Balancing:
    """CartPole's angle decides: exact arithmetic, row by row the same in any batch."""

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return int(observation[2] > 0), {"angle": observation[2]}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        observations = observations.copy()
        angles = observations[:, 2].copy()
        observations[:] = np.nan
        return (angles > 0).astype(np.int64), {"angle": angles}


class Sampling(Linear):
    """Draws for all rows from one generator, which its block seeds."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        logits = observations @ self.weights
        return (logits + self.rng.logistic(size=len(logits)) > 0).astype(np.int64), {"logit": logits}


class NestedBatches:
    """Looks at nested batches, spoils them, and says how many rows it saw."""

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        kind, flags = observation["task"]
        return int(kind + flags.sum() + observation["image"][0, 0, 0]) % 3, {
            "sum": np.float64(observation["position"][0])
        }

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        kinds, flags = observations["task"]
        actions = (kinds + flags.sum(axis=1) + observations["image"][:, 0, 0, 0]) % 3
        infos = {"sum": observations["position"][:, 0].copy()}
        observations["position"][:] = observations["image"][:] = 0
        return actions, infos


class Remembering:
    """Adds up what it has seen of each trajectory: a memory by slots, emptied by starts."""

    def __init__(self) -> None:
        self.memory = np.zeros(64)

    def reset(self) -> None:
        self.memory[:] = np.nan

    def get_action(self, observation: Any) -> Any:
        raise AssertionError("it has get_actions")

    def get_actions(self, observations: Any, *, slots: Any, starts: Any) -> tuple[Any, dict[str, Any]]:
        assert starts.dtype == np.bool_
        self.memory[slots[starts]] = 0
        self.memory[slots] += observations[:, 0] + 1
        return np.zeros(len(slots), np.int64), {
            "memory": self.memory[slots],
            "slot": slots,
            "rows": [len(slots)] * len(slots),
        }


class RememberingAlone:
    """The same with one environment."""

    def reset(self) -> None:
        self.memory = 0.0

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        self.memory += float(observation[0]) + 1
        return 0, {"memory": self.memory}


class Drawn(Steps):
    """As long as the reset draws, and tells much in its infos."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.length = int(self.np_random.integers(1, 8))
        self.mark = int(self.np_random.integers(1_000_000))
        return np.array([self.mark], np.float32), {"mark": self.mark}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, reward, terminated, _, _ = super().step(action)
        info: dict[str, Any] = {"t": self.t}
        if self.t % 3 == 0:
            info["third"] = {"of": np.array([self.mark, self.t])}
        if terminated:
            info["last"] = True
        observation = np.array([self.mark + self.t], np.float32)
        return observation, reward + action, terminated and self.mark % 2 == 0, terminated and self.mark % 3 != 1, info


class DrawnEndless(Drawn):
    """Terminates or truncates in every case."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or (self.t == self.length and not truncated), truncated, info


def vector(mode: str, env: type[gymnasium.Env] = DrawnEndless, n: int = 3) -> SyncVectorEnv:
    return SyncVectorEnv([env] * n, autoreset_mode=AutoresetMode[mode], copy=False)


class OneSeed(gymnasium.vector.VectorEnv):
    """Counts up to a number of its own in each slot; takes one seed for all, and reuses its arrays."""

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.NEXT_STEP}

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
