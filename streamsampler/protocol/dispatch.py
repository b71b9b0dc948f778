"""Send tickets to the workers with room: first one to each, then the next. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from streamsampler.protocol.checks import PurityChecks
from streamsampler.protocol.gathering import Assignment, Gathering
from streamsampler.protocol.instructions import Instruction, Launch, Send
from streamsampler.protocol.known_worker import KnownWorker
from streamsampler.protocol.messages import Start
from streamsampler.protocol.states import Happened, SamplerState


class Dispatch:
    """The workers in line for a ticket: those that are idle, and those that may get one ahead.

    A look at each worker whenever one of them answers would cost more than all else where there are thousands.
    """

    def __init__(self, workers: Sequence[KnownWorker], checks: PurityChecks, instructions: list[Instruction]) -> None:
        self._workers, self._checks, self._instructions = workers, checks, instructions
        # In the order in which they came: with room and without an unanswered ticket, and with room and one.
        self.idle: dict[int, None] = {}
        self._ahead: dict[int, None] = {}

    def line_up_all(self) -> None:
        """Put all workers with room into line, in the order of their numbers: a call begins."""
        lines: dict[bool, dict[int, None]] = {False: self.idle, True: self._ahead}
        self.idle.clear()
        self._ahead.clear()
        for worker, known in enumerate(self._workers):
            if known.side.room:
                lines[bool(known.side.unanswered)][worker] = None

    def line_up(self, known: KnownWorker) -> None:
        """Put a worker, for which something has changed, into the line where it belongs, if it has room."""
        self.idle.pop(known.worker, None)
        self._ahead.pop(known.worker, None)
        if known.side.room:
            line = self._ahead if known.side.unanswered else self.idle
            line[known.worker] = None

    def assign(self, gathering: Gathering, now: float) -> None:
        """Send tickets without a holder."""
        for line in (self.idle, self._ahead):
            ahead = line is self._ahead
            for known in self._takers(line) if line else ():
                assignment = gathering.assign(known.worker, ahead=ahead, now=now)
                if assignment is not None:
                    self.send(known, assignment)
                elif gathering.refuses_all:
                    return  # an idle worker that gets none leaves none to those that are busy
                elif ahead:
                    del line[known.worker]  # until it has answered

    def assign_copies(self, gathering: Gathering, now: float) -> None:
        """Send idle workers copies of tickets that others hold, where `gathering.may_copy`, as long as that pays."""
        if not gathering.copies.pay(now):
            return
        seconds_with = gathering.throughput.seconds_with
        for known in sorted(self._takers(self.idle), key=lambda known: seconds_with(known.worker) or math.inf):
            if (assignment := gathering.assign_copy(known.worker, now)) is None:
                break  # nor does it pay for those that are slower
            self.send(known, assignment)

    def _takers(self, line: dict[int, None]) -> Iterator[KnownWorker]:
        for worker in tuple(line):
            known = self._workers[worker]
            is_absent = known.side.state is SamplerState.ABSENT
            # One that is being killed since has no room, and leaves the line when it is dead.
            if known.side.room and self._checks.may_work(worker) and (known.can_launch or not is_absent):
                yield known

    def send(self, known: KnownWorker, assignment: Assignment) -> None:
        """Send a worker a ticket; in the place of a dead one a new worker starts."""
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
        self.line_up(known)
