"""Record trajectories that run side by side, step by step, and gather those of a ticket when they have ended."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from streamsampler.data.copying import Allocate, make_recorder
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.recorder import Rollouts
from streamsampler.data.spaces import AnySpace
from streamsampler.data.trees import Array, Tree, leaves, map_tree, object_array, snapshot
from streamsampler.errors import DataError, ObservationError
from streamsampler.protocol.messages import Dropped
from streamsampler.workers.vec.columns import RowRecorder

__all__ = ["AlignedCopies", "StepRecorder", "Trajectory", "last_observations"]

_ALIGNMENT = 64


@dataclass(slots=True, eq=False)
class Trajectory:
    """A trajectory in a row.

    Attributes:
        ticket: The `tickets.RunningTicket` that it is of.
        position: Its position in the ticket.
        index: Its index.
        row: The row that it runs in.
        begun: The step in which it began.
        number: How many trajectories had begun before.
        length: Its timesteps, when it has ended.
        last: Its last observation.
        terminated: How it ended.
        truncated: How it ended.
        left_out: Why it is left out; None if it is not.
    """

    ticket: Any
    position: int
    index: int
    row: int
    begun: int
    number: int = 0
    length: int = 0
    last: Any = None
    terminated: bool = False
    truncated: bool = False
    left_out: Dropped | None = None


class StepRecorder(RowRecorder):
    """Records what n rows did in each step, whatever trajectories the rows are of.

    Steps are counted from the first one that is kept. While environments are stepped, `step` is the one after.

    Args:
        observation_space: The space of a single observation.
        action_space: The space of a single action.
        n_rows: How many rows.
        episode_infos: Records the infos of resets; None for what a recorder has by default.

    Attributes:
        encoded: The rows' next observations: a loop may write the bytes of one of just that `dtype` and `shape`.
        dtype: See there; where rows are not kept as bytes, no observation has it.
        shape: See there.
        rewards: The rewards: a loop appends n for each step.
        record_env_info: Takes (number, info).
    """

    def __init__(
        self, observation_space: AnySpace, action_space: AnySpace, n_rows: int,
        episode_infos: InfoRecorder | None = None,
    ) -> None:  # fmt: skip
        env_infos, self._resets = InfoRecorder("env_infos"), episode_infos or InfoRecorder("episode_infos")
        super().__init__(observation_space, action_space, n_rows, env_infos, self._resets)
        self.record_env_info: Callable[[int, dict[str, Any]], None] = env_infos.record
        self._last = make_recorder(observation_space, "observation", ObservationError)
        self._is_encoded = self._last.encoded is not None
        self.encoded, self.dtype, self.shape = [b""] * n_rows, self._last.dtype, self._last.shape
        self._copies = AlignedCopies()
        self.rewards = array("d")

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        del self.rewards[:]

    def begin(self, row: int, observation: Any, reset_info: Any) -> int:
        """Begin a trajectory with its first observation, and return its number.

        Raises:
            DataError: The info of its reset is no dict, or has a key that is no string.
            ObservationError: The observation does not fit its space.
        """
        number = self.n_begun
        if reset_info.__class__ is not dict or reset_info:
            self._resets.record(number, reset_info)
        self.n_begun = number + 1
        self.record(row, observation)
        return number

    def record(self, row: int, observation: Any) -> None:
        """Record a row's next observation.

        Raises:
            ObservationError: It does not fit its space.
        """
        if observation.__class__ is np.ndarray and observation.dtype == self.dtype and observation.shape == self.shape:
            self.encoded[row] = observation.tobytes()
            return
        columns, step = self.observations, self.step
        columns.put(step, row, observation)
        if self._is_encoded:
            self.encoded[row] = cast("Array", columns.row_batch(step))[row].tobytes()
        else:
            columns.n_steps = step + 1

    def batch(self, sources: list[int] | None) -> Tree:
        """Begin the next step, and return a copy of the rows' observations.

        Args:
            sources: For each row the one whose observation it has, itself or another one; None for itself.
        """
        columns, step, encoded = self.observations, self.step, self.encoded
        rows = columns.row_batch(step)
        if self._is_encoded:
            if sources is not None:
                encoded[:] = [encoded[row] for row in sources]
            array = cast("Array", rows)
            array[...] = np.ndarray(array.shape, array.dtype, b"".join(encoded))
        elif sources is not None:
            for _, leaf in leaves(rows):
                leaf[:] = leaf[sources]
        self.step = columns.n_steps = step + 1
        return self._copies.copy(rows)

    def repeated(self, row: int) -> Tree:
        """Return a batch that has one row's observation in the step before `step` in all rows."""
        rows = self.observations.row_batch(self.step - 1)
        return self._copies.copy(map_tree(lambda leaf: leaf[[row] * self.n_rows], rows))

    def record_agent_infos(self, infos: dict[str, Any]) -> None:
        """Record the infos of all rows of the step before `step`, arrays of n rows each."""
        first = (self.step - 1) * self.n_rows
        self.agent_infos.record(np.arange(first, first + self.n_rows), infos)

    def gather(self, trajectories: Sequence[Trajectory], allocate: Allocate) -> Rollouts:
        """Return trajectories that have ended, in order.

        Args:
            trajectories: The trajectories.
            allocate: Makes the arrays of what there is of each timestep.

        Raises:
            ActionError: An action outside its space; its attribute `position` is the position in `trajectories`.
            ObservationError: A last observation that does not fit its space, with the same attribute.
            DataError: A trajectory with infos with a key `_x` next to a key `x`, with the same attribute.
        """
        return self.gathered(
            np.array([each.begun * self.n_rows + each.row for each in trajectories], dtype=np.int64),
            np.array([each.length for each in trajectories], dtype=np.int64),
            np.array([each.number for each in trajectories], dtype=np.int64),
            allocate,
            lambda numbers: np.frombuffer(self.rewards, np.float64).take(numbers),  # a view that stays cannot grow
            partial(last_observations, self._last, trajectories),
            np.array([each.terminated for each in trajectories], dtype=np.bool_),
            np.array([each.truncated for each in trajectories], dtype=np.bool_),
        )

    def keep(self, trajectories: Sequence[Trajectory]) -> None:
        """Forget what none of these trajectories needs, if that is worth it; all others are over."""
        if not trajectories:
            self.clear()
            return
        step = min(each.begun for each in trajectories)
        if 2 * step < self.step:  # what is kept has to be moved
            return
        number = min(each.number for each in trajectories)
        for columns in (self.observations, self.actions):
            columns.forget_before(step)
        del self.rewards[: step * self.n_rows]
        for infos in (self._env_infos, self._agent_info, self.agent_infos):
            infos.forget_before(step * self.n_rows)
        self._resets.forget_before(number)
        self.step -= step
        self.n_begun -= number
        for each in trajectories:
            each.begun -= step
            each.number -= number


