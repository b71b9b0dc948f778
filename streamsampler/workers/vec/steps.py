"""Record trajectories that run side by side, step by step, and gather those of a ticket when they have ended."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import DataError, ObservationError
from streamsampler.data.copying import Allocate, Recorder, make_recorder
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.recorder import Rollouts
from streamsampler.data.spaces import AnySpace, flag_of, reward_recorder
from streamsampler.data.trees import Array, Tree, leaves, map_tree, object_array, snapshot
from streamsampler.protocol.messages import Dropped, Phase
from streamsampler.workers.base import Worker
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.columns import ColumnsRecorder
from streamsampler.workers.vec.rows import InfosInAnyOrder

_ALIGNMENT = 64


@dataclass(slots=True, eq=False)
class Trajectory:
    """A trajectory in a row.

    Attributes:
        ticket: The `RunningTicket` that it is of.
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
        value: The agent's value of the last observation, if it was told while the agent remembered the trajectory.
        metrics: How each of its metrics becomes one number for a batch, by name.
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
    value: float | None = None
    metrics: dict[str, str] = field(default_factory=dict)

    def end(self, last: Any, terminated: bool, truncated: bool, agent: BatchedAgent, worker: Worker) -> None:
        """Take in how it ends, and what the agent thinks of the last observation while it remembers the trajectory."""
        self.last, self.terminated, self.truncated = last, terminated, truncated
        if agent.tells_values and not terminated:
            phase, worker.phase = worker.phase, Phase.ACTION
            self.value = agent.value_of(self.row, last)
            worker.phase = phase


class TrajectoryRecorder(ColumnsRecorder):
    """Records what n rows did, whatever trajectories they are of; see `ColumnsRecorder`."""

    def __init__(self, observation_space: AnySpace, *args: Any) -> None:
        super().__init__(observation_space, *args)
        self._last = make_recorder(observation_space, "observation", ObservationError)

    def gathered_trajectories(
        self, trajectories: Sequence[Trajectory], numbers: NDArray[np.int64], allocate: Allocate,
        rewards: Callable[[NDArray[np.int64]], Array],
    ) -> Rollouts:  # fmt: skip
        """Return trajectories that have ended, in order.

        Args:
            trajectories: The trajectories.
            numbers: The numbers of all their values.
            allocate: Makes the arrays of what there is of each timestep.
            rewards: Returns the rewards of numbers, in their order.

        Raises:
            ActionError: An action outside its space; its attribute `position` is the position in `trajectories`.
            ObservationError: A last observation that does not fit its space, with the same attribute.
            DataError: A trajectory with infos with a key `_x` next to a key `x`, with the same attribute.
        """
        return self.gathered(
            numbers, lengths_of(trajectories), np.array([each.number for each in trajectories], dtype=np.int64),
            allocate, rewards=rewards, last_observations=partial(self._last_observations, trajectories),
            terminated=np.array([each.terminated for each in trajectories], dtype=np.bool_),
            truncated=np.array([each.truncated for each in trajectories], dtype=np.bool_),
            values={place: each.value for place, each in enumerate(trajectories) if each.value is not None},
        )  # fmt: skip

    def _last_observations(self, trajectories: Sequence[Trajectory]) -> Tree:
        """Return the last observations of trajectories, leaves of (n, ...)."""
        recorder = self._last
        recorder.clear()
        try:
            for each in trajectories:
                recorder.record(each.last)
            return map_tree(np.copy, recorder.view(0, len(trajectories)))
        except DataError as error:
            error.position = recorder.count() if error.row is None else error.row
            error.timestep = trajectories[error.position].length
            raise


def lengths_of(trajectories: Sequence[Trajectory]) -> NDArray[np.int64]:
    """Return the timesteps of trajectories that have ended."""
    return np.array([each.length for each in trajectories], dtype=np.int64)


