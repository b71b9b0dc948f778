"""Record the trajectories of a ticket."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
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
    "EnvFragment", "EpisodeState", "PolicyRollouts", "RolloutRecorder", "Rollouts", "check_fragments",
    "joined_fragments", "lengths_of", "packed_floats", "place_of", "refuse_actions_outside",
]  # fmt: skip

# ----------------------------------------------------------------------
# Fragments of episodes that go on from call to call: what a worker says of them, and what a batch has of that.


class EpisodeState(NamedTuple):
    """Where an episode that goes on stands, apart from its environment.

    Attributes:
        length: Its timesteps so far.
        memory: What the agents' `get_state` returned, and the states of the global generators, for all environments of
            a ticket, pickled together; and which of them this is. None where there is nothing to remember.
        digests: Of its observations and rewards so far, that observation included which its last action led to.
        restorable: Whether another worker's agent can be put into this state.
        actions: The joint actions of several agents in the call's timesteps, a dict for each timestep.
    """

    length: int
    memory: tuple[bytes, int] | None
    digests: tuple[int, ...]
    restorable: bool
    actions: Any = None


class EnvFragment(NamedTuple):
    """What one environment's timesteps in a call consist of: consecutive episodes, or parts of them. Never changed.

    Attributes:
        number: The environment's number.
        n_episodes: How many there are.
        first: The number of the first one among all episodes of this environment.
        continued: Whether that one began in an earlier call.
        state: Where the last one stands; None if it ended.
        lost: Why the episode that went on could not be restored after a loss; empty where nothing was lost.
        group: The index of the ticket that it belongs to: the environment's number, or that of its group.
        agent: In the first environment of a group the state of the agent and of the global generators, pickled.
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
        """Return itself: to copy item by item what is never changed would cost more than to record it."""
        return self


def lengths_of(rollouts: Any) -> tuple[int, ...]:
    """Return how many timesteps each index of a ticket's `Rollouts` has: a trajectory, or an environment's fragment."""
    lengths = tuple(rollouts.lengths.tolist())  # the garbage collector looks at lists of numbers, too
    if not rollouts.fragments:
        return lengths
    of_groups: dict[int, int] = {}
    stop = 0
    for fragment in rollouts.fragments:
        start, stop = stop, stop + fragment.n_episodes
        of_groups[fragment.group] = of_groups.get(fragment.group, 0) + sum(lengths[start:stop])
    return tuple(of_groups.values())


_WHOLE: dict[str, tuple[type[np.generic], Any]] = {
    "continued": (np.bool_, False),
    "cut": (np.bool_, False),
    "env_numbers": (np.int64, -1),
    "earlier_lengths": (np.int64, 0),
    "earlier_returns": (np.float64, 0.0),
}
"""What the field `fragments` of a batch has: the dtypes, and what is said of whole trajectories."""


def check_fragments(fragments: Mapping[str, Any], n_trajectories: int) -> None:
    """Check the field `fragments` of a batch.

    Raises:
        DataError: It is neither empty, nor has what it should have.
    """
    if not fragments:
        return
    if sorted(fragments) != sorted(_WHOLE):
        raise DataError(f"fragments should have {', '.join(_WHOLE)}, and has {', '.join(map(str, fragments))}")
    for name, (dtype, _) in _WHOLE.items():
        array = fragments[name]
        if not isinstance(array, np.ndarray) or array.shape != (n_trajectories,) or array.dtype != dtype:
            raise DataError(
                f"fragments[{name!r}] should be an array of shape ({n_trajectories},) and dtype {np.dtype(dtype)}, and "
                f"is {array!r}"
            )
    earlier, continued = fragments["earlier_lengths"], fragments["continued"]
    if (wrong := (earlier > 0) != continued).any():
        position = int(wrong.argmax())
        said = "was continued" if continued[position] else "was not continued"
        raise DataError(f"trajectory {position} has {earlier[position]} earlier timesteps, and {said}")


