"""Record what one of several agents does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamsampler.core.errors import DataError
from streamsampler.data import trees
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.data.spaces import number_of
from streamsampler.workers.several.parts import Before
from streamsampler.workers.vec.rows import row_of


class AgentRecorder(RolloutRecorder):
    """Records one agent.

    Attributes:
        spaces: Its observation and action space.
        played: Of each of its trajectories, the position in the ticket of that of all agents, its policy's name, and
            the agent's number in it.
        env_timesteps: Of each of its timesteps, in which step of the environment it was.
        before: Of each of its trajectories, what it had in earlier parts of the episode.
        kept: How many of its trajectories are of trajectories of all agents that have ended.
    """

    def __init__(self, *spaces: Any) -> None:
        super().__init__(*spaces)
        self.spaces = spaces
        self.played: list[tuple[int, str, int]] = []
        self.env_timesteps: list[int] = []
        self.before: list[Before] = []
        self.kept = 0

    def take_back(self) -> None:
        """Forget that a trajectory began."""
        self.abandon()
        self.played.pop()
        self.before.pop()

    def take_back_timestep(self) -> tuple[Any, Any, int]:
        """Forget the last timestep, which has no reward yet, and return its observation, action and env_timestep."""
        n = len(self.float_rewards)
        observation, action = (
            row_of(trees.map_tree(np.copy, it.view(n, n + 1)), 0) for it in (self._observations, self._actions)
        )
        for it in (self._observations, self._actions, self._agent_infos):
            it.truncate(n)
        return observation, action, self.env_timesteps.pop()

    def forget_rest(self) -> None:
        """Forget the trajectory in hand, and those after the last `kept`."""
        self.forget_after(self.kept)
        del self.played[self.kept :], self.before[self.kept :], self.env_timesteps[self.n_timesteps :]

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self.kept = 0
        del self.played[:], self.before[:], self.env_timesteps[:]

    def copies_of_last(self) -> tuple[Any, Any]:
        """Return copies of the observations and actions of the trajectory in hand, or of the last one."""
        if not self._begun and self.n_trajectories:
            first, last = self.n_timesteps - self._lengths[-1], self.n_timesteps
        else:
            first, last = self.n_timesteps, self._observations.count()
        views = self._observations.view(first, last), self._actions.view(first, min(last, self._actions.count()))
        return trees.map_tree(np.copy, views[0]), trees.map_tree(np.copy, views[1])


def named(error: DataError, agent: str) -> DataError:
    """Return an error that says which agent it is about."""
    error.args = (f"agent {agent!r}: {error}", *error.args[1:])
    return error


def sum_on(total: float, rewards: Sequence[float]) -> float:
    """Return a sum of rewards, one after the other: `sum` adds otherwise from Python 3.12 on."""
    for reward in rewards:
        total += reward
    return total


def reward_of(reward: Any, agent: str) -> float:
    """Return what is recorded of an agent's reward.

    Raises:
        DataError: It is no number.
    """
    if reward.__class__ is float:
        return reward
    try:
        return number_of(reward)
    except DataError as error:
        raise named(error, agent) from None


def mapping_of(given: Any, what: str) -> Mapping[str, Any]:
    """Return what an environment said of its agents; raise a `DataError` if it is no dict."""
    if not isinstance(given, Mapping):
        raise DataError(f"{what} must be a dict by agent, and are {given!r:.60}")
    return given


def dict_of(info: Any, agent: str) -> dict[str, Any]:
    """Return what it said of one of them; raise a `DataError` if it is no dict."""
    if not isinstance(info, dict):
        raise DataError(f"the info of agent {agent!r} must be a dict, and is {info!r:.60}")
    return info
