"""Record trajectories of several rows, step by step, and gather a ticket's trajectories after their ends.

`RowRecorder` receives the script's side of a row, `BatchRecorder` makes the agent's batches and records its actions. A
timestep's number counts all timesteps before it, without forgotten ones: `keep` lowers all numbers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import ActionError, DataError, ObservationError
from streamsampler.data.copying import Allocate, Recorder, make_recorder
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.recorder import Rollouts
from streamsampler.data.spaces import AnySpace, flag_of, reward_recorder
from streamsampler.data.trees import Array, Tree, map_tree, snapshot
from streamsampler.protocol.messages import Dropped, Phase
from streamsampler.rollouts.script import End
from streamsampler.workers.base import AbnormalTrajectoryError, Worker
from streamsampler.workers.explain import summary_of
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.aligned_copies import AlignedCopies
from streamsampler.workers.vec.batch_infos import InfosInAnyOrder
from streamsampler.workers.vec.columns import Columns, ColumnsRecorder


@dataclass(slots=True, eq=False)
class RowTrajectory:
    """A trajectory in a row.

    Attributes:
        ticket: Its `RunningTicket`.
        position: Its position in the ticket.
        index: Its index.
        row: Its row.
        begun: The number of the first timestep of its first agent call; negative until then.
        number: The number of trajectories begun before it.
        length: Its timesteps, after its end.
        last: Its last observation.
        terminated: The environment's flag.
        truncated: The environment's flag, or true because of a limit.
        left_out: The reason why it is dropped; None if it is kept.
        value: The agent's value of the last observation.
        metrics: Its metrics by name, and how each is reduced to a number.
        recorded: For several agents: after its end, its recorder and its position there.
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
    metrics: tuple[tuple[str, str], ...] = ()
    recorded: Any = None

    def end(self, last: Any, terminated: bool, truncated: bool, agent: BatchedAgent, worker: Worker) -> None:
        self.last, self.terminated, self.truncated = last, terminated, truncated
        if agent.has_values and not terminated:
            phase, worker.phase = worker.phase, Phase.ACTION
            self.value = agent.value_of(self.row, last)
            worker.phase = phase

    def leave_out(self, length: int, phase: Phase, error: AbnormalTrajectoryError) -> None:
        self.length = length
        self.left_out = Dropped(self.position, str(phase), summary_of(error))


