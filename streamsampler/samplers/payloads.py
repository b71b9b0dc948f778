"""Check the agents and updates that users pass, and pickle them once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from streamsampler.agents.base import as_agent, is_agent
from streamsampler.agents.policies import PolicyUpdates
from streamsampler.agents.updates import AgentTraits, UpdateKind, resolved_update, traits_of
from streamsampler.engines.base import Engine
from streamsampler.environments.parameters import SetParameters
from streamsampler.environments.updates import EnvUpdate, SetTaskUpdate, as_env_update
from streamsampler.errors import UsageError
from streamsampler.samplers.per_worker import PerWorker, check_length, items_by_worker
from streamsampler.samplers.provenance import EnvironmentFacts
from streamsampler.samplers.updates import Kind, Updates
from streamsampler.serialization import HeldPayload, Payload, dumps

__all__ = ["makes_environment", "on_environments", "pickled_environments", "pickled_updates", "put", "put_agents"]

_KINDS: tuple[UpdateKind, UpdateKind] = ("agent", "parameters")


def put_agents(updates: Updates[Payload], agents: Any, n_workers: int, *, held: bool = False) -> None:
    """Put a sampler's first agents in force.

    Args:
        updates: Where they are put.
        agents: See `Sampler`.
        n_workers: How many workers there are.
        held: Whether the agent stays in this process, as it is.

    Raises:
        UsageError: An item is no agent, or there are more or fewer items than workers.
        SerializationError: An agent cannot be pickled.
    """
    each = items_by_worker(agents)
    if each is None:
        put(updates, "agent", _held_agent(agents, "") if held else _pickled_agent(agents, "the agent"))
        return
    check_length("agents", each, n_workers)
    put(updates, "agent", [_pickled_agent(agent, f"the agent of worker {worker}") for worker, agent in enumerate(each)])


def put(updates: Updates[Any], kind: Kind, payloads: Any, publish: Callable[[Payload], Any] = lambda it: it) -> None:
    """Put in force what `publish` makes of a payload, or of each worker's (None: nothing changes for it).

    With it goes what each payload is about.
    """
    if not isinstance(payloads, list):
        updates.put(kind, publish(payloads), payloads.about)
        return
    pairs = [(None, None) if payload is None else (publish(payload), payload.about) for payload in payloads]
    updates.put(kind, [published for published, _ in pairs], [about for _, about in pairs])


def pickled_updates(
    agent_update: Any, env_update: Any, in_force: Updates[Any], *, held: bool = False
) -> dict[Kind, Any]:
    """Pickle the updates of a call, all of them before any is put in force.

    Args:
        agent_update: See `Sampler.obtain_samples`.
        env_update: See `Sampler.obtain_samples`.
        in_force: The updates in force.
        held: Whether a new agent stays in this process, as it is.

    Returns:
        By kind, one payload or a list with one for each worker (None: nothing changes for it). Agents' payloads are
        about the agents' traits.

    Raises:
        UsageError: An agent does not take its update, an item is nothing of the kind, there are more or fewer items
            than workers, or `agent_update` is a list in which not every item is an agent.
        SerializationError: An item cannot be pickled.
    """
    updates: dict[Kind, Any] = {}
    traits = in_force.about("agent")
    if agent_update is not None:
        before = in_force.about("parameters") if "parameters" in in_force else (None,) * len(traits)
        if len(set(map(id, traits))) == len(set(map(id, before))) == 1:
            traits = (traits[0].after(before[0]),) * len(traits)  # one object, by which it is seen that all are alike
        else:
            traits = tuple(each.after(earlier) for each, earlier in zip(traits, before, strict=True))
        updates |= _agent_updates(agent_update, traits, before, _HOLDS if held else _PICKLES)
    if env_update is not None:
        what = "the environment update"
        updates["env"] = pickled_environments(
            env_update, len(traits), "env_update", what, as_env_update, none_is_none=True
        )
    return updates


def _agent_updates(
    agent_update: Any, traits: Sequence[AgentTraits], before: Sequence[Any],
    pickles: Mapping[UpdateKind, Callable[[Any, str], Payload]],
) -> dict[Kind, Any]:  # fmt: skip
    """Pickle an agent update: a new agent, parameters, or for each worker one of them or neither.

    Args:
        agent_update: The update.
        traits: The traits of the agents in force, by worker.
        before: What the parameters in force are about, by worker.
        pickles: What pickles each kind.
    """
    if isinstance(agent_update, list):
        _check_agents(agent_update)
    each = items_by_worker(agent_update)
    if each is not None:
        check_length("agent_update", each, len(traits))
    given = [agent_update] * len(traits) if each is None else each
    if each is None and all(one is traits[0] for one in traits):
        resolved = [_over(resolved_update(agent_update, traits[0]), before[0])] * len(traits)
    else:
        resolved = [
            _over(_resolved(update, traits[worker], worker), before[worker]) for worker, update in enumerate(given)
        ]
    kind, update = resolved[0]
    if each is None and all(other == kind and same is update for other, same in resolved):
        return {kind: pickles[kind](update, "the agent update")}
    updates: dict[Kind, Any] = {}
    for kind in _KINDS:
        items = [update if its_kind == kind else None for its_kind, update in resolved]
        if any(item is not None for item in items):
            updates[kind] = [
                None if item is None else pickles[kind](item, f"the agent update of worker {worker}")
                for worker, item in enumerate(items)
            ]
    return updates


def _over(resolved: tuple[UpdateKind, Any], before: Any) -> tuple[UpdateKind, Any]:
    """Return what an update does; of policies with what was done to the others before, as parameters are complete."""
    kind, update = resolved
    merges = isinstance(update, PolicyUpdates) and isinstance(before, PolicyUpdates)
    return (kind, update.over(before)) if merges else resolved


def _resolved(update: Any, traits: AgentTraits, worker: int) -> tuple[UpdateKind, Any]:
    """Return the kind of an update of one worker's agent; None, which changes nothing, counts as parameters."""
    if update is None:
        return "parameters", None
    try:
        return resolved_update(update, traits)
    except UsageError as error:
        raise UsageError(f"{error} (agent_update of worker {worker})") from None


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