def joined_fragments(parts: Sequence[tuple[Mapping[str, Any], int]]) -> dict[str, Any]:
    """Join the field `fragments` of batches, given with their numbers of trajectories; those without it were whole."""
    if not any(fragments for fragments, _ in parts):
        return {}
    return {
        name: np.concatenate([fragments.get(name, np.full(n, whole, dtype)) for fragments, n in parts])
        for name, (dtype, whole) in _WHOLE.items()
    }


# ----------------------------------------------------------------------


@by_position
@dataclass(slots=True)  # not frozen: that would make each one, and there are many, take three times as long
class Rollouts:
    """The trajectories of one ticket, in its order: n of them, t timesteps in all.

    The arrays may be views of memory that the next ticket overwrites: copy what is kept; a pickle is a copy.

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
        anomalies: The trajectories that may be wrong, if that was looked for.
        fragments: Of fragments, which trajectories belong to which environment, in the ticket's order; else empty.
        summaries: A summary of each trajectory for the sampler's filters, pickled; empty without filters.
        has_last_values: Whether `episode_infos` have the agent's values of last observations.
        policies: Of several agents in one environment, the trajectories of each, by policy; else empty.
        remarks: What may be wrong in the environment, each kind of it and a text that says so once.
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
        """Return how many timesteps all agents together have in each trajectory."""
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
    """The trajectories of the agents that one policy played in a ticket, by episode and then by agent.

    Attributes:
        policy: The policy's name.
        rollouts: Their trajectories: n of them, t timesteps in all.
        agents: (n,) int64: which agent each is of, by its number among those that may take part, or in `known`.
        episodes: (n,) int64, never falling: the position in the ticket of the trajectory of all agents that it is of.
        env_timesteps: (t,) int64: in which step of the environment the agent acted.
        known: Where any agents may take part, those that did, sorted; else empty.
        spaces: Their observation and action space; None where the environment says beforehand which there may be.
        earlier: Of fragments, the timesteps and the summed rewards, (n,) each, that agents had in earlier calls of the
            episodes which go on; None where none does.
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
    """Records trajectories one after the other, and hands out those that ended.

    For each trajectory: `begin`; for each timestep `record_observation`, `record_action`, `record_reward` and, where
    there are infos, `record_env_info` and `record_agent_info` with the timestep's number; then `end`, or `abandon`.
    A timestep's number counts on from what `begin` returned.

    Attributes:
        record_observation: Copies the observation that an action is chosen on; ObservationError if it does not fit.
        record_action: Copies an action; ActionError if it has another shape or kind than its space.
        record_reward: Takes a number; DataError if it is none.
        record_env_info: Takes (step, info).
        record_agent_info: Takes (step, info).
        encoded_observations: Where a loop may append the bytes of an observation whose dtype equals
            `observation_dtype` and whose shape equals `observation_shape`; None where it may not.
        observation_dtype: See there.
        observation_shape: See there.
        integer_actions: Where a loop may append actions that are integers of Python itself; None where it may not.
        float_rewards: Where a loop may append rewards of the class `reward_class`.
        reward_class: Floats of Python itself; a class that no reward has where all rewards go to `record_reward`.
        n_trajectories: How many trajectories have ended.
        n_timesteps: How many timesteps those have in all.
        metrics: How each metric that was recorded becomes one number for a batch, by name.
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
        """Start a trajectory; one in hand is abandoned.

        Args:
            reset_info: The info of the environment's reset.

        Returns:
            The number of its first timestep, counted over the whole ticket.

        Raises:
            DataError: An info that is no dict, or has a key that is no string.
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
        """Record further infos of the trajectory in hand, which come back with those of its reset.

        Args:
            metrics: Their values by name; none of the names is one of the reset's infos.

        Raises:
            DataError: It is no dict, or has a key that is no string.
        """
        self._episode_infos.record(self.n_trajectories, metrics)

    def record_last_value(self, value: float) -> None:
        """Record the agent's value of the last observation of the trajectory in hand, which did not terminate."""
        self._last_values[self.n_trajectories] = value

    def flags(self, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        """Return as booleans what the environment said in the timestep whose reward was recorded last.

        Raises:
            DataError: One of the two is neither true nor false; see `flag_of`.
        """
        try:
            return flag_of("terminated", terminated), flag_of("truncated", truncated)
        except DataError as error:
            error.row = len(self._rewards) - 1
            raise

    def end(self, last_observation: Any, terminated: bool, truncated: bool, *, limited: bool = False) -> None:
        """End the trajectory in hand.

        Args:
            last_observation: What the last action led to.
            terminated: What the environment said.
            truncated: What the environment said.
            limited: Whether the trajectory has as many timesteps as it may have: then it is truncated in any case.

        Raises:
            ObservationError: The observation does not fit its space.
            DataError: Nothing was recorded, or not as many observations as actions and rewards.
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
        with_leaves = [it for it in recorders if any(trees.leaves(it.view(0, 0)))]  # others record nothing
        if n_rewards > self.n_timesteps and all(it.count() == n_rewards for it in with_leaves):
            return
        counts = [it.count() - self.n_timesteps for it in recorders]
        raise DataError(
            f"a trajectory cannot end with {counts[0]} observations, {counts[1]} actions and "
            f"{n_rewards - self.n_timesteps} rewards"
        )

    def copies_in_hand(self) -> tuple[Tree, Tree, NDArray[np.float64]]:
        """Return copies of observations, actions and rewards of the trajectory in hand, as far as it was recorded."""
        first, last = self.n_timesteps, len(self._rewards)
        observations, actions = self._observations.view(first, last), self._actions.view(first, last)
        rewards = np.array(self._rewards[first:], dtype=np.float64)
        return trees.map_tree(np.copy, observations), trees.map_tree(np.copy, actions), rewards

    def forget_observation(self) -> None:
        """Forget the observation that no action was chosen on: the trajectory goes on from it in a later ticket."""
        self._observations.truncate(len(self._rewards))

    def abandon(self) -> None:
        """Forget the trajectory in hand."""
        for recorder in (self._observations, self._actions, self._env_infos, self._agent_infos):
            recorder.truncate(self.n_timesteps)
        for recorder in (self._last_observations, self._episode_infos):
            recorder.truncate(self.n_trajectories)
        del self._rewards[self.n_timesteps :]
        self._begun = False

    def forget_after(self, n_trajectories: int) -> None:
        """Forget all trajectories after the first so many, and the one in hand."""
        for values in (self._lengths, self._terminated, self._truncated):
            del values[n_trajectories:]
        self._last_values = {row: value for row, value in self._last_values.items() if row < n_trajectories}
        self.n_trajectories, self.n_timesteps = n_trajectories, sum(self._lengths)
        self.abandon()

    def clear(self) -> None:
        """Forget everything, for the next ticket."""
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
            ActionError: An action outside its space.
            ObservationError: An observation that its space's dtype cannot hold.
            DataError: A trajectory with infos with a key `_x` and a key `x`, or with the key of the agent's value. All
                of these errors have a `position`.
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
        """Observations, actions and last observations; the error is that of the first trajectory that has one."""
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
    """Return the position in its ticket of the trajectory of timestep number `row`, and the timestep within it."""
    ends = np.cumsum(lengths)
    position = int(np.searchsorted(ends, row, side="right"))
    return position, row - int(ends[position] - lengths[position])


def refuse_actions_outside(space: AnySpace, actions: Tree, lengths: Sequence[int] | NDArray[np.int64]) -> None:
    """Check that all actions of a ticket are in their space.

    Raises:
        ActionError: One is not; with its trajectory's `position`.
    """
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