class StepRecorder(ColumnsRecorder):
    """Records the timesteps of n rows in the order of the agent's calls, which are for all rows, or for the ready ones.

    `in_order` says whether infos come in the order of timesteps, and are copied.

    Attributes:
        n_rows: The number of rows.
        first: The number of the last call's first timestep; `step` is the number after its last.
        rewards: The rewards, by number.
        record_env_info: Receives (number, info).
    """

    def __init__(self, observation_space: AnySpace, action_space: AnySpace, n_rows: int, *, in_order: bool) -> None:
        env_infos = InfoRecorder("env_infos") if in_order else InfosInAnyOrder("env_infos")
        self.episode_infos = EpisodeInfos("episode_infos")
        super().__init__(observation_space, action_space, 1, env_infos, self.episode_infos)
        self.n_rows = n_rows
        self.record_env_info: Callable[[int, dict[str, Any]], None] = env_infos.record
        self._last = make_recorder(observation_space, "observation", ObservationError)
        self.rewards = array("d")
        self.first = 0
        self._calls: list[tuple[int, NDArray[np.int64] | None]] = []  # first number, and rows; None for all rows
        self._is_regular = True  # whether all calls were for all rows

    def clear(self) -> None:
        super().clear()
        del self.rewards[:], self._calls[:]
        self.first, self._is_regular = 0, True

    def begin_call(self, rows: NDArray[np.int64] | None, n: int) -> None:
        self._calls.append((self.step, rows))
        self._is_regular = self._is_regular and rows is None
        self.first, self.step = self.step, self.step + n

    def position_of(self, row: int) -> int:
        rows = self._calls[-1][1]
        return row if rows is None else int(rows.searchsorted(row))

    def numbers_of(self, row: int, begun: int, n: int) -> NDArray[np.int64]:
        """Return the numbers of a row's first n timesteps since `begun`."""
        if self._is_regular:
            return begun + row + np.arange(n) * self.n_rows
        return np.flatnonzero(self._owners(begun) == row)[:n] + begun

    def n_asked(self, row: int, begun: int) -> int:
        """Return the number of agent calls for a row since `begun`."""
        if self._is_regular:
            return (self.step - begun) // self.n_rows
        return int(np.count_nonzero(self._owners(begun) == row))

    def _owners(self, begun: int) -> NDArray[np.int64]:
        place = bisect_left(self._calls, begun, key=itemgetter(0))
        everyone = np.arange(self.n_rows)
        owners = [everyone if rows is None else rows for _, rows in self._calls[place:]]
        return np.concatenate(owners) if owners else np.arange(0)

    def _numbers(self, trajectories: Sequence[RowTrajectory], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        if not trajectories:
            return np.arange(0)
        begun = np.array([each.begun for each in trajectories], np.int64)
        rows = np.array([each.row for each in trajectories], np.int64)
        if self._is_regular:
            stops = np.cumsum(lengths)
            numbers = np.repeat(begun + rows - (stops - lengths) * self.n_rows, lengths)
            return numbers + np.arange(0, len(numbers) * self.n_rows, self.n_rows)
        start = int(begun.min())
        owners = self._owners(start)
        order = np.argsort(owners, kind="stable")  # by row, and then in time
        firsts = np.searchsorted(owners[order], np.arange(self.n_rows + 1))
        found = []
        for trajectory, length in zip(trajectories, lengths.tolist(), strict=True):
            own = order[firsts[trajectory.row] : firsts[trajectory.row + 1]]
            place = int(own.searchsorted(trajectory.begun - start))
            found.append(own[place : place + length])
        return np.concatenate(found) + start

    def gather(self, trajectories: Sequence[RowTrajectory], allocate: Allocate) -> Rollouts:
        """Return ended trajectories, in order; errors have the trajectory's position as `position`."""
        lengths = np.array([each.length for each in trajectories], dtype=np.int64)
        return self.gathered(
            self._numbers(trajectories, lengths), lengths, np.array([each.number for each in trajectories], np.int64),
            # `array` cannot grow while a view of it exists.
            allocate, rewards=lambda numbers: np.frombuffer(self.rewards, np.float64).take(numbers),
            last_observations=partial(self._last_observations, trajectories),
            terminated=np.array([each.terminated for each in trajectories], dtype=np.bool_),
            truncated=np.array([each.truncated for each in trajectories], dtype=np.bool_),
            values={place: each.value for place, each in enumerate(trajectories) if each.value is not None},
        )  # fmt: skip

    def _last_observations(self, trajectories: Sequence[RowTrajectory]) -> Tree:
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

    def keep(self, trajectories: Sequence[RowTrajectory]) -> int:
        """Forget all other trajectories, if worth it; return the amount by which numbers are lower now."""
        self.episode_infos.keep({each.number for each in trajectories})
        begun = [each for each in trajectories if each.begun >= 0]
        step = min((each.begun for each in begun), default=self.step)
        if not step or 2 * step < self.step:  # keeping moves the rest, so it must be worth it
            return 0
        for columns in (self.observations, self.actions, self._env_infos, self._agent_info, self.agent_infos):
            columns.discard_before(step)
        del self.rewards[:step]
        self._calls = [(first - step, rows) for first, rows in self._calls if first >= step]
        self._is_regular = all(rows is None for _, rows in self._calls)
        self.step, self.first = self.step - step, self.first - step
        for each in begun:
            each.begun -= step
        return step


class BatchRecorder(StepRecorder):
    """Records the rows' scripts through `rows`, and makes the agent's batches, of `width` rows.

    `shared` lets rows append to common lists, in the order of rows: that halves the time to collect their values. Call
    `put_in_order` after other orders.

    Attributes:
        rows: The recorders of the rows' scripts.
        is_shared: See `shared`.
    """

    def __init__(
        self, observation_space: AnySpace, action_space: AnySpace, n_rows: int, width: int, *, in_order: bool,
        shared: bool,
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, n_rows, in_order=in_order)
        self._width, self.is_shared = width, shared
        self._checked_actions = Columns(action_space, width, "action", ActionError)
        self._next_observations = Columns(
            observation_space, n_rows, "observation", ObservationError
        )  # a single step: the next observations
        self._is_encoded = self._last.encoded is not None
        self._rows_asked: list[int] | None = None  # the last call's rows; `_index` and `_places` follow from them
        self._sources: NDArray[np.int64] | None = None
        self._index: NDArray[np.int64] | None = None  # their places in the batch; None for all places
        self._places: NDArray[np.int64] | None = (
            None  # for each place of the batch, the copied row's position among them; None without copies
        )
        self._asked: NDArray[Any] | None = None  # the last call's observations, if rows encode them as bytes
        self._copies = AlignedCopies()
        self._encoded: list[bytes] = []  # the next observations, if rows share lists
        self._step_rewards: list[float] = []  # the last step's rewards, if rows share lists
        lists = [(self._encoded, self._step_rewards) if shared else ([], []) for _ in range(n_rows)]
        self.rows = [RowRecorder(self, row, self._last, *own) for row, own in enumerate(lists)]

    def clear(self) -> None:
        super().clear()
        for row in self.rows:
            row.clear()

    def begin(self, ticket: Any, position: int, index: int, row: int) -> RowTrajectory:
        """Return a new trajectory, before its script runs in a row."""
        number = self.rows[row].number = self.n_begun
        self.n_begun += 1
        return RowTrajectory(ticket, position, index, row, self.step, number)

    def record(self, row: int, observation: Any) -> None:
        self._next_observations.put(0, row, observation)
        if self._is_encoded:
            self.rows[row].encoded.append(cast("Array", self._next_observations.row_batch(0))[row].tobytes())

    def put_in_order(self, rows: Sequence[int]) -> None:
        """Sort the next observations by row; they were recorded in the order `rows`."""
        if self.is_shared and self._is_encoded:
            self._encoded[:] = [self._encoded[place] for place in np.argsort(rows).tolist()]

    def batch(self, rows: list[int], sources: NDArray[np.int64] | None) -> Tree:
        """Begin a call for ascending rows, and return a copy of their observations.

        `sources` is as in `RowsDriver`. Callers pass the same objects for the same numbers.
        """
        everyone, n = len(rows) == self.n_rows, len(rows)
        if rows is not self._rows_asked or sources is not self._sources:
            self._rows_asked, self._sources = rows, sources
            self._index = None if n == self._width else np.array(rows)
            self._places = None if sources is None else np.searchsorted(rows, sources)
        own: Any
        shown: Any
        if self._is_encoded:
            encoded = self._encoded if self.is_shared else [self.rows[row].encoded.pop() for row in rows]
            own = np.ndarray((n, *self._last.shape), self._last.dtype, b"".join(encoded))
            self._encoded.clear()
            self._asked = own
            batch = own if self._places is None else own.take(self._places, 0)
        else:
            shown = self._next_observations.row_batch(0)
            own = shown if everyone else map_tree(lambda leaf: leaf[rows], shown)
            batch = shown if sources is None else map_tree(lambda leaf: leaf[sources], shown)
        self.observations.extend(own, n)
        self.begin_call(None if everyone else self._index, n)
        return self._copies.copy(batch)

    def record_actions(self, rows: list[int], actions: Any) -> Tree:
        """Record the last call's actions, and return the batch in the dtypes of the space."""
        space, index = self._checked_actions, self._index
        checked = space.checked(actions, self._width)
        all_actions = space.nested(checked)
        of_rows = all_actions if index is None else space.nested([leaf.take(index, 0) for leaf in checked])
        self.actions.extend(of_rows, len(rows))
        return all_actions

    def end_step(self, rows: Sequence[int]) -> None:
        if not self.is_shared:
            self._step_rewards = [self.rows[row].float_rewards.pop() for row in rows]
        self.rewards.fromlist(self._step_rewards)
        self._step_rewards.clear()

    def begin_steps(self, rows: Sequence[int]) -> None:
        """Make room for the rewards of the last call's rows, which end their steps separately: `record_reward_of`."""
        self.rewards.frombytes(bytes(8 * len(rows)))
        for number, row in enumerate(rows, self.first):
            self.rows[row].asked = number

    def record_reward_of(self, row: int) -> None:
        recorder = self.rows[row]
        self.rewards[recorder.asked] = recorder.float_rewards.pop()

    def end(self, trajectory: RowTrajectory, end: End, agent: BatchedAgent, worker: Worker) -> None:
        recorder = self.rows[trajectory.row]
        if recorder.metrics:
            trajectory.metrics, recorder.metrics = tuple(recorder.metrics.items()), {}
        trajectory.end(snapshot(end.observation), end.terminated, end.truncated or end.limited, agent, worker)

    def leave_out(self, row: int) -> None:
        """Do nothing: `gather` receives no dropped trajectories."""

    def repeated(self, row: int) -> Tree:
        shown, place = (
            (self._next_observations.row_batch(0), row) if self._asked is None else (self._asked, self.position_of(row))
        )
        return self._copies.copy(map_tree(lambda leaf: leaf[[place] * self._width], shown))

    def record_agent_infos(self, rows: list[int], infos: dict[str, Any]) -> None:
        """Record the last call's infos, arrays with a row for each row of the batch."""
        self.agent_infos.record_next(self.first, len(rows), infos, self._index, self._width)

    def keep(self, trajectories: Sequence[RowTrajectory]) -> int:
        by = super().keep(trajectories)
        for row in self.rows:
            row.begun, row.asked = row.begun - by, max(row.asked - by, -1)
        return by


class RowRecorder:
    """Records the environment's side of a row's trajectory; further attributes are those of `RolloutRecorder`.

    Attributes:
        begun: As `RowTrajectory.begun`.
        number: As `RowTrajectory.number`.
        asked: The number of the last action's timestep; -1 if rows step together.
        info: The info of the current observation; None if it was empty.
        encoded: The next observation, until the batch takes it; a list of the row, or shared by all rows.
        float_rewards: The last step's reward, until all rows have taken the step; likewise.
        metrics: How each metric of the current trajectory is reduced to a number, by name.
    """

    reward_class = float

    def __init__(
        self, steps: BatchRecorder, row: int, like: Recorder, encoded: list[bytes], float_rewards: list[float]
    ) -> None:  # fmt: skip
        self._steps, self._row = steps, row
        self.begun = self.number = 0
        self.asked = -1
        self.info: Any = None
        self.encoded = encoded
        self.encoded_observations = None if like.encoded is None else encoded
        self.observation_dtype, self.observation_shape = like.dtype, like.shape
        self.float_rewards = float_rewards
        self.record_reward = reward_recorder(float_rewards)
        self.metrics: dict[str, str] = {}

    def clear(self) -> None:
        self.begun = self.number = 0
        self.encoded.clear()
        self.float_rewards.clear()
        self.metrics, self.info = {}, None

    def begin(self, reset_info: Any) -> None:
        """Begin a trajectory before its first observation."""
        self.begun, self.info = self._steps.step, reset_info
        if reset_info.__class__ is not dict or reset_info:
            self._steps.episode_infos.record(self.number, reset_info)

    def record_observation(self, observation: Any) -> None:
        self._steps.record(self._row, observation)

    def discard_last_observation(self) -> None:
        """Forget the observation of a cut; with shared lists, all rows are cut."""
        self.encoded.clear()

    def record_env_info(self, _step: int, info: Any) -> None:
        steps = self._steps
        number = self.asked if self.asked >= 0 else steps.first + steps.position_of(self._row)
        steps.record_env_info(number, info)
        self.info = info

    def record_metrics(self, metrics: dict[str, Any]) -> None:
        """Record metrics of the current trajectory, which batches have among its reset's infos."""
        self._steps.episode_infos.record(self.number, metrics)

    def flags(self, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        return flag_of("terminated", terminated), flag_of("truncated", truncated)

    def current_trajectory_copies(self) -> tuple[Tree, Tree, NDArray[np.float64]]:
        """Return copies of the current trajectory's observations, actions and rewards; lists must not be shared."""
        steps, n = self._steps, self._steps.n_asked(self._row, self.begun)
        given = self.float_rewards if n else []  # before the first step ends, it is the last trajectory's reward
        n = max(n - (not given), 0)  # an action may have no reward yet
        numbers = steps.numbers_of(self._row, self.begun, n)
        rewards = [steps.rewards[number] for number in numbers[: n - len(given)].tolist()] + given
        return steps.observations.gather(numbers), steps.actions.gather(numbers), np.array(rewards, np.float64)


class EpisodeInfos(InfosInAnyOrder):
    """Collects infos of trajectories at their starts and ends."""

    def record(self, step: int, info: dict[str, Any]) -> None:
        InfoRecorder(self._path).record(step, info)  # checks it
        super().record(step, {key: snapshot(value) for key, value in info.items()})
