"""Make each batch with the parameters of the call before: `staleness=1`.

A learner that wants its next batch sampled while it learns from the last one gives up one agent version: the batch of
call c is of version c - 1, whose parameters came with call c - 1. Here is which trajectories that are.

A call *begins anew* where there is nothing to go on with: the first one, one with an `env_update`, and one after a call
that raised. Its batch is of its own version, from trajectory 0 on, and the next call's batch is of the same version,
from the first trajectory that is not in a batch. From then on each batch is of the version before its call's, from
trajectory 0 on. All that follows from the calls alone, whatever workers have run between them.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamsampler.agents.filters import Filters
from streamsampler.core.errors import UsageError
from streamsampler.core.serialization import Payload, dumps
from streamsampler.data.statistics import Stats
from streamsampler.protocol.plans import GatherPlan
from streamsampler.protocol.result import Order
from streamsampler.samplers.call import Call
from streamsampler.samplers.failures import logger
from streamsampler.samplers.payloads import put
from streamsampler.samplers.per_worker import Kind, Snapshot
from streamsampler.samplers.session import Session
from streamsampler.workers.resets import Resets

# ----------------------------------------------------------------------
# Begin calls: put their updates in force, and hand out the first tickets.


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
    session.publish_settings()
    session.renew_after_tasks(resets)
    snapshot = session.updates.snapshot()
    try:
        put_in_force(session, updates)
        session.publish_filters(filters)
        session.set_call(plan, resets, payload)
        session.begin_fragments(plan, resets, updates)
        call = Call(session, plan, snapshot, stats)
        call.start()
    except BaseException:
        session.restore_updates(snapshot)
        raise
    return call


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


# ----------------------------------------------------------------------


def check_staleness(staleness: Any, order: Order, filters: Filters) -> int:
    """Return the argument `staleness` of samplers.

    Raises:
        UsageError: It is neither 0 nor 1, or does not go together with the other arguments.
    """
    is_number = isinstance(staleness, numbers.Real) and not isinstance(staleness, bool)
    if not is_number or staleness not in (0, 1):
        raise UsageError(f"staleness must be 0 or 1, got {staleness!r}")
    if staleness and order == "arrival":
        raise UsageError(
            'staleness=1 needs order="index": which trajectories arrive first in the next batch would depend on how '
            "long you learn from this one"
        )
    if staleness and filters:
        raise UsageError(
            "staleness=1 takes no observation_filter and no reward_filter: their statistics are those of all batches "
            "before, and the next batch is sampled before this one is returned. Normalise in the agent, whose "
            "parameters you update"
        )
    return int(staleness)


class Lag:
    """Which trajectories the next batch of a sampler with `staleness=1` is made of.

    Args:
        first: What `first` is.

    Attributes:
        first: The index of the first trajectory of the next batch, whose version is the last call's; None if the next
            call begins anew.
        has_prefetched: Whether workers may have answered before the call that begins.
    """

    def __init__(self, first: int | None = None) -> None:
        self.first = first
        self.has_prefetched = False
        self._prefetched: tuple[Session, Payload, Snapshot] | None = None  # with what workers have begun

    def next_of(self, last: int) -> tuple[int, int]:
        """Return the agent version and the first trajectory of the next batch, unless its call has an `env_update`.

        Args:
            last: The agent version of the last call.
        """
        return (last + 1, 0) if self.first is None else (last, self.first)

    def begun(
        self, session: Session, plan: GatherPlan, updates: Mapping[Kind, Any], stats: Stats, resets: Resets | None
    ) -> Call:
        """Begin a call, whose workers are to start; for the arguments see `begun`.

        Until `complete`, the next call begins anew.
        """
        own = session.version + 1
        version, first = (own, 0) if "env" in updates else self.next_of(session.version)
        plan, resets = plan.starting_at(first), replace(resets or Resets(), version=version, first=first)
        payload = pickled_resets(resets)
        session.publish_settings()
        session.renew_after_tasks(resets)
        before, used, accepted = session.updates.snapshot(), session.used.snapshot(), session.sampled.snapshot()
        try:
            put_in_force(session, updates)
            session.use(session.updates.snapshot())
            # What cannot be gathered with its updates is refused now, as without a lag.
            session.scheduler.gathering_for(plan, session.structures())
            if version < own:
                session.use(before)
            session.set_call(plan, resets, payload)
            self.has_prefetched = self._prefetched is not None and self._prefetched[0] is session
            # An agent gets an update in the call after its own: if it refuses it, that call's is not kept, either.
            return Call(
                session, plan, before, stats, sampled_version=version, accepted=accepted,
                keeps_prefetched=self._keeps_prefetched(session, payload),
            )  # fmt: skip
        except BaseException:
            session.updates.restore(before)
            session.use(used)
            raise
        finally:
            if session.version == own:
                self.first = self._prefetched = None

    def complete(self, call: Call, session: Session) -> None:
        """Note that the batch of a call is complete."""
        self.first = call.gathering.result.next if call.version == session.version else 0

    def prefetch(self, call: Call, session: Session) -> None:
        """Let workers begin with the next batch, when a complete call has ended."""
        assert session.resets is not None
        if not session.can_prefetch or session.resets.is_fixed:
            return
        version, first = self.next_of(session.version)
        try:
            payload = pickled_resets(replace(session.resets, version=version, first=first))
            assert payload is not None
            session.use(session.updates.snapshot())
            session.give(payload)
            self._prefetched = session, payload, session.used.snapshot()
            call.prefetch(call.gathering.plan.starting_at(first))
        except Exception as error:  # the batch is complete, and is returned all the same
            if session.cancelled:
                return  # another thread closed the sampler
            session.mark_suspect()
            logger.warning(
                "workers could not begin with the next batch, which its own call samples: %s: %s",
                type(error).__name__, error,
            )  # fmt: skip

    def _keeps_prefetched(self, session: Session, resets: Payload | None) -> bool:
        """Whether workers have begun with what a call says of its trajectories, and with its updates."""
        if self._prefetched is None or resets is None:
            return False
        its_session, its_resets, its_updates = self._prefetched
        now = session.used.snapshot()
        is_same = all(its_updates.get(kind) is now.get(kind) for kind in _OF_TRAJECTORIES)
        return session is its_session and is_same and _are_equal(its_resets, resets)


_OF_TRAJECTORIES: tuple[Kind, ...] = ("agent", "parameters", "env", "settings")


def _are_equal(one: Payload, other: Payload) -> bool:
    return one.data == other.data and list(map(bytes, one.buffers)) == list(map(bytes, other.buffers))
