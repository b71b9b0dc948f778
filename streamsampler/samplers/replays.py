"""Replay a sampler's trajectories with the agent, environment and options of their call."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

from streamsampler.core.errors import SerializationError, UsageError, positive
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.core.serialization import HeldPayload, Payload, dumps, loads
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.taken_actions import check_chosen
from streamsampler.environments.filming import check_renders
from streamsampler.protocol.plans import Exactly, Fragments, GatherPlan, Streamed
from streamsampler.samplers.life import SamplerLife
from streamsampler.samplers.payloads import on_environments, pickled_updates, put
from streamsampler.samplers.recorded import episode_of, of_version, recorded_one, resets_as_recorded
from streamsampler.samplers.replay_results import Replay, replayed
from streamsampler.samplers.rerun import Origin, Rerun, cut, places_of, recorded_agents, seeds_of
from streamsampler.samplers.tasks import refuse_calls
from streamsampler.samplers.updates import Updates
from streamsampler.workers.factory import WorkerFactory
from streamsampler.workers.resets import Options, Resets

_OF_FRAGMENTS = (
    "replaying an episode of fragments needs its record: pass recorded=batch, and actions=True if the episode started "
    "in an earlier call"
)
_SIDE_BY_SIDE = "an episode of fragments that ran side by side with others can only be replayed without the agent: "


def replay(
    life: SamplerLife,
    version: int,
    index: int,
    *,
    agent: Any = None,
    env: Any = None,
    reset_options: Options | None = None,
    tasks: Sequence[Any] | None = None,
    recorded: TrajectoryBatch[Any, Any] | None = None,
    actions: bool = False,
    video: str | PathLike[str] | None = None,
) -> Replay:
    refuse_calls(life.setup.tasks, "a replay")
    version, index = positive("version", version), positive("index", index, least=0)
    if actions:
        check_chosen(recorded, life.setup.workers.record_taken)
    given = resets_as_recorded(reset_options, tasks, recorded, version)
    last = None if recorded is None else recorded_one(recorded, index, version)
    one = None if recorded is None or last is None else episode_of(recorded, last, actions=actions)
    with life.exclusive():
        session, store = life.session, life.session.store
        is_current = version == session.scheduler.sampled_version
        if not (is_current or actions) and agent is None:
            there = session.scheduler.sampled_version
            what = f"has the agent of version {there}" if there else "has not sampled anything yet"
            raise UsageError(f"the sampler {what}: pass agent=, the agent of version {version} or its parameters")
        env = on_environments(env, store.latest, life.session.engine)
        pickled = pickled_updates(agent, env, store.sampled)
        origin = _origin_of(life, version, index, recorded, last)
        updates = _copied(life, store.sampled, actions or (life.setup.holds_agent and "agent" in pickled))
    if not is_current:
        updates.forget("filters")
    for kind, payloads in pickled.items():
        put(updates, kind, payloads)
    if given is not None:
        origin = replace(origin, resets=given)
    return run_again(life, version, index, origin, updates, recorded=recorded, one=one, actions=actions, video=video)


def run_again(
    life: SamplerLife,
    version: int,
    index: int,
    origin: Origin,
    updates: Updates[Payload] | None = None,
    *,
    recorded: TrajectoryBatch[Any, Any] | None,
    one: TrajectoryBatch[Any, Any] | None,
    actions: bool,
    video: str | PathLike[str] | None,
) -> Replay:
    setup, store = life.setup.workers, life.session.store
    if updates is None:
        updates = _copied(life, store.latest, actions)
    layout = setup.factory.layout
    if one is not None and one.env_numbers[0] >= 0 and layout.block > 1 and not actions:
        raise UsageError(f"{_SIDE_BY_SIDE}pass actions=True")
    n_queues = life.n_workers if store.sampled.differ else 1
    queue, blocks = places_of(origin, index, layout, n_queues)
    if one is not None and store.sampled.differ and one.worker_numbers[0] < life.n_workers:
        queue = int(one.worker_numbers[0])  # the index alone does not determine it; see `ExactlyPerWorker`
    seeds: dict[int, int] = {}
    if origin.derives_seeds:
        derived, there = TrajectorySeeds(life.seed, version), sorted({*chain(*blocks)})
        seeds = dict(zip(there, (origin.resets or Resets()).seeds_of(derived, there), strict=True))
    seeds |= of_version(recorded, version, () if recorded is None else recorded.seeds)
    updates.forget("settings")  # the replay runs in this process
    contents = {str(kind): payload for kind, payload in updates.missing(queue, {}).items()}
    if one is not None and actions:
        blocks, contents = [range(index, index + 1)], {"env": contents["env"]}
        contents["agent"] = dumps(recorded_agents(one), "the recorded actions")
    if one is not None and (actions or one.cut[0]):
        origin = replace(origin, cut=origin.cut or bool(one.cut[0]))
        setup = replace(setup, factory=_going_on(setup.factory, len(one.rewards), alone=actions))
    known = [each for each in blocks if seeds.keys() >= {*each}] or blocks[:1]
    # For a longer block, only if the worker runs such blocks.
    seeds_of(cut(known[0], index, layout.block), seeds, index)
    rerun = partial(Rerun, setup, contents, version, index, seeds=seeds, worker=queue, resets=origin.resets)
    film = None if video is None else Path(video)
    return replayed([rerun(block=each) for each in known], one, origin, film, actions=actions)


def _origin_of(
    life: SamplerLife,
    version: int,
    index: int,
    recorded: TrajectoryBatch[Any, Any] | None,
    last: TrajectoryBatch[Any, Any] | None,
) -> Origin:
    session, bits = life.session, frozenset() if recorded is None else recorded.fingerprints
    stops = []
    if version == session.scheduler.sampled_version:
        if session.plan is None or index >= session.plan.first:
            return Origin(*_last_call(life, last), fingerprints=bits)
        stops.append(session.plan.first)  # with staleness=1, the previous call may have had the same version
    if recorded is None:
        return Origin(Streamed(), stop=min(stops, default=None))
    there = recorded.indices[recorded.agent_versions == version]
    stops.append(int(there.max()) + 1)
    return Origin(Streamed(), first=int(there.min()), stop=min(stops), fingerprints=bits)


def _last_call(life: SamplerLife, last: TrajectoryBatch[Any, Any] | None) -> tuple[GatherPlan, Resets | None]:
    session = life.session
    plan: GatherPlan = session.plan or Streamed()
    if isinstance(plan, Fragments):
        if last is None:
            raise UsageError(_OF_FRAGMENTS)
        if session.resets is None or last.continued[0]:  # an earlier call gave the options
            return Streamed(), None
        return Streamed(), replace(session.resets, fragments=None)
    if life.setup.policy.drops and not plan.fixed:
        plan = Streamed(plan.first)  # replacements of dropped trajectories have higher indices
    if life.setup.order == "arrival" and isinstance(plan, Exactly):
        plan = Streamed(plan.first)  # the first to arrive may have any index
    return plan, session.resets


def check_films(life: SamplerLife) -> None:
    refuse_calls(life.setup.tasks, "a film")
    with life.exclusive():
        payload = _published(life, next(iter(life.session.store.latest.payloads(("env",)).values())))
    check_renders(loads(payload))


def _copied(life: SamplerLife, updates: Updates[Any], without_agent: bool) -> Updates[Payload]:
    """Return updates with payloads in memory of their own, without the agent if another agent acts."""
    copied: Updates[Any] = Updates.of(updates.snapshot(), life.n_workers)
    if without_agent:
        copied.forget("agent")
    if without_agent or life.setup.holds_agent:  # the held agent contains its parameters, and may have learnt since
        copied.forget("parameters")
    return copied.mapped(partial(_published, life))


def _published(life: SamplerLife, handle: Any) -> Payload:
    """Return a payload in memory of its own, because an engine may reuse its memory."""
    payload = life.session.engine.published(handle)
    if isinstance(payload, HeldPayload):
        return _copy_of(payload)
    return Payload(bytes(payload.data), tuple(bytes(buffer) for buffer in payload.buffers), payload.about)


def _copy_of(payload: HeldPayload) -> Payload:
    """Return a payload with a copy of a held agent, because a replay must not change its memory."""
    try:
        return payload.pickled()
    except SerializationError as error:
        what = "A replay needs a copy of the agent: pass agent= with an agent that can be pickled, or actions=True"
        raise SerializationError(f"{error}. {what}") from error


def _going_on(factory: WorkerFactory, length: int, *, alone: bool) -> WorkerFactory:
    """Return a factory of workers that run one timestep beyond the record, if the trajectory continues."""
    limit = min(factory.max_episode_length or length + 1, length + 1)
    if not alone:
        factory = copy.copy(factory)
    elif factory.worker_class.waits:
        factory = WorkerFactory(n_workers=1, seed=factory.seed, worker_args={"in_flight": 1})
    else:
        factory = WorkerFactory(n_workers=1, seed=factory.seed)
    factory.max_episode_length = limit
    return factory
