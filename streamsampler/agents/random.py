"""The agent that draws its actions, whatever it sees but a mask of actions."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Space

from streamsampler.core.errors import UsageError
from streamsampler.data.trees import leaves

_MASK = "action_mask"


class RandomAgent:
    """Draws its actions uniformly from a space.

    A trajectory's actions depend on its seed alone: they are the same with `DefaultWorker` and `VecWorker`. Where an
    observation is a dict with an "action_mask", as in PettingZoo's games, actions of a Discrete space are drawn among
    those that it allows.

    Args:
        action_space: The space; None for the environment's.

    Attributes:
        action_space: Its own copy of the space, which it seeds; None until it is there.

    Raises:
        UsageError: It is no space.
    """

    row_independent = True

    def __init__(self, action_space: Space[Any] | None = None) -> None:
        if not (action_space is None or isinstance(action_space, Space)):
            raise UsageError(f"RandomAgent takes an action space, not {action_space!r}")
        # A space owns a generator: seeding the environment's would change what the environment draws from it.
        self.action_space = copy.deepcopy(action_space)
        self._from_env = action_space is None
        self._by_row: list[Space[Any]] = []

    def set_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:  # noqa: ARG002 - see Agent
        """Take the environment's action space, unless one was given."""
        if self._from_env:
            self.action_space = copy.deepcopy(action_space)
            self._by_row = []

    def reset(self, seed: int) -> None:
        """Seed the space at a trajectory's start.

        Args:
            seed: The trajectory's seed for its agent.

        Raises:
            UsageError: There is no space yet.
        """
        self._space().seed(seed)

    def get_state(self) -> Any:
        """Return what a trajectory has made of the generators, for `set_state`."""
        return copy.deepcopy((self.action_space, self._by_row))

    def set_state(self, state: Any) -> None:
        """Go on where another copy of this agent was when `get_state` returned `state`."""
        self.action_space, self._by_row = copy.deepcopy(state)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Draw an action, of those that the observation's mask allows if it has one.

        Raises:
            UsageError: There is no space yet.
        """
        space = self._space()
        if observation.__class__ is dict and _MASK in observation and isinstance(space, Discrete):
            return space.sample(mask=np.asarray(observation[_MASK], np.int8)), {}
        return space.sample(), {}

    def get_actions(
        self, observations: Any, *, starts: Any = None, seeds: Any = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Draw n actions, each from its trajectory's own generator.

        Args:
            observations: Tree of (n, *O).
            starts: (n,) bool: which rows begin a trajectory.
            seeds: (n,) ints: the seed of each row's trajectory. None draws all actions from `action_space`.

        Returns:
            The actions, a list of n, and no infos.

        Raises:
            UsageError: There is no space yet.
        """
        space = self._space()
        has_masks = isinstance(observations, dict) and _MASK in observations and isinstance(space, Discrete)
        masks = np.asarray(observations[_MASK], np.int8) if has_masks else [None] * len(next(leaves(observations))[1])
        if seeds is None:
            return [space.sample(mask=mask) for mask in masks], {}
        self._by_row += [copy.deepcopy(space) for _ in range(len(seeds) - len(self._by_row))]
        for row in np.flatnonzero(starts).tolist():
            self._by_row[row].seed(int(seeds[row]))
        return [mine.sample(mask=mask) for mine, mask in zip(self._by_row[: len(seeds)], masks, strict=True)], {}

    def _space(self) -> Space[Any]:
        if self.action_space is None:
            raise UsageError(
                "this RandomAgent has no action space yet: samplers give it the environment's; elsewhere make it with "
                "one, RandomAgent(env.action_space)"
            )
        return self.action_space
