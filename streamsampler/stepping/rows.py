"""One row for each environment: what its worker writes there alone, and what the parent writes there alone.

Leaves of spaces whose values are arrays of one size lie in memory that both share. Values of others (Text, Sequence,
Graph, OneOf, custom spaces) are Python objects, of which each of the two has its own: they travel in messages, see
`stepping.objects`. Where the two share no memory, all travels so.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.core.errors import ActionError, DataError, ObservationError
from streamsampler.data.spaces import AnySpace, row_spec, same_space
from streamsampler.data.trees import Array, leaves, map_tree, object_array, owned, snapshot
from streamsampler.stepping.call_errors import DifferentSpacesError
from streamsampler.workers.vec.columns import Columns, leaves_of, nested, sequence_of, values_of

# ----------------------------------------------------------------------
# Observations or actions, one of each environment: stacked where their spaces have one layout.


Allocate = Callable[[tuple[int, ...], "np.dtype[Any]"], Array]


class EnvValues:
    """Values of each environment, which are held to its space as what samplers record is: the same code does it.

    Args:
        spaces: The space of each environment.
        n_slots: How many values each environment has.
        path: What a value is called in errors.
        error: What is raised for a value that does not fit.
        allocate: Makes an array of zeros, for leaves that are no objects.
        is_shared: Whether these arrays are those of the other process, too.

    Attributes:
        arrays: Leaves of (n_slots, n_envs, ...); where the layouts of spaces differ, each environment has arrays of its
            own, and these are (n_slots, n_envs) objects that are all None.
        is_stacked: Whether the spaces have one layout.
        has_objects: Whether values of an environment have parts that are no arrays of one size.
        is_shared: As above.
    """

    def __init__(
        self, spaces: Sequence[AnySpace], n_slots: int, path: str, error: type[DataError], allocate: Allocate, *,
        is_shared: bool = True,
    ) -> None:  # fmt: skip
        self._path, self._error, self.is_shared = path, error, is_shared
        self.has_objects = any(row_spec(leaf)[1].hasobject for space in spaces for _, leaf in leaves_of(space, path))
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

    def put_some(self, slot: int, env_ids: list[int], values: Any) -> None:
        """Write values of K environments.

        Args:
            slot: Where to.
            env_ids: The environments.
            values: One stacked value, leaves of (K, ...), if the spaces have one layout; or a sequence of K.

        Raises:
            DataError: As `put`, or there is another number of them; nothing is written then.
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
        """Return values of K environments as `put_some` writes them: leaves of (K, ...), or K objects."""
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
            env_ids: The environments; their `place_of` will do, which is quicker.
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
        """Return a copy of a value of an environment, of the type that its space's own samples have."""
        _, row, space, arrays = self._of[env_id]
        if arrays.__class__ is np.ndarray and arrays.ndim == 2 and not isinstance(space, gym_spaces.Box):
            value = arrays[slot, row]  # what follows takes ten times as long
            return snapshot(value) if self.has_objects else value
        return _row_at(space, arrays, (slot, row))

    def read_unstacked(self, slot: int, env_id: int) -> Any:
        """Return a copy of a value of an environment, as Gymnasium's vector environments take it from a stack.

        A value of `Box(())` is a scalar then.
        """
        _, row, _, arrays = self._of[env_id]
        if arrays.__class__ is np.ndarray and arrays.ndim == 2:
            value = arrays[slot, row]  # what follows takes ten times as long
            return snapshot(value) if self.has_objects else value
        return _unstacked(arrays, (slot, row))

    def view(self, slot: int, env_id: int) -> Any:
        """Return a value of an environment, not to be kept."""
        _, row, _, arrays = self._of[env_id]
        return map_tree(lambda leaf: leaf[slot, row], arrays)

    def parts(self, slot: int, env_id: int) -> list[tuple[str, Any]]:
        """Return what each leaf has of a value of an environment, with its path: not to be kept."""
        _, row, _, arrays = self._of[env_id]
        return [(path, leaf[slot, row]) for path, leaf in leaves(arrays)]

    def put_exactly(self, slot: int, env_id: int, value: Any) -> bool:
        """Write a value of an environment; return False, and write nothing, where it would be read as another one."""
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

    @property
    def is_carried(self) -> bool:
        """Whether a value has parts that the other process does not see."""
        return self.has_objects or not self.is_shared

    def carried(self, slot: int, env_id: int) -> list[Any]:
        """Return the parts of a value of an environment that the other process does not see: not to be kept."""
        _, row, _, arrays = self._of[env_id]
        return [leaf[slot, row] for leaf in self._carried_leaves(arrays)]

    def put_carried(self, slot: int, env_id: int, parts: Sequence[Any]) -> None:
        """Write what `carried` returned in the other process."""
        _, row, _, arrays = self._of[env_id]
        for leaf, value in zip(self._carried_leaves(arrays), parts, strict=True):
            leaf[slot, row] = value

    def _carried_leaves(self, arrays: Any) -> list[Array]:
        return [leaf for _, leaf in leaves(arrays) if leaf.dtype.hasobject or not self.is_shared]


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
    return np.full(shape, None) if dtype.hasobject else allocate((*shape, *row_shape), dtype)


