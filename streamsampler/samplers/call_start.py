"""Start an obtaining call: apply its updates, and decide which trajectories belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamsampler.agents.filters import Filters
from streamsampler.data.statistics import Stats
from streamsampler.protocol.plans import Fragments, GatherPlan
from streamsampler.samplers.call import Call
from streamsampler.samplers.off_by_one import OffByOneSchedule, pickled_resets
from streamsampler.samplers.open_episodes import ENDED_FRAGMENTS
from streamsampler.samplers.session import Session
from streamsampler.samplers.updates import Kind
from streamsampler.workers.resets import Resets

_OTHER_DEVICE = (
    "torch's default device is {} in this process, but the CPU in the workers that run the agent: pass device= where "
    'the agent makes tensors, or keep the agent in this process with inference="parent"'
)


def start_call(
    session: Session, plan: GatherPlan, updates: Mapping[Kind, Any], stats: Stats, resets: Resets | None,
    filters: Filters, off_by_one: OffByOneSchedule | None,
) -> Call:  # fmt: skip
    """Start a call, for the workers to run.

    With `staleness=1`, its schedule decides which trajectories belong to the batch; otherwise the batch has the call's
    own agent version, from trajectory 0 on. An error leaves the earlier updates in force.
    """
    store, own_version = session.store, session.scheduler.version + 1
    version = own_version if resets is None or resets.version is None else resets.version  # all tasks use version 1
    if isinstance(plan, Fragments):
        resets = session.episodes.resets_of(plan, resets, updates, own_version)
    elif off_by_one is not None:
        plan, resets, version = off_by_one.trajectories_of(
            plan, resets, session.scheduler.version, is_new="env" in updates
        )
    payload = None if resets is None else pickled_resets(resets)
    if session.engine.has_own_settings:
        _put_settings(session)
    _renew_after_tasks(session, resets)
    before, sampled = store.latest.snapshot(), store.sampled.snapshot()
    try:
        store.put(updates, filters)
        if off_by_one is not None:
            off_by_one.use_updates(session, plan, before, is_own=version == own_version)
        session.set_call(plan, resets, payload)
        if session.episodes.ledger is not None or isinstance(plan, Fragments):
            _begin_episodes(session, plan, updates, resets)
        # An agent receives an update in the call after its own: if it refuses, the later call's is undone, too.
        call = Call(
            session, plan, before, stats, sampled_version=version, accepted=sampled,
            keeps_prefetched=off_by_one is not None and off_by_one.keeps_prefetched(session, payload),
        )  # fmt: skip
        if off_by_one is None:
            call.handle(())
    except BaseException:
        session.restore_updates(before, sampled)
        raise
    return call


def _put_settings(session: Session) -> None:
    device = session.store.put_settings()
    if device != "cpu" and session.store.need("torch"):
        session.warn_of([("device", _OTHER_DEVICE.format(device))])


def _renew_after_tasks(session: Session, resets: Resets | None) -> None:
    """Let workers make their environments again, unless the new tasks overwrite everything the last call's tasks set.

    Otherwise a trajectory would depend on which environment, with which leftover task, its worker holds.
    """
    left = None if session.resets is None else session.resets.kind_of_tasks
    if left is not None and (resets is None or resets.kind_of_tasks != left):
        session.store.latest.repeat("env")


def _begin_episodes(session: Session, plan: GatherPlan, updates: Mapping[Kind, Any], resets: Resets | None) -> None:
    """Continue the episodes of fragments, or start others; among whole trajectories only an `env_update` ends them."""
    episodes = session.episodes
    if "env" in updates and episodes.end():
        session.warn_of([("ended fragments", ENDED_FRAGMENTS)])
    if isinstance(plan, Fragments):
        assert resets is not None
        episodes.begin(plan, resets, updates)
    else:
        episodes.end_incomplete()
