"""One row for each environment: what its worker writes there alone, and what the parent writes there alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.data.spaces import AnySpace, row_spec
from streamsampler.data.trees import Array, Tree
from streamsampler.errors import ActionError, DataError, ObservationError, UsageError

__all__ = ["Allocate", "Rows", "buffer_rows", "bytes_needed", "put", "put_actions", "row_at"]

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
        running: (n_envs,), by worker number: which environment the worker runs, see `running_env`; written by the
            worker.
        replayed: (n_envs,), by worker number: how many timesteps the worker has run only to restore environments;
            written by the worker.
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
        self.running: NDArray[np.int64] = allocate((n_envs,), np.dtype(np.int64))
        self.replayed: NDArray[np.int64] = allocate((n_envs,), np.dtype(np.int64))
        self.parameters: NDArray[np.int64] = allocate((n_envs,), np.dtype(np.int64))


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


def put(arrays: Any, index: Any, value: Any, path: str, error: type[DataError] = ObservationError) -> None:
    """Copy one value of a space into a row.

    Args:
        arrays: The leaves.
        index: The row.
        value: The value, nested as the leaves are.
        path: What it is called in an error.
        error: The error for a value of another structure, shape or kind.

    Raises:
        DataError: It does not fit; the error says both shapes.
    """
    if arrays.__class__ is not np.ndarray:
        _put_parts(arrays, index, value, path, error)
        return
    shape = arrays.shape[2:] if index.__class__ is tuple else arrays.shape[1:]
    value = np.asarray(value)
    if value.shape != shape:
        raise error(f"{path} has the shape {value.shape}, and its space has {shape}")
    if value.dtype != arrays.dtype and not np.can_cast(value.dtype, arrays.dtype, "same_kind"):
        raise error(f"{path} has the dtype {value.dtype}, and its space has {arrays.dtype}")
    arrays[index] = value


def _put_parts(arrays: Any, index: Any, value: Any, path: str, error: type[DataError]) -> None:
    if isinstance(arrays, dict):
        if not isinstance(value, dict) or value.keys() != arrays.keys():
            has = f"the keys {list(value)}" if isinstance(value, dict) else f"the type {type(value).__name__}"
            raise error(f"{path} has {has}, and its space has the keys {list(arrays)}")
        for key, child in arrays.items():
            put(child, index, value[key], f"{path}[{key!r}]", error)
        return
    if not isinstance(value, tuple | list) or len(value) != len(arrays):
        raise error(f"{path} should be a tuple of {len(arrays)} parts, and is of type {type(value).__name__}")
    for position, child in enumerate(arrays):
        put(child, index, value[position], f"{path}[{position}]", error)


def row_at(space: AnySpace, arrays: Any, env_id: int) -> Any:
    """Return a copy of one row of actions, of the type that the space's own samples have."""
    if isinstance(space, gym_spaces.Dict):
        return {key: row_at(child, arrays[key], env_id) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple(row_at(child, arrays[i], env_id) for i, child in enumerate(space.spaces))
    is_scalar = arrays.ndim == 1 and not isinstance(space, gym_spaces.Box)  # a sample of a Box is always an array
    return arrays[env_id] if is_scalar else np.array(arrays[env_id])


def put_actions(rows: Rows, env_ids: list[int], actions: Any) -> Tree:
    """Write actions into the rows of environments.

    Args:
        rows: The rows.
        env_ids: The environments.
        actions: One stacked value: leaves of (K, ...).

    Returns:
        The actions that were written: arrays of the space's dtype.

    Raises:
        ActionError: They are of another structure, shape or kind than the space, or of another number.
    """
    written: Tree = _put_stacked(rows.actions, env_ids, actions, "actions")
    return written


def _put_stacked(arrays: Any, env_ids: list[int], values: Any, path: str) -> Any:
    if isinstance(arrays, dict):
        if not isinstance(values, dict) or values.keys() != arrays.keys():
            raise ActionError(f"{path} should be a dict with the keys {list(arrays)}, got {type(values).__name__}")
        return {key: _put_stacked(arrays[key], env_ids, values[key], f"{path}[{key!r}]") for key in arrays}
    if isinstance(arrays, tuple):
        if not isinstance(values, tuple | list) or len(values) != len(arrays):
            raise ActionError(f"{path} should be a tuple of {len(arrays)} parts, got {type(values).__name__}")
        return tuple(_put_stacked(part, env_ids, values[i], f"{path}[{i}]") for i, part in enumerate(arrays))
    try:
        stacked = np.asarray(values)
    except ValueError as error:
        raise ActionError(f"{path} cannot be one array: {error}") from None
    shape = (len(env_ids), *arrays.shape[1:])
    if stacked.shape != shape:
        raise ActionError(f"{path} has the shape {stacked.shape}, and {len(env_ids)} environments take {shape}")
    if stacked.dtype != arrays.dtype and not np.can_cast(stacked.dtype, arrays.dtype, "same_kind"):
        raise ActionError(f"{path} has the dtype {stacked.dtype}, and the action space has {arrays.dtype}")
    arrays[env_ids] = stacked
    return arrays[env_ids]
