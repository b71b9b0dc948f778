"""Record trajectories that run side by side, step by step, and gather those of a ticket when they have ended."""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import DataError, ObservationError
from streamsampler.data.copying import Allocate, make_recorder
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.recorder import Rollouts
from streamsampler.data.spaces import AnySpace
from streamsampler.data.trees import Array, Tree, leaves, map_tree, object_array, snapshot
from streamsampler.protocol.messages import Dropped, Phase, Ticket
from streamsampler.workers.base import Worker
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.columns import RowRecorder

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

    def end(self, last: Any, terminated: bool, truncated: bool, agent: BatchedAgent, worker: Worker) -> None:
        """Take in how it ends, and what the agent thinks of the last observation while it remembers the trajectory."""
        self.last, self.terminated, self.truncated = last, terminated, truncated
        if agent.tells_values and not terminated:
            phase, worker.phase = worker.phase, Phase.ACTION
            self.value = agent.value_of(self.row, last)
            worker.phase = phase


class TrajectoryRecorder(RowRecorder):
    """Records what n rows did, whatever trajectories they are of; see `RowRecorder`."""

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
        self._resets.forget_before(number)
        self.step -= step
        self.n_begun -= number
        for each in trajectories:
            each.begun -= step
            each.number -= number


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


# ----------------------------------------------------------------------
# The tickets whose trajectories run in lanes: which trajectory begins next in a row.


_LOOK_SECONDS = 1e-3
"""How often rows without a trajectory look for a ticket: looking costs some microseconds."""


def _position_of(trajectory: Trajectory) -> int:
    return trajectory.position


@dataclass(slots=True, eq=False)
class RunningTicket:
    """A ticket whose trajectories run, or will.

    Attributes:
        ticket: The ticket.
        seeds: Its trajectories' seeds.
        prepared: What the agent prepared for them.
        waiting: For each row the positions of the trajectories that are to begin in it.
        begun: The trajectories that have begun.
        n_ended: How many of them have ended.
    """

    ticket: Ticket
    seeds: list[int]
    prepared: Any
    waiting: list[Iterator[int]]
    begun: list[Trajectory] = field(default_factory=list)
    n_ended: int = 0

    def ended(self) -> list[Trajectory]:
        """Return the trajectories that have ended, in the ticket's order."""
        ended = (each for each in self.begun if each.length and each.left_out is None)
        return sorted(ended, key=_position_of)

    def left_out(self) -> list[Trajectory]:
        """Return the trajectories that were left out, in the ticket's order."""
        return sorted((each for each in self.begun if each.left_out is not None), key=_position_of)


def positions_by_row(indices: range, positions: range, n_rows: int) -> list[Iterator[int]]:
    """Return for each row the positions of the trajectories that run in it: trajectory i runs in row i mod n_rows.

    Args:
        indices: The indices of a ticket. Where a queue has every k-th index, these go to all rows, too.
        positions: Consecutive positions in the ticket.
        n_rows: How many rows there are.
    """
    first = indices[positions.start] // indices.step
    return [iter(positions[(row - first) % n_rows :: n_rows]) for row in range(n_rows)]


class RunningTickets:
    """The ticket that a worker has in hand, and those ahead of which it runs trajectories already.

    Args:
        worker: The worker, which looks ahead.
        n_rows: How many rows there are.

    Attributes:
        alone: Whether no trajectory of a later ticket may begin.
    """

    def __init__(self, worker: Worker, n_rows: int) -> None:
        self._worker, self._n_rows = worker, n_rows
        self._agent: BatchedAgent | None = None
        self._tickets: deque[RunningTicket] = deque()
        self._look_at = 0.0
        self.alone = True

    @property
    def in_hand(self) -> RunningTicket:
        """The ticket that the worker has in hand."""
        return self._tickets[0]

    @property
    def ran_ahead(self) -> bool:
        """Whether trajectories of later tickets have begun."""
        return any(later.begun for later in self._tickets if later is not self._tickets[0])

    def begun(self) -> list[Trajectory]:
        """Return all trajectories that have begun."""
        return [trajectory for running in self._tickets for trajectory in running.begun]

    def holds_first(self, ticket: Ticket) -> bool:
        """Return whether a ticket is the one in hand."""
        return bool(self._tickets) and self._tickets[0].ticket == ticket

    def begin(self, ticket: Ticket, seeds: list[int], agent: BatchedAgent) -> RunningTicket:
        """Take a ticket in hand, and forget all others."""
        self._agent = agent
        self._tickets.clear()
        return self._append(ticket, seeds)

    def end(self) -> None:
        """Forget the ticket in hand: the one after it is in hand now."""
        self._tickets.popleft()

    def clear(self) -> None:
        """Forget all tickets."""
        self._tickets.clear()

    def next_in(self, row: int) -> tuple[RunningTicket, int] | None:
        """Return the trajectory that is to begin in a row, its ticket and its position there; None if there is none."""
        for running in self._tickets:
            if (position := next(running.waiting[row], None)) is not None:
                return running, position
        while self.look_ahead():
            running = self._tickets[-1]
            if (position := next(running.waiting[row], None)) is not None:
                return running, position
        return None

    def look_ahead(self) -> bool:
        """Take in one more ticket that the worker holds, and return whether there is one."""
        if self.alone or (now := perf_counter()) < self._look_at:
            return False
        found = self._worker.look_ahead(len(self._tickets))
        if found is None:
            self._look_at = now + _LOOK_SECONDS
            return False
        self._append(*found)
        return True

    def _append(self, ticket: Ticket, seeds: list[int]) -> RunningTicket:
        assert self._agent is not None
        waiting = positions_by_row(ticket.indices, range(len(seeds)), self._n_rows)
        running = RunningTicket(ticket, seeds, self._agent.prepare(seeds), waiting)
        self._tickets.append(running)
        return running