def _fits_exactly(space: AnySpace, arrays: Any, value: Any, found: list[tuple[Array, Any]]) -> bool:
    """Whether a value is nested as its space, and has the dtype and shape of each leaf.

    Args:
        space: The space.
        arrays: Where values are written.
        value: The value.
        found: Gets each leaf's array, and what is to be written there.
    """
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
    """Whether a value is just what is read when it has been written to a leaf."""
    dtype = leaf.dtype
    if dtype.hasobject:
        return True
    fits = value.__class__ is dtype.type or (value.__class__ is np.ndarray and value.dtype == dtype)
    return fits and np.shape(value) == leaf.shape[2:]


def _row_at(space: AnySpace, arrays: Any, index: Any) -> Any:
    """Return a copy of one value, of the type that the space's own samples have."""
    if isinstance(space, gym_spaces.Dict):
        return {key: _row_at(child, arrays[key], index) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple(_row_at(child, arrays[i], index) for i, child in enumerate(space.spaces))
    if arrays.dtype.hasobject:
        return snapshot(arrays[index])
    row = arrays[index]
    # A sample of a Box is always an array.
    return row if row.__class__ is not np.ndarray and not isinstance(space, gym_spaces.Box) else np.array(row)


def _unstacked(arrays: Any, index: Any) -> Any:
    """Return a copy of one of several stacked values."""
    return map_tree(lambda leaf: _copied(leaf, index), arrays)


def _copied(leaf: Array, index: Any) -> Any:
    """Return a copy of what lies in a leaf: a scalar where it has no dimensions."""
    return snapshot(leaf[index]) if leaf.dtype.hasobject else leaf[index].copy()


# ----------------------------------------------------------------------
# The spaces of a manager's environments, which may differ.


Kind: TypeAlias = Literal["observation", "action"]

KINDS: tuple[Kind, ...] = ("observation", "action")


class EnvSpaces:
    """The observation space and the action space of each environment.

    Args:
        pairs: (observation space, action space) of each environment.

    Attributes:
        observation: The observation space of each environment; the same object where spaces are equal to the first one.
        action: The action spaces, likewise.
    """

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        self.observation, self.action = (
            tuple(each[0] if same_space(space, each[0]) else space for space in each)
            for each in zip(*pairs, strict=True)
        )

    def common(self, kind: Kind) -> Any:
        """Return the space that all environments have.

        Args:
            kind: Which one.

        Raises:
            UsageError: Those of two environments differ; shows both.
        """
        each = self.observation if kind == "observation" else self.action
        first = each[0]
        for env_id, space in enumerate(each):
            if space is not first:
                raise DifferentSpacesError(
                    f"{_differs(kind, env_id, space, first)}: here all environments must have the same {kind} space; "
                    f"{kind}_spaces of a manager has those of each"
                )
        return first


def _differs(kind: Kind, env_id: int, space: Any, first: Any) -> str:
    return f"the {kind} space of environment {env_id} is {space}, and that of environment 0 is {first}"


# ----------------------------------------------------------------------


_ALIGNMENT = 64

CarriedResult: TypeAlias = tuple[int, list[Any], list[Any] | None, list[Any] | None]
"""What the parent does not see of a result: the slot of the observation; parts of the observation, and of an episode's
last one; and, where nothing is shared, the numbers."""


class Rows:
    """The rows of all environments; environment e has row e of every array.

    Observations are double-buffered: a result is written to the slot that the one before does not lie in, so that both
    stay readable until the next action is sent.

    Args:
        spaces: The spaces of each environment.
        allocate: Makes an array of zeros.
        is_shared: Whether the worker and the parent have the same arrays, and not their own ones.

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
        is_shared: As above.
        observations_have_objects: Whether some parts of them are no arrays of one size.
        plain_dtype, plain_shape, plain_leaves: Where observations are one array, its dtype and shape, and by slot where
            they are written, (n_envs, ...): one of just these is written as it is, which is quicker.
        observations_are_carried, actions_are_carried: Whether some parts of them come in messages, because they are no
            arrays of one size, or nothing is shared: see `stepping.objects`.
    """

    def __init__(self, spaces: EnvSpaces, allocate: Allocate, *, is_shared: bool = True) -> None:
        n_envs, self._spaces = len(spaces.observation), spaces
        self.observation_space, self.action_space = spaces.observation[0], spaces.action[0]
        observations = partial(
            EnvValues, spaces.observation, path="observation", error=ObservationError, allocate=allocate,
            is_shared=is_shared,
        )  # fmt: skip
        self._observations, self._last = observations(n_slots=2), observations(n_slots=1)
        self._actions = EnvValues(spaces.action, 1, "action", ActionError, allocate, is_shared=is_shared)
        self.has_views = self._observations.is_stacked
        self.is_shared = is_shared
        self.observations_have_objects = self._observations.has_objects
        self.observations_are_carried = self._observations.is_carried
        self.actions_are_carried = self._actions.is_carried
        self._ended: set[int] = set()  # environments with a last observation that was not carried yet
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
        only = self.observations if isinstance(self.observations, np.ndarray) else None
        self.plain_dtype = None if only is None or only.dtype.hasobject else only.dtype
        self.plain_shape = () if only is None else only.shape[2:]
        self.plain_leaves: Sequence[Any] = () if only is None else tuple(only)

    def put_observation(self, slot: int, env_id: int, value: Any) -> None:
        """Write an observation of an environment to a slot.

        Raises:
            ObservationError: It is of another structure, shape or kind than the space, or would become another number.
        """
        if value.__class__ is np.ndarray and value.dtype is self.plain_dtype and value.shape == self.plain_shape:
            self.plain_leaves[slot][env_id] = value
        else:
            self._observations.put(slot, env_id, value)

    def free_slots(self, place: Any) -> list[int]:
        """Return, of each environment of a place, the slot that its last observation does not lie in."""
        slots = self.slots[place]
        n_second = np.count_nonzero(slots)
        if n_second == 0 or n_second == len(slots):
            return [int(n_second == 0)] * len(slots)
        free: list[int] = (1 - slots).tolist()
        return free

    def put_results(self, place: Any, rewards: list[Any]) -> None:
        """Write the rewards of the environments of a place, and that their last observations lie in the free slots."""
        self.slots[place] ^= 1
        self.rewards[place] = rewards

    def put_last_observation(self, env_id: int, value: Any) -> None:
        """Write the last observation of an episode; see `put_observation`."""
        if value.__class__ is np.ndarray and value.dtype is self.plain_dtype and value.shape == self.plain_shape:
            self.last_observations[env_id] = value
        else:
            self._last.put(0, env_id, value)
        if self.observations_are_carried:
            self._ended.add(env_id)

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
            return _unstacked(kept, index)
        space = self._spaces.action[env_id]
        parts = values_of(space, kept[index], "action", ActionError)
        of_leaves = zip(leaves_of(space, "action"), parts, strict=True)
        return nested(space, (_alone(leaf, part) for (_, leaf), part in of_leaves))

    def action(self, env_id: int) -> Any:
        """Return a copy of the action of an environment, as `VecWorker` and Gymnasium's vector environments pass it."""
        return self._actions.read_unstacked(0, env_id)

    def actions_of(self, env_ids: Sequence[int], place: Any) -> Sequence[Any]:
        """Return the actions of environments, whose place is known; see `action`."""
        actions = self.actions
        if actions.__class__ is not np.ndarray or actions.dtype.hasobject:
            return [self.action(env_id) for env_id in env_ids]
        return list(actions[place] if actions.ndim == 1 else actions[place].copy())  # of one dimension: no views

    def put_action_exactly(self, env_id: int, action: Any) -> bool:
        """Write the action of an environment; see `EnvValues.put_exactly`."""
        return self._actions.put_exactly(0, env_id, action)

    def put_actions(self, env_ids: list[int], actions: Any) -> None:
        """Write the actions of K environments; see `EnvValues.put_some`.

        Raises:
            ActionError: They are of another structure, shape or kind than the space, or of another number, or would
                become another number; nothing is written then.
        """
        self._actions.put_some(0, env_ids, actions)

    def put_all_actions(self, actions: Any) -> None:
        """Write the actions of all environments, in order; see `put_actions`."""
        kept = self.actions
        is_plain = kept.__class__ is np.ndarray and not kept.dtype.hasobject and actions.__class__ is np.ndarray
        if is_plain and actions.dtype is kept.dtype and actions.shape == kept.shape:
            kept[...] = actions
        else:
            self.put_actions(list(range(len(self.rewards))), actions)

    def stacked_actions(self, env_ids: list[int], actions: list[Any]) -> Any:
        """Return actions as `put_actions` writes them."""
        return self._actions.stacked(env_ids, actions)

    def parts_of_observation(self, slot: int, env_id: int) -> list[tuple[str, Any]]:
        """Return what each leaf has of an observation of an environment; see `EnvValues.parts`."""
        return self._observations.parts(slot, env_id)

    # ------------------------------------------------------------------ what the other process does not see

    def carried_observation(self, slot: int, env_id: int) -> list[Any]:
        """Return what the other process does not see of an observation of an environment; see `EnvValues.carried`."""
        return self._observations.carried(slot, env_id)

    def put_carried_observation(self, slot: int, env_id: int, parts: Sequence[Any]) -> None:
        """Write what `carried_observation` returned."""
        self._observations.put_carried(slot, env_id, parts)

    def carried_result(self, env_id: int) -> CarriedResult:
        """Return what the parent does not see of an environment's result."""
        slot, has_ended = int(self.slots[env_id]), env_id in self._ended
        self._ended.discard(env_id)
        observation = self._observations.carried(slot, env_id)
        last = self._last.carried(0, env_id) if has_ended else None
        numbers = None if self.is_shared else [column[env_id].item() for column in self._columns_of_workers]
        return slot, observation, last, numbers

    def put_carried_result(self, env_id: int, result: CarriedResult) -> None:
        """Write what `carried_result` returned."""
        slot, observation, last, numbers = result
        self._observations.put_carried(slot, env_id, observation)
        if last is not None:
            self._last.put_carried(0, env_id, last)
        if numbers is not None:
            self.slots[env_id] = slot
            for column, number in zip(self._columns_of_workers, numbers, strict=True):
                column[env_id] = number

    @property
    def _columns_of_workers(self) -> Sequence[NDArray[Any]]:
        return self.rewards, self.terminated, self.truncated, self.parameters

    def carried_actions(self, env_ids: Sequence[int]) -> list[list[Any]]:
        """Return what the worker does not see of the action of each of some environments."""
        return [self._actions.carried(0, env_id) for env_id in env_ids]

    def put_carried_actions(self, env_ids: Sequence[int], parts: Sequence[Sequence[Any]]) -> None:
        """Write what `carried_actions` returned."""
        for env_id, of_one in zip(env_ids, parts, strict=True):
            self._actions.put_carried(0, env_id, of_one)

    def carried_seeds(self, env_ids: Sequence[int]) -> list[int] | None:
        """Return the seeds of the next resets of environments, where the worker does not see them; None otherwise."""
        return None if self.is_shared else self.seeds[list(env_ids)].tolist()

    def put_carried_seeds(self, env_ids: Sequence[int], seeds: Sequence[int] | None) -> None:
        """Write what `carried_seeds` returned."""
        if seeds is not None:
            self.seeds[list(env_ids)] = seeds


def place_of(env_ids: Sequence[int]) -> Any:
    """Return the index of environments in an array with a row for each: a slice where they lie one after the other."""
    if env_ids:
        first, stop = env_ids[0], env_ids[-1] + 1
        if stop - first == len(env_ids) and (stop - first == 1 or list(env_ids) == _numbers(first, stop)):
            return slice(first, stop)
    return np.array(env_ids, np.intp)  # of a list each use would make one


@functools.lru_cache(64)
def _numbers(first: int, stop: int) -> list[int]:
    return list(range(first, stop))


def _alone(space: AnySpace, part: Any) -> Any:
    """Return a copy of a part of a value, which lies in no array: a scalar where it has no dimensions."""
    return snapshot(part) if row_spec(space)[1].hasobject else np.array(part)[()]


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
