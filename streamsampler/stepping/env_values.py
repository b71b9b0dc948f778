"""Observations or actions, one of each environment: stacked where their spaces have one layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from streamsampler.data.spaces import AnySpace, row_spec
from streamsampler.data.trees import Array, leaves, map_tree, object_array
from streamsampler.errors import DataError, UsageError
from streamsampler.workers.vec.columns import Columns, sequence_of
from streamsampler.workers.vec.parts import nested

__all__ = ["Allocate", "EnvValues", "row_at"]

Allocate = Callable[[tuple[int, ...], "np.dtype[Any]"], Array]


class EnvValues:
    """Values of each environment, which are held to its space as what samplers record is: the same code does it.

    Args:
        spaces: The space of each environment.
        n_slots: How many values each environment has.
        path: What a value is called in errors.
        error: What is raised for a value that does not fit.
        allocate: Makes an array of zeros.

    Attributes:
        arrays: Leaves of (n_slots, n_envs, ...); where the layouts of spaces differ, each environment has arrays of its
            own, and these are (n_slots, n_envs) objects that are all None.
        is_stacked: Whether the spaces have one layout.
    """

    def __init__(
        self, spaces: Sequence[AnySpace], n_slots: int, path: str, error: type[DataError], allocate: Allocate
    ) -> None:
        self._path, self._error = path, error
        self.is_stacked = len({id(space) for space in spaces}) == 1 or all(
            _layout_of(space) == _layout_of(spaces[0]) for space in spaces
        )
        together = [(spaces[0], len(spaces))] if self.is_stacked else [(space, 1) for space in spaces]
        own = [_arrays(space, (n_slots, n), allocate) for space, n in together]
        self.arrays = own[0] if self.is_stacked else np.empty((n_slots, len(spaces)), object)
        columns = [
            Columns(space, n, path, error, (leaf for _, leaf in leaves(arrays)))
            for (space, n), arrays in zip(together, own, strict=True)
        ]
        places = [(0, e) if self.is_stacked else (e, 0) for e in range(len(spaces))]
        # Of each environment: how it is written, in which row, its space, and where it is read.
        self._of = [(columns[group], row, spaces[e], own[group]) for e, (group, row) in enumerate(places)]

    def put(self, slot: int, env_id: int, value: Any) -> None:
        """Write a value of an environment.

        Raises:
            DataError: It is of another structure, shape or kind than the space, or would become another number.
        """
        columns, row, _, _ = self._of[env_id]
        columns.put(slot, row, value)

    def put_some(self, slot: int, env_ids: list[int], values: Any) -> Any:
        """Write values of K environments.

        Args:
            slot: Where to.
            env_ids: The environments.
            values: One stacked value, leaves of (K, ...), if the spaces have one layout; or a sequence of K.

        Returns:
            What was written: leaves of (K, ...), or K objects; of the dtypes of the spaces.

        Raises:
            DataError: As `put`, or there is another number of them; nothing is written then.
        """
        if self.is_stacked:
            columns, _, space, _ = self._of[0]
            try:
                checked = columns.checked(values, len(env_ids))
            except self._error as error:
                if error.row is None:
                    raise
                raise self._error(f"environment {env_ids[error.row]}: {error}") from error
            columns.put_checked(slot, env_ids, checked)
            return nested(space, iter(checked))
        each = self._checked(env_ids, values)
        for env_id, checked in zip(env_ids, each, strict=True):
            self._of[env_id][0].put_checked(slot, [0], checked)
        return self.taken(slot, env_ids)

    def stacked(self, env_ids: list[int], values: list[Any]) -> Any:
        """Return values of K environments as `put_some` does, and write nothing."""
        if not env_ids:
            return map_tree(lambda leaf: leaf[0, :0].copy(), self.arrays)
        if self.is_stacked:
            columns, _, space, _ = self._of[0]
            return nested(space, iter(columns.checked(values, len(env_ids))))
        return object_array(values)

    def _checked(self, env_ids: list[int], values: Any) -> list[list[Any]]:
        path = f"{self._path}s of different spaces"
        each = []
        for env_id, value in zip(env_ids, sequence_of(values, len(env_ids), path, self._error), strict=True):
            try:
                each.append(self._of[env_id][0].converted(value))
            except self._error as error:
                raise self._error(f"environment {env_id}: {error}") from None
        return each

    def taken(self, slots: Any, env_ids: Any) -> Any:
        """Return copies of the values of K environments: leaves of (K, ...), or K objects.

        Args:
            slots: Where they lie: one number, or an array of (K,).
            env_ids: The environments.
        """
        if self.is_stacked:
            return map_tree(lambda leaf: leaf[slots, env_ids], self.arrays)
        both = np.broadcast_arrays(slots, env_ids)
        return object_array([self.read(slot, env_id) for slot, env_id in zip(*map(np.ravel, both), strict=True)])

    def read(self, slot: int, env_id: int) -> Any:
        """Return a copy of a value of an environment, of the type that its space's own samples have."""
        _, row, space, arrays = self._of[env_id]
        if arrays.__class__ is np.ndarray and arrays.ndim == 2 and not isinstance(space, gym_spaces.Box):
            return arrays[slot, row]  # what follows takes ten times as long
        return row_at(space, arrays, (slot, row))

    def view(self, slot: int, env_id: int) -> Any:
        """Return a value of an environment, not to be kept."""
        _, row, _, arrays = self._of[env_id]
        return map_tree(lambda leaf: leaf[slot, row], arrays)


def _layout_of(space: Any) -> Any:
    """Return what the layout of values depends on: of each part of a space its class, its shape and its dtype."""
    if isinstance(space, gym_spaces.Dict):
        return {key: _layout_of(child) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple(_layout_of(child) for child in space.spaces)
    return type(space), *row_spec(space)


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


def row_at(space: AnySpace, arrays: Any, index: Any) -> Any:
    """Return a copy of one value, of the type that the space's own samples have."""
    if isinstance(space, gym_spaces.Dict):
        return {key: row_at(child, arrays[key], index) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple(row_at(child, arrays[i], index) for i, child in enumerate(space.spaces))
    row = arrays[index]
    # A sample of a Box is always an array.
    return row if row.__class__ is not np.ndarray and not isinstance(space, gym_spaces.Box) else np.array(row)
