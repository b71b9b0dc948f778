"""One row for each environment: what its worker writes there alone, and what the parent writes there alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.data.spaces import AnySpace, row_spec
from streamsampler.data.trees import Array, Tree, leaves
from streamsampler.errors import ActionError, DataError, ObservationError, UsageError
from streamsampler.workers.vec.columns import Columns

__all__ = ["Allocate", "Rows", "buffer_rows", "bytes_needed", "row_at"]

Allocate = Callable[[tuple[int, ...], "np.dtype[Any]"], Array]

_ALIGNMENT = 64


class Rows:
    """The rows of all environments; environment e has row e of every array.

    Observations are double-buffered: a result is written to the slot that the one before does not lie in, so that both
    stay readable until the next action is sent.

    Args:
        observation_space: The observation space of each environment.
        action_space: The action space of each environment.
        n_envs: How many environments there are.
        allocate: Makes an array of zeros.

    Attributes:
        observations: Leaves of (2, n_envs, ...), by slot; written by the environment's worker.
        last_observations: Leaves of (n_envs, ...): the last observation of an episode where the environment was reset
            in the same step; written by the worker.
        rewards, terminated, truncated: (n_envs,), of the last step; written by the worker.
        slots: (n_envs,) where the last observation lies; written by the worker.
        actions: Leaves of (n_envs, ...); written by the parent.
        seeds: (n_envs,) the seed of each environment's next reset; written by the parent.
        parameters: (n_envs,) the number of the parameters that the last reset set, 0 for none; written by the worker.
    """

    def __init__(self, observation_space: AnySpace, action_space: AnySpace, n_envs: int, allocate: Allocate) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.observations = _arrays(observation_space, (2, n_envs), allocate)
        self.last_observations = _arrays(observation_space, (n_envs,), allocate)
        self.actions = _arrays(action_space, (n_envs,), allocate)
        self.rewards: NDArray[np.float64] = allocate((n_envs,), np.dtype(np.float64))
        self.seeds: NDArray[np.int64] = allocate((n_envs,), np.dtype(np.int64))
        self.terminated: NDArray[np.bool_] = allocate((n_envs,), np.dtype(np.bool_))
        self.truncated: NDArray[np.bool_] = allocate((n_envs,), np.dtype(np.bool_))
        self.slots: NDArray[np.uint8] = allocate((n_envs,), np.dtype(np.uint8))
        self.parameters: NDArray[np.int64] = allocate((n_envs,), np.dtype(np.int64))
        # What is written is held to the spaces as what samplers record is: the same code does it.
        observations, last_observations, actions = self.observations, self.last_observations, self.actions
        self._observations = _columns(observation_space, n_envs, "observation", ObservationError, observations)
        # Of what can be copied as it is, where there is one leaf.
        only = observations if isinstance(observations, np.ndarray) else None
        self._dtype = None if only is None else only.dtype
        self._shape = () if only is None else only.shape[2:]
        self._last = _columns(observation_space, n_envs, "observation", ObservationError, last_observations, True)
        self._actions = _columns(action_space, n_envs, "action", ActionError, actions, True)

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

    def put_actions(self, env_ids: list[int], actions: Any) -> Tree:
        """Write the actions of K environments.

        Args:
            env_ids: The environments.
            actions: One stacked value, leaves of (K, ...); or a sequence of K actions.

        Returns:
            The actions that were written: leaves of (K, ...), of the dtypes of the space.

        Raises:
            ActionError: They are of another structure, shape or kind than the space, or of another number, or would
                become another number; nothing is written then.
        """
        return self._actions.put_some(0, env_ids, actions)


def _columns(
    space: AnySpace, n_envs: int, path: str, error: type[DataError], arrays: Any, is_one_step: bool = False
) -> Columns:
    buffers = [leaf[np.newaxis] if is_one_step else leaf for _, leaf in leaves(arrays)]
    return Columns(space, n_envs, path, error, buffers)


def _arrays(space: AnySpace, shape: tuple[int, ...], allocate: Allocate) -> Any:
    if isinstance(space, gym_spaces.Dict):
        return {key: _arrays(child, shape, allocate) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple(_arrays(child, shape, allocate) for child in space.spaces)
    row_shape, dtype = row_spec(space)
    if dtype.hasobject:
        raise UsageError(
            f"environments that are stepped from the parent have spaces of arrays, nested or not; "
            f"{space} is none: flatten it, or use a sampler"
        )
    return allocate((*shape, *row_shape), dtype)


def bytes_needed(observation_space: AnySpace, action_space: AnySpace, n_envs: int) -> int:
    """Return how many bytes `buffer_rows` needs for rows."""
    total = 0

    def count(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        nonlocal total
        total += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        return np.empty(0, dtype)

    Rows(observation_space, action_space, n_envs, count)
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


def row_at(space: AnySpace, arrays: Any, env_id: int) -> Any:
    """Return a copy of one row of actions, of the type that the space's own samples have."""
    if isinstance(space, gym_spaces.Dict):
        return {key: row_at(child, arrays[key], env_id) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple(row_at(child, arrays[i], env_id) for i, child in enumerate(space.spaces))
    is_scalar = arrays.ndim == 1 and not isinstance(space, gym_spaces.Box)  # a sample of a Box is always an array
    return arrays[env_id] if is_scalar else np.array(arrays[env_id])
