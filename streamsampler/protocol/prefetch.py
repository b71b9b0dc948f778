"""Send tickets of the next batch between two calls, for `staleness=1`. Pure.

The next plan is guessed from the last. The next call handles the answers, so no thread runs while the learner learns.
If it would have cut other tickets, it abandons them; its batch is the same either way.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamsampler.protocol.dispatch import Dispatch
from streamsampler.protocol.events import Event, FailureReceived, LaunchPossible, ReportReceived, WorkerDied
from streamsampler.protocol.gathering import AdvanceTicket, Gathering
from streamsampler.protocol.known_worker import KnownWorker
from streamsampler.protocol.states import SamplerState


class Prefetch:
    """Sends tickets of the next call's expected plan."""

    def __init__(
        self, gathering: Gathering, version: int, workers: Sequence[KnownWorker], dispatch: Dispatch, capacity: int,
        now: float,
    ) -> None:  # fmt: skip
        self._gathering, self._version, self._workers = gathering, version, workers
        self._dispatch, self._capacity = dispatch, capacity
        self.tickets: list[AdvanceTicket] = []
        self.postponed: list[Event] = []  # for the next call
        self._dead: set[int] = set()
        takers = [known.worker for known in workers if _may_get_tickets(known)]
        self._sizes = gathering.sizes_in_advance(takers, capacity)
        for _ in range(capacity):
            for worker in takers:
                self._send(worker, 1, now)

    def send_more(self, now: float) -> None:
        """Send tickets to workers that meanwhile answered the last call."""
        for worker in self._sizes:
            self._send(worker, self._capacity, now)

    def _send(self, worker: int, most: int, now: float) -> None:
        known = self._workers[worker]
        for _ in range(min(most, known.side.room)):
            assignment = self._gathering.assign_in_advance(worker, self._sizes[worker])
            if assignment is not None:
                self.tickets.append(AdvanceTicket(worker, assignment.indices, now))
                self._dispatch.send(known, assignment)

    @property
    def awaits_answers(self) -> bool:
        """Whether workers that will get tickets still owe answers to the last call."""
        return any(self._workers[worker].side.state is SamplerState.STOPPING for worker in self._sizes)

    def postpone(self, event: Event) -> bool:
        """Postpone an event of the next call; return False for any other event."""
        match event:
            case ReportReceived(report=answer) | FailureReceived(failure=answer):
                if answer.ticket is None or answer.ticket.version != self._version:
                    return False
            case WorkerDied(worker=worker):
                self._sizes.pop(worker, None)
                self._dead.add(worker)
            case LaunchPossible(worker=worker) if worker in self._dead:
                pass  # about the dead worker's replacement, still unknown to the scheduler
            case _:
                return False
        self.postponed.append(event)
        return True


def _may_get_tickets(known: KnownWorker) -> bool:
    """Whether a worker has room now, or after its answers to the last call."""
    side = known.side
    is_stopping = side.state is SamplerState.STOPPING and not side.is_to_be_replaced
    return side.state is not SamplerState.ABSENT and (side.room > 0 or is_stopping)
