"""An environment and an agent with data that reveal lost, repeated or mixed-up trajectories."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from streamsampler.core.keywords import suggesting

N_ACTIONS = 4

Observation = NDArray[np.float32]


class ScriptedEnv(gymnasium.Env[Observation, Any]):
    """An environment with random observations and rewards (plus the action), all determined by the seed.

    Args:
        length: Timesteps of a trajectory; or (least, most), the bounds for a random length.
        shape: The shape of the float32 observations. From a thousand numbers on they go through shared memory.
        seconds: The duration of a step, in which it sleeps.
    """

    @suggesting()
    def __init__(self, length: int | tuple[int, int] = 5, shape: tuple[int, ...] = (2,), seconds: float = 0.0) -> None:
        self.observation_space = spaces.Box(0, 1, shape, np.float32)
        self.action_space = spaces.Discrete(N_ACTIONS)
        self._lengths = (length, length) if isinstance(length, int) else length
        self._seconds = seconds
        self._left = 0

    def _observe(self) -> Observation:
        return self.np_random.random(self.observation_space.shape, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start a trajectory."""
        super().reset(seed=seed, options=options)
        self._left = int(self.np_random.integers(self._lengths[0], self._lengths[1] + 1))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Return random data."""
        if self._seconds:
            time.sleep(self._seconds)
        self._left -= 1
        reward = self.np_random.random() + float(action)
        return self._observe(), reward, self._left == 0, False, {}


class ScriptedAgent:
    """An agent with random actions plus a parameter, also in its infos.

    Args:
        offset: The parameter, an integer; ``{"offset": 2}`` is an update.
    """

    @suggesting()
    def __init__(self, offset: int = 0) -> None:
        self._offset = offset
        self._rng = np.random.default_rng()

    def reset(self, seed: int) -> None:
        """Seed the generator for a trajectory."""
        self._rng = np.random.default_rng(seed)

    def get_state(self) -> dict[str, Any]:
        """Return the generator's state."""
        return dict(self._rng.bit_generator.state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Set the generator's state."""
        self._rng.bit_generator.state = state

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:  # noqa: ARG002 - actions are random
        """Draw an action."""
        return (int(self._rng.integers(N_ACTIONS)) + self._offset) % N_ACTIONS, {"offset": self._offset}

    def get_param_values(self) -> dict[str, int]:
        """Return the parameter."""
        return {"offset": self._offset}

    def set_param_values(self, values: dict[str, int]) -> None:
        """Set the parameter."""
        self._offset = values["offset"]
