"""Single episodes and timesteps of a batch, for algorithms written for lists of episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from streamsampler.core.errors import DataError, UsageError, missing_attribute, number, positive
from streamsampler.data import trees
from streamsampler.data.batch_fields import ActionsT, BatchFields, ObservationsT, RawRows
from streamsampler.data.infos import is_mask
from streamsampler.data.spaces import AnySpace, check_actions, flag_of

PADDABLE = ("observations", "next_observations", "actions", "rewards", "step_types", "env_infos", "agent_infos")
"""The fields of a batch with a padded view."""

_NEEDED = ("observations", "actions", "rewards", "terminated", "truncated")
_EARLIER = ("earlier_length", "earlier_return")
_OF_FRAGMENTS: dict[str, tuple[str, type]] = {
    "continued": ("continued", bool),
    "cut": ("cut", bool),
    "env_number": ("env_numbers", int),
    "earlier_length": ("earlier_lengths", int),
    "earlier_return": ("earlier_returns", float),
}
"""A fragment's keys in an episode's dict: the field of `fragments`, and the type."""
_RAW = ("raw_observations", "raw_last_observation", "raw_rewards")
_OPTIONAL = (
    *("last_observation", "env_infos", "agent_infos", "episode_info", "index", "seed", "agent_version"),
    *(*_OF_FRAGMENTS, *_RAW),
)


class TimeStep(NamedTuple):
    """A timestep of a trajectory.

    Attributes:
        observation: The observation before the action.
        action: The action.
        reward: Its reward.
        next_observation: The observation after it; at the trajectory's end the true final observation.
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
    """Return a row of infos without masks and absent keys."""
    row: dict[str, Any] = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if not is_mask(key, infos) and (mask is None or mask[position]):
            value = _row(values, position) if isinstance(values, Mapping) else values[position]
            if not isinstance(values, Mapping) or value:  # only leaves have masks: an empty dict was absent
                row[key] = value
    return row


def _first(tree: Any) -> Any:
    return trees.map_tree(lambda leaf: leaf[0], tree)


def _fragment_entries(one: Any) -> dict[str, Any]:
    if not one.fragments:
        return {}
    return {name: kind(one.fragments[field][0]) for name, (field, kind) in _OF_FRAGMENTS.items()}


def _raw_data(one: Any) -> dict[str, Any]:
    if (raw := one.raw) is None:
        return {}
    return dict(zip(_RAW, (raw.observations, _first(raw.last_observations), raw.rewards), strict=True))


_COUNTERPARTS = {
    "terminals": "`terminated`, (N,), one for each trajectory",
    "dones": "`terminated` and `truncated`, (N,), one for each trajectory",
    "to_trajectory_list": "`to_list()`",
    "env_spec": "`observation_space` and `action_space`",
    "valids": "`mask`",
    **{f"{name}_list": f"`[one.{name} for one in batch]`" for name in ("observations", "actions", "rewards")},
    **{f"padded_{name}": f'`padded("{name}")`' for name in PADDABLE},
}
"""Names in garage's batches, and their counterparts here."""