def makes_environment(env_update: Any) -> bool:
    """Whether an `env_update` may make another environment for worker 0, and not only set the task of the one it has.

    Args:
        env_update: See `Sampler.obtain_samples`.
    """
    items = items_by_worker(env_update)
    update = env_update if items is None else items[0]
    return update is not None and not isinstance(update, SetTaskUpdate)


class _Session(Protocol):
    """What is needed of a `Session`."""

    updates: Updates[Any]

    @property
    def engine(self) -> Engine: ...


def on_environments(env_update: Any, session: _Session) -> Any:
    """Return an `env_update` whose SetParameters all have an environment: where they have none, the one in force.

    Args:
        env_update: See `Sampler.obtain_samples`.
        session: Has the updates in force, and their engine.
    """
    updates = session.updates

    def on(item: Any, worker: int) -> Any:
        if not isinstance(item, SetParameters) or item.has_environment:
            return item
        return item.on(session.engine.published(updates.of_workers("env")[worker]), updates.about("env")[worker].name)

    each = items_by_worker(env_update)
    if each is None and len(set(map(id, handles := updates.of_workers("env")))) == 1:
        return on(env_update, 0)
    if each is None and isinstance(env_update, SetParameters):
        return PerWorker([on(env_update, worker) for worker in range(len(handles))])
    if each is None or len(each) != len(updates.of_workers("env")):
        return env_update  # it may be refused later
    return PerWorker([on(item, worker) for worker, item in enumerate(each)])


def pickled_environments(
    given: Any, n_workers: int, name: str, what: str, check: Callable[[Any], EnvUpdate], *, none_is_none: bool = False
) -> Any:
    """Return environments pickled: one payload, or a list with one for each worker, each with its facts.

    Args:
        given: What the user passed; a list and a `PerWorker` have one item for each worker.
        n_workers: How many workers there are.
        name: The argument's name, for errors.
        what: What to call it, for errors.
        check: Makes an update of an item, or raises.
        none_is_none: Whether None for a worker stays None.

    Raises:
        UsageError: There are more or fewer items than workers.
        SerializationError: An item cannot be pickled.
    """
    each = items_by_worker(given)
    if each is None:
        return _pickled_environment(check(given), what)
    check_length(name, each, n_workers)
    return [
        None if item is None and none_is_none else _pickled_environment(check(item), f"{what} of worker {worker}")
        for worker, item in enumerate(each)
    ]


def _pickled_environment(update: EnvUpdate, what: str) -> Payload:
    return replace(dumps(update, what), about=EnvironmentFacts.of(update))


def _pickled_agent(given: Any, what: str) -> Payload:
    agent = as_agent(given)
    return replace(dumps(agent, what), about=traits_of(agent))


def _held_agent(given: Any, _: str) -> Payload:
    agent = as_agent(given)
    return HeldPayload.of(agent, traits_of(agent))


def _pickled_parameters(given: Any, what: str) -> Payload:
    payload = dumps(given, what)
    return replace(payload, about=given) if isinstance(given, PolicyUpdates) else payload


_PICKLES: dict[UpdateKind, Callable[[Any, str], Payload]] = {
    "agent": _pickled_agent,
    "parameters": _pickled_parameters,
}
_HOLDS: dict[UpdateKind, Callable[[Any, str], Payload]] = {**_PICKLES, "agent": _held_agent}
