"""Record the trajectories of a native vector environment in columns, and cut them out when all have ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.exactness import may_change
from streamsampler.data.info_columns import InfoColumns, Owners, check_names
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.recorder import Rollouts, refuse_actions_outside
from streamsampler.data.spaces import AnySpace
from streamsampler.data.step_values import check_rewards
from streamsampler.data.trees import Tree, concatenate, leaves, take
from streamsampler.errors import ActionError, DataError, ObservationError
from streamsampler.workers.vec.columns import Column, Columns
from streamsampler.workers.vec.infos import BatchInfos, gathered
from streamsampler.workers.vec.native_values import column_of_slots
from streamsampler.workers.vec.rows import row_of

__all__ = ["NativeRecorder"]

_FLOAT64 = np.dtype(np.float64)


class _Ends(NamedTuple):
    """Trajectories that ended, one or more.

    Attributes:
        positions: Their positions in the ticket.
        slots: Where they ran.
        first: The steps of their first observations.
        last: The steps after their last ones.
        terminated: What the environment said.
        truncated: What the environment said, or true because of a limit of the sampler's.
    """

    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class NativeRecorder:
    """Records the trajectories of a ticket, all slots at a time.

    Steps count on over the ticket's blocks. Each has a column of observations, those before the step, and columns of
    what was done and said then, with one value for each slot: what no trajectory is made of as well.

    Args:
        observation_space: The space of a single observation.
        action_space: The space of a single action.
        n_slots: How many slots there are.

    Attributes:
        step: The step in hand.
        observations: The slots' observations.
        actions: The slots' actions.
        env_infos: Infos of steps, by the number `step * n_slots + slot`.
        agent_infos: The same.
        episode_infos: Infos of resets, by the trajectories' positions in the ticket.
        record_agent_info: Takes (number, info), for agents that are asked for one action at a time.
        n_ended: Trajectories that have ended.
        n_timesteps: Their timesteps.
    """

    def __init__(self, observation_space: AnySpace, action_space: AnySpace, n_slots: int) -> None:
        self._action_space, self._n_slots = action_space, n_slots
        self.observations = Columns(observation_space, n_slots, "observation", ObservationError)
        self.actions = Columns(action_space, n_slots, "action", ActionError)
        self._apart = Columns(observation_space, n_slots, "observation", ObservationError)
        self._rewards = Column(n_slots, _FLOAT64)
        self.env_infos, self.agent_infos = BatchInfos("env_infos"), BatchInfos("agent_infos")
        self._agent_info = InfoRecorder("agent_infos")
        self.record_agent_info: Callable[[int, dict[str, Any]], None] = self._agent_info.record
        self.episode_infos = BatchInfos("episode_infos")
        self._last_observations: list[Tree] = []
        self._ends: list[_Ends] = []
        self.step = self.n_ended = self.n_timesteps = 0

    def clear(self) -> None:
        """Forget everything."""
        for part in (
            self.observations, self.actions, self.env_infos, self.agent_infos, self.episode_infos,
            self._agent_info, self._last_observations, self._ends,
        ):  # fmt: skip
            part.clear()
        self.step = self.n_ended = self.n_timesteps = 0

    def begin_block(self, observations: Any, silent: NDArray[np.bool_]) -> None:
        """Record what slots begin a block with; what silent ones show does not matter."""
        # After the last block's last observations, which are no step's.
        self.step = self.observations.n_steps
        _append(self.observations, observations, silent)
        self.actions.n_steps = self.step

    def fill_actions(self, live: NDArray[np.bool_]) -> None:
        """Give the slots that none was chosen for the first of a step's actions, or those of the step before it."""
        source = self.step if live.any() else self.step - 1
        for (_, rows), (_, others) in zip(
            leaves(self.actions.row_batch(self.step)), leaves(self.actions.row_batch(source)), strict=True
        ):
            rows[~live] = others[live.argmax()]
        self.actions.n_steps = self.step + 1

    def record(self, observations: Any, rewards: Any, silent: NDArray[np.bool_], live: NDArray[np.bool_]) -> None:
        """Record what a step returned.

        Args:
            observations: Those after the step.
            rewards: (n_slots,) numbers.
            silent: The slots whose observations do not matter.
            live: The slots whose rewards matter.

        Raises:
            DataError: They do not fit; with the slot as `row`, if it is one slot's fault.
        """
        self.step += 1
        _append(self.observations, observations, silent)
        if rewards.__class__ is not np.ndarray or rewards.shape != (self._n_slots,) or rewards.dtype.kind not in "biuf":
            rewards = column_of_slots(rewards, self._n_slots, "rewards", "biuf")
        if rewards.dtype is not _FLOAT64 and may_change(rewards.dtype, _FLOAT64):
            try:
                check_rewards(rewards[live])
            except DataError as error:
                error.row = int(np.flatnonzero(live)[error.row or 0])
                raise
        self._rewards.at(self.step - 1)[:] = rewards

    def end(
        self, slots: NDArray[np.int64], positions: NDArray[np.int64], first: NDArray[np.int64],
        terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], final: Any = None,
    ) -> None:  # fmt: skip
        """End trajectories with the last step.

        Args:
            slots: Where they ran.
            positions: (n,) their positions in the ticket.
            first: (n,) the steps that they began with.
            terminated: (n,) what the environment said.
            truncated: (n,) the same, or true because of a limit of the sampler's.
            final: (n_slots, ...) the environment's last observations, where these slots begin their next trajectories
                in the same step; None where they were recorded.
        """
        last = np.full(len(slots), self.step)
        self._ends.append(_Ends(positions, slots, first, last, terminated, truncated))
        if final is not None:
            self._last_observations.append(take(self._written_apart(final, slots), slots))
        self.n_ended += len(slots)
        self.n_timesteps += int((last - first).sum())

    def keep_last(self, slots: NDArray[np.int64]) -> None:
        """Keep the last observations of trajectories that ended, before their slots are reset."""
        self._last_observations.append(take(self.observations.row_batch(self.step), slots))

    def begin_again(self, observations: Any, used: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """Record the observations that slots, which were reset by themselves, go on with.

        Args:
            observations: What the reset returned.
            used: Slots that begin a trajectory.
            slots: Those and others.
        """
        apart = self._written_apart(observations, used)
        for (_, whole), (_, rows) in zip(leaves(self.observations.row_batch(self.step)), leaves(apart), strict=True):
            whole[slots] = rows[slots]

    def _written_apart(self, observations: Any, used: NDArray[np.int64]) -> Tree:
        """Return a checked copy of observations of which only those of some slots matter."""
        unused = np.ones(self._n_slots, dtype=np.bool_)
        unused[used] = False
        self._apart.clear()
        _append(self._apart, observations, unused)
        return self._apart.row_batch(0)

    def finish(self, most: int | None = None) -> Rollouts:
        """Return the ticket's trajectories, all of which have ended, in its order.

        Args:
            most: How many trajectories to give at most; None for all of them. What is wrong with those after them
                does not matter.

        Raises:
            ActionError: An action outside its space; its attribute `position` is the trajectory's position in the
                ticket.
            DataError: A trajectory with infos with a key `_x` next to a key `x`, with the same attribute.
        """
        in_order = np.argsort(np.concatenate([ends.positions for ends in self._ends]))[:most]
        ends = _Ends(*(np.concatenate(parts)[in_order] for parts in zip(*self._ends, strict=True)))
        n_slots, lengths = self._n_slots, ends.last - ends.first
        stops = np.cumsum(lengths)
        # Trajectories one after the other, and in each every `n_slots`-th number.
        numbers = np.repeat(ends.first * n_slots + ends.slots - (stops - lengths) * n_slots, lengths)
        numbers += np.arange(len(numbers)) * n_slots
        actions = self.actions.gather(numbers)
        refuse_actions_outside(self._action_space, actions, lengths)
        if self._last_observations:
            last_observations = take(concatenate(self._last_observations), in_order)
        else:
            last_observations = self.observations.gather(ends.last * n_slots + ends.slots)

        def owners(rows: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.searchsorted(stops, rows, side="right")

        return Rollouts(
            observations=self.observations.gather(numbers),
            last_observations=last_observations,
            actions=actions,
            rewards=self._rewards.gather(numbers),
            terminated=ends.terminated,
            truncated=ends.truncated,
            lengths=lengths,
            env_infos=self._gathered("env_infos", [self.env_infos], numbers, owners),
            agent_infos=self._gathered("agent_infos", [self._agent_info, self.agent_infos], numbers, owners),
            episode_infos=self._gathered(
                "episode_infos", [self.episode_infos], np.arange(len(lengths)), lambda positions: positions
            ),
        )

    def _gathered(self, path: str, parts: list[Any], numbers: NDArray[np.int64], owners: Owners) -> InfoColumns:
        """Return the infos of some numbers; an agent always uses the same of several recorders."""
        n_numbers = self.observations.n_steps * self._n_slots
        # Names may clash in what is no trajectory's.
        whole = [part.finish(n_numbers, lambda steps: steps[:0]) for part in parts]
        columns = gathered(next((each for each in whole if each.columns), whole[0]), numbers)
        check_names(columns.columns, path, owners)
        return columns


def _append(columns: Columns, batch: Any, unused: NDArray[np.bool_]) -> None:
    """Append a batch, in which whatever unused rows hold is no error."""
    if not isinstance(batch, np.ndarray) or batch.dtype != object:
        try:
            columns.append(batch)
        except DataError as error:
            if error.row is None or not unused[error.row]:
                raise
        else:
            return
    step, used = columns.n_steps, np.flatnonzero(~unused)
    for row in used.tolist():
        try:
            columns.put(step, row, row_of(batch, row))
        except DataError as error:
            error.row = row
            raise
    for _, leaf in leaves(columns.row_batch(step)):
        leaf[unused] = leaf[used[0]] if len(used) else 0
    columns.n_steps = step + 1
