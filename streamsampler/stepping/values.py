"""Observations or actions of all environments: stacked if their spaces have the same layout."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from streamsampler.core.errors import DataError
from streamsampler.data.spaces import AnySpace, row_spec
from streamsampler.data.trees import Array, leaves, map_tree, object_array, owned, snapshot
from streamsampler.workers.vec.columns import Columns, leaves_of, nested, sequence_of

Allocate = Callable[[tuple[int, ...], "np.dtype[Any]"], Array]


class EnvValues:
    """Values of each environment, checked against its space by the samplers' own code.

    Each has `n_slots` of them, in `arrays` shared with the other process if possible: leaves of (n_slots, n_envs, ...).
    If layouts differ, each environment has its own arrays, and `arrays` holds (n_slots, n_envs) objects, all None.
    """

    def __init__(
        self, spaces: Sequence[AnySpace], n_slots: int, path: str, error: type[DataError], allocate: Allocate, *,
        is_shared: bool = True,
    ) -> None:  # fmt: skip
        self._path, self._error, self.is_shared = path, error, is_shared
        # Whether values of an environment have parts without a fixed size.
        self.has_objects = any(row_spec(leaf)[1].hasobject for space in spaces for _, leaf in leaves_of(space, path))
        self.is_carried = self.has_objects or not is_shared  # whether parts lie outside shared memory
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
        # Of each environment: its writer, its row, its space, and its arrays.
        self._of = [(columns[group], row, spaces[e], own[group]) for e, (group, row) in enumerate(places)]

    def put(self, slot: int, env_id: int, value: Any) -> None:
        """Write a value; raise an error if it does not fit, or would become another number."""
        columns, row, _, _ = self._of[env_id]
        columns.put(slot, row, value)

    def put_some(self, slot: int, env_ids: list[int], values: Any) -> None:
        """Write values of K environments: stacked leaves of (K, ...), if layouts are equal, or a sequence.

        If any does not fit, none is written, and DataError raised.
        """
        if self.is_stacked:
            columns = self._of[0][0]
            try:
                checked = columns.checked(values, len(env_ids))
            except self._error as error:
                if error.row is None:
                    raise
                raise self._error(f"environment {env_ids[error.row]}: {error}") from error
            columns.put_checked(slot, place_of(env_ids), checked)
            return
        each = self._checked(env_ids, values)
        for env_id, checked in zip(env_ids, each, strict=True):
            self._of[env_id][0].put_converted(slot, 0, checked)

    def stacked(self, env_ids: list[int], values: list[Any]) -> Any:
        """Stack values in the form of `put_some`: leaves of (K, ...), or K objects."""
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
        """Copy the values of K environments, in a slot or in slots (K,): leaves of (K, ...), or K objects.

        A `place_of` for `env_ids` is quicker.
        """
        if self.is_stacked:
            if self.has_objects:
                return owned(map_tree(lambda leaf: leaf[slots, env_ids], self.arrays))
            if env_ids.__class__ is slice:
                return map_tree(lambda leaf: leaf[slots, env_ids].copy(), self.arrays)
            return map_tree(lambda leaf: leaf[slots, env_ids], self.arrays)
        if env_ids.__class__ is slice:
            env_ids = range(env_ids.start, env_ids.stop)
        both = np.broadcast_arrays(slots, env_ids)
        return object_array([self.read(slot, env_id) for slot, env_id in zip(*map(np.ravel, both), strict=True)])

    def read(self, slot: int, env_id: int) -> Any:
        """Copy a value, with the type of its space's own samples."""
        _, row, space, arrays = self._of[env_id]
        if arrays.__class__ is np.ndarray and arrays.ndim == 2 and not isinstance(space, gym_spaces.Box):
            value = arrays[slot, row]  # the general way takes ten times as long
            return snapshot(value) if self.has_objects else value
        return _row_at(space, arrays, (slot, row))

    def read_unstacked(self, slot: int, env_id: int) -> Any:
        """Copy a value, as Gymnasium's vector environments take it from a stack."""
        _, row, _, arrays = self._of[env_id]
        if arrays.__class__ is np.ndarray and arrays.ndim == 2:
            value = arrays[slot, row]  # the general way takes ten times as long
            return snapshot(value) if self.has_objects else value
        return unstacked(arrays, (slot, row))

    def view(self, slot: int, env_id: int) -> Any:
        """Return a value, overwritten later."""
        _, row, _, arrays = self._of[env_id]
        return map_tree(lambda leaf: leaf[slot, row], arrays)

    def parts(self, slot: int, env_id: int) -> list[tuple[str, Any]]:
        """Return each leaf's path and part, which are overwritten later."""
        _, row, _, arrays = self._of[env_id]
        return [(path, leaf[slot, row]) for path, leaf in leaves(arrays)]

    def put_exactly(self, slot: int, env_id: int, value: Any) -> bool:
        """Write a value if it would be read back unchanged; return whether it was written."""
        _, row, space, arrays = self._of[env_id]
        if arrays.__class__ is np.ndarray:  # quicker
            fits = _is_row(arrays, value)
            if fits:
                arrays[slot, row] = value
            return fits
        found: list[tuple[Array, Any]] = []
        fits = _fits_exactly(space, arrays, value, found)
        for leaf, part in found if fits else ():
            leaf[slot, row] = part
        return fits

    def carried(self, slot: int, env_id: int) -> list[Any]:
        """Return the parts outside shared memory, which are overwritten later."""
        _, row, _, arrays = self._of[env_id]
        return [leaf[slot, row] for leaf in self._carried_leaves(arrays)]

    def put_carried(self, slot: int, env_id: int, parts: Sequence[Any]) -> None:
        _, row, _, arrays = self._of[env_id]
        for leaf, value in zip(self._carried_leaves(arrays), parts, strict=True):
            leaf[slot, row] = value

    def _carried_leaves(self, arrays: Any) -> list[Array]:
        return [leaf for _, leaf in leaves(arrays) if leaf.dtype.hasobject or not self.is_shared]


