"""From what users pass to what travels: checked, and pickled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamsampler.agents import as_agent, is_parameters
from streamsampler.environments import as_env_update
from streamsampler.errors import UsageError
from streamsampler.serialization import dumps
from streamsampler.updates import Kind

__all__ = ["pickled", "pickled_updates"]


def pickled_updates(agent_update: Any, env_update: Any, n: int) -> dict[Kind, Any]:
    """Pickle the updates of a call, all of them before any is put in force.

    Args:
        agent_update: See `Sampler.obtain_samples`.
        env_update: See `Sampler.obtain_samples`.
        n: How many workers there are.

    Returns:
        By kind, one payload or a list with one for each worker.
    """
    updates: dict[Kind, Any] = {}
    if isinstance(agent_update, list):
        _check_length("agent_update", agent_update, n)
        agents = [None if update is None or is_parameters(update) else update for update in agent_update]
        parameters = [update if update is not None and is_parameters(update) else None for update in agent_update]
        if any(agent is not None for agent in agents):
            updates["agent"] = _changes(agents, n, "agent_update", "the agent update", as_agent)
        if any(p is not None for p in parameters):
            updates["parameters"] = _changes(parameters, n, "agent_update", "the agent update", _same)
    elif agent_update is not None:
        kind: Kind = "parameters" if is_parameters(agent_update) else "agent"
        check = _same if kind == "parameters" else as_agent
        updates[kind] = _changes(agent_update, n, "agent_update", "the agent update", check)
    if env_update is not None:
        updates["env"] = _changes(env_update, n, "env_update", "the environment update", as_env_update)
    return updates


def pickled(given: Any, n_workers: int, name: str, what: str, check: Callable[[Any], Any]) -> Any:
    """Return `given` pickled: one payload, or a list with one for each worker.

    Args:
        given: What the user passed; a list has one item for each worker.
        n_workers: How many workers there are.
        name: The argument's name, for errors.
        what: What to call it, for errors.
        check: Turns an item into what is pickled, or raises.

    Raises:
        UsageError: The list has the wrong length.
        SerializationError: An item cannot be pickled.
    """
    if not isinstance(given, list):
        return dumps(check(given), what)
    _check_length(name, given, n_workers)
    return [dumps(check(item), f"{what} of worker {number}") for number, item in enumerate(given)]


def _changes(given: Any, n_workers: int, name: str, what: str, check: Callable[[Any], Any]) -> Any:
    """Do what `pickled` does; None in a list stays None, and changes nothing for that worker."""
    if not isinstance(given, list):
        return pickled(given, n_workers, name, what, check)
    _check_length(name, given, n_workers)
    return [
        None if item is None else dumps(check(item), f"{what} of worker {number}") for number, item in enumerate(given)
    ]


def _same(update: Any) -> Any:
    return update


def _check_length(name: str, items: list[Any], n_workers: int) -> None:
    if len(items) != n_workers:
        raise UsageError(f"{name} has {len(items)} items, but there are {n_workers} workers")
