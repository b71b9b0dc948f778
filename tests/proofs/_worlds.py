"""Environments and agents whose numbers are the same on every machine: integers, and fractions that floats hold.

What goes through a mathematical library (logarithms, matrix products, cosines) may differ in its last bit from one
processor to another, and a digest tells every bit.
"""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["Batched", "Counting", "Noisy", "Parameters", "Room", "Rough", "Shapes", "Vector"]


class Room(gymnasium.Env[Any, int]):
    """Has nested observations, infos that come and go, and both ends."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "task": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2))),
        }
    )
    action_space = spaces.Discrete(3)

    def __init__(self, ending: float = 0.125) -> None:
        self.ending = ending

    def set_task(self, ending: float) -> None:
        """Change how likely a timestep is the last one."""
        self.ending = ending

    def _observe(self) -> dict[str, Any]:
        image = self.np_random.integers(0, 256, (4, 4, 3), np.uint8)
        flags = self.np_random.integers(0, 2, 2).astype(np.int8)
        return {"place": self.place.copy(), "image": image, "task": (self.kind, flags)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.t = 0
        self.place = self.np_random.random(2)
        self.kind = np.int64(self.np_random.integers(-1, 2))
        return self._observe(), {"kind": int(self.kind)} if self.kind >= 0 else {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.place += (action - 1) + self.np_random.random(2)
        info: dict[str, Any] = {"sum": float(self.place.sum())}
        if self.np_random.random() < 0.25:
            info["event"] = {"where": self.place.copy(), "name": f"event {self.t}"}
        terminated = bool(self.np_random.random() < self.ending)
        return self._observe(), float(self.place[0]), terminated, self.t == 40, info


class Noisy(Room):
    """Draws from the global generators as well."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += random.random() - np.random.random()
        return super().step(action)


class Rough(Room):
    """Raises in one trajectory of five."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        self.breaks = self.np_random.random() < 0.2
        return result

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.breaks and self.t == 2:
            raise RuntimeError("broken on purpose")
        return super().step(action)


class Counting(gymnasium.Env[Any, Any]):
    """Lasts 1 to `longest` timesteps; each observation is `width` times the number of the timestep."""

    action_space = spaces.Discrete(1 << 20)

    def __init__(self, longest: int = 10, width: int = 1) -> None:
        self.longest, self.width = longest, width
        self.observation_space = spaces.Box(-np.inf, np.inf, (width,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.t = 0
        self.length = int(self.np_random.integers(1, self.longest + 1))
        self.mark = int(self.np_random.integers(1 << 20))
        return np.full(self.width, self.mark, np.float32), {"mark": self.mark}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        last = self.t == self.length
        info: dict[str, Any] = {"t": self.t}
        if self.t % 3 == 0:
            info["third"] = {"of": np.array([self.mark, self.t])}
        observation = np.full(self.width, self.mark + self.t, np.float32)
        return observation, float(self.t), last and self.mark % 2 == 0, last and self.mark % 2 == 1, info


_SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(7, start=-3),
    "binary": spaces.MultiBinary((2, 3)),
    "several": spaces.MultiDiscrete([3, 5], dtype=np.int32),
    "image": spaces.Box(0, 255, (64, 64, 3), np.uint8),
    "integers": spaces.Box(-5, 5, (3,), np.int16),
    "tuple": spaces.Tuple((spaces.Discrete(4), spaces.Dict({"a": spaces.MultiBinary(3)}))),
}


class Shapes(gymnasium.Env[Any, Any]):
    """Shows elements of one space, drawn in each timestep."""

    action_space = spaces.Discrete(3)

    def __init__(self, name: str = "discrete") -> None:
        self.observation_space = _SPACES[name]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.observation_space.seed(seed)
        self.left = int(self.np_random.integers(1, 12))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self.observation_space.sample(), 0.5 * int(action), self.left == 0, False, {}


class Parameters:
    """Draws its actions from a generator of its own, from `random` and from `numpy.random`."""

    def __init__(self, parameter: int = 0) -> None:
        self.parameter = parameter

    def reset(self, seed: int) -> None:
        """Seed its generator."""
        self.generator = np.random.default_rng(seed)

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        """Draw an action, and tell what it was drawn from."""
        draws = {"own": self.generator.random(), "python": random.random(), "numpy": np.random.random()}
        return int(4 * sum(draws.values()) + self.parameter) % 3, draws

    def set_param_values(self, values: tuple[int]) -> None:
        """Set the parameter."""
        (self.parameter,) = values


class Batched:
    """Adds up what it is shown; several rows at a time, each by itself."""

    def __init__(self, parameter: int = 0) -> None:
        self.parameter = parameter

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        """Do what `get_actions` does with one row."""
        actions, infos = self.get_actions(observation[None])
        return int(actions[0]), {key: values[0] for key, values in infos.items()}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        """Return the sums of the rows, modulo 5, and the sums."""
        sums = observations.reshape(len(observations), -1).astype(np.int64).sum(axis=1) + self.parameter
        return sums % 5, {"sum": sums.astype(np.float32)}

    def set_param_values(self, values: tuple[int]) -> None:
        """Set the parameter."""
        (self.parameter,) = values


class Vector:
    """Makes `n` copies of `Counting` that are stepped together, in an autoreset mode."""

    def __init__(self, mode: str, n: int = 3) -> None:
        self.mode, self.n = mode, n

    def __call__(self) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        mode = gymnasium.vector.AutoresetMode[self.mode]
        return gymnasium.vector.SyncVectorEnv([Counting] * self.n, autoreset_mode=mode)