def _layout_of(space: Any) -> Any:
    """Return the class, shape and dtype of each part, which determine the layout."""
    if isinstance(space, gym_spaces.Dict):
        return {key: _layout_of(child) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple(_layout_of(child) for child in space.spaces)
    return type(space), *row_spec(space)


def _arrays(space: AnySpace, shape: tuple[int, ...], allocate: Allocate) -> Any:
    specs = (row_spec(leaf) for _, leaf in leaves_of(space, ""))
    each = (np.full(shape, None) if it.hasobject else allocate((*shape, *of_row), it) for of_row, it in specs)
    return nested(space, each)


def _fits_exactly(space: AnySpace, arrays: Any, value: Any, found: list[tuple[Array, Any]]) -> bool:
    """Whether a value is nested like its space, and fits each leaf; fill `found` with arrays and parts."""
    if isinstance(space, gym_spaces.Dict):
        return (
            isinstance(value, dict)
            and value.keys() == arrays.keys()
            and all(_fits_exactly(child, arrays[key], value[key], found) for key, child in space.spaces.items())
        )
    if isinstance(space, gym_spaces.Tuple):
        return (
            isinstance(value, tuple)
            and len(value) == len(arrays)
            and all(_fits_exactly(child, arrays[i], value[i], found) for i, child in enumerate(space.spaces))
        )
    found.append((arrays, value))
    return _is_row(arrays, value)


def _is_row(leaf: Array, value: Any) -> bool:
    """Whether a value would be read back unchanged."""
    dtype = leaf.dtype
    if dtype.hasobject:
        return True
    fits = value.__class__ is dtype.type or (value.__class__ is np.ndarray and value.dtype == dtype)
    return fits and np.shape(value) == leaf.shape[2:]


def _row_at(space: AnySpace, arrays: Any, index: Any) -> Any:
    if isinstance(space, gym_spaces.Dict):
        return {key: _row_at(child, arrays[key], index) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple(_row_at(child, arrays[i], index) for i, child in enumerate(space.spaces))
    if arrays.dtype.hasobject:
        return snapshot(arrays[index])
    row = arrays[index]
    # A sample of a Box is always an array.
    return row if row.__class__ is not np.ndarray and not isinstance(space, gym_spaces.Box) else np.array(row)


def unstacked(arrays: Any, index: Any) -> Any:
    """Copy a value from a stack: a scalar if a leaf has no dimensions."""
    return map_tree(lambda leaf: snapshot(leaf[index]) if leaf.dtype.hasobject else leaf[index].copy(), arrays)


def place_of(env_ids: Sequence[int]) -> Any:
    """Return the index of environments in arrays: a slice for consecutive ones."""
    if env_ids:
        first, stop = env_ids[0], env_ids[-1] + 1
        if stop - first == len(env_ids) and (stop - first == 1 or list(env_ids) == _numbers(first, stop)):
            return slice(first, stop)
    return np.array(env_ids, np.intp)  # indexing with a list would make an array each time


@functools.lru_cache(64)
def _numbers(first: int, stop: int) -> list[int]:
    return list(range(first, stop))
