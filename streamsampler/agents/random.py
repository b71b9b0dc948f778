"""An agent of random actions."""

from __future__ import annotations

import copy
import operator
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from streamsampler.agents.masks import ACTION_MASK, MaskFinder, sample_masked
from streamsampler.core.errors import UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.data.trees import map_tree, n_rows_of


class RandomAgent:
    """Draws its actions uniformly from a space.

    A trajectory's actions depend on its seed alone: `DefaultWorker` and `VecWorker` draw the same. Where the
    environment has action masks (see the page `agents`), only allowed actions are drawn; in your own loop, pass masks
    that are not in observations.

    Args:
        action_space: The space; None for the environment's.

    Attributes:
        action_space: A copy of the space, seeded by the agent; None before `set_spaces`.

    Raises:
        UsageError: The argument is not a space.
    """

    row_independent = True

    @suggesting()
    def __init__(self, action_space: Space[Any] | None = None) -> None:
        if not (action_space is None or isinstance(action_space, Space)):
            raise UsageError(f"RandomAgent takes an action space, not {action_space!r}")
        # A space owns a generator: seeding the environment's own space would change the environment's draws.
        self.action_space = copy.deepcopy(action_space)
        self._from_env = action_space is None
        self._by_row: list[Space[Any]] = []

    def set_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:  # noqa: ARG002 - see Agent
        """Copy the environment's action space, unless a space was passed to the constructor."""
        if self._from_env:
            self.action_space = copy.deepcopy(action_space)
            self._by_row = []

    def reset(self, seed: int) -> None:
        """Seed the space at a trajectory's start."""
        self._space().seed(seed)

    def get_state(self) -> Any:
        """Return the generators' state in the middle of a trajectory."""
        return copy.deepcopy((self.action_space, self._by_row))

    def set_state(self, state: Any) -> None:
        """Set the generators' state; see `Agent`."""
        self.action_space, self._by_row = copy.deepcopy(state)

    def get_action(
        self, observation: Any, *, action_mask: NDArray[np.bool_] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Draw an action.

        Args:
            observation: An observation; its own mask counts if `action_mask` is None.
            action_mask: (k,) bool, the allowed actions.

        Raises:
            UsageError: The agent has no space yet.
        """
        space = self._space()
        if action_mask is None and isinstance(observation, dict):
            action_mask = _finder(space).find(observation, None)
        return _drawn(space, action_mask), {}

    def get_actions(
        self, observations: Any, *, starts: Any = None, seeds: Any = None, action_masks: NDArray[np.bool_] | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Draw n actions, each from its trajectory's own generator; infos are empty.

        Args:
            observations: Tree of (n, *O).
            starts: (n,) bool, the rows that start a trajectory.
            seeds: (n,) ints, the seeds of the rows' trajectories. None draws all actions from `action_space`.
            action_masks: (n, k) bool, each row's allowed actions; None for the observations' own masks.

        Raises:
            UsageError: The agent has no space yet, or the number of rows is unknown.
        """
        space = self._space()
        known = next((each for each in (seeds, starts, action_masks) if each is not None), None)
        n = n_rows_of(observations) if known is None else len(known)
        masks = _masks_in(space, observations, n) if action_masks is None else action_masks
        if seeds is None:
            return [_drawn(space, mask) for mask in masks], {}
        self._by_row += [copy.deepcopy(space) for _ in range(n - len(self._by_row))]
        for row in np.flatnonzero(starts).tolist():
            self._by_row[row].seed(int(seeds[row]))
        return [_drawn(mine, mask) for mine, mask in zip(self._by_row[:n], masks, strict=True)], {}

    def _space(self) -> Space[Any]:
        if self.action_space is None:
            raise UsageError(
                "this RandomAgent has no action space yet: samplers set the environment's; elsewhere pass the space: "
                "RandomAgent(env.action_space)"
            )
        return self.action_space


def _drawn(space: Space[Any], mask: NDArray[np.bool_] | None) -> Any:
    # A mask of all ones changes nothing; this test is faster than `all`, which takes 1 µs.
    return space.sample() if mask is None or b"\0" not in mask.tobytes() else sample_masked(space, mask)


def _masks_in(space: Space[Any], observations: Any, n: int) -> list[NDArray[np.bool_] | None]:
    """Return each row's mask in a batch of observations, or None."""
    if not isinstance(observations, dict) or ACTION_MASK not in observations:
        return [None] * n
    column, find = observations[ACTION_MASK], _finder(space).find
    rows = (map_tree(operator.itemgetter(row), column) for row in range(n))
    return [find({ACTION_MASK: each}, None) for each in rows]


def _finder(space: Space[Any]) -> MaskFinder:
    return MaskFinder(None, space, lambda _place, _text: None)
