"""Record trajectories that are run side by side, step by step, and put them into order when they have ended."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.copying import make_recorder
from streamsampler.data.info_columns import InfoColumns
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.recorder import Rollouts, packed_floats, place_of, refuse_actions_outside
from streamsampler.data.spaces import AnySpace
from streamsampler.data.trees import Tree
from streamsampler.errors import ActionError, DataError, ObservationError
from streamsampler.workers.vec.infos import BatchInfos, reordered
from streamsampler.workers.vec.rows import BatchRows, in_order

__all__ = ["BatchRecorder"]


class BatchRecorder:
    """Records the trajectories of a ticket, several at a time.

    A row is one timestep of one trajectory. Rows are kept in the order in which they come, with the position of their
    trajectory in the ticket; `finish` puts them into the ticket's order, all at once. So a step of n environments costs
    a few operations on arrays, not n times as many.

    Args:
        observation_space: The space of a single observation.
        action_space: The space of a single action.

    Attributes:
        observations: The rows' observations.
        actions: The rows' actions.
        rewards: The rows' rewards: a loop may append floats itself, and `number_of` whatever else there is.
        positions: The rows' trajectories: a loop extends it by those of a step.
        agent_infos: For infos of several rows.
        env_infos: For infos of several rows.
        record_env_info: Takes (row, info).
        record_agent_info: Takes (row, info).
        n_begun: Trajectories that were begun.
        n_ended: Trajectories that have ended.
        n_timesteps: Their timesteps.
    """

    def __init__(self, observation_space: AnySpace, action_space: AnySpace) -> None:
        self._action_space = action_space
        self.observations = BatchRows(observation_space, "observation", ObservationError)
        self.actions = BatchRows(action_space, "action", ActionError)
        self._last_observations = make_recorder(observation_space, "observation", ObservationError)
        self.rewards: list[float] = []
        self.positions = array("q")
        self.env_infos, self.agent_infos = BatchInfos("env_infos"), BatchInfos("agent_infos")
        self._env_info, self._agent_info = InfoRecorder("env_infos"), InfoRecorder("agent_infos")
        self._episode_infos = InfoRecorder("episode_infos")
        self.record_env_info: Callable[[int, dict[str, Any]], None] = self._env_info.record
        self.record_agent_info: Callable[[int, dict[str, Any]], None] = self._agent_info.record
        self._ends: list[tuple[int, bool, bool]] = []
        self.n_begun = self.n_timesteps = 0

    @property
    def n_ended(self) -> int:
        """Trajectories that have ended."""
        return len(self._ends)

    def clear(self) -> None:
        """Forget everything."""
        for part in (
            self.observations, self.actions, self._last_observations, self.env_infos, self.agent_infos, self._env_info,
            self._agent_info, self._episode_infos, self._ends,
        ):  # fmt: skip
            part.clear()
        del self.rewards[:], self.positions[:]
        self.n_begun = self.n_timesteps = 0

    def begin(self, reset_info: Any) -> None:
        """Begin the ticket's next trajectory.

        Raises:
            DataError: The info of its reset is no dict, or has a key that is no string.
        """
        if reset_info.__class__ is not dict or reset_info:
            self._episode_infos.record(self.n_begun, reset_info)
        self.n_begun += 1

    def end(self, position: int, length: int, last_observation: Any, terminated: bool, truncated: bool) -> None:
        """End a trajectory.

        Args:
            position: Its position in the ticket.
            length: Its timesteps.
            last_observation: What its last action led to.
            terminated: What the environment said.
            truncated: What the environment said, or true because of a limit of the sampler's.

        Raises:
            ObservationError: The observation does not fit its space.
        """
        self._last_observations.record(last_observation)
        self._ends.append((position, terminated, truncated))
        self.n_timesteps += length

    def finish(self, most: int | None = None) -> Rollouts:
        """Return the trajectories that have ended with all before them, in the ticket's order.

        That is all of them, unless the ticket was cut short.

        Args:
            most: How many trajectories to give at most; None for all of them. What is wrong with those after them
                does not matter.

        Raises:
            ActionError: An action outside its space; its attribute `position` is the trajectory's position in the
                ticket.
            ObservationError: A last observation that its space's dtype cannot hold, with the same attribute.
            DataError: A trajectory with infos with a key `_x` next to a key `x`, with the same attribute.
        """
        positions = np.array([position for position, _, _ in self._ends], dtype=np.int64)
        ends = np.argsort(positions)
        n_trajectories = int(np.argmin(np.append(positions[ends] == np.arange(len(ends)), False)))
        n_trajectories = n_trajectories if most is None else min(n_trajectories, most)
        ends = ends[:n_trajectories]
        n_rows = len(self.rewards)
        trajectory = np.array(self.positions, dtype=np.int64)
        order = np.argsort(trajectory, kind="stable")
        target = np.empty(n_rows, dtype=np.int64)
        target[order] = np.arange(n_rows)
        lengths = np.bincount(trajectory, minlength=n_trajectories).astype(np.int64)[:n_trajectories]
        order = order[: int(lengths.sum())]
        try:
            actions = self.actions.in_order(n_rows, order)
        except DataError as error:
            error.position, error.timestep = place_of(error.row or 0, lengths)
            raise
        refuse_actions_outside(self._action_space, actions, lengths)
        flags = np.array([end[1:] for end in self._ends], dtype=np.bool_).reshape(-1, 2)[ends]
        return Rollouts(
            observations=self.observations.in_order(n_rows, order),
            last_observations=self._last_in_order(ends, lengths),
            actions=actions,
            rewards=np.ndarray((n_rows,), np.float64, packed_floats(self.rewards))[order],
            terminated=flags[:, 0].copy(),
            truncated=flags[:, 1].copy(),
            lengths=lengths,
            env_infos=reordered(
                _finished(self._env_info, self.env_infos, trajectory, n_trajectories), target, len(order)
            ),
            agent_infos=reordered(
                _finished(self._agent_info, self.agent_infos, trajectory, n_trajectories), target, len(order)
            ),
            episode_infos=self._episode_infos.finish(n_trajectories, lambda positions: positions),
        )

    def _last_in_order(self, ends: NDArray[np.int64], lengths: NDArray[np.int64]) -> Tree:
        try:
            return in_order(self._last_observations.view, len(self._ends), ends)
        except DataError as error:
            error.position = error.row or 0
            error.timestep = int(lengths[error.position])
            raise


def _finished(
    single: InfoRecorder, batches: BatchInfos, trajectory: NDArray[np.int64], n_trajectories: int
) -> InfoColumns:
    """Return what either recorder holds: an agent and an environment always use the same."""

    def owners(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        owning = trajectory[rows]
        return owning[owning < n_trajectories]

    columns = single.finish(len(trajectory), owners)
    return columns if columns.columns else batches.finish(len(trajectory), owners)
