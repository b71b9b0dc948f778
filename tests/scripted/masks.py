"""Environments that say which actions they allow, and refuse all others; and agents that take that."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from streamsampler.agents.masks import mask_size

PLACES = ("observation", "info", "method")
SPACES: dict[str, Any] = {
    "discrete": spaces.Discrete(6, start=2),
    "multi": spaces.MultiDiscrete([3, 4]),
    "nested multi": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "binary": spaces.MultiBinary(3),
    "nested binary": spaces.MultiBinary((2, 2)),
}


def parts_of(space: Any) -> list[int]:
    """How many values each part of an action has."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    return space.nvec.ravel().tolist() if isinstance(space, spaces.MultiDiscrete) else [2] * int(np.prod(space.shape))


def allowed(space: Any, episode: int, t: int) -> Any:
    """The mask of a timestep: not all is allowed, and something is of each part."""
    mask = np.random.default_rng([episode, t]).random(mask_size(space)) < 0.4
    first = 0
    for n in parts_of(space):
        mask[first + (episode + t) % n] = True
        first += n
    return mask


def is_allowed(space: Any, mask: Any, action: Any) -> bool:
    values = np.ravel(action) - np.ravel(getattr(space, "start", 0))
    ends = np.cumsum(parts_of(space))[:-1]
    return all(part[value] for part, value in zip(np.split(mask, ends), values, strict=True))


class Masked(gymnasium.Env):
    """Shows the number of its episode and the timestep, refuses what it does not allow, and says what it allows.

    Every fourth timestep everything is allowed; then an info says nothing.
    """

    def __init__(self, place: str = "info", space: str = "discrete") -> None:
        self.place, self.action_space = place, SPACES[space]
        numbers = spaces.Box(0, 1000, (2,), np.float32)
        size = mask_size(self.action_space) or 0
        masked = spaces.Dict({"numbers": numbers, "action_mask": spaces.MultiBinary(size)})
        self.observation_space: Any = masked if place == "observation" else numbers

    def mask(self) -> Any:
        mask = allowed(self.action_space, self.episode, self.t)
        return mask if self.t % 4 < 3 else np.ones_like(mask)

    def said(self) -> Any:
        numbers = np.array([self.episode, self.t], np.float32)
        if self.place == "observation":
            return {"numbers": numbers, "action_mask": self.mask().astype(np.int8)}, {}
        return numbers, {"action_mask": self.mask().astype(np.int8)} if self.place == "info" and self.t % 4 < 3 else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = int(self.np_random.integers(1, 900)), 0
        return self.said()

    def step(self, action):
        if not is_allowed(self.action_space, self.mask(), action):
            raise ValueError(f"{action} is not allowed in timestep {self.t} of episode {self.episode}")
        self.t += 1
        observation, info = self.said()
        return observation, 1.0, self.t == 4 + self.episode % 9, False, info


class ByMethod(Masked):
    def __init__(self, space: str = "discrete") -> None:
        super().__init__("method", space)

    def action_masks(self) -> Any:
        return self.mask()


def make(place: str, space: str = "discrete") -> Any:
    return ByMethod(space) if place == "method" else Masked(place, space)


def assert_masks(batch: Any) -> None:
    """What each action was chosen with is the mask of its observation."""
    numbers = batch.observations["numbers"] if isinstance(batch.observations, dict) else batch.observations
    expected = [
        allowed(SPACES["discrete"], *map(int, each)) if each[1] % 4 < 3 else np.ones(6, bool) for each in numbers
    ]
    assert np.array_equal(batch.agent_infos["mask"], expected)
    assert not np.all(expected)


class Alone:
    """Draws among the actions that are allowed, and says what it was given. It may change that."""

    def reset(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def get_state(self) -> Any:
        return self.rng

    def set_state(self, state: Any) -> None:
        self.rng = state

    def get_action(self, observation: Any, *, action_mask: Any) -> Any:
        assert (action_mask.dtype, action_mask.shape) == (np.bool_, (6,))
        given = action_mask.copy()
        action_mask[:] = True
        return 2 + int(self.rng.choice(np.flatnonzero(given))), {"mask": given}


class InRows:
    """Does so for several rows, of which none depends on another one."""

    row_independent = True

    def get_actions(self, observations: Any, *, action_masks: Any, draws: Any) -> Any:
        given = action_masks.copy()
        action_masks[:] = True
        drawn = [
            2 + np.flatnonzero(mask)[int(number * mask.sum())]
            for mask, number in zip(given, draws.random(), strict=True)
        ]
        return np.array(drawn), {"mask": given}

    def get_action(self, observation: Any) -> Any:
        raise NotImplementedError


class InBlocks(InRows):
    row_independent = False


class Overwriting:
    """Hooks that change what they are shown."""

    def on_trajectory_start(self, context: Any) -> None:
        self.on_timestep(context)

    def on_timestep(self, context: Any) -> None:
        if "action_mask" in context.info:
            context.info["action_mask"][:] = 0
