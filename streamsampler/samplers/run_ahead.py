"""Let workers sample the next batch between two calls: `staleness=1`.

What the next call will ask for is guessed: as much as the last one did. Each worker is given as many tickets as it may
have unanswered, which together are expected to have all of it. Nobody reads what workers answer before the next call:
no thread runs in the sampler's process while the learner learns. The call takes over the tickets if they are what it
would have handed out, with the same parameters and options; otherwise it abandons them. Either way its batch is the
same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from streamsampler.core.serialization import Payload
from streamsampler.engines.base import Answered, Died, Event
from streamsampler.protocol.gathering import Gathering, GivenTicket
from streamsampler.protocol.plans import Fragments, GatherPlan
from streamsampler.protocol.states import SamplerState
from streamsampler.samplers.per_worker import Kind, Snapshot
from streamsampler.samplers.session import Session
from streamsampler.samplers.supervisor import WorkerRecord

# ----------------------------------------------------------------------
# Decide with which gathering a session gathers what a plan asks for.


def gathering_for(session: Session, plan: GatherPlan) -> Gathering:
    """Return a gathering of the agents and environments that workers use now."""
    is_whole, engine = not isinstance(plan, Fragments), session.engine
    gathering = Gathering(
        plan,
        n_workers=engine.n_workers,
        order=session.order,
        throughput=session.throughput if is_whole else None,
        own_queues=session.used.differ or not is_whole,
        layout=session.layout_of(plan),
        dropping=session.supervisor.policy.on_failure == "drop",
        concurrent=engine.concurrent,
        shortest_ticket=engine.shortest_ticket_seconds,
        # Not methods of a call: in a cycle, a batch's memory would wait for the garbage collector.
        steps_of=session.shown_timesteps,
        is_awaited=session.is_checking,
    )
    for worker, way in session.ways() if is_whole else ():
        if way == "lanes":
            gathering.run_lanes(worker)
        else:
            gathering.run_blocks(worker, longer=way == "longer blocks")
    return gathering


# ----------------------------------------------------------------------


_PATIENCE = 0.1
"""For how many seconds a call that is complete waits for workers that are still in a timestep of a rollout which is not
needed any more. One that does not answer until then gets its next ticket in the next call."""

_OF_TRAJECTORIES: tuple[Kind, ...] = ("agent", "parameters", "env", "settings")


class TakenOver(NamedTuple):
    """What a call takes over.

    Attributes:
        gathering: The call's gathering, which has the tickets that were given.
        goes_on: Whether it has them; otherwise they are abandoned.
        events: What was read between the calls, and is to be handled.
    """

    gathering: Gathering
    goes_on: bool
    events: list[Event]


class RunAhead:
    """The tickets that workers run between two calls.

    Args:
        session: What outlives calls. Its workers are given the latest updates from now on.
        plan: What the next call is expected to obtain.
        resets: What it is expected to say of its trajectories, pickled.
        take_in: Handles what workers answer to tickets of the call before.

    Attributes:
        events: What was read, and is to be handled by the next call.
    """

    def __init__(self, session: Session, plan: GatherPlan, resets: Payload, take_in: Callable[[Event], None]) -> None:
        self.events: list[Event] = []
        self._session = session
        self._resets = resets
        self._tickets: list[GivenTicket] = []
        session.use(session.updates.snapshot())
        self._updates = session.used.snapshot()
        session.give(resets)
        session.begin_tickets()
        records = [record for record in session.records if _gets_tickets(record)]
        self._gathering = gathering_for(session, plan)
        n_tickets = session.capacity
        self._sizes = self._gathering.sizes_in_advance([record.worker for record in records], n_tickets)
        for _ in range(n_tickets):
            for record in records:
                self._hand_out(record, 1)
        self._await(records, take_in)

    def _hand_out(self, record: WorkerRecord, most: int) -> None:
        """Hand out tickets to a worker, as far as it has room and there are some."""
        for _ in range(min(most, record.side.room)):
            assignment = self._gathering.take_in_advance(record.worker, self._sizes[record.worker])
            if assignment is not None:
                self._tickets.append(GivenTicket(record.worker, assignment.indices, self._session.clock()))
                self._session.hand_out(record, *assignment)

    def _await(self, records: list[WorkerRecord], take_in: Callable[[Event], None]) -> None:
        """Hand out tickets to the workers that still have some of the last call, when they have answered these."""
        session, clock = self._session, self._session.clock
        deadline = clock() + _PATIENCE
        stopping = [record for record in records if record.side.state is SamplerState.STOPPING]
        while stopping and (left := deadline - clock()) > 0:
            for event in session.engine.wait(left):
                if isinstance(event, Died) or _version_of(event) == session.ticket_version:
                    self.events.append(event)
                    stopping = [record for record in stopping if record.worker != event.worker]
                else:
                    take_in(event)
            for record in stopping:
                self._hand_out(record, session.capacity)
            stopping = [record for record in stopping if record.side.state is SamplerState.STOPPING]

    def taken_over(self, session: Session, plan: GatherPlan, resets: Payload | None) -> TakenOver:
        """Return what a call takes over.

        Args:
            session: The sampler's session, which may be another one after an interrupt.
            plan: What the call is to obtain.
            resets: What it says of its trajectories, pickled.
        """
        gathering = gathering_for(session, plan)
        if session is not self._session:
            return TakenOver(gathering, False, [])
        goes_on = (
            resets is not None and _same(self._resets, resets) and _same_updates(self._updates, session.used.snapshot())
        )
        return TakenOver(gathering, goes_on and gathering.take_over(self._tickets), self.events)


def _gets_tickets(record: WorkerRecord) -> bool:
    """Whether a worker has room for tickets, or will have when it has answered those of the last call."""
    side = record.side
    return side.state is not SamplerState.ABSENT and (
        side.room > 0 or (side.state is SamplerState.STOPPING and not side.is_to_be_replaced)
    )


def _version_of(event: Event) -> int | None:
    """Return the version of the ticket that an event answers; None if it answers none."""
    return event.answer.ticket.version if isinstance(event, Answered) and event.answer.ticket is not None else None


def _same(one: Payload, other: Payload) -> bool:
    return one.data == other.data and list(map(bytes, one.buffers)) == list(map(bytes, other.buffers))


def _same_updates(one: Snapshot, other: Snapshot) -> bool:
    return all(one.get(kind) is other.get(kind) for kind in _OF_TRAJECTORIES)
