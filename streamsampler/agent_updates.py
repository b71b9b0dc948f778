"""Updating an agent: what is parameters, and what is a new agent."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamsampler.agents import Agent, CallableAgent, as_agent
from streamsampler.errors import UsageError

__all__ = ["apply_agent_update", "is_parameters"]


def is_parameters(update: Any) -> bool:
    """Tells an agent update that goes to `set_param_values` from one that is a new agent.

    Args:
        update: Any agent update but None.

    Returns:
        Whether it is a tuple, a dict or an array (also another library's, which NumPy could convert).
    """
    if isinstance(update, type) or hasattr(update, "get_action") or callable(update):
        return False
    return isinstance(update, tuple | dict | np.ndarray) or hasattr(update, "__array__")


def apply_agent_update(agent: Agent, update: Any) -> Agent:
    """Updates an agent.

    Args:
        agent: The agent so far.
        update: None changes nothing; a tuple, dict or array goes to the agent's `set_param_values`; anything else is
            the new agent.

    Returns:
        The agent from now on.

    Raises:
        UsageError: If the agent takes no parameters, or the update is no agent.
    """
    if update is None:
        return agent
    if not is_parameters(update):
        return _replacement(update)
    set_param_values = getattr(agent, "set_param_values", None)
    if not callable(set_param_values):
        named = agent.function if isinstance(agent, CallableAgent) else agent
        name = getattr(named, "__qualname__", type(named).__qualname__)
        raise UsageError(
            f"agent_update is a {type(update).__qualname__}, which goes to the agent's set_param_values, but the agent "
            f"({name}) has none; give it one, or pass a whole agent as the update"
        )
    set_param_values(update)
    return agent


def _replacement(update: Any) -> Agent:
    try:
        return as_agent(update)
    except UsageError as error:
        raise UsageError(
            f"agent_update is a {type(update).__qualname__}, neither parameters (a tuple, dict or array) nor an agent: "
            f"{error}"
        ) from None
