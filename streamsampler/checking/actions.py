"""Choose actions in an environment without a sampler: at random, or with an agent."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamsampler.agents.base import acts_alone, agent_waits, as_agent, reset_agent_function, row_keywords, takes_masks
from streamsampler.agents.draws import Draws
from streamsampler.agents.masks import ACTION_MASK, ACTION_MASKS, MaskFinder
from streamsampler.checking.choosers import ready_agent
from streamsampler.core.awaiting import then
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.core.serialization import dumps, loads
from streamsampler.workers.vec.batch_infos import info_of_row
from streamsampler.workers.vec.rows import checked_results, stacked
from streamsampler.workers.waiting.ready_rows import N_ROWS

__all__ = ["Actions"]


class Actions:
    """Chooses actions in one environment.

    Args:
        env: The environment, with masks of actions or without.
        agent: The agent, as samplers take it. A copy acts, because an agent's connections belong to one event loop.
    """

    def __init__(self, env: Any, agent: Any = "random") -> None:
        acting = as_agent(loads(dumps(agent, "the agent")))
        self._agent = ready_agent(acting, env.observation_space, env.action_space)
        self._reset = reset_agent_function(self._agent)
        self._spaces, self._alone = (env.observation_space, env.action_space), acts_alone(self._agent)
        self._draws, self._seed = Draws(1), derived_seed(0, SeedUse.AGENT)
        takes = takes_masks(self._agent, together=not self._alone)
        self._find_mask = MaskFinder(env, env.action_space, lambda _about, _text: None) if takes else None

    def begin(self) -> None:
        """Reset the agent, always with the same seed."""
        self._draws = Draws.of([self._seed])
        if self._reset is not None:
            self._reset(self._seed)

    def choose(self, observation: Any, info: Any) -> Any:
        """Return an action and the agent's info, or an awaitable of both if the agent is asynchronous."""
        mask = None if self._find_mask is None else self._find_mask(observation, info)
        if not self._alone:
            return self._choose_in_row(observation, mask)
        if self._find_mask is None:
            return self._agent.get_action(observation)
        return self._agent.get_action(observation, **{ACTION_MASK: mask})

    def _choose_in_row(self, observation: Any, mask: Any) -> Any:
        """Return an action of an agent with `get_actions` alone, from a batch of equal rows.

        The batch has as many rows as in a worker, or a single row if the agent waits for a service.
        """
        agent: Any = self._agent
        n = 1 if agent_waits(agent) else N_ROWS
        values = {"draws": self._draws.of_rows(np.zeros(n, np.int64)), "seeds": np.full(n, self._seed)}
        keywords = {name: values[name] for name in row_keywords(agent.get_actions) & values.keys()}
        if self._find_mask is not None:
            keywords[ACTION_MASKS] = None if mask is None else np.stack([mask] * n)

        def first(chosen: Any) -> tuple[Any, Any]:
            actions, infos = checked_results(self._spaces[1], chosen, n)
            return actions[0], info_of_row(infos, 0)

        return then(agent.get_actions(stacked(self._spaces[0], [observation] * n), **keywords), first)
