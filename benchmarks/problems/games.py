"""Environments of several agents, with the methods of PettingZoo's `ParallelEnv`, which are all that it takes.

Python 3.8, numpy and gymnasium only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from benchmarks.problems.environments import make_cartpole

if TYPE_CHECKING:
    Step = tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]

__all__ = ["OfOne", "Particles", "chosen", "chosen_one_by_one", "episode", "make_cartpole_of_one"]


class OfOne:
    """An environment of one agent as one of several, of which there is one.

    Args:
        env: The environment.
    """

    metadata: dict[str, Any] = {"render_modes": [], "name": "of_one"}  # noqa: RUF012 - PettingZoo's own name and kind
    possible_agents = ["player_0"]  # noqa: RUF012 - and this

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:  # noqa: ARG002 - there is one
        """The environment's."""
        return self._env.observation_space

    def action_space(self, agent: str) -> gymnasium.Space[Any]:  # noqa: ARG002 - there is one
        """The environment's."""
        return self._env.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin."""
        observation, info = self._env.reset(seed=seed, options=options)
        self.agents = ["player_0"]
        return {"player_0": observation}, {"player_0": info}

    def step(self, actions: dict[str, Any]) -> Step:
        """Step the environment."""
        observation, reward, terminated, truncated, info = self._env.step(actions["player_0"])
        if terminated or truncated:
            self.agents = []
        return (
            {"player_0": observation},
            {"player_0": reward},
            {"player_0": terminated},
            {"player_0": truncated},
            {"player_0": info},
        )

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class Particles:
    """Particles that move by their actions and away from where most of them are; episodes of 100 steps.

    A step is a few operations of NumPy for all agents together, so that an agent's share of it is small. Observations
    are 16 float32, actions one of five.

    Args:
        n_agents: How many.
    """

    metadata: dict[str, Any] = {"render_modes": [], "name": "particles"}  # noqa: RUF012 - PettingZoo's own name and kind

    def __init__(self, n_agents: int) -> None:
        self.possible_agents = [f"particle_{number}" for number in range(n_agents)]
        self.agents: list[str] = []
        self._spaces = gymnasium.spaces.Box(-np.inf, np.inf, (16,), np.float32), gymnasium.spaces.Discrete(5)
        self._moves = np.random.default_rng(0).normal(0, 0.3, (5, 16)).astype(np.float32)
        self._random = np.random.default_rng(0)
        self._state, self._t = np.zeros((n_agents, 16), np.float32), 0

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:  # noqa: ARG002 - all have the same
        """16 float32."""
        return self._spaces[0]

    def action_space(self, agent: str) -> gymnasium.Space[Any]:  # noqa: ARG002 - all have the same
        """One of five."""
        return self._spaces[1]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:  # noqa: ARG002 - no options
        """Begin at random places."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents, self._t = self.possible_agents, 0
        self._state = self._random.standard_normal(self._state.shape, np.float32)
        return self._seen(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Step:
        """Move all particles."""
        acted, state = self.agents, self._state
        moves = self._moves[[actions[agent] for agent in acted]]
        # A new array in each step: what was returned before stays as it was.
        self._state = state = 0.9 * state + moves - 0.05 * state.sum(0)
        self._t += 1
        if over := self._t == 100:
            self.agents = []
        rewards = dict(zip(acted, state[:, 0].tolist()))  # noqa: B905 - Python 3.8 has no strict
        ends = dict.fromkeys(acted, False), dict.fromkeys(acted, over)
        return self._seen(acted), rewards, *ends, {agent: {} for agent in acted}

    def _seen(self, agents: list[str]) -> dict[str, Any]:
        return dict(zip(agents, self._state))  # noqa: B905 - Python 3.8 has no strict

    def close(self) -> None:
        """Do nothing."""


def make_cartpole_of_one() -> OfOne:
    """CartPole-v1 as a game of one agent."""
    return OfOne(make_cartpole())


def chosen(agent: Any, observations: dict[str, Any], acting: list[str]) -> dict[str, Any]:
    """Return the actions of those that act, from one call of the agent that plays them all."""
    actions, _ = agent.get_actions(np.array([observations[name] for name in acting]))
    return dict(zip(acting, actions))  # noqa: B905 - Python 3.8 has no strict


def chosen_one_by_one(agent: Any, observations: dict[str, Any], acting: list[str]) -> dict[str, Any]:
    """Return the actions of those that act, from a call for each."""
    return {name: agent.get_action(observations[name])[0] for name in acting}


def episode(env: Any, agent: Any, seed: int) -> int:
    """Play an episode, and return how many timesteps all agents have together."""
    observations, _ = env.reset(seed=seed)
    timesteps = 0
    while env.agents:
        timesteps += len(env.agents)
        observations, *_ = env.step(chosen(agent, observations, env.agents))
    return timesteps
