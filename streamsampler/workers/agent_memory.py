"""What an agent remembers in the middle of an episode, for another copy of the agent that is to go on with it."""

from __future__ import annotations

from typing import Any

from streamsampler.agents.base import reset_agent_function, signature_of

__all__ = ["UNKNOWN", "give_memory", "is_recurrent", "is_restorable", "memory_of"]

UNKNOWN = "its agent may remember something, and has no get_state and set_state: it needs both"


def is_recurrent(agent: Any) -> bool:
    """Return whether an agent's `get_actions` is told which rows begin, or which rows it sees: so it may keep some."""
    signature = signature_of(agent.get_actions)
    return signature is not None and bool({"slots", "starts"} & signature.parameters.keys())


def is_restorable(agent: Any, *, by_rows: bool = False) -> bool:
    """Return whether another copy of an agent can go on in the middle of an episode.

    An agent that can say what it remembers, and take it, can. One that can do only one of the two may remember
    something, and so may one that is told when episodes begin.

    Args:
        agent: The agent.
        by_rows: Whether the agent is asked by `get_actions`.
    """
    gives, takes = (callable(getattr(agent, name, None)) for name in ("get_state", "set_state"))
    if gives or takes:
        return gives and takes
    return reset_agent_function(agent) is None and not (by_rows and is_recurrent(agent))


def memory_of(agent: Any) -> Any:
    """Return what a restorable agent remembers, for `give_memory`; None for an agent that remembers nothing."""
    return agent.get_state() if callable(getattr(agent, "get_state", None)) else None


def give_memory(agent: Any, memory: Any) -> None:
    """Let a restorable agent go on where the same agent was when `memory_of` returned `memory`."""
    if callable(getattr(agent, "set_state", None)):
        agent.set_state(memory)
