"""Record a single agent of several, and check an environment's values by agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamsampler.core.errors import DataError, ObservationError
from streamsampler.data import trees
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.data.spaces import number_of
from streamsampler.workers.several.suspended_episode import EarlierParts
from streamsampler.workers.vec.rows import row_of


class AgentRecorder(RolloutRecorder):
    """Records a single agent of an environment with several.

    Attributes:
        spaces: Its observation and action space.
        played: For each of its trajectories, the joint trajectory's position in the ticket, the policy's name, and the
            agent's number.
        env_timesteps: The environment's step of each timestep.
        before: For each of its trajectories, the totals of earlier parts of the episode.
        kept: The number of its trajectories in ended joint trajectories.
    """

    def __init__(self, *spaces: Any) -> None:
        super().__init__(*spaces)
        self.spaces = spaces
        self.played: list[tuple[int, str, int]] = []
        self.env_timesteps: list[int] = []
        self.before: list[EarlierParts] = []
        self.kept = 0

    def discard_start(self) -> None:
        """Discard the beginning of a trajectory."""
        self.abandon()
        self.played.pop()
        self.before.pop()

    def discard_timestep(self) -> tuple[Any, Any, int]:
        """Discard the last timestep, which has no reward yet, and return its observation, action and env_timestep."""
        n = len(self.float_rewards)
        observation, action = (
            row_of(trees.map_tree(np.copy, it.view(n, n + 1)), 0) for it in (self._observations, self._actions)
        )
        for it in (self._observations, self._actions, self._agent_infos):
            it.truncate(n)
        return observation, action, self.env_timesteps.pop()

    def discard_unfinished(self) -> None:
        """Discard the current trajectory, and those after the first `kept`."""
        self.discard_after(self.kept)
        del self.played[self.kept :], self.before[self.kept :], self.env_timesteps[self.n_timesteps :]

    def clear(self) -> None:
        super().clear()
        self.kept = 0
        del self.played[:], self.before[:], self.env_timesteps[:]

    def copies_of_last(self) -> tuple[Any, Any]:
        """Return copies of observations and actions of the current trajectory, or of the last."""
        if not self._begun and self.n_trajectories:
            first, last = self.n_timesteps - self._lengths[-1], self.n_timesteps
        else:
            first, last = self.n_timesteps, self._observations.count()
        views = self._observations.view(first, last), self._actions.view(first, min(last, self._actions.count()))
        return trees.map_tree(np.copy, views[0]), trees.map_tree(np.copy, views[1])


def named(error: DataError, agent: str) -> DataError:
    error.args = (f"agent {agent!r}: {error}", *error.args[1:])
    return error


def sum_in_order(total: float, rewards: Sequence[float]) -> float:
    """Return a sum of rewards, added in order: `sum` rounds differently from Python 3.12 on."""
    for reward in rewards:
        total += reward
    return total


def reward_of(reward: Any, agent: str) -> float:
    """Return a reward as a float, if it is a number."""
    if reward.__class__ is float:
        return reward
    try:
        return number_of(reward)
    except DataError as error:
        raise named(error, agent) from None


def no_dict(given: Any, what: str) -> DataError:
    return DataError(f"{what} must be a dict by agent, got {given!r:.60}")


def no_observation(agent: str) -> ObservationError:
    return ObservationError(f"the acting agent {agent!r} has no observation")


def no_answer(agent: str) -> DataError:
    return DataError(f"a step gave no reward, terminated or truncated of agent {agent!r}, which acted")


def mapping_of(given: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise no_dict(given, what)
    return given


def dict_of(info: Any, agent: str) -> dict[str, Any]:
    if not isinstance(info, dict):
        raise DataError(f"the info of agent {agent!r} must be a dict, got {info!r:.60}")
    return info
