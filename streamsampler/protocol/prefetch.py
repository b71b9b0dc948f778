"""Send tickets of the next batch between two calls: `staleness=1`. Pure.

The plan of the next call is guessed: as much as the last one. Each worker is sent as many tickets as it may have
unanswered, which together are expected to have all of it. What workers answer is handled by the next call, so that no
thread runs in the sampler's process while the learner learns. The call keeps the tickets if they are those that it
would have cut, of the same parameters and options; otherwise it abandons them. Either way its batch is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamsampler.protocol.dispatch import Dispatch
from streamsampler.protocol.events import Event, FailureReceived, LaunchPossible, ReportReceived, WorkerDied
from streamsampler.protocol.gathering import Gathering, GivenTicket
from streamsampler.protocol.known_worker import KnownWorker
from streamsampler.protocol.states import SamplerState


class Prefetch:
    """The tickets of a plan that the next call is expected to have, cut from a gathering of it."""

    def __init__(
        self, gathering: Gathering, version: int, workers: Sequence[KnownWorker], dispatch: Dispatch, capacity: int,
        now: float,
    ) -> None:  # fmt: skip
        self._gathering, self._version, self._workers = gathering, version, workers
        self._dispatch, self._capacity = dispatch, capacity
        self.given: list[GivenTicket] = []
        self.put_off: list[Event] = []  # for the next call
        self._dead: set[int] = set()
        takers = [known.worker for known in workers if _may_get_tickets(known)]
        self._sizes = gathering.sizes_in_advance(takers, capacity)
        for _ in range(capacity):
            for worker in takers:
                self._send(worker, 1, now)

    def send_more(self, now: float) -> None:
        """Send tickets to the workers that have answered those of the last call in the meantime."""
        for worker in self._sizes:
            self._send(worker, self._capacity, now)

    def _send(self, worker: int, most: int, now: float) -> None:
        """Send tickets to a worker, as far as it has room and there are some."""
        known = self._workers[worker]
        for _ in range(min(most, known.side.room)):
            assignment = self._gathering.take_in_advance(worker, self._sizes[worker])
            if assignment is not None:
                self.given.append(GivenTicket(worker, assignment.indices, now))
                self._dispatch.send(known, assignment)

    @property
    def awaits_answers(self) -> bool:
        """Whether workers that are to get tickets have not answered those of the last call."""
        return any(self._workers[worker].side.state is SamplerState.STOPPING for worker in self._sizes)

    def takes(self, event: Event) -> bool:
        """Put an event off that the next call is to handle; return whether it was one."""
        match event:
            case ReportReceived(report=answer) | FailureReceived(failure=answer):
                if answer.ticket is None or answer.ticket.version != self._version:
                    return False
            case WorkerDied(worker=worker):
                self._sizes.pop(worker, None)
                self._dead.add(worker)
            case LaunchPossible(worker=worker) if worker in self._dead:
                pass  # it is about the worker in the dead one's place, of which the scheduler knows later
            case _:
                return False
        self.put_off.append(event)
        return True


def _may_get_tickets(known: KnownWorker) -> bool:
    """Whether a worker has room for tickets, or will have when it has answered those of the last call."""
    side = known.side
    is_stopping = side.state is SamplerState.STOPPING and not side.is_to_be_replaced
    return side.state is not SamplerState.ABSENT and (side.room > 0 or is_stopping)
