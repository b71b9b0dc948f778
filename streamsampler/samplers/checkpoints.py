"""Say where a sampler stands after a call, so that another one in another process goes on to the same bits.

Trajectories are functions of seeds, agents and environments. So the state of a sampler is small: which agent version
comes next, the statistics of filters, the counts of `stats`, the environment that a call has put in force, and where
the episodes of fragments stand. A worker that replaces a lost one gets the same (see `FragmentLedger`): the new
sampler's workers restore these episodes in its next call for fragments.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from streamsampler.agents.filters import Filters
from streamsampler.core.by_value import dumps_by_value
from streamsampler.core.errors import UsageError
from streamsampler.core.serialization import HeldPayload, Payload
from streamsampler.core.words import count
from streamsampler.data.plain import plain_stats, stats_of
from streamsampler.data.statistics import Stats
from streamsampler.engines.base import Engine
from streamsampler.protocol.plans import Fragments
from streamsampler.samplers.fragments import FragmentLedger
from streamsampler.samplers.lagging import Lag
from streamsampler.samplers.lifecycle import SamplerLife
from streamsampler.samplers.payloads import name_of_worker, put
from streamsampler.samplers.per_worker import Kind, Updates
from streamsampler.samplers.session import Session

_AGENTS: tuple[Kind, ...] = ("agent", "parameters")

FORMAT = 1
"""The format of states; another number wherever this version could not read the states of another one."""

Layer = dict[Kind, "tuple[bool, list[Any]] | None"]
"""Updates by kind: whether all workers share an update, and each update's payload with its facts; None for a kind
without an update in force."""


def _layer(engine: Engine, updates: Updates[Any], kinds: Iterable[Kind]) -> Layer:
    """Return the updates in force, of some kinds: their payloads as the engine has published them."""
    layer: Layer = dict.fromkeys(kinds)
    for kind, of_workers in updates.snapshot().items():
        if kind in layer:
            items = of_workers.items[:1] if of_workers.shared else of_workers.items
            layer[kind] = (
                of_workers.shared,
                [None if it.payload is None else (_own(engine.published(it.payload)), it.about) for it in items],
            )
    return layer


def _put(session: Session, layer: Layer) -> None:
    """Put a layer in force."""
    for kind in sorted(layer):  # an agent before its parameters
        if (found := layer[kind]) is None:
            session.updates.forget(kind)
            continue
        shared, items = found
        payloads = [None if it is None else replace(it[0], about=it[1]) for it in items]
        put(session.updates, kind, payloads[0] if shared else payloads, session.publish)


def _changed(before: Updates[Any], after: Updates[Any]) -> list[Kind]:
    """Return of which kinds other updates are in force."""
    kinds: tuple[Kind, ...] = (*_AGENTS, "env")
    both = [{kind: it.of_workers(kind) for kind in kinds if kind in it} for it in (before, after)]
    found = [kind for kind in kinds if not _are_one(*(each.get(kind, ()) for each in both))]
    if "agent" in found and "parameters" not in found:
        found.append("parameters")  # which a new agent voids
    return found


def _are_one(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def _own(payload: Payload) -> Payload:
    return replace(payload.pickled(), about=None) if isinstance(payload, HeldPayload) else payload.owned()


def _kind_of(given: Any) -> Any:
    """Return the name of a filter's class, or these names by policy; None for none."""
    if isinstance(given, Mapping):
        return {policy: _kind_of(each) for policy, each in given.items()}
    return None if given is None else type(given).__qualname__


class _Loaded(NamedTuple):
    """What a state says, read and checked."""

    version: int
    sampled_version: int
    lag: Lag | None
    n_envs: int | None
    fragments: FragmentLedger | None
    filters: Filters
    stats: Stats
    layers: list[Layer]


_SAME: Mapping[str, tuple[str, str]] = {
    "seed": ("the seed", "pass seed={0!r} to the sampler"),
    "policies": ("the policies", "pass agents of these names"),
    "worker_class": ("workers of the kind", "pass this worker_class"),
    "rows": ("the number of environments that a worker runs side by side,", 'pass worker_args={{"n_envs": {0}}}'),
    "staleness": ("staleness", "pass staleness={0}"),
    "filters": ("the filters", "pass filters of these classes"),
}
"""What a state and the sampler that loads it must agree in, and how to make the sampler so."""

_KEYS = {
    "agent_version", *_SAME, "n_workers", "per_worker", "first_trajectory", "sampled_version", "n_envs", "fragments",
    "filters_pickle", "updates", "stats",
}  # fmt: skip


