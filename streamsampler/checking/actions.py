"""Choose actions in an environment that no sampler runs: at random, or by an agent."""

from __future__ import annotations

from typing import Any

from streamsampler.agents.base import as_agent, reset_agent_function, takes_masks
from streamsampler.agents.masks import ACTION_MASK, MaskFinder
from streamsampler.checking.ways import ready_agent
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.core.serialization import dumps, loads

__all__ = ["Actions"]


class Actions:
    """Chooses actions in one environment.

    Args:
        env: The environment, with masks of actions or without.
        agent: The agent, as samplers take it. A copy of it acts: its connections are those of one event loop.
    """

    def __init__(self, env: Any, agent: Any = "random") -> None:
        acting = as_agent(loads(dumps(agent, "the agent")))
        self._agent = ready_agent(acting, env.observation_space, env.action_space)
        self._reset = reset_agent_function(self._agent)
        takes = takes_masks(self._agent)
        self._find_mask = MaskFinder(env, env.action_space, lambda _about, _text: None) if takes else None

    def begin(self) -> None:
        """Reset the agent, always with the same seed."""
        if self._reset is not None:
            self._reset(derived_seed(0, SeedUse.AGENT))

    def choose(self, observation: Any, info: Any) -> Any:
        """Return an action and the agent's info; of an asynchronous agent, an awaitable of these."""
        if self._find_mask is None:
            return self._agent.get_action(observation)
        return self._agent.get_action(observation, **{ACTION_MASK: self._find_mask(observation, info)})
