"""One row for each environment: what its worker writes there alone, and what the parent writes there alone."""

from __future__ import annotations

import copy
import math
import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.trees import Array, map_tree
from streamsampler.errors import ActionError, ObservationError
from streamsampler.stepping.env_spaces import EnvSpaces
from streamsampler.stepping.env_values import Allocate, EnvValues, row_at

__all__ = ["Rows", "buffer_rows", "bytes_needed"]

_ALIGNMENT = 64


class Rows:
    """The rows of all environments; environment e has row e of every array.

    Observations are double-buffered: a result is written to the slot that the one before does not lie in, so that both
    stay readable until the next action is sent.

    Args:
        spaces: The spaces of each environment.
        allocate: Makes an array of zeros.

    Attributes:
        observations: Leaves of (2, n_envs, ...), by slot; written by the environment's worker.
        last_observations: Leaves of (n_envs, ...): the last observation of an episode where the environment was reset
            in the same step; written by the worker.
        actions: Leaves of (n_envs, ...); written by the parent.
        rewards, terminated, truncated: (n_envs,), of the last step; written by the worker.
        slots: (n_envs,) where the last observation lies; written by the worker.
        seeds: (n_envs,) the seed of each environment's next reset; written by the parent.
        parameters: (n_envs,) the number of the parameters that the last reset set, 0 for none; written by the worker.
        has_views: Whether the environments' observations lie in `observations`.
    """

    def __init__(self, spaces: EnvSpaces, allocate: Allocate) -> None:
        n_envs, self._spaces = len(spaces.observation), spaces
        self.observation_space, self.action_space = spaces.observation[0], spaces.action[0]
        self._observations = EnvValues(spaces.observation, 2, "observation", ObservationError, allocate)
        self._last = EnvValues(spaces.observation, 1, "observation", ObservationError, allocate)
        self._actions = EnvValues(spaces.action, 1, "action", ActionError, allocate)
        self.has_views = self._observations.is_stacked
        self.observations = self._observations.arrays
        self.last_observations, self.actions = (
            map_tree(operator.itemgetter(0), it.arrays) for it in (self._last, self._actions)
        )
        self.rewards: NDArray[np.float64] = allocate((n_envs,), np.dtype(np.float64))
        self.seeds: NDArray[np.int64] = allocate((n_envs,), np.dtype(np.int64))
        self.terminated: NDArray[np.bool_] = allocate((n_envs,), np.dtype(np.bool_))
        self.truncated: NDArray[np.bool_] = allocate((n_envs,), np.dtype(np.bool_))
        self.slots: NDArray[np.uint8] = allocate((n_envs,), np.dtype(np.uint8))
        self.parameters: NDArray[np.int64] = allocate((n_envs,), np.dtype(np.int64))
        # Of what can be copied as it is, where there is one leaf.
        only = self.observations if isinstance(self.observations, np.ndarray) else None
        self._dtype = None if only is None or only.dtype.hasobject else only.dtype
        self._shape = () if only is None else only.shape[2:]

    def put_observation(self, slot: int, env_id: int, value: Any) -> None:
        """Write an observation of an environment to a slot.

        Raises:
            ObservationError: It is of another structure, shape or kind than the space, or would become another number.
        """
        if value.__class__ is np.ndarray and value.dtype is self._dtype and value.shape == self._shape:
            self.observations[slot, env_id] = value
        else:
            self._observations.put(slot, env_id, value)

    def put_last_observation(self, env_id: int, value: Any) -> None:
        """Write the last observation of an episode; see `put_observation`."""
        self._last.put(0, env_id, value)

    def observation(self, env_id: int) -> Any:
        """Return a copy of the last observation of an environment."""
        return self._observations.read(self.slots[env_id], env_id)

    def taken_observations(self, slots: Any, ids: Any) -> Any:
        """Return copies of observations of environments; see `EnvValues.taken`."""
        return self._observations.taken(slots, ids)

    def taken_last_observations(self, ids: Any) -> Any:
        """Return copies of the last observations of environments."""
        return self._last.taken(0, ids)

    def taken_actions(self, ids: Any) -> Any:
        """Return copies of the actions of environments."""
        return self._actions.taken(0, ids)

    def view(self, slot: int, env_id: int) -> Any:
        """Return an observation of an environment, not to be kept."""
        return self._observations.view(slot, env_id)

    def new_value(self, env_id: int) -> EnvValues:
        """Return what takes an observation of one environment, in slot 0, as environment 0; nested as in the rows."""
        space = self._spaces.observation[0 if self.has_views else env_id]
        return EnvValues([space], 1, "observation", ObservationError, np.zeros)

    def kept_action(self, env_id: int, kept: Any, index: int) -> Any:
        """Return a copy of one of the actions of an environment that were kept, as `action` does."""
        if self._actions.is_stacked:
            return row_at(self._spaces.action[env_id], kept, index)
        return copy.deepcopy(kept[index])

    def action(self, env_id: int) -> Any:
        """Return a copy of the action of an environment, of the type that its space's own samples have."""
        return self._actions.read(0, env_id)

    def put_actions(self, env_ids: list[int], actions: Any) -> Any:
        """Write the actions of K environments; see `EnvValues.put_some`.

        Raises:
            ActionError: They are of another structure, shape or kind than the space, or of another number, or would
                become another number; nothing is written then.
        """
        return self._actions.put_some(0, env_ids, actions)

    def stacked_actions(self, env_ids: list[int], actions: list[Any]) -> Any:
        """Return actions as `put_actions` does, and write nothing."""
        return self._actions.stacked(env_ids, actions)


def bytes_needed(spaces: EnvSpaces) -> int:
    """Return how many bytes `buffer_rows` needs for rows."""
    total = 0

    def count(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        nonlocal total
        total += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        return np.broadcast_to(np.empty((), dtype), shape)  # of one number in memory

    Rows(spaces, count)
    return total


def buffer_rows(buffer: Any) -> Allocate:
    """Return a function that lays out arrays in a buffer of zeros, one after the other."""
    offset = 0

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        nonlocal offset
        array: Array = np.ndarray(shape, dtype, buffer, offset)
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return array

    return allocate
