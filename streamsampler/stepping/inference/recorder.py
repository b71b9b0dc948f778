"""Record trajectories that run side by side, each at its own pace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.copying import Allocate, make_recorder
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.recorder import Rollouts
from streamsampler.data.spaces import AnySpace
from streamsampler.data.trees import Array, Tree
from streamsampler.errors import ObservationError
from streamsampler.workers.vec.columns import Column, RowRecorder
from streamsampler.workers.vec.infos import BatchInfos
from streamsampler.workers.vec.steps import Trajectory, last_observations

__all__ = ["TimestepRecorder"]

_OWNER = np.dtype(np.int32)


class _Line(Column):
    """A column with one row."""

    def put(self, numbers: NDArray[np.int64], values: Array) -> None:
        """Write the values of some numbers."""
        self._buffer[numbers, 0] = values

    def between(self, first: int, stop: int) -> Array:
        """Return the values of the numbers from `first` to `stop` - 1, a view."""
        values: Array = self._buffer[first:stop, 0]
        return values


class TimestepRecorder(RowRecorder):
    """Records timesteps in the order in which the agent is asked for their actions, whatever trajectories they are of.

    Args:
        observation_space: The space of a single observation.
        action_space: The space of a single action.
    """

    def __init__(self, observation_space: AnySpace, action_space: AnySpace) -> None:
        super().__init__(observation_space, action_space, 1, InfoRecorder("env_infos"), InfoRecorder("episode_infos"))
        self._last = make_recorder(observation_space, "observation", ObservationError)
        self._rewards = _Line(1, np.dtype(np.float64))
        self._owners = _Line(1, _OWNER)  # the row of each timestep
        self._infos: dict[int, dict[str, Any]] = {}  # of steps, by number: they come in any order
        self._resets: dict[int, dict[str, Any]] = {}  # of trajectories, by number

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._infos.clear()
        self._resets.clear()

    def begin(self, info: dict[str, Any]) -> int:
        """Begin a trajectory with the info of its reset, and return its number."""
        number = self.n_begun
        self.n_begun = number + 1
        if info:
            self._resets[number] = info
        return number

    def record(self, rows: Array, observations: Tree, actions: Tree) -> NDArray[np.int64]:
        """Record observations and actions of rows, leaves of (k, …) that fit their spaces; return their numbers."""
        first, n = self.step, len(rows)
        self.observations.extend(observations, n)
        self.actions.extend(actions, n)
        self._owners.extend(first, rows.astype(_OWNER))
        self._rewards.extend(first, np.zeros(n))
        self.step = first + n
        return np.arange(first, first + n)

    def record_rewards(self, numbers: NDArray[np.int64], rewards: Array) -> None:
        """Record the rewards of timesteps."""
        self._rewards.put(numbers, rewards)

    def record_info(self, number: int, info: dict[str, Any]) -> None:
        """Record the info of a step."""
        self._infos[number] = info

    def record_agent_infos(self, numbers: NDArray[np.int64], infos: Any, rows: Array, n_rows: int) -> None:
        """Record what an agent said of some rows.

        Args:
            numbers: The timesteps' numbers.
            infos: What it said of all rows, those included that have no timestep.
            rows: The rows of these timesteps.
            n_rows: How many rows there are.

        Raises:
            DataError: It is no dict, or not of so many rows; says both.
        """
        if not _has_rows(infos, n_rows):
            BatchInfos("agent_infos").record(np.arange(n_rows), infos)  # raises, unless it can make rows of it
        self.agent_infos.record(numbers, infos, rows)

    def numbers_of(self, row: int, first: int, n: int) -> NDArray[np.int64]:
        """Return the numbers of n timesteps of a row, from the one with the number `first` on."""
        width = 64 * n  # they lie close to the first one: not all that came after it is looked through
        while True:
            stop = min(first + width, self.step)
            found: NDArray[np.int64] = np.flatnonzero(self._owners.between(first, stop) == row)[:n] + first
            if len(found) == n or stop == self.step:
                return found
            width *= 4

    def history_of(self, row: int, first: int, n: int) -> tuple[Tree, Array]:
        """Return the actions and the rewards of n timesteps of a row, from the one with the number `first` on."""
        numbers = self.numbers_of(row, first, n)
        return self.actions.gather(numbers), self._rewards.gather(numbers)

    def gather(self, trajectories: Sequence[Trajectory], allocate: Allocate) -> Rollouts:
        """Return trajectories that have ended, in order; see `StepRecorder.gather`."""
        lengths = np.array([each.length for each in trajectories], dtype=np.int64)
        numbers = [self.numbers_of(each.row, each.begun, each.length) for each in trajectories]
        together = np.concatenate([np.arange(0), *numbers])
        self._gather_infos(trajectories, together)
        return self.gathered_numbers(
            together,
            lengths,
            np.arange(len(trajectories)),
            allocate,
            self._rewards.gather,
            partial(last_observations, self._last, trajectories),
            np.array([each.terminated for each in trajectories], dtype=np.bool_),
            np.array([each.truncated for each in trajectories], dtype=np.bool_),
        )

    def _gather_infos(self, trajectories: Sequence[Trajectory], numbers: NDArray[np.int64]) -> None:
        self._env_infos.clear()
        self._episode_infos.clear()
        assert isinstance(self._env_infos, InfoRecorder)
        assert isinstance(self._episode_infos, InfoRecorder)
        if self._infos:
            for number in sorted(self._infos.keys() & set(numbers.tolist())):
                self._env_infos.record(number, self._infos[number])
        for position, each in enumerate(trajectories):
            if (info := self._resets.get(each.number)) is not None:
                self._episode_infos.record(position, info)

    def keep(self, trajectories: Sequence[Trajectory]) -> None:
        """Forget what none of these trajectories needs, if that is worth it; all others are over."""
        begun = [each.begun for each in trajectories if each.begun >= 0]
        kept = {each.number for each in trajectories}
        self._resets = {number: info for number, info in self._resets.items() if number in kept}
        step = min(begun, default=self.step)
        if not step or 2 * step < self.step:  # what is kept has to be moved
            return
        for column in (self._rewards, self._owners):
            column.forget_before(step, self.step)
        for columns in (self.observations, self.actions, self._agent_info, self.agent_infos):
            columns.forget_before(step)
        self._infos = {number - step: info for number, info in self._infos.items() if number >= step}
        self.step -= step
        for each in trajectories:
            if each.begun >= 0:
                each.begun -= step


def _has_rows(infos: Any, n_rows: int) -> bool:
    """Whether infos are dicts of arrays, lists and tuples of so many rows."""
    return isinstance(infos, Mapping) and all(
        len(value) == n_rows
        if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim)
        else _has_rows(value, n_rows)
        for value in infos.values()
    )
