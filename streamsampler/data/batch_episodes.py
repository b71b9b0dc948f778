"""Trajectories one by one: lists of episodes, and timesteps, for algorithms that are written for these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamsampler.data import trees
from streamsampler.data.infos import is_mask
from streamsampler.data.spaces import AnySpace
from streamsampler.errors import DataError, UsageError

if TYPE_CHECKING:
    from streamsampler.data.batch import TrajectoryBatch

__all__ = ["BatchEpisodes", "TimeStep", "batch_of_episodes"]

_NEEDED = ("observations", "actions", "rewards", "terminated", "truncated")
_OPTIONAL = ("last_observation", "env_infos", "agent_infos", "episode_info", "index", "seed", "agent_version")


class TimeStep(NamedTuple):
    """One timestep of a trajectory.

    Attributes:
        observation: What the action was chosen on.
        action: The action.
        reward: What it gained.
        next_observation: What it led to; the true final observation at the trajectory's end.
        terminated: Whether the trajectory terminated with it.
        truncated: Whether the trajectory was truncated with it.
        env_info: The info of `env.step`.
        agent_info: The agent's info.
        trajectory: The position of its trajectory in the batch.
        timestep: Its number in the trajectory, from 0 on.
    """

    observation: Any
    action: Any
    reward: float
    next_observation: Any
    terminated: bool
    truncated: bool
    env_info: dict[str, Any]
    agent_info: dict[str, Any]
    trajectory: int
    timestep: int


def _row(infos: Mapping[str, Any], position: int) -> dict[str, Any]:
    """Return one row of infos, without the keys that are not there, and without masks."""
    row: dict[str, Any] = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if not is_mask(key, infos) and (mask is None or mask[position]):
            row[key] = _row(values, position) if isinstance(values, Mapping) else values[position]
    return row


class BatchEpisodes:
    """The part of a `TrajectoryBatch` that hands out trajectories and timesteps one by one."""

    if TYPE_CHECKING:

        def split(self) -> list[TrajectoryBatch[Any, Any]]:
            """See `TrajectoryBatch`."""

    def to_list(self) -> list[dict[str, Any]]:
        """Return a dict for each of the N trajectories, each of t timesteps; `from_list` takes them.

        The arrays share memory with the batch. A dict has

        - "observations" (t, *O), "actions" (t, *A) and "rewards" (t,), trees where the spaces are;
        - "last_observation" (*O): the true final observation;
        - "terminated" and "truncated", bools;
        - "env_infos" and "agent_infos", dicts of (t, ...), and "episode_info", a dict: the info of `env.reset`;
        - "index", "seed" and "agent_version", integers.
        """
        return [
            {
                "observations": one.observations,
                "last_observation": trees.map_tree(lambda leaf: leaf[0], one.last_observations),
                "actions": one.actions,
                "rewards": one.rewards,
                "terminated": bool(one.terminated[0]),
                "truncated": bool(one.truncated[0]),
                "env_infos": one.env_infos,
                "agent_infos": one.agent_infos,
                "episode_info": _row(one.episode_infos, 0),
                "index": int(one.indices[0]),
                "seed": one.seeds[0],
                "agent_version": int(one.agent_versions[0]),
            }
            for one in self.split()
        ]

    def time_steps(self) -> Iterator[TimeStep]:
        """Yield all timesteps, one trajectory after the other: slow, for code that is written for single steps."""
        for trajectory, one in enumerate(self.split()):
            following, n = one.next_observations, one.n_timesteps
            for step in range(n):

                def at(tree: Any, step: int = step) -> Any:
                    return trees.map_tree(lambda leaf: leaf[step], tree)

                is_last = step == n - 1
                yield TimeStep(
                    at(one.observations), at(one.actions), float(one.rewards[step]), at(following),
                    is_last and bool(one.terminated[0]), is_last and bool(one.truncated[0]),
                    _row(one.env_infos, step), _row(one.agent_infos, step), trajectory, step,
                )  # fmt: skip


def batch_of_episodes(
    cls: type[TrajectoryBatch[Any, Any]],
    episodes: Sequence[Mapping[str, Any]],
    observation_space: AnySpace,
    action_space: AnySpace,
) -> TrajectoryBatch[Any, Any]:
    """Return the batch of episodes; see `TrajectoryBatch.from_list`."""
    if not episodes:
        raise UsageError("from_list needs at least one episode")
    return cls.concatenate(
        [
            cls(observation_space=observation_space, action_space=action_space, **_fields(each, position))
            for position, each in enumerate(episodes)
        ]
    )


def _fields(episode: Mapping[str, Any], position: int) -> dict[str, Any]:
    """Return the fields of the batch of one episode."""
    if missing := [name for name in _NEEDED if name not in episode]:
        raise UsageError(f"episode {position} has no {', '.join(missing)}")
    if unknown := sorted(episode.keys() - {*_NEEDED, *_OPTIONAL}):
        raise UsageError(f"episode {position} has unknown keys: {', '.join(map(repr, unknown))}")
    rewards = np.asarray(episode["rewards"], dtype=np.float64)
    if rewards.ndim != 1 or not len(rewards):
        raise DataError(f"the rewards of episode {position} should be (t,), and are {rewards.shape}")
    observations, last = episode["observations"], episode.get("last_observation")
    if last is None:
        lengths = {len(leaf) for _, leaf in trees.leaves(observations)}
        if lengths != {len(rewards) + 1}:
            raise DataError(
                f"episode {position} has {len(rewards)} rewards: without last_observation it needs {len(rewards) + 1} "
                f"observations, and has {', '.join(map(str, sorted(lengths)))}"
            )
        last = trees.map_tree(lambda leaf: leaf[-1], observations)
        observations = trees.map_tree(lambda leaf: leaf[:-1], observations)
    return {
        "observations": observations,
        "last_observations": trees.map_tree(lambda leaf: np.asarray(leaf)[np.newaxis], last),
        "actions": episode["actions"],
        "rewards": rewards,
        "terminated": np.array([bool(episode["terminated"])]),
        "truncated": np.array([bool(episode["truncated"])]),
        "env_infos": dict(episode.get("env_infos", {})),
        "agent_infos": dict(episode.get("agent_infos", {})),
        "episode_infos": _as_rows(episode.get("episode_info", {})),
        "lengths": np.array([len(rewards)], dtype=np.int64),
        "indices": np.array([episode.get("index", position)], dtype=np.int64),
        "seeds": (int(episode.get("seed", 0)),),
        "agent_versions": np.array([episode.get("agent_version", 0)], dtype=np.int64),
        "seed": None,
    }


def _as_rows(info: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _as_rows(value) if isinstance(value, Mapping) else np.asarray(value)[np.newaxis]
        for key, value in info.items()
    }
