"""Record the trajectories of a ticket, whole or in fragments."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.core.by_position import by_position
from streamsampler.core.errors import ActionError, DataError, ObservationError
from streamsampler.data import trees
from streamsampler.data.anomalies import Anomaly
from streamsampler.data.copying import Allocate, make_recorder
from streamsampler.data.info_columns import InfoColumns, with_last_values
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.spaces import AnySpace, check_actions, flag_of, reward_recorder
from streamsampler.data.trees import Tree

__all__ = [
    "EnvFragment", "EpisodeState", "PolicyRollouts", "RolloutRecorder", "Rollouts", "lengths_of",
    "packed_floats", "place_of", "refuse_actions_outside",
]  # fmt: skip


class EpisodeState(NamedTuple):
    """The state of an unfinished episode, apart from its environment.

    Attributes:
        length: Its timesteps so far.
        memory: The agents' `get_state` results and the states of the global generators, pickled together for all
            environments of a ticket; and the position of this environment's. None if nothing must be remembered.
        digests: Digests of its observations and rewards so far, including the observation after its last action.
        restorable: Whether another worker's agent can be set to this state.
        actions: The joint actions of several agents in the call's timesteps, a dict for each timestep.
    """

    length: int
    memory: tuple[bytes, int] | None
    digests: tuple[int, ...]
    restorable: bool
    actions: Any = None


class EnvFragment(NamedTuple):
    """An environment's fragment in a call: episodes, or parts of them, in order of time. Immutable.

    Attributes:
        number: The environment's number.
        n_episodes: The number of episodes.
        first: The first episode's number among all episodes of this environment.
        continued: Whether the first episode began in an earlier call.
        state: The state of the last episode; None if it ended.
        lost: Why the unfinished episode could not be restored after a loss; empty otherwise.
        group: The index of its ticket: the environment's number, or its group's.
        agent: In a group's first environment, the pickled state of the agent and of the global generators.
    """

    number: int
    n_episodes: int
    first: int
    continued: bool
    state: EpisodeState | None
    lost: str = ""
    group: int = -1
    agent: bytes | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> EnvFragment:
        """Return itself: an item-by-item copy of an immutable object would cost more than its recording."""
        return self


def lengths_of(rollouts: Any) -> tuple[int, ...]:
    """Return the timesteps of each index in a ticket's `Rollouts`: of a trajectory, or of an environment's fragment."""
    lengths = tuple(rollouts.lengths.tolist())  # a tuple: the garbage collector visits lists of numbers, too
    if not rollouts.fragments:
        return lengths
    of_groups: dict[int, int] = {}
    stop = 0
    for fragment in rollouts.fragments:
        start, stop = stop, stop + fragment.n_episodes
        of_groups[fragment.group] = of_groups.get(fragment.group, 0) + sum(lengths[start:stop])
    return tuple(of_groups.values())


@by_position
@dataclass(slots=True)  # not frozen: construction would take three times as long, and is frequent
class Rollouts:
    """The trajectories of a ticket, in its order: n trajectories, t timesteps in all.

    The arrays may be views of memory that the next ticket overwrites: copy them to keep them; a pickle is a copy.

    Attributes:
        observations: Tree of (t, *O).
        last_observations: Tree of (n, *O).
        actions: Tree of (t, *A).
        rewards: (t,) float64.
        terminated: (n,) bool.
        truncated: (n,) bool.
        lengths: (n,) int64.
        env_infos: Columns of t steps.
        agent_infos: Columns of t steps.
        episode_infos: Columns of n steps.
        anomalies: The trajectories with suspect data, if these were checked.
        fragments: In fragments, the trajectories of each environment, in the ticket's order; else empty.
        summaries: A pickled summary of each trajectory for the sampler's filters; empty without filters.
        has_last_values: Whether `episode_infos` have the agent's values of last observations.
        policies: With several agents in an environment, the trajectories of each policy; else empty.
        remarks: Possible faults of the environment: pairs of a kind and a text to warn with once.
    """

    observations: Tree
    last_observations: Tree
    actions: Tree
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    env_infos: InfoColumns
    agent_infos: InfoColumns
    episode_infos: InfoColumns
    anomalies: tuple[Anomaly, ...] = ()
    fragments: tuple[EnvFragment, ...] = ()
    summaries: bytes = b""
    has_last_values: bool = False
    policies: tuple[PolicyRollouts, ...] = ()
    remarks: tuple[tuple[str, str], ...] = ()

    @property
    def n_trajectories(self) -> int:
        """The number of trajectories."""
        return len(self.lengths)

    def agent_steps(self) -> tuple[int, ...]:
        """Return the timesteps of all agents together in each trajectory."""
        if not self.policies:
            return tuple(self.lengths.tolist())
        counts = np.zeros(self.n_trajectories, np.int64)
        for each in self.policies:
            np.add.at(counts, each.episodes, each.rollouts.lengths)
        return tuple(counts.tolist())

    @property
    def n_timesteps(self) -> int:
        """The number of timesteps of all trajectories."""
        return len(self.rewards)


@by_position
@dataclass(slots=True)
class PolicyRollouts:
    """A policy's trajectories in a ticket, by episode and agent.

    Attributes:
        policy: The policy's name.
        rollouts: The trajectories: n of them, t timesteps in all.
        agents: (n,) int64: each trajectory's agent, by its number among the possible agents, or in `known`.
        episodes: (n,) int64, never falling: the position in the ticket of each trajectory's episode.
        env_timesteps: (t,) int64: the environment timestep of each timestep.
        known: If any agents may take part, those that did, sorted; else empty.
        spaces: Their observation and action space; None if the environment lists its possible agents.
        earlier: In fragments, the agents' timesteps and summed rewards, (n,) each, in earlier calls of unfinished
            episodes; None if all trajectories are new.
    """

    policy: str
    rollouts: Rollouts
    agents: NDArray[np.int64]
    episodes: NDArray[np.int64]
    env_timesteps: NDArray[np.int64]
    known: tuple[str, ...] = ()
    spaces: tuple[Any, Any] | None = None
    earlier: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None


class RolloutRecorder:
    """Records trajectories, in sequence, and returns those that ended.

    For each trajectory: `begin`; for each timestep `record_observation`, `record_action`, `record_reward` and, for
    non-empty infos, `record_env_info` and `record_agent_info` with the timestep's number; then `end`, or `abandon`.
    Timesteps are numbered from the result of `begin` on.

    Attributes:
        record_observation: Copies the observation before an action; ObservationError if it does not fit.
        record_action: Copies an action; ActionError if its shape or kind differs from its space.
        record_reward: Records a number; DataError for other values.
        record_env_info: Records (step, info).
        record_agent_info: Records (step, info).
        encoded_observations: A list to which a loop may append the bytes of an observation with dtype
            `observation_dtype` and shape `observation_shape`; None if it may not.
        observation_dtype: For `encoded_observations`.
        observation_shape: For `encoded_observations`.
        integer_actions: A list to which a loop may append Python integers as actions; None if it may not.
        float_rewards: A list to which a loop may append rewards of class `reward_class`.
        reward_class: Python's float; a class without instances if all rewards must go to `record_reward`.
        n_trajectories: The number of ended trajectories.
        n_timesteps: Their timesteps.
        metrics: The aggregation of each recorded metric, by name.
    """

    reward_class: type = float

    def __init__(self, observation_space: AnySpace, action_space: AnySpace, allocate: Allocate = np.empty) -> None:
        self._action_space = action_space
        self._observations = make_recorder(observation_space, "observation", ObservationError, allocate)
        self._last_observations = make_recorder(observation_space, "observation", ObservationError, allocate)
        self._actions = make_recorder(action_space, "action", ActionError, allocate)
        self.float_rewards = self._rewards = list[float]()
        self._env_infos = InfoRecorder("env_infos")
        self._agent_infos = InfoRecorder("agent_infos")
        self._episode_infos = InfoRecorder("episode_infos")
        self._lengths: list[int] = []
        self._terminated: list[bool] = []
        self._truncated: list[bool] = []
        self._last_values: dict[int, float] = {}  # by position of the trajectory
        self._begun = False
        self.metrics: dict[str, str] = {}
        self.n_trajectories = 0
        self.n_timesteps = 0
        self.record_observation: Callable[[Any], None] = self._observations.record
        self.record_action: Callable[[Any], None] = self._actions.record
        self.record_reward: Callable[[Any], None] = reward_recorder(self._rewards)
        self.encoded_observations: list[bytes] | None = self._observations.encoded
        self.observation_dtype, self.observation_shape = self._observations.dtype, self._observations.shape
        self.integer_actions: list[int] | None = self._actions.integers
        self.record_env_info: Callable[[int, dict[str, Any]], None] = self._env_infos.record
        self.record_agent_info: Callable[[int, dict[str, Any]], None] = self._agent_infos.record

    def begin(self, reset_info: dict[str, Any]) -> int:
        """Start a trajectory; an unfinished trajectory is abandoned.

        Args:
            reset_info: The info of the environment's reset.

        Returns:
            The number of its first timestep, counted over the whole ticket.

        Raises:
            DataError: The info is no dict, or a key is no string.
        """
        if len(self._rewards) != self.n_timesteps or self._begun:
            self.abandon()
        self._begun = True
        if reset_info.__class__ is not dict or reset_info:
            try:
                self._episode_infos.record(self.n_trajectories, reset_info)
            except DataError as error:
                error.row = -1
                raise
        return self.n_timesteps

    def record_metrics(self, metrics: dict[str, Any]) -> None:
        """Record further infos of the current trajectory, which are returned with those of its reset.

        Args:
            metrics: Their values by name; no name is among the reset's infos.

        Raises:
            DataError: `metrics` is no dict, or a key is no string.
        """
        self._episode_infos.record(self.n_trajectories, metrics)

    def record_last_value(self, value: float) -> None:
        """Record the agent's value of the last observation, if the current trajectory did not terminate."""
        self._last_values[self.n_trajectories] = value

    def flags(self, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        """Return the environment's flags of the current timestep as booleans, after its reward was recorded.

        Raises:
            DataError: A flag is neither true nor false; see `flag_of`.
        """
        try:
            return flag_of("terminated", terminated), flag_of("truncated", truncated)
        except DataError as error:
            error.row = len(self._rewards) - 1
            raise

    def end(self, last_observation: Any, terminated: bool, truncated: bool, *, limited: bool = False) -> None:
        """End the current trajectory.

        Args:
            last_observation: The observation after the last action.
            terminated: The environment's flag.
            truncated: The environment's flag.
            limited: Whether the trajectory has reached its maximum length: then it is truncated in any case.

        Raises:
            ObservationError: The observation does not fit its space.
            DataError: Nothing was recorded, or the numbers of observations, actions and rewards differ.
        """
        n_rewards = len(self._rewards)
        length = n_rewards - self.n_timesteps
        if length < 1 or not (self._observations.count() == n_rewards == self._actions.count()):
            self._check_counts()
        self._last_observations.record(last_observation)
        self._lengths.append(length)
        self._terminated.append(terminated)
        self._truncated.append(truncated or limited)
        self.n_trajectories += 1
        self.n_timesteps = n_rewards
        self._begun = False

    def _check_counts(self) -> None:
        n_rewards, recorders = len(self._rewards), (self._observations, self._actions)
        with_leaves = [it for it in recorders if any(trees.leaves(it.view(0, 0)))]  # spaces without leaves have no rows
        if n_rewards > self.n_timesteps and all(it.count() == n_rewards for it in with_leaves):
            return
        counts = [it.count() - self.n_timesteps for it in recorders]
        raise DataError(
            f"a trajectory cannot end with {counts[0]} observations, {counts[1]} actions and "
            f"{n_rewards - self.n_timesteps} rewards"
        )

    def current_trajectory_copies(self) -> tuple[Tree, Tree, NDArray[np.float64]]:
        """Return copies of the observations, actions and rewards recorded so far of the current trajectory."""
        first, last = self.n_timesteps, len(self._rewards)
        observations, actions = self._observations.view(first, last), self._actions.view(first, last)
        rewards = np.array(self._rewards[first:], dtype=np.float64)
        return trees.map_tree(np.copy, observations), trees.map_tree(np.copy, actions), rewards

    def discard_last_observation(self) -> None:
        """Discard the last observation, which has no action yet: a later ticket continues the trajectory from it."""
        self._observations.truncate(len(self._rewards))

    def abandon(self) -> None:
        """Discard the current trajectory."""
        for recorder in (self._observations, self._actions, self._env_infos, self._agent_infos):
            recorder.truncate(self.n_timesteps)
        for recorder in (self._last_observations, self._episode_infos):
            recorder.truncate(self.n_trajectories)
        del self._rewards[self.n_timesteps :]
        self._begun = False

    def discard_after(self, n_trajectories: int) -> None:
        """Discard all trajectories after the first `n_trajectories`, and the current trajectory."""
        for values in (self._lengths, self._terminated, self._truncated):
            del values[n_trajectories:]
        self._last_values = {row: value for row, value in self._last_values.items() if row < n_trajectories}
        self.n_trajectories, self.n_timesteps = n_trajectories, sum(self._lengths)
        self.abandon()

    def clear(self) -> None:
        """Discard everything, for the next ticket."""
        self.n_trajectories = self.n_timesteps = 0
        self.metrics.clear()
        self._last_values.clear()
        self.abandon()
        for recorder in (self._observations, self._last_observations, self._actions):
            recorder.renew()
        for column in (self._env_infos, self._agent_infos, self._episode_infos):
            column.clear()
        for values in (self._lengths, self._terminated, self._truncated):
            values.clear()

    def finish(self) -> Rollouts:
        """Return the trajectories that ended since the last `clear`; their arrays are views of the recorder's memory.

        Raises:
            ActionError: An action is outside its space.
            ObservationError: The space's dtype cannot hold an observation.
            DataError: Infos have a key `_x` and a key `x`, or the key of the agent's value. All of these errors have a
                `position`.
        """
        n_timesteps, n_trajectories = self.n_timesteps, self.n_trajectories
        observations, actions, last_observations = self._views()
        refuse_actions_outside(self._action_space, actions, self._lengths)
        lengths = np.array(self._lengths, dtype=np.int64)
        episode_infos = self._episode_infos.finish(n_trajectories, lambda positions: positions)
        if last_values := {row: value for row, value in self._last_values.items() if row < n_trajectories}:
            episode_infos = with_last_values(episode_infos, list(last_values), list(last_values.values()))

        def owners(steps: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.searchsorted(np.cumsum(lengths), steps, side="right")

        return Rollouts(
            observations=observations,
            last_observations=last_observations,
            actions=actions,
            rewards=np.ndarray((n_timesteps,), np.float64, packed_floats(self._rewards[:n_timesteps])),
            terminated=np.array(self._terminated, dtype=np.bool_),
            truncated=np.array(self._truncated, dtype=np.bool_),
            lengths=lengths,
            env_infos=self._env_infos.finish(n_timesteps, owners),
            agent_infos=self._agent_infos.finish(n_timesteps, owners),
            episode_infos=episode_infos,
            has_last_values=bool(last_values),
        )

    def _views(self) -> tuple[Tree, Tree, Tree]:
        """Return observations, actions and last observations; raise the error of the earliest trajectory."""
        errors: list[DataError] = []
        views: list[Tree] = []
        for recorder in (self._observations, self._actions, self._last_observations):
            is_last = recorder is self._last_observations
            try:
                views.append(recorder.view(0, self.n_trajectories if is_last else self.n_timesteps))
            except DataError as error:
                row = error.row or 0
                error.position, error.timestep = (row, self._lengths[row]) if is_last else place_of(row, self._lengths)
                errors.append(error)
        if errors:
            raise min(errors, key=attrgetter("position", "timestep"))
        return views[0], views[1], views[2]


def place_of(row: int, lengths: Sequence[int] | NDArray[np.int64]) -> tuple[int, int]:
    """Return the position in its ticket of row `row`'s trajectory, and the timestep within it."""
    ends = np.cumsum(lengths)
    position = int(np.searchsorted(ends, row, side="right"))
    return position, row - int(ends[position] - lengths[position])


def refuse_actions_outside(space: AnySpace, actions: Tree, lengths: Sequence[int] | NDArray[np.int64]) -> None:
    """Raise an `ActionError`, with the trajectory's `position`, if an action is outside its space."""
    outside = check_actions(space, actions)
    if outside is None:
        return
    row, message = outside
    position, timestep = place_of(row, lengths)
    advice = ""
    if isinstance(space, gym_spaces.Box):
        advice = "; clip it in the agent, or wrap the environment with gymnasium.wrappers.ClipAction"
    raise ActionError(f"{message}, at timestep {timestep} of its trajectory{advice}", position=position)


def packed_floats(values: list[float]) -> bytearray:
    """Return the memory of an array of floats, in a third of the time of `np.array`."""
    return bytearray(struct.pack(f"{len(values)}d", *values))
