"""Check and pickle the agents and updates passed by users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from streamsampler.agents.base import as_agent, is_agent
from streamsampler.agents.policies import PolicyUpdates
from streamsampler.agents.updates import AgentTraits, UpdateKind, resolved_update, traits_of
from streamsampler.core.errors import UsageError
from streamsampler.core.serialization import HeldPayload, Payload, dumps
from streamsampler.engines.base import Engine
from streamsampler.environments.parameters import SetParameters
from streamsampler.environments.per_env import PerEnv
from streamsampler.environments.updates import (
    EnvUpdate,
    SetTaskUpdate,
    as_env_update,
)
from streamsampler.samplers.per_worker import PerWorker, check_length, items_by_worker
from streamsampler.samplers.provenance import EnvironmentFacts
from streamsampler.samplers.updates import Kind, Updates
from streamsampler.workers.factory import WorkerFactory

_KINDS: tuple[UpdateKind, UpdateKind] = ("agent", "parameters")


def put_agents(updates: Updates[Payload], agents: Any, n_workers: int, *, held: bool = False) -> None:
    each = items_by_worker(agents)
    if each is None:
        put(updates, "agent", _pickled("agent", agents, "the agent", held=held))
        return
    check_length("agents", each, n_workers)
    pickled = [_pickled("agent", agent, f"the agent of worker {worker}") for worker, agent in enumerate(each)]
    put(updates, "agent", pickled)


def put(updates: Updates[Any], kind: Kind, payloads: Any, publish: Callable[[Payload], Any] = lambda it: it) -> None:
    if not isinstance(payloads, list):
        updates.put(kind, publish(payloads), payloads.about)
        return
    pairs = [(None, None) if payload is None else (publish(payload), payload.about) for payload in payloads]
    updates.put(kind, [published for published, _ in pairs], [about for _, about in pairs])


def pickled_updates(
    agent_update: Any, env_update: Any, in_force: Updates[Any], *, held: bool = False
) -> dict[Kind, Any]:
    """Pickle a call's updates, all of them before any is stored.

    The result has, by kind, a payload, or a list with a payload or None for each worker; a held agent stays unpickled.
    """
    updates: dict[Kind, Any] = {}
    traits = in_force.about("agent")
    if agent_update is not None:
        before = in_force.about("parameters") if "parameters" in in_force else (None,) * len(traits)
        if len(set(map(id, traits))) == len(set(map(id, before))) == 1:
            traits = (traits[0].after(before[0]),) * len(traits)  # the same object marks them as shared
        else:
            traits = tuple(each.after(earlier) for each, earlier in zip(traits, before, strict=True))
        updates |= _agent_updates(agent_update, traits, before, partial(_pickled, held=held))
    if env_update is not None:
        what = "the environment update"
        updates["env"] = pickled_environments(
            env_update, len(traits), "env_update", what, as_env_update, none_is_none=True
        )
    return updates


def _agent_updates(
    agent_update: Any, traits: Sequence[AgentTraits], before: Sequence[Any],
    pickled: Callable[[UpdateKind, Any, str], Payload],
) -> dict[Kind, Any]:  # fmt: skip
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
        return {kind: pickled(kind, update, "the agent update")}
    updates: dict[Kind, Any] = {}
    for kind in _KINDS:
        items = [update if its_kind == kind else None for its_kind, update in resolved]
        if any(item is not None for item in items):
            updates[kind] = [
                None if item is None else pickled(kind, item, f"the agent update of worker {worker}")
                for worker, item in enumerate(items)
            ]
    return updates


def _over(resolved: tuple[UpdateKind, Any], before: Any) -> tuple[UpdateKind, Any]:
    """Merge an update of some policies into the update before, because parameters must be complete."""
    kind, update = resolved
    merges = isinstance(update, PolicyUpdates) and isinstance(before, PolicyUpdates)
    return (kind, update.over(before)) if merges else resolved


def _resolved(update: Any, traits: AgentTraits, worker: int) -> tuple[UpdateKind, Any]:
    """Return the kind of a worker's agent update; None, for no change, counts as parameters."""
    if update is None:
        return "parameters", None
    try:
        return resolved_update(update, traits)
    except UsageError as error:
        raise UsageError(f"{error} (agent_update of worker {worker})") from None