class CheckpointedSampler(SamplerLife):
    """Samplers whose state can be saved, and loaded in another process."""

    _kept_in_copies = *SamplerLife._kept_in_copies, "_given_envs"
    _given_envs: tuple[Any, ...]
    """What is known of the environments that the sampler was made with, by worker."""
    _n_envs: int | None = None
    policy_names: tuple[str, ...]

    @property
    def _most_envs(self) -> int | None:
        """How many environments there can be for fragments; None for any number."""
        return None

    # ------------------------------------------------------------------ say where it stands

    def state_dict(self, agents: bool = False) -> dict[str, Any]:
        """Return where this sampler stands between two calls, for `load_state_dict` in another process.

        A sampler that is made with the same arguments, loads the state and gets the same calls from there on returns
        the same bits as this one, with any number of workers and on any engine. The state has the seed and the agent
        version, the filters with their statistics, `stats`, an environment that an `env_update` has put in force, and
        the episodes of fragments that go on, as far as they can be restored (see `obtain_fragments`).

        Args:
            agents: Whether the state also has the agent, with its parameters, as the last call used it. Without it the
                sampler that loads the state uses the agent it has: make it with the agent of the last call, or pass
                parameters as `agent_update` in the next call. With `staleness=1` it is needed after each call, since
                the next batch is of the last call's parameters. With `inference="parent"` the sampler that loads it has
                an agent of its own then: pass yours as `agent_update` in the next call.

        Returns:
            A dict of numbers, strings, bytes, None, and dicts and lists of these alone: `torch.save`, `pickle` and
            others can write it next to your learner's state, and `torch.load(weights_only=True)` reads it. What is of
            any class (filters, environments, agents, their memories) is in it pickled, as bytes.

        Raises:
            UsageError: A stream is open; or the sampler has `staleness=1`, and `agents` is false.
            SerializationError: The agent that this process holds cannot be pickled.
            ClosedError: The sampler is closed.
            ConcurrentCallError: A call is under way.
        """
        with self._exclusive():
            if self._streaming is not None:
                raise UsageError(
                    "state_dict() is for between calls, and a stream is open: leave its loop, or close it, before"
                )
            if self._lag is not None and self._lag.first is not None and not agents:
                raise UsageError(
                    "state_dict() of a sampler with staleness=1 lacks the parameters of the last call, which its next "
                    "batch is sampled with: pass agents=True"
                )
            layers = self._layers(agents)
            return self._state() | {"updates": dumps_by_value(layers) if any(layers) else None}

    def _layers(self, agents: bool) -> list[Layer]:
        """Return what is in force, in the order in which it came: with a lag what the last call brought comes last.

        Args:
            agents: Whether agents are part of it; environments are if calls have updated them.
        """
        session = self._session
        kinds: list[Kind] = [*_AGENTS] if agents else []
        kinds += ["env"] if self._envs_are_updated else []
        kinds += ["filters"] if "filters" in session.updates else []  # as the last call had them, for replays
        lags = agents and self._lag is not None
        layers = [_layer(session.engine, session.sampled if lags else session.updates, kinds)]
        if self._holds_agent and agents:
            layers[0]["parameters"] = None  # the agent has them
        return [*layers, self._last_changes()] if lags else layers

    def _last_changes(self) -> Layer:
        """Return what the last call has put in force for the next one, where there is a lag."""
        session = self._session
        return _layer(session.engine, session.updates, _changed(session.sampled, session.updates))

    def _state(self) -> dict[str, Any]:
        """Return the state without what is in force."""
        session, filters = self._session, self.filters
        fragments = session.going_on()
        if session.suspect or fragments is None or not fragments.is_complete:
            fragments = None
        return {
            "format": FORMAT,
            "agent_version": self.agent_version,
            **self._identity(filters),
            "n_workers": self.n_workers,
            "per_worker": session.updates.differ,
            "first_trajectory": None if self._lag is None else self._lag.first,
            "n_envs": self._n_envs,
            "fragments": None if fragments is None else fragments.state(),
            "filters_pickle": dumps_by_value(filters) if filters else None,
            "sampled_version": session.sampled_version,
            "stats": plain_stats(self.stats),
        }

    @property
    def _envs_are_updated(self) -> bool:
        """Whether calls have put other environments in force than those that the sampler was made with."""
        in_force = self._session.updates.about("env")
        return any(now is not given for now, given in zip(in_force, self._given_envs, strict=True))

    def _identity(self, filters: Filters) -> dict[str, Any]:
        """Return what a state and the sampler that loads it must agree in; see `_SAME`."""
        factory = self._setup.factory
        return {
            "seed": self.seed,
            "policies": list(self.policy_names),
            "worker_class": name_of_worker(factory.worker_class),
            "rows": factory.layout.rows,
            "staleness": int(self._lag is not None),
            "filters": {
                "observation_filter": _kind_of(filters.observation), "reward_filter": _kind_of(filters.reward),
            },
        }  # fmt: skip

    # ------------------------------------------------------------------ go on from there

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where another sampler stood, whose `state_dict` this is: the next call is the one after its last.

        The sampler must have the same arguments, but for the engine, the number of workers and what changes no
        trajectory. Episodes of fragments are restored in the next call for fragments, which steps their environments
        again from their resets. Where that cannot be (the episode is longer than `restore_limit`, the agent remembers
        and has no `get_state`, the environment does something else) a new episode begins there, with a warning, as
        after a loss; it counts as failed, the others do not. `stats` goes on from the state's.

        May be called at any time between calls. In a sampler that has run calls it replaces all that they have left:
        workers are started again, and an open stream ends. The agent in force stays, unless the state has one.

        Args:
            state: What `state_dict` returned. Load only what you trust: it has pickles as bytes, which can run code.

        Raises:
            UsageError: It is no such state, or is of a sampler with another seed, kind of worker, number of
                environments side by side, `staleness`, policies, filters, or number of workers where they have agents
                or environments of their own; says both values. Or this sampler's environment was updated by a call, and
                the state has none. Nothing changes.
            ClosedError: The sampler is closed.
            ConcurrentCallError: A call is under way.
        """
        with self._exclusive():
            self._check_state(state)
            try:
                layers = [] if state["updates"] is None else pickle.loads(state["updates"])
                loaded = self._read(state, layers)
            except Exception as error:  # unpickling runs anything
                raise UsageError(f"the state cannot be read: {type(error).__name__}: {error}") from error
            if not any("env" in layer for layer in layers) and self._envs_are_updated:
                raise UsageError(
                    "the state is of the environment that its sampler was made with, and a call has updated this "
                    "sampler's: load it into a new sampler"
                )
            self._end_stream()
            if not self._session.is_new:
                self._restart(loaded.version)
            self._install(loaded)

    def _check_state(self, state: Any) -> None:
        if not isinstance(state, Mapping) or "format" not in state:
            raise UsageError(f"load_state_dict takes what state_dict returned, got {state!r:.60}")
        if state["format"] != FORMAT:
            raise UsageError(
                f"the state has format {state['format']!r}, and this version of streamsampler reads format {FORMAT}: "
                "load it with the version that saved it"
            )
        if missing := _KEYS - state.keys():
            raise UsageError(f"the state lacks {', '.join(map(repr, sorted(missing)))}")
        for name, own in self._identity(self.filters).items():
            if state[name] != own:
                what, advice = _SAME[name]
                raise UsageError(
                    f"the state is of {what} {_shown(state[name])}, and this sampler's is {_shown(own)}: "
                    f"{advice.format(state[name])}, or load the state of a sampler like this one"
                )
        own_items = self._session.updates.differ
        if (own_items or state["per_worker"]) and state["n_workers"] != self.n_workers:
            raise UsageError(
                f"the state is of {count(state['n_workers'], 'worker')}, and this sampler has {self.n_workers}: where "
                "workers have agents or environments of their own, results depend on their number"
            )
        fragments, most = state["fragments"], self._most_envs
        if fragments is not None and most is not None and len(fragments["environments"]) > most:
            raise UsageError(
                f"the state has fragments of {len(fragments['environments'])} environments, and with "
                f'inference="parent" this sampler has {most}: pass worker_args={{"n_envs": …}} for more'
            )

    def _read(self, state: Mapping[str, Any], layers: list[Layer]) -> _Loaded:
        fragments, filters = state["fragments"], state["filters_pickle"]
        return _Loaded(
            version=state["agent_version"],
            sampled_version=state["sampled_version"],
            lag=Lag(state["first_trajectory"]) if state["staleness"] else None,
            n_envs=state["n_envs"],
            fragments=None if fragments is None else FragmentLedger.of_state(fragments, self._any_plan(fragments)),
            filters=Filters() if filters is None else pickle.loads(filters),
            stats=stats_of(state["stats"], self.n_workers, self.stats.script),
            layers=layers,
        )

    def _any_plan(self, fragments: Mapping[str, Any]) -> Fragments:
        """Return a plan for the environments of a state, until a call has its own."""
        n_rows = self._setup.factory.layout.rows
        return Fragments(1, len(fragments["environments"]), self.n_workers, n_rows)

    def _install(self, loaded: _Loaded) -> None:
        session, layers = self._session, loaded.layers
        for layer in layers[:1]:
            _put(session, layer)
        if loaded.lag is not None:
            session.sampled = Updates.of(session.updates.snapshot(), self.n_workers)
        for layer in layers[1:]:
            _put(session, layer)
        session.unpublish_old()
        if any("env" in layer for layer in layers):
            session.scheduler.renew_checks()
        session.continue_from(loaded.version, loaded.sampled_version, loaded.fragments)
        self._lag, self._n_envs, self.stats = loaded.lag, loaded.n_envs, loaded.stats
        self._ran_before = self.stats.ran_timesteps
        self.put_back_filters(loaded.filters)

    # ------------------------------------------------------------------ pickling

    def __getstate__(self) -> dict[str, Any]:
        self._check_usable()
        updates, layers = self._updates_in_force(), list[Layer]()
        if self._lag is not None:
            layers = [{}, self._last_changes()]
            updates = self._session.sampled.mapped(self._session.engine.published)
        kept = {name: getattr(self, name) for name in self._kept_in_copies}
        # Together, because what is known of the environments is one object in both.
        return {"life": (updates, layers, self._state()), **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        updates, layers, life = state.pop("life")
        vars(self).update(state)
        self._begin_life(updates, Filters(), None)
        self._install(self._read(life, layers))


def _shown(value: Any) -> str:
    if not isinstance(value, Mapping):
        return repr(value)
    given = {name: each for name, each in value.items() if each is not None}
    return ", ".join(f"{name}={each}" for name, each in given.items()) or "none"
