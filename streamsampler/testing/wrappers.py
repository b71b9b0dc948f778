"""Wrap an environment or an agent such that it fails at chosen places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium

from streamsampler.agents.base import Agent, give_spaces, reset_agent_function
from streamsampler.environments.updates import EnvUpdate, apply_env_update

if TYPE_CHECKING:
    from streamsampler.testing.faults import Faults

__all__ = ["FaultyAgent", "FaultyEnv", "make_faulty_env"]


def make_faulty_env(update: EnvUpdate, faults: Faults) -> FaultyEnv:
    """Make an environment with faults; one in "construct" is due before there is an environment."""
    faults.maybe("construct")
    return FaultyEnv(apply_env_update(update, None), faults)


class FaultyEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with faults; `Faults.env` makes it in the workers.

    Args:
        env: The environment.
        faults: What fails, and where.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], faults: Faults) -> None:
        super().__init__(env)
        self._faults = faults
        self._seed: int | None = None
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a trajectory, unless a fault is due."""
        self._seed, self._step = seed, 0
        self._faults.maybe("reset", seed)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step, unless a fault is due."""
        self._step += 1
        self._faults.maybe("step", self._seed, self._step)
        return self.env.step(action)

    def close(self) -> None:
        """Close the environment, unless a fault is due."""
        self._faults.maybe("close")
        self.env.close()


class FaultyAgent:
    """An agent with faults; see `Faults.agent`. It acts on one observation at a time.

    Args:
        agent: The agent.
        faults: What fails, and where.
    """

    def __init__(self, agent: Agent, faults: Faults) -> None:
        self._agent = agent
        self._faults = faults
        self._seed: int | None = None
        self._step = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._faults.maybe("agent_construct")

    def set_spaces(self, observation_space: Any, action_space: Any) -> None:
        """Give the agent the spaces of its environment."""
        give_spaces(self._agent, observation_space, action_space)

    def reset(self, seed: int) -> None:
        """Begin a trajectory, unless a fault is due."""
        self._seed, self._step = seed, 0
        self._faults.maybe("agent_reset", seed)
        if (reset := reset_agent_function(self._agent)) is not None:
            reset(seed)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Choose an action, unless a fault is due."""
        self._step += 1
        self._faults.maybe("action", self._seed, self._step)
        return self._agent.get_action(observation)

    def get_state(self) -> Any:
        """Return the agent's state, and where this wrapper is in its trajectory; the agent may have none."""
        get_state = getattr(self._agent, "get_state", None)
        return self._seed, self._step, get_state() if callable(get_state) else None

    def set_state(self, state: Any) -> None:
        """Go on where another copy was when `get_state` returned `state`."""
        self._seed, self._step, of_agent = state
        if callable(set_state := getattr(self._agent, "set_state", None)):
            set_state(of_agent)

    def get_param_values(self) -> Any:
        """Return the agent's parameters."""
        return self._agent.get_param_values()  # type: ignore[attr-defined]

    def set_param_values(self, values: Any) -> None:
        """Take new parameters, unless a fault is due."""
        self._faults.maybe("agent_update")
        self._agent.set_param_values(values)  # type: ignore[attr-defined]

    def get_param_converter(self) -> Any:
        """Return what the agent takes as an update of its own kind."""
        get_converter = getattr(self._agent, "get_param_converter", None)
        return get_converter() if callable(get_converter) else _of_no_kind


def _of_no_kind(update: Any) -> Any:  # noqa: ARG001 - whatever it is
    """Return that no update is of the agent's own kind."""
    return NotImplemented
