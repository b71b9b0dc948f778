"""A sampler's state after a call: saved, loaded in another process, and copied with a pickled sampler.

Trajectories are functions of seeds, agents and environments, so the state is small: the agent version, the statistics
of filters, `stats`, the environment of an `env_update`, and the positions of open episodes of fragments. The workers of
the sampler that loads it restore these episodes in its next call for fragments, exactly like a worker that replaces a
lost one (see `FragmentLedger`).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from streamsampler.agents.filters import Filters
from streamsampler.core.by_value import dumps_by_value
from streamsampler.core.errors import UsageError
from streamsampler.core.serialization import HeldPayload, Payload
from streamsampler.core.words import count
from streamsampler.data.plain_values import plain_stats, stats_of
from streamsampler.data.statistics import Stats
from streamsampler.engines.base import Engine
from streamsampler.protocol.plans import Fragments
from streamsampler.samplers.fragments import FragmentLedger
from streamsampler.samplers.life import SamplerLife, SamplerSetup
from streamsampler.samplers.off_by_one import OffByOneSchedule
from streamsampler.samplers.payloads import put
from streamsampler.samplers.provenance import name_of_worker
from streamsampler.samplers.tasks import refuse_calls
from streamsampler.samplers.update_store import UpdateStore
from streamsampler.samplers.updates import Kind, Updates
from streamsampler.workers.factory import WorkerSetup

_AGENTS: tuple[Kind, ...] = ("agent", "parameters")

FORMAT = 1
"""The format of states; increase it whenever older or newer versions could not read the state."""

Layer = dict[Kind, "tuple[bool, list[Any]] | None"]
"""Updates by kind: whether all workers share it, and each payload with its facts; None without an update."""


def _layer(engine: Engine, updates: Updates[Any], kinds: Iterable[Kind]) -> Layer:
    layer: Layer = dict.fromkeys(kinds)
    for kind, of_workers in updates.snapshot().items():
        if kind in layer:
            items = of_workers.items[:1] if of_workers.shared else of_workers.items
            layer[kind] = (
                of_workers.shared,
                [None if it.payload is None else (_own(engine.published(it.payload)), it.about) for it in items],
            )
    return layer


def _put(store: UpdateStore, layer: Layer) -> None:
    for kind in sorted(layer):  # an agent before its parameters
        if (found := layer[kind]) is None:
            store.withdraw(kind)
            continue
        shared, items = found
        payloads = [None if it is None else replace(it[0], about=it[1]) for it in items]
        put(store.latest, kind, payloads[0] if shared else payloads, store.publish)


def _changed(before: Updates[Any], after: Updates[Any]) -> list[Kind]:
    kinds: tuple[Kind, ...] = (*_AGENTS, "env")
    both = [{kind: it.of_workers(kind) for kind in kinds if kind in it} for it in (before, after)]
    found = [kind for kind in kinds if not _are_one(*(each.get(kind, ()) for each in both))]
    if "agent" in found and "parameters" not in found:
        found.append("parameters")  # invalid with a new agent
    return found


def _are_one(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def _own(payload: Payload) -> Payload:
    return replace(payload.pickled(), about=None) if isinstance(payload, HeldPayload) else payload.owned()


def _kind_of(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {policy: _kind_of(each) for policy, each in given.items()}
    return None if given is None else type(given).__qualname__


class _LoadedState(NamedTuple):
    """A state, read and checked."""

    version: int
    sampled_version: int
    off_by_one: OffByOneSchedule | None
    n_envs: int | None
    fragments: FragmentLedger | None
    filters: Filters
    stats: Stats
    layers: list[Layer]


_SAME: Mapping[str, tuple[str, str]] = {
    "seed": ("seed", "pass seed={0!r} to the sampler"),
    "policies": ("list of policies", "pass agents of these names"),
    "worker_class": ("worker_class", "pass this worker_class"),
    "rows": ("number of environments side by side in a worker", 'pass worker_args={{"n_envs": {0}}}'),
    "staleness": ("staleness", "pass staleness={0}"),
    "filters": ("set of filters", "pass filters of these classes"),
}
"""Facts on which a state and the loading sampler must agree, and how to make such a sampler."""

_KEYS = {
    "agent_version", *_SAME, "n_workers", "per_worker", "first_trajectory", "sampled_version", "n_envs", "fragments",
    "filters_pickle", "updates", "stats",
}  # fmt: skip


def state_of(life: SamplerLife, *, agents: bool) -> dict[str, Any]:
    refuse_calls(life.setup.tasks, "state_dict()")
    with life.exclusive():
        if life.streaming is not None:
            raise UsageError(
                "state_dict() was called while a stream is open: leave the stream's loop, or close it, before the call"
            )
        if life.off_by_one is not None and life.off_by_one.first is not None and not agents:
            raise UsageError(
                "state_dict() of a sampler with staleness=1 needs agents=True, because the next batch is sampled with "
                "the last call's parameters"
            )
        layers = _layers(life, agents)
        return _state(life) | {"updates": dumps_by_value(layers) if any(layers) else None}


def _layers(life: SamplerLife, agents: bool) -> list[Layer]:
    """Return the updates to save, in the order of their application; with `staleness=1` the last call's come last.

    Environments are included only if calls have updated them.
    """
    store = life.session.store
    kinds: list[Kind] = [*_AGENTS] if agents else []
    kinds += ["env"] if _envs_are_updated(life) else []
    kinds += ["filters"] if "filters" in store.latest else []  # of the last call, for replays
    has_newer = agents and life.off_by_one is not None
    layers = [_layer(life.session.engine, store.sampled if has_newer else store.latest, kinds)]
    if life.setup.holds_agent and agents:
        layers[0]["parameters"] = None  # the held agent contains them
    return [*layers, _last_changes(life)] if has_newer else layers


def _last_changes(life: SamplerLife) -> Layer:
    store = life.session.store
    return _layer(life.session.engine, store.latest, _changed(store.sampled, store.latest))


def _state(life: SamplerLife) -> dict[str, Any]:
    session, filters = life.session, life.filters
    fragments = session.episodes.open_ledger()
    if session.suspect or fragments is None or not fragments.is_complete:
        fragments = None
    return {
        "format": FORMAT,
        "agent_version": session.scheduler.version,
        **_identity(life, filters),
        "n_workers": life.n_workers,
        "per_worker": session.store.latest.differ,
        "first_trajectory": None if life.off_by_one is None else life.off_by_one.first,
        "n_envs": life.n_envs,
        "fragments": None if fragments is None else fragments.state(),
        "filters_pickle": dumps_by_value(filters) if filters else None,
        "sampled_version": session.scheduler.sampled_version,
        "stats": plain_stats(life.stats),
    }


def _envs_are_updated(life: SamplerLife) -> bool:
    """Whether calls have replaced the environments given to the constructor."""
    in_force = life.session.store.latest.about("env")
    return any(now is not given for now, given in zip(in_force, life.setup.env_facts, strict=True))


def _identity(life: SamplerLife, filters: Filters) -> dict[str, Any]:
    factory = life.setup.workers.factory
    return {
        "seed": life.seed,
        "policies": list(life.setup.policy_names),
        "worker_class": name_of_worker(factory.worker_class),
        "rows": factory.fragment_rows,
        "staleness": int(life.off_by_one is not None),
        "filters": {
            "observation_filter": _kind_of(filters.observation), "reward_filter": _kind_of(filters.reward),
        },
    }  # fmt: skip


def load_state(life: SamplerLife, state: Mapping[str, Any]) -> None:
    refuse_calls(life.setup.tasks, "load_state_dict()")
    with life.exclusive():
        _check_state(life, state)
        try:
            layers = [] if state["updates"] is None else pickle.loads(state["updates"])
            loaded = _read(life, state, layers)
        except Exception as error:  # unpickling can run any code
            raise UsageError(f"cannot read the state: {type(error).__name__}: {error}") from error
        if not any("env" in layer for layer in layers) and _envs_are_updated(life):
            raise UsageError(
                "the state has no updated environment, but a call has updated this sampler's: load the state into a "
                "new sampler"
            )
        life.end_stream()
        if not life.session.is_new:
            life.restart(loaded.version)
        _install(life, loaded)


def _check_state(life: SamplerLife, state: Any) -> None:
    if not isinstance(state, Mapping) or "format" not in state:
        raise UsageError(f"load_state_dict takes the dict returned by state_dict, got {state!r:.60}")
    if state["format"] != FORMAT:
        raise UsageError(
            f"the state has format {state['format']!r}, but this version of streamsampler reads format {FORMAT}: "
            "load it with the version that saved it"
        )
    if missing := _KEYS - state.keys():
        raise UsageError(f"the state lacks {', '.join(map(repr, sorted(missing)))}")
    for name, own in _identity(life, life.filters).items():
        if state[name] != own:
            what, advice = _SAME[name]
            raise UsageError(
                f"the state does not fit this sampler: {what} in the state is {_shown(state[name])}, in this sampler "
                f"{_shown(own)}: {advice.format(state[name])}, or load the state of a sampler like this one"
            )
    own_items = life.session.store.latest.differ
    if (own_items or state["per_worker"]) and state["n_workers"] != life.n_workers:
        raise UsageError(
            f"the state is from a sampler with {count(state['n_workers'], 'worker')}, but this sampler has "
            f"{life.n_workers}: results depend on the number if workers have their own agents or environments"
        )
    fragments, most = state["fragments"], life.setup.most_envs
    if fragments is not None and most is not None and len(fragments["environments"]) > most:
        raise UsageError(
            f"the state has fragments of {len(fragments['environments'])} environments, but this sampler with "
            f'inference="parent" has {most}: pass worker_args={{"n_envs": {len(fragments["environments"])}}}'
        )


def _read(life: SamplerLife, state: Mapping[str, Any], layers: list[Layer]) -> _LoadedState:
    fragments, filters = state["fragments"], state["filters_pickle"]
    return _LoadedState(
        version=state["agent_version"],
        sampled_version=state["sampled_version"],
        off_by_one=OffByOneSchedule(state["first_trajectory"]) if state["staleness"] else None,
        n_envs=state["n_envs"],
        fragments=None if fragments is None else FragmentLedger.of_state(fragments, _any_plan(life, fragments)),
        filters=Filters() if filters is None else pickle.loads(filters),
        stats=stats_of(state["stats"], life.n_workers, life.stats.script),
        layers=layers,
    )


def _any_plan(life: SamplerLife, fragments: Mapping[str, Any]) -> Fragments:
    n_rows = life.setup.workers.factory.fragment_rows
    return Fragments(1, len(fragments["environments"]), life.n_workers, n_rows)


def _install(life: SamplerLife, loaded: _LoadedState) -> None:
    session, layers = life.session, loaded.layers
    for layer in layers[:1]:
        _put(session.store, layer)
    if loaded.off_by_one is not None:
        session.store.sampled = Updates.of(session.store.latest.snapshot(), life.n_workers)
    for layer in layers[1:]:
        _put(session.store, layer)
    session.store.unpublish_old()
    if any("env" in layer for layer in layers):
        session.scheduler.renew_checks()
    session.continue_from(loaded.version, loaded.sampled_version, loaded.fragments)
    life.off_by_one, life.n_envs, life.stats = loaded.off_by_one, loaded.n_envs, loaded.stats
    life.ran_before = life.stats.ran_timesteps
    life.filters = loaded.filters


class PickledSampler(NamedTuple):
    """The content of a pickled sampler besides its attributes; `setup` and `updates` share the environments' facts."""

    setup: SamplerSetup
    updates: Updates[Any]  # the agent and the environment of the last call, pickled
    layers: list[Layer]  # updates since
    state: dict[str, Any]


def copied(life: SamplerLife) -> PickledSampler:
    life.check_usable()
    if life.off_by_one is None:
        return PickledSampler(life.setup, life.updates_in_force(), [], _state(life))
    updates = life.session.store.sampled.mapped(life.session.engine.published)
    return PickledSampler(life.setup, updates, [{}, _last_changes(life)], _state(life))


def life_of(it: PickledSampler, make_engine: Callable[[WorkerSetup], Engine]) -> SamplerLife:
    life = SamplerLife(it.setup, make_engine, it.updates, Filters())
    _install(life, _read(life, it.state, it.layers))
    return life


def _shown(value: Any) -> str:
    if not isinstance(value, Mapping):
        return repr(value)
    given = {name: each for name, each in value.items() if each is not None}
    return ", ".join(f"{name}={each}" for name, each in given.items()) or "none"