def _check_agents(items: list[Any]) -> None:
    """Refuse a list that may be a single agent's parameters: often as many arrays as there are workers."""
    wrong = next((number for number, item in enumerate(items) if not is_agent(item)), None)
    if items and wrong is None:
        return
    why = "it is empty" if wrong is None else f"its item {wrong}, a {type(items[wrong]).__qualname__}, is not an agent"
    raise UsageError(
        f"agent_update is an ambiguous list ({why}): pass a tuple if these are the parameters of one agent, or "
        "PerWorker([…]) with an item for each worker"
    )


def facts_in(payloads: Any) -> list[Any]:
    return [it.about for it in (payloads if isinstance(payloads, list) else [payloads]) if it is not None]


def makes_environment(env_update: Any) -> bool:
    """Whether an `env_update` may make another environment for worker 0, instead of setting its task."""
    items = items_by_worker(env_update)
    update = env_update if items is None else items[0]
    return update is not None and not isinstance(update, SetTaskUpdate)


def on_environments(env_update: Any, updates: Updates[Any], engine: Engine) -> Any:
    """Return an `env_update` in which each `SetParameters` has an environment, by default the current one."""

    def on(item: Any, worker: int) -> Any:
        if not isinstance(item, SetParameters) or item.has_environment:
            return item
        return item.on(engine.published(updates.of_workers("env")[worker]), updates.about("env")[worker].name)

    each = items_by_worker(env_update)
    if each is None and len(set(map(id, handles := updates.of_workers("env")))) == 1:
        return on(env_update, 0)
    if each is None and isinstance(env_update, SetParameters):
        return PerWorker([on(env_update, worker) for worker in range(len(handles))])
    if each is None or len(each) != len(updates.of_workers("env")):
        return env_update  # its length is checked later
    return PerWorker([on(item, worker) for worker, item in enumerate(each)])


def pickled_environments(
    given: Any, n_workers: int, name: str, what: str, check: Callable[[Any], EnvUpdate], *, none_is_none: bool = False
) -> Any:
    """Return environments as a payload, or a list with a payload for each worker, with their facts.

    `name` is the argument and `what` an item in errors; `check` makes an update of an item, or raises.
    """

    def of_worker(item: Any) -> EnvUpdate:
        return PerEnv([check(env) for env in item]) if isinstance(item, list) else check(item)

    each = items_by_worker(given)
    if each is None:
        return _pickled_environment(check(given), what)
    check_length(
        name, each, n_workers, "; for several environments in a VecWorker pass streamsampler.environments.PerEnv([…])"
    )
    return [
        None if item is None and none_is_none else _pickled_environment(of_worker(item), f"{what} of worker {worker}")
        for worker, item in enumerate(each)
    ]


def are_asynchronous(environments: Any) -> bool:
    given = environments if isinstance(environments, list) else [environments]
    return any(payload is not None and payload.about.waits for payload in given)


def check_side_by_side(environments: Any, name: str, factory: WorkerFactory) -> None:
    for payload in environments if isinstance(environments, list) else [environments]:
        n = 0 if payload is None else len(payload.about.of_slots)
        if not n:
            continue
        rows, kind = factory.layout.rows, factory.worker_class
        if not kind.can_differ_side_by_side:
            raise UsageError(
                f"{name} has {n} environments for one worker, but {kind.__name__} runs one kind of environment: use "
                f'worker_class=VecWorker, worker_args={{"n_envs": {n}}}, or PerWorker([…]) with one environment for '
                "each worker"
            )
        if rows != n:
            raise UsageError(
                f"{name} has {n} environments for one worker, but the worker runs {rows} side by side: pass "
                f'worker_args={{"n_envs": {n}}}, or {rows} environments'
            )


def _pickled_environment(update: EnvUpdate, what: str) -> Payload:
    return replace(dumps(update, what), about=EnvironmentFacts.of(update))


def _pickled(kind: UpdateKind, given: Any, what: str, *, held: bool = False) -> Payload:
    if kind == "agent":
        agent = as_agent(given)
        return HeldPayload.of(agent, traits_of(agent)) if held else replace(dumps(agent, what), about=traits_of(agent))
    payload = dumps(given, what)
    return replace(payload, about=given) if isinstance(given, PolicyUpdates) else payload