class BatchEpisodes(BatchFields[ObservationsT, ActionsT]):
    """The members of a `TrajectoryBatch` for single episodes and timesteps."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, _COUNTERPARTS)

    def to_list(self) -> list[dict[str, Any]]:
        """Return a dict for each of the N trajectories, each of t timesteps; `from_list` accepts them.

        The arrays share memory with the batch. A dict has

        - "observations" (t, *O), "actions" (t, *A) and "rewards" (t,), trees where the spaces are;
        - "last_observation" (*O): the true final observation;
        - "terminated" and "truncated", bools;
        - "env_infos" and "agent_infos", dicts of (t, ...), and "episode_info", a dict: the info of `env.reset`;
        - "index", "seed" and "agent_version", integers;
        - in fragments "continued" and "cut", bools, "env_number", an integer, "earlier_length", the timesteps of the
          episode in earlier calls, and "earlier_return", the sum of their raw rewards;
        - in filtered batches "raw_observations", "raw_last_observation" and "raw_rewards".
        """
        return [
            {
                "observations": one.observations,
                "last_observation": _first(one.last_observations),
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
                **_fragment_entries(one),
                **_raw_data(one),
            }
            for one in cast(Any, self)
        ]

    def time_steps(self) -> Iterator[TimeStep]:
        """Yield all timesteps, trajectory after trajectory: slow, for code written for single steps.

        A fragment's cut trajectory ends with a timestep neither terminated nor truncated.
        """
        for trajectory, one in enumerate(cast(Any, self)):
            following, n = one.next_observations, one.n_timesteps
            for step in range(n):

                def at(tree: Any, step: int = step) -> Any:
                    return trees.map_tree(lambda leaf: leaf[step], tree)

                is_last = step == n - 1
                yield TimeStep(
                    at(one.observations), at(one.actions), float(one.rewards[step]), next_observation=at(following),
                    terminated=is_last and bool(one.terminated[0]), truncated=is_last and bool(one.truncated[0]),
                    env_info=_row(one.env_infos, step), agent_info=_row(one.agent_infos, step),
                    trajectory=trajectory, timestep=step,
                )  # fmt: skip


def batch_of_episodes(
    cls: Any,
    episodes: Sequence[Mapping[str, Any]],
    observation_space: AnySpace,
    action_space: AnySpace,
) -> Any:
    if isinstance(episodes, Mapping) or not hasattr(episodes, "__iter__"):
        raise UsageError(f"from_list needs a list of dicts, one for each episode, got {episodes!r:.60}")
    batches = []
    for position, each in enumerate(episodes):
        fields = _fields(each, position)
        try:
            batches.append(cls(observation_space=observation_space, action_space=action_space, **fields))
        except DataError as error:
            raise DataError(f"episode {position}: {error}") from None
        if (outside := check_actions(action_space, fields["actions"])) is not None:
            raise DataError(f"episode {position}: {outside[1]}, at timestep {outside[0]}")
    if not batches:
        raise UsageError("from_list needs at least one episode")
    return cls.concatenate(batches)


def _fields(episode: Mapping[str, Any], position: int) -> dict[str, Any]:
    _check_keys(episode, position)
    rewards = _numbers(episode, "rewards", position)
    observations, last = episode["observations"], episode.get("last_observation")
    if last is None:
        lengths = {len(leaf) for _, leaf in trees.leaves(observations)}
        if lengths != {len(rewards) + 1}:
            raise DataError(
                f"episode {position} has {len(rewards)} rewards: without last_observation it needs {len(rewards) + 1} "
                f"observations, but has {', '.join(map(str, sorted(lengths)))}"
            )
        last = trees.map_tree(lambda leaf: leaf[-1], observations)
        observations = trees.map_tree(lambda leaf: leaf[:-1], observations)
    return {
        "observations": observations,
        "last_observations": _one_row(last),
        "actions": episode["actions"],
        "rewards": rewards,
        "env_infos": dict(episode.get("env_infos", {})),
        "agent_infos": dict(episode.get("agent_infos", {})),
        "episode_infos": _as_rows(episode.get("episode_info", {})),
        "lengths": np.array([len(rewards)], dtype=np.int64),
        "indices": np.array([_integer(episode, "index", position, position)], dtype=np.int64),
        "seeds": (_integer(episode, "seed", position),),
        "agent_versions": np.array([_integer(episode, "agent_version", position)], dtype=np.int64),
        "seed": None,
        "raw": _raw_rows(episode, position),
        **_flags(episode, position),
    }


def _check_keys(episode: Any, position: int) -> None:
    if not isinstance(episode, Mapping):
        raise UsageError(f"episode {position} should be a dict, not {episode!r:.60}")
    if missing := [name for name in _NEEDED if name not in episode]:
        raise UsageError(f"episode {position} has no {', '.join(missing)}")
    if unknown := sorted(map(repr, episode.keys() - {*_NEEDED, *_OPTIONAL})):
        raise UsageError(f"episode {position} has unknown keys: {', '.join(unknown)}")


def _flags(episode: Mapping[str, Any], position: int) -> dict[str, Any]:
    """Return an episode's ends, and the field `fragments` for a part of an episode."""
    flags = {
        name: flag_of(f"{name} of episode {position}", episode.get(name, False))
        for name in ("terminated", "truncated", "continued", "cut")
    }
    if not (flags["terminated"] or flags["truncated"] or flags["cut"]):
        raise DataError(
            f"episode {position} is neither terminated nor truncated: set one of them, or cut=True for an unfinished "
            "episode"
        )
    arrays = {name: np.array([flag]) for name, flag in flags.items()}
    ends = {name: arrays.pop(name) for name in ("terminated", "truncated")}
    if not any(name in episode for name in _OF_FRAGMENTS):
        return {**ends, "fragments": {}}
    return {**ends, "fragments": {**arrays, **_of_environment(episode, position, continued=flags["continued"])}}


def _of_environment(episode: Mapping[str, Any], position: int, *, continued: bool) -> dict[str, Any]:
    if continued and (missing := next((name for name in _EARLIER if name not in episode), None)) is not None:
        raise UsageError(
            f"episode {position} is continued but has no {missing}: pass {' and '.join(_EARLIER)}, its timesteps and "
            "the sum of its raw rewards in earlier calls"
        )
    earlier = number(f"earlier_return of episode {position}", episode.get("earlier_return", 0.0))
    return {
        "env_numbers": np.array([_integer(episode, "env_number", position, -1, least=-1)], dtype=np.int64),
        "earlier_lengths": np.array([_integer(episode, "earlier_length", position)], dtype=np.int64),
        "earlier_returns": np.array([earlier], dtype=np.float64),
    }


def _raw_rows(episode: Mapping[str, Any], position: int) -> RawRows | None:
    there = [name for name in _RAW if name in episode]
    if not there:
        return None
    if len(there) < len(_RAW):
        raise UsageError(f"episode {position} has only {', '.join(there)}: raw data need all of {', '.join(_RAW)}")
    observations, last = episode["raw_observations"], episode["raw_last_observation"]
    return RawRows(observations, _one_row(last), _numbers(episode, "raw_rewards", position))


def _numbers(episode: Mapping[str, Any], name: str, position: int) -> Any:
    try:
        numbers = np.asarray(episode[name], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"the {name} of episode {position} should be numbers: {error}") from None
    if numbers.ndim != 1 or not len(numbers):
        raise DataError(f"the {name} of episode {position} should have the shape (t,), not {numbers.shape}")
    return numbers


def _integer(episode: Mapping[str, Any], name: str, position: int, default: int = 0, *, least: int = 0) -> int:
    return positive(f"{name} of episode {position}", episode.get(name, default), least=least)


def _one_row(tree: Any) -> Any:
    return trees.map_tree(lambda leaf: np.asarray(leaf)[np.newaxis], tree)


def _as_rows(info: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _as_rows(value) if isinstance(value, Mapping) else _as_row(value) for key, value in info.items()}


def _as_row(value: Any) -> Any:
    """Return an info as a column of a single row: lists and other objects stay objects."""
    if isinstance(value, np.ndarray | np.generic | bool | int | float | complex | str | bytes):
        return np.asarray(value)[np.newaxis]
    row = np.empty(1, dtype=object)
    row[0] = value
    return row
