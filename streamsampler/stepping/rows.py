"""A row for each environment: its worker writes some columns, its manager the others.

Arrays of a fixed size lie in memory shared by both. Values of other spaces (Text, Sequence, Graph, OneOf, custom
spaces) are Python objects, and travel in messages, see `stepping.carried_values`; without shared memory all values do.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import ActionError, ObservationError
from streamsampler.data.spaces import AnySpace, row_spec, same_space
from streamsampler.data.trees import Array, map_tree, snapshot
from streamsampler.stepping.call_errors import DifferentSpacesError
from streamsampler.stepping.values import Allocate, EnvValues, unstacked
from streamsampler.workers.vec.columns import leaves_of, nested, values_of

Kind: TypeAlias = Literal["observation", "action"]

KINDS: tuple[Kind, ...] = ("observation", "action")


class EnvSpaces:
    """Each environment's observation space and action space; equal spaces are a single object."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        self.observation, self.action = (
            tuple(each[0] if same_space(space, each[0]) else space for space in each)
            for each in zip(*pairs, strict=True)
        )

    def common(self, kind: Kind) -> Any:
        """Return the common space of all environments; raise UsageError with two different spaces."""
        each = self.observation if kind == "observation" else self.action
        first = each[0]
        for env_id, space in enumerate(each):
            if space is not first:
                raise DifferentSpacesError(
                    f"the {kind} space of environment {env_id} is {space}, but that of environment 0 is {first}: here "
                    f"all environments must have the same {kind} space; a manager's {kind}_spaces has each of them"
                )
        return first


_ALIGNMENT = 64

CarriedResult: TypeAlias = tuple[int, list[Any], list[Any] | None, list[Any] | None]
"""The parts of a result outside shared memory: the slot; parts of the observation, and of an episode's last; and,
without shared memory, the numbers."""


