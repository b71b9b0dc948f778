"""Which trajectories belong to each batch with `staleness=1`: those of the parameters of the call before.

So that workers sample the next batch while the learner learns from the last, the batch of call c has version c - 1,
with the parameters given to call c - 1.

A call is a *fresh start* if no batch precedes it: the first call, a call with an `env_update`, and a call after an
exception. Its batch has its own version, from trajectory 0 on; the next call's batch has the same version, from the
first trajectory not yet in a batch. Every later batch has the version before its call's, from trajectory 0 on. All this
follows from the sequence of calls alone, whatever workers have run in between.
"""

from __future__ import annotations

import numbers
from dataclasses import replace
from typing import Any

from streamsampler.agents.filters import Filters
from streamsampler.core.errors import UsageError
from streamsampler.core.serialization import Payload, dumps
from streamsampler.protocol.plans import GatherPlan
from streamsampler.protocol.result import Order
from streamsampler.samplers.call import Call
from streamsampler.samplers.failures import logger
from streamsampler.samplers.session import Session
from streamsampler.samplers.updates import Kind, Snapshot
from streamsampler.workers.resets import Resets


def pickled_resets(resets: Resets) -> Payload:
    return dumps(resets, "reset_options" if resets.tasks is None else "the tasks")


def check_staleness(staleness: Any, order: Order, filters: Filters) -> int:
    is_number = isinstance(staleness, numbers.Real) and not isinstance(staleness, bool)
    if not is_number or staleness not in (0, 1):
        raise UsageError(f"staleness must be 0 or 1, got {staleness!r}")
    if staleness and order == "arrival":
        raise UsageError(
            'staleness=1 needs order="index", because the trajectories that arrive first in the next batch would '
            "depend on the time spent learning from this batch"
        )
    if staleness and filters:
        raise UsageError(
            "staleness=1 does not support observation_filter and reward_filter, because the next batch is sampled "
            "before their statistics include this batch. Normalise in the agent, and update it with its parameters"
        )
    return int(staleness)


class OffByOneSchedule:
    """The schedule of a sampler with `staleness=1`: version and first trajectory of the next batch."""

    def __init__(self, first: int | None = None) -> None:
        # Index of the next batch's first trajectory, in the last call's version; None if the next call starts fresh.
        self.first = first
        self.has_prefetched = False  # whether workers may have answered before the current call
        self._prefetched: tuple[Session, Payload, Snapshot] | None = None  # the resets and updates sent in advance

    def next_of(self, last: int) -> tuple[int, int]:
        """Return version and first trajectory of the batch after version `last`, without an `env_update`."""
        return (last + 1, 0) if self.first is None else (last, self.first)

    def trajectories_of(
        self, plan: GatherPlan, resets: Resets | None, last: int, *, is_new: bool
    ) -> tuple[GatherPlan, Resets, int]:
        """Return a call's plan, resets and agent version, after version `last`; `is_new` for an `env_update`."""
        version, first = (last + 1, 0) if is_new else self.next_of(last)
        return plan.starting_at(first), replace(resets or Resets(), version=version, first=first), version

    def use_updates(self, session: Session, plan: GatherPlan, before: Snapshot, *, is_own: bool) -> None:
        """Let workers use the updates for the call's trajectories: its own, or those before.

        If the call's own updates do not fit the plan, raises now, as with `staleness=0`.
        """
        store = session.store
        store.use(store.latest.snapshot())
        session.scheduler.gathering_for(plan, store.used.structures())
        if not is_own:
            store.use(before)

    def begin_call(self, session: Session) -> None:
        """Record that a call advanced the version: until `complete`, the next call would start fresh."""
        self.has_prefetched = self._prefetched is not None and self._prefetched[0] is session
        self.start_fresh()

    def start_fresh(self) -> None:
        self.first = self._prefetched = None

    def complete(self, call: Call, session: Session) -> None:
        self.first = call.gathering.result.next if call.version == session.scheduler.version else 0

    def prefetch(self, call: Call, session: Session) -> None:
        store = session.store
        assert session.plan is not None and session.resets is not None  # noqa: PT018 - both for mypy
        if not session.can_prefetch or session.resets.is_fixed:
            return
        version, first = self.next_of(session.scheduler.version)
        try:
            payload = pickled_resets(replace(session.resets, version=version, first=first))
            store.use(store.latest.snapshot())
            session.set_call(session.plan, session.resets, payload)
            self._prefetched = session, payload, store.used.snapshot()
            call.prefetch(call.gathering.plan.starting_at(first))
        except Exception as error:  # the complete batch is returned nevertheless
            if session.cancelled:
                return  # another thread closed the sampler
            session.mark_suspect()
            logger.warning(
                "workers could not start on the next batch, so the next call samples all of it: %s: %s",
                type(error).__name__, error,
            )  # fmt: skip

    def keeps_prefetched(self, session: Session, resets: Payload | None) -> bool:
        """Whether workers have already started on a call with these resets and the current updates."""
        if self._prefetched is None or resets is None:
            return False
        its_session, its_resets, its_updates = self._prefetched
        now = session.store.used.snapshot()
        is_same = all(its_updates.get(kind) is now.get(kind) for kind in _OF_TRAJECTORIES)
        return session is its_session and is_same and _are_equal(its_resets, resets)


_OF_TRAJECTORIES: tuple[Kind, ...] = ("agent", "parameters", "env", "settings")


def _are_equal(one: Payload, other: Payload) -> bool:
    return one.data == other.data and list(map(bytes, one.buffers)) == list(map(bytes, other.buffers))