class StepRecorder(TrajectoryRecorder):
    """Records what n rows did in each step, whatever trajectories the rows are of: their scripts write to `rows`.

    Steps are counted from the first one that is kept. While environments are stepped, `step` is the one after.

    Args:
        observation_space: The space of a single observation.
        action_space: The space of a single action.
        n_rows: How many rows.

    Attributes:
        rows: The recorders that the scripts of the rows write to.
        rewards: The rewards: n for each step.
        record_env_info: Takes (number, info).
    """

    def __init__(self, observation_space: AnySpace, action_space: AnySpace, n_rows: int) -> None:
        env_infos, self.episode_infos = InfoRecorder("env_infos"), _EpisodeInfos("episode_infos")
        super().__init__(observation_space, action_space, n_rows, env_infos, self.episode_infos)
        self.record_env_info: Callable[[int, dict[str, Any]], None] = env_infos.record
        self._is_encoded = self._last.encoded is not None
        self._copies = AlignedCopies()
        self.rewards = array("d")
        self.rows = [RowRecorder(self, row, self._last) for row in range(n_rows)]
        self._encoded = [row.encoded for row in self.rows]

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        del self.rewards[:]
        for row in self.rows:
            row.clear()

    def record(self, row: int, observation: Any) -> None:
        """Record a row's next observation.

        Raises:
            ObservationError: It does not fit its space.
        """
        columns, step = self.observations, self.step
        columns.put(step, row, observation)
        if self._is_encoded:
            self._encoded[row].append(cast("Array", columns.row_batch(step))[row].tobytes())
        else:
            columns.n_steps = step + 1

    def batch(self, sources: list[int] | None) -> Tree:
        """Begin the next step, and return a copy of the rows' observations.

        Args:
            sources: For each row the one whose observation it has, itself or another one; None for itself.
        """
        columns, step, encoded = self.observations, self.step, self._encoded
        rows = columns.row_batch(step)
        if self._is_encoded:
            if sources is None:
                shown = [each.pop() for each in encoded]
            else:
                own = [each.pop() if each else b"" for each in encoded]
                shown = [own[row] for row in sources]
            array = cast("Array", rows)
            array[...] = np.ndarray(array.shape, array.dtype, b"".join(shown))
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
        """Return trajectories that have ended, in order; see `gathered_trajectories`."""
        first = np.array([each.begun * self.n_rows + each.row for each in trajectories], dtype=np.int64)
        return self.gathered_trajectories(
            trajectories, self.numbers_from(first, lengths_of(trajectories)), allocate,
            # A view that stays would keep the rewards from growing.
            rewards=lambda numbers: np.frombuffer(self.rewards, np.float64).take(numbers),
        )  # fmt: skip

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
        self.episode_infos.forget_before(number)
        self.step -= step
        self.n_begun -= number
        for each in trajectories:
            each.begun -= step
            each.number -= number
        for row in self.rows:
            row.begun -= step
            row.number -= number


class RowRecorder:
    """Records the environment's side of the trajectory in a row; for its attributes see `RolloutRecorder`.

    Args:
        steps: Records the steps of all rows.
        row: The row.
        like: Records observations of the same space.

    Attributes:
        begun: The step in which the trajectory in hand began.
        number: How many trajectories had begun before.
        info: The info that came with the observation which is to be acted on; None if that was empty.
        encoded: The next observation, until the batch takes it.
        float_rewards: The reward of the last step, until `step_rewards` takes it.
        metrics: How each metric of the trajectory in hand becomes one number for a batch, by name.
    """

    reward_class = float

    def __init__(self, steps: StepRecorder, row: int, like: Recorder) -> None:
        self._steps, self._row = steps, row
        self.begun = self.number = 0
        self.info: Any = None
        self.encoded: list[bytes] = []
        self.encoded_observations = None if like.encoded is None else self.encoded
        self.observation_dtype, self.observation_shape = like.dtype, like.shape
        self.float_rewards: list[float] = []
        self.record_reward = reward_recorder(self.float_rewards)
        self.metrics: dict[str, str] = {}

    def clear(self) -> None:
        """Forget the trajectory in hand."""
        self.begun = self.number = 0
        self.encoded.clear()
        self.float_rewards.clear()
        self.metrics, self.info = {}, None

    def begin(self, reset_info: Any) -> None:
        """Begin a trajectory, whose first observation comes next.

        Raises:
            DataError: The info of its reset is no dict, or has a key that is no string.
        """
        steps = self._steps
        self.begun, self.number, self.info = steps.step, steps.n_begun, reset_info
        if reset_info.__class__ is not dict or reset_info:
            steps.episode_infos.record(self.number, reset_info)
        steps.n_begun += 1

    def record_observation(self, observation: Any) -> None:
        """Record the observation that the next action is chosen on; see `StepRecorder.record`."""
        self._steps.record(self._row, observation)

    def forget_observation(self) -> None:
        """Forget the observation that no action was chosen on."""
        self.encoded.clear()

    def record_env_info(self, _step: int, info: Any) -> None:
        """Record the info of the last step."""
        steps = self._steps
        steps.record_env_info((steps.step - 1) * steps.n_rows + self._row, info)
        self.info = info

    def record_metrics(self, metrics: dict[str, Any]) -> None:
        """Record metrics of the trajectory in hand, which come back with the infos of its reset."""
        self._steps.episode_infos.record(self.number, metrics)

    def flags(self, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        """Return as booleans what the environment said; see `RolloutRecorder.flags`."""
        return flag_of("terminated", terminated), flag_of("truncated", truncated)

    def copies_in_hand(self) -> tuple[Tree, Tree, NDArray[np.float64]]:
        """Return copies of observations, actions and rewards of the trajectory in hand, as far as it was recorded."""
        steps = self._steps
        n_rewards = len(steps.rewards) // steps.n_rows - self.begun
        numbers = (self.begun + np.arange(n_rewards + len(self.float_rewards))) * steps.n_rows + self._row
        rewards = [steps.rewards[number] for number in numbers[:n_rewards].tolist()] + self.float_rewards
        return steps.observations.gather(numbers), steps.actions.gather(numbers), np.array(rewards, np.float64)


class _EpisodeInfos(InfosInAnyOrder):
    """Collects infos of trajectories at their starts and their ends."""

    def record(self, step: int, info: dict[str, Any]) -> None:
        """Record a copy of an info; see `InfoRecorder.record`."""
        InfoRecorder(self._path).record(step, info)  # checks it
        super().record(step, {key: snapshot(value) for key, value in info.items()})


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