def last_observations(recorder: Any, trajectories: Sequence[Trajectory]) -> Tree:
    """Return the last observations of trajectories, leaves of (n, ...).

    Args:
        recorder: What `data.copying.make_recorder` returned for them; what is in it is forgotten.
        trajectories: The trajectories.

    Raises:
        ObservationError: One does not fit its space.
    """
    recorder.clear()
    try:
        for each in trajectories:
            recorder.record(each.last)
        return cast("Tree", map_tree(np.copy, recorder.view(0, len(trajectories))))
    except DataError as error:
        error.position = recorder.count() if error.row is None else error.row
        error.timestep = trajectories[error.position].length
        raise


class AlignedCopies:
    """Copies batches into memory that is aligned as a vector processor likes it, and the same each time.

    The last bits of a network's numbers may depend on where a batch lies. Where the last copy is still in use, the next
    one gets memory of its own.
    """

    def __init__(self) -> None:
        self._arrays: list[Array] = []

    def copy(self, batch: Tree) -> Tree:
        """Return a copy of a batch: trees of one form, shape and dtype at each call."""
        if batch.__class__ is np.ndarray:
            return self._copied(0, batch)
        numbers = iter(range(sys.maxsize))
        return map_tree(lambda rows: self._copied(next(numbers), rows), batch)

    def _copied(self, number: int, rows: Array) -> Array:
        if rows.dtype.hasobject:
            return object_array([snapshot(value) for value in rows])
        while number >= len(self._arrays):
            self._arrays.append(_aligned(rows))
        if _references(self._arrays, number) > _FREE:
            self._arrays[number] = _aligned(rows)
        array = self._arrays[number]
        array[...] = rows
        return array


def _references(arrays: list[Array], number: int) -> int:
    return sys.getrefcount(arrays[number])


_FREE = _references([np.empty(0)], 0)
"""How many references there are to an array that only a list holds: it depends on the interpreter."""


def _aligned(like: Array) -> Array:
    memory = np.empty(like.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + like.nbytes].view(like.dtype).reshape(like.shape)