class Rows:
    """The rows of all environments; environment e has row e of every array.

    The manager writes actions and seeds, an environment's worker all else. Observations are double-buffered: each
    result goes to the other slot than its predecessor, so both stay readable until the next action is sent.
    """

    def __init__(self, spaces: EnvSpaces, allocate: Allocate, *, is_shared: bool = True) -> None:
        n_envs, self._spaces = len(spaces.observation), spaces
        self.observation_space, self.action_space = spaces.observation[0], spaces.action[0]
        observations = partial(
            EnvValues, spaces.observation, path="observation", error=ObservationError, allocate=allocate,
            is_shared=is_shared,
        )  # fmt: skip
        self.observation_values, self.last_values = observations(n_slots=2), observations(n_slots=1)
        self.action_values = EnvValues(spaces.action, 1, "action", ActionError, allocate, is_shared=is_shared)
        self.has_views = self.observation_values.is_stacked  # whether observations lie in `observations`
        self.is_shared = is_shared  # whether worker and manager share these arrays
        self.observations_have_objects = self.observation_values.has_objects
        # Whether parts travel in messages: without a fixed size, or without shared memory (`stepping.carried_values`).
        self.observations_are_carried = self.observation_values.is_carried
        self.actions_are_carried = self.action_values.is_carried
        self._ended: set[int] = set()  # environments with a last observation not yet carried by a message
        self.observations = self.observation_values.arrays  # leaves of (2, n_envs, ...), by slot
        # Leaves of (n_envs, ...). An episode's last observation lies here if the same step resets the environment.
        self.last_observations, self.actions = (
            map_tree(operator.itemgetter(0), it.arrays) for it in (self.last_values, self.action_values)
        )
        self.rewards: NDArray[np.float64] = allocate((n_envs,), np.dtype(np.float64))
        self.seeds: NDArray[np.int64] = allocate((n_envs,), np.dtype(np.int64))  # of the next resets
        self.terminated: NDArray[np.bool_] = allocate((n_envs,), np.dtype(np.bool_))
        self.truncated: NDArray[np.bool_] = allocate((n_envs,), np.dtype(np.bool_))
        self.slots: NDArray[np.uint8] = allocate((n_envs,), np.dtype(np.uint8))  # of the last observations
        self.parameters: NDArray[np.int64] = allocate((n_envs,), np.dtype(np.int64))  # set by the last reset, 0: none
        self._of_workers = self.rewards, self.terminated, self.truncated, self.parameters
        # Of single arrays, observations of exactly this dtype and shape are written directly, which is quicker.
        only = self.observations if isinstance(self.observations, np.ndarray) else None
        self.plain_dtype = None if only is None or only.dtype.hasobject else only.dtype
        self.plain_shape = () if only is None else only.shape[2:]
        self.plain_leaves: Sequence[Any] = () if only is None else tuple(only)

    def put_observation(self, slot: int, env_id: int, value: Any) -> None:
        if value.__class__ is np.ndarray and value.dtype is self.plain_dtype and value.shape == self.plain_shape:
            self.plain_leaves[slot][env_id] = value
        else:
            self.observation_values.put(slot, env_id, value)

    def free_slots(self, place: Any) -> list[int]:
        """Return the slot for each environment's next observation."""
        slots = self.slots[place]
        n_second = np.count_nonzero(slots)
        if n_second == 0 or n_second == len(slots):
            return [int(n_second == 0)] * len(slots)
        free: list[int] = (1 - slots).tolist()
        return free

    def put_results(self, place: Any, rewards: list[Any]) -> None:
        """Write rewards, and switch to the slots of the new observations."""
        self.slots[place] ^= 1
        self.rewards[place] = rewards

    def put_last_observation(self, env_id: int, value: Any) -> None:
        if value.__class__ is np.ndarray and value.dtype is self.plain_dtype and value.shape == self.plain_shape:
            self.last_observations[env_id] = value
        else:
            self.last_values.put(0, env_id, value)
        if self.observations_are_carried:
            self._ended.add(env_id)

    def observation(self, env_id: int) -> Any:
        return self.observation_values.read(self.slots[env_id], env_id)

    def new_value(self, env_id: int) -> EnvValues:
        """Return room for an observation, in slot 0 of environment 0, nested as in the rows."""
        space = self._spaces.observation[0 if self.has_views else env_id]
        return EnvValues([space], 1, "observation", ObservationError, np.zeros)

    def kept_action(self, env_id: int, kept: Any, index: int) -> Any:
        """Copy a recorded action, in the form of `action`."""
        if self.action_values.is_stacked:
            return unstacked(kept, index)
        space = self._spaces.action[env_id]
        parts = values_of(space, kept[index], "action", ActionError)
        of_leaves = zip(leaves_of(space, "action"), parts, strict=True)
        return nested(space, (_alone(leaf, part) for (_, leaf), part in of_leaves))

    def action(self, env_id: int) -> Any:
        """Copy an action, in the form `VecWorker` and Gymnasium's vector environments pass it."""
        return self.action_values.read_unstacked(0, env_id)

    def actions_of(self, env_ids: Sequence[int], place: Any) -> Sequence[Any]:
        actions = self.actions
        if actions.__class__ is not np.ndarray or actions.dtype.hasobject:
            return [self.action(env_id) for env_id in env_ids]
        return list(actions[place] if actions.ndim == 1 else actions[place].copy())  # scalars are no views

    def put_all_actions(self, actions: Any) -> None:
        kept = self.actions
        is_plain = kept.__class__ is np.ndarray and not kept.dtype.hasobject and actions.__class__ is np.ndarray
        if is_plain and actions.dtype is kept.dtype and actions.shape == kept.shape:
            kept[...] = actions
        else:
            self.action_values.put_some(0, list(range(len(self.rewards))), actions)

    def carried_result(self, env_id: int) -> CarriedResult:
        slot, has_ended = int(self.slots[env_id]), env_id in self._ended
        self._ended.discard(env_id)
        observation = self.observation_values.carried(slot, env_id)
        last = self.last_values.carried(0, env_id) if has_ended else None
        numbers = None if self.is_shared else [column[env_id].item() for column in self._of_workers]
        return slot, observation, last, numbers

    def put_carried_result(self, env_id: int, result: CarriedResult) -> None:
        slot, observation, last, numbers = result
        self.observation_values.put_carried(slot, env_id, observation)
        if last is not None:
            self.last_values.put_carried(0, env_id, last)
        if numbers is not None:
            self.slots[env_id] = slot
            for column, number in zip(self._of_workers, numbers, strict=True):
                column[env_id] = number

    def carried_seeds(self, env_ids: Sequence[int]) -> list[int] | None:
        """Return the seeds of next resets; None if the worker shares the rows."""
        return None if self.is_shared else self.seeds[list(env_ids)].tolist()

    def put_carried_seeds(self, env_ids: Sequence[int], seeds: Sequence[int] | None) -> None:
        if seeds is not None:
            self.seeds[list(env_ids)] = seeds


def _alone(space: AnySpace, part: Any) -> Any:
    """Copy a part outside arrays: a scalar if it has no dimensions."""
    return snapshot(part) if row_spec(space)[1].hasobject else np.array(part)[()]


def bytes_needed(spaces: EnvSpaces) -> int:
    total = 0

    def count(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        nonlocal total
        total += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        return np.broadcast_to(np.empty((), dtype), shape)  # occupies the memory of a single number

    Rows(spaces, count)
    return total


def buffer_rows(buffer: Any) -> Allocate:
    """Return a function to lay out consecutive arrays in a buffer of zeros."""
    offset = 0

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        nonlocal offset
        array: Array = np.ndarray(shape, dtype, buffer, offset)
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return array

    return allocate
