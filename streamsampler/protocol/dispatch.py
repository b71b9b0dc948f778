"""Send tickets to the workers with room, first to idle workers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from streamsampler.protocol.gathering import Assignment, Gathering
from streamsampler.protocol.instructions import Instruction, Launch, Send
from streamsampler.protocol.known_worker import KnownWorker
from streamsampler.protocol.messages import Start
from streamsampler.protocol.run_twice_checks import RunTwiceChecks
from streamsampler.protocol.states import Happened, SamplerState


class Dispatch:
    """Queues the workers with room for a ticket: idle workers, and those with a single ticket.

    Examining every worker after each answer would cost more than all else with thousands of workers.
    """

    def __init__(self, workers: Sequence[KnownWorker], checks: RunTwiceChecks, instructions: list[Instruction]) -> None:
        self._workers, self._checks, self._instructions = workers, checks, instructions
        # In order of arrival: without an unanswered ticket, and with a single ticket.
        self.idle: dict[int, None] = {}
        self._ahead: dict[int, None] = {}

    def enqueue_all(self) -> None:
        """Enqueue all workers with room, in the order of their numbers."""
        lines: dict[bool, dict[int, None]] = {False: self.idle, True: self._ahead}
        self.idle.clear()
        self._ahead.clear()
        for worker, known in enumerate(self._workers):
            if known.side.room:
                lines[bool(known.side.unanswered)][worker] = None

    def enqueue(self, known: KnownWorker) -> None:
        """Move a changed worker to its queue, if it has room."""
        self.idle.pop(known.worker, None)
        self._ahead.pop(known.worker, None)
        if known.side.room:
            line = self._ahead if known.side.unanswered else self.idle
            line[known.worker] = None

    def assign(self, gathering: Gathering, now: float) -> None:
        for line in (self.idle, self._ahead):
            ahead = line is self._ahead
            for known in self._takers(line) if line else ():
                assignment = gathering.assign(known.worker, ahead=ahead, now=now)
                if assignment is not None:
                    self.send(known, assignment)
                elif gathering.refuses_all:
                    return  # no ticket for idle workers means no ticket for busy ones
                elif ahead:
                    del line[known.worker]  # until it has answered

    def assign_copies(self, gathering: Gathering, now: float) -> None:
        """Send idle workers copies while this pays; requires `gathering.may_copy`."""
        if not gathering.copies.pay(now):
            return
        seconds_with = gathering.throughput.seconds_with
        for known in sorted(self._takers(self.idle), key=lambda known: seconds_with(known.worker) or math.inf):
            if (assignment := gathering.assign_copy(known.worker, now)) is None:
                break  # nor does it pay on slower workers
            self.send(known, assignment)

    def _takers(self, line: dict[int, None]) -> Iterator[KnownWorker]:
        for worker in tuple(line):
            known = self._workers[worker]
            is_absent = known.side.state is SamplerState.ABSENT
            # A worker being killed has no room, and leaves the queue when it is dead.
            if known.side.room and self._checks.may_work(worker) and (known.can_launch or not is_absent):
                yield known

    def send(self, known: KnownWorker, assignment: Assignment) -> None:
        """Send a ticket; launch a new worker before if the old is dead."""
        side = known.side
        if side.state is SamplerState.ABSENT:
            side.apply(Happened.LAUNCHED)
            self._instructions.append(Launch(known.worker))
        if not side.unanswered:
            known.stillness.reset()
        message = side.assign(*assignment)
        if isinstance(message, Start):
            message = Start(message.version, message.tickets, check=self._checks.is_due_in(known))
        self._instructions.append(Send(known.worker, message))
        self.enqueue(known)
