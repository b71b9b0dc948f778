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
    """Pickle what a call says of its trajectories."""
    return dumps(resets, "reset_options" if resets.tasks is None else "the tasks")


def check_staleness(staleness: Any, order: Order, filters: Filters) -> int:
    """Return the argument `staleness` of samplers; refuse what it does not go together with."""
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
    """Which trajectories the next batch of a sampler with `staleness=1` is made of."""

    def __init__(self, first: int | None = None) -> None:
        # Index of the next batch's first trajectory, of the last call's version; None if the next call begins anew.
        self.first = first
        self.has_prefetched = False  # whether workers may have answered before the call that began last
        self._prefetched: tuple[Session, Payload, Snapshot] | None = None  # with what workers have begun

    def next_of(self, last: int) -> tuple[int, int]:
        """Return the version and the first trajectory of the batch after version `last`, without an `env_update`."""
        return (last + 1, 0) if self.first is None else (last, self.first)

    def trajectories_of(
        self, plan: GatherPlan, resets: Resets | None, last: int, *, is_new: bool
    ) -> tuple[GatherPlan, Resets, int]:
        """Return a call's plan, what is said of its trajectories, and their agent version, after version `last`.

        A call with an `env_update` is new.
        """
        version, first = (last + 1, 0) if is_new else self.next_of(last)
        return plan.starting_at(first), replace(resets or Resets(), version=version, first=first), version

    def use_updates(self, session: Session, plan: GatherPlan, before: Snapshot, *, is_own: bool) -> None:
        """Give workers the updates that a call's trajectories are made with: its own, or those before.

        What cannot be gathered as the plan says with its own is refused now, as without a lag.
        """
        store = session.store
        store.use(store.latest.snapshot())
        session.scheduler.gathering_for(plan, store.used.structures())
        if not is_own:
            store.use(before)

    def begin_call(self, session: Session) -> None:
        """Record that a call used up its version: until `complete`, the next call begins anew."""
        self.has_prefetched = self._prefetched is not None and self._prefetched[0] is session
        self.begin_anew()

    def begin_anew(self) -> None:
        """Let the next call begin anew: the last one used up its version, and has no batch yet, or never will."""
        self.first = self._prefetched = None

    def complete(self, call: Call, session: Session) -> None:
        """Record that the batch of a call is complete."""
        self.first = call.gathering.result.next if call.version == session.scheduler.version else 0

    def prefetch(self, call: Call, session: Session) -> None:
        """Let workers begin with the next batch, when a complete call has ended."""
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
        except Exception as error:  # the batch is complete, and is returned all the same
            if session.cancelled:
                return  # another thread closed the sampler
            session.mark_suspect()
            logger.warning(
                "workers could not begin with the next batch, which its own call samples: %s: %s",
                type(error).__name__, error,
            )  # fmt: skip

    def keeps_prefetched(self, session: Session, resets: Payload | None) -> bool:
        """Whether workers have begun with what a call says of its trajectories, and with its updates."""
        if self._prefetched is None or resets is None:
            return False
        its_session, its_resets, its_updates = self._prefetched
        now = session.store.used.snapshot()
        is_same = all(its_updates.get(kind) is now.get(kind) for kind in _OF_TRAJECTORIES)
        return session is its_session and is_same and _are_equal(its_resets, resets)


_OF_TRAJECTORIES: tuple[Kind, ...] = ("agent", "parameters", "env", "settings")


def _are_equal(one: Payload, other: Payload) -> bool:
    return one.data == other.data and list(map(bytes, one.buffers)) == list(map(bytes, other.buffers))
