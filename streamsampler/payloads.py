"""From what users pass to what travels: checked, and pickled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamsampler.agent_updates import is_parameters
from streamsampler.agents import as_agent, is_agent
from streamsampler.environments import as_env_update
from streamsampler.errors import UsageError
from streamsampler.per_worker import PerWorker, check_length, items_by_worker
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

    Raises:
        UsageError: An item is nothing of the kind, there are more or fewer items than workers, or `agent_update` is a
            list in which not every item is an agent.
        SerializationError: An item cannot be pickled.
    """
    updates: dict[Kind, Any] = {}
    if agent_update is not None:
        if isinstance(agent_update, list):
            _check_agents(agent_update)
        updates |= _agent_updates(agent_update, n)
    if env_update is not None:
        updates["env"] = _changes(env_update, n, "env_update", "the environment update", as_env_update)
    return updates


def _agent_updates(agent_update: Any, n: int) -> dict[Kind, Any]:
    """Pickle an agent update: a new agent, parameters, or for each worker one of them or neither."""
    each = items_by_worker(agent_update)
    if each is None:
        kind: Kind = "parameters" if is_parameters(agent_update) else "agent"
        check = _same if kind == "parameters" else as_agent
        return {kind: pickled(agent_update, n, "agent_update", "the agent update", check)}
    check_length("agent_update", each, n)
    agents = PerWorker([None if update is None or is_parameters(update) else update for update in each])
    parameters = PerWorker([update if update is not None and is_parameters(update) else None for update in each])
    updates: dict[Kind, Any] = {}
    if any(agent is not None for agent in agents):
        updates["agent"] = _changes(agents, n, "agent_update", "the agent update", as_agent)
    if any(values is not None for values in parameters):
        updates["parameters"] = _changes(parameters, n, "agent_update", "the agent update", _same)
    return updates


def _check_agents(items: list[Any]) -> None:
    """Refuse a list that may be one set of parameters: those are often lists of as many arrays as there are workers."""
    wrong = next((number for number, item in enumerate(items) if not is_agent(item)), None)
    if items and wrong is None:
        return
    why = "it is empty" if wrong is None else f"its item {wrong}, a {type(items[wrong]).__qualname__}, is no agent"
    raise UsageError(
        f"agent_update is a list that may be one set of parameters ({why}): pass tuple(…) of it if it is that, or "
        "PerWorker([…]) if it has one item for each worker"
    )


def pickled(given: Any, n_workers: int, name: str, what: str, check: Callable[[Any], Any]) -> Any:
    """Return `given` pickled: one payload, or a list with one for each worker.

    Args:
        given: What the user passed; a list and a `PerWorker` have one item for each worker.
        n_workers: How many workers there are.
        name: The argument's name, for errors.
        what: What to call it, for errors.
        check: Turns an item into what is pickled, or raises.

    Raises:
        UsageError: There are more or fewer items than workers.
        SerializationError: An item cannot be pickled.
    """
    each = items_by_worker(given)
    if each is None:
        return dumps(check(given), what)
    check_length(name, each, n_workers)
    return [dumps(check(item), f"{what} of worker {number}") for number, item in enumerate(each)]


def _changes(given: Any, n_workers: int, name: str, what: str, check: Callable[[Any], Any]) -> Any:
    """Do what `pickled` does; None for a worker stays None, and changes nothing for that worker."""
    each = items_by_worker(given)
    if each is None:
        return pickled(given, n_workers, name, what, check)
    check_length(name, each, n_workers)
    return [
        None if item is None else dumps(check(item), f"{what} of worker {number}") for number, item in enumerate(each)
    ]


def _same(update: Any) -> Any:
    return update
