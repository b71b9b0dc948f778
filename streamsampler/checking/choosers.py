"""Choose actions for stacked observations, outside samplers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamsampler.agents.base import as_agent, give_spaces, reset_agent_function
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.data.trees import map_tree, n_rows_of


def ready_agent(agent: Any, observation_space: Any, action_space: Any) -> Any:
    """Return the agent with its spaces, reset for a new trajectory."""
    acting = as_agent(agent)
    give_spaces(acting, observation_space, action_space)
    reset = reset_agent_function(acting)
    if reset is not None:
        reset(derived_seed(0, SeedUse.AGENT))
    return acting


def chooser(agent: Any, observation_space: Any, action_space: Any) -> Callable[[Any], Any]:
    """Return a function that chooses actions for stacked observations, in a single call if the agent can."""
    acting = ready_agent(agent, observation_space, action_space)
    together = getattr(acting, "get_actions", None)

    def choose(observations: Any) -> Any:
        if together is not None:
            return _stacked(together(observations)[0])
        n = n_rows_of(observations)
        rows = (map_tree(lambda leaf, row=row: leaf[row], observations) for row in range(n))  # type: ignore[misc]
        return _stacked([acting.get_action(row)[0] for row in rows])

    return choose


def _stacked(actions: Any) -> Any:
    """Stack actions that come as a list."""
    if not isinstance(actions, list):
        return actions
    first = actions[0]
    if isinstance(first, dict):
        return {key: _stacked([action[key] for action in actions]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked([action[i] for action in actions]) for i in range(len(first)))
    return np.array(actions)
