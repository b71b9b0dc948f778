"""Begin calls: put their updates in force, and hand out the first tickets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamsampler.data.statistics import Stats
from streamsampler.filters.base import Filters
from streamsampler.samplers.call import Call
from streamsampler.samplers.payloads import put
from streamsampler.samplers.session import Session
from streamsampler.samplers.updates import Kind
from streamsampler.scheduling.plans import GatherPlan
from streamsampler.serialization import Payload, dumps
from streamsampler.workers.resets import Resets

__all__ = ["begun", "pickled_resets", "put_in_force"]


def begun(
    session: Session, plan: GatherPlan, updates: Mapping[Kind, Any], stats: Stats, resets: Resets | None,
    filters: Filters,
) -> Call:  # fmt: skip
    """Begin a call whose trajectories are made with its own updates.

    Args:
        session: What outlives the call.
        plan: What is to be obtained.
        updates: The call's updates, pickled.
        stats: Where the call is accounted for.
        resets: What it says of its trajectories.
        filters: The filters of its agent version.
    """
    resets = session.resets_of(plan, resets, updates)
    payload = pickled_resets(resets)
    session.publish_levels()
    session.renew_after_tasks(resets)
    snapshot = session.updates.snapshot()
    try:
        put_in_force(session, updates)
        session.publish_filters(filters)
        session.set_call(plan, resets, payload)
        session.begin_fragments(plan, resets, updates)
        return Call(session, plan, snapshot, stats)
    except BaseException:
        session.restore_updates(snapshot)
        raise


def pickled_resets(resets: Resets | None) -> Payload | None:
    """Pickle what a call says of its trajectories; None for nothing.

    Raises:
        SerializationError: The options or the tasks cannot be pickled.
    """
    return None if resets is None else dumps(resets, "reset_options" if resets.tasks is None else "the tasks")


def put_in_force(session: Session, updates: Mapping[Kind, Any]) -> None:
    """Put a call's updates in force."""
    for kind, payloads in updates.items():
        put(session.updates, kind, payloads, session.publish)
    if "env" in updates and any(traits.takes_spaces for traits in session.updates.about("agent")):
        # What an agent has made of its spaces must not depend on the spaces before.
        session.updates.repeat("agent")
        session.updates.repeat("parameters")
