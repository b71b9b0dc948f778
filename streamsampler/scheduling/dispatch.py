"""The sampler's end of the conversation with its workers: pure.

Who owes which answers, who may be given another ticket, and whether a ticket travels in a `Start` or a `Continue`.
The rules that make `protocol` bounded are kept here and nowhere else.
"""

from __future__ import annotations

from collections import deque

from streamsampler.errors import ProtocolError
from streamsampler.protocol.messages import Answer, Continue, Failure, Start, Ticket

__all__ = ["CAPACITY", "Dispatcher"]

CAPACITY = 2
"""Unanswered tickets a worker may have: one in hand, and the next before it finishes that one."""


class Dispatcher:
    """What each worker owes.

    Args:
        n_workers: How many workers there are.
        capacity: How many unanswered tickets a worker may have.
    """

    def __init__(self, n_workers: int, capacity: int = CAPACITY) -> None:
        self.version = 0
        self._capacity = capacity
        self._owed: list[deque[Ticket]] = [deque() for _ in range(n_workers)]
        self._started = [-1] * n_workers

    def begin(self, version: int) -> None:
        """Begin an agent version: from now on, answers for older ones are stale."""
        if version <= self.version:
            raise ProtocolError(f"agent version {version} does not follow {self.version}")
        self.version = version

    def room(self, worker: int) -> int:
        """How many more tickets `worker` may be given now.

        None while it owes an answer for an older version, or from before it failed: it is to be started afresh first.
        """
        owed = self._owed[worker]
        if owed and self._started[worker] != self.version:
            return 0
        return self._capacity - len(owed)

    def owes(self, worker: int) -> tuple[Ticket, ...]:
        """The tickets that `worker` has not answered."""
        return tuple(self._owed[worker])

    def oldest(self) -> dict[int, Ticket]:
        """The oldest ticket that each worker has not answered, of those that owe one."""
        return {worker: owed[0] for worker, owed in enumerate(self._owed) if owed}

    def hand(self, worker: int, indices: range, block: int = 1, enough: int = 0) -> Start | Continue:
        """Give `worker` a ticket; see `messages.Ticket`.

        Returns:
            The message that carries it; a `Start` is without updates, which the caller adds.

        Raises:
            ProtocolError: There is no room.
        """
        if self.room(worker) <= 0:
            raise ProtocolError(f"worker {worker} has no room for another ticket")
        ticket = Ticket(self.version, indices, block, enough)
        self._owed[worker].append(ticket)
        if self._started[worker] == self.version:
            return Continue((ticket,))
        self._started[worker] = self.version
        return Start(self.version, (ticket,))

    def settle(self, worker: int, answer: Answer) -> bool:
        """Take note of an answer.

        Returns:
            Whether it is of the version in hand; otherwise it is stale.

        Raises:
            ProtocolError: The worker was not asked that, or answered it before.
        """
        owed = self._owed[worker]
        if answer.ticket is None or answer.ticket not in owed:
            raise ProtocolError(f"worker {worker} answered {answer.ticket}, which it did not owe")
        owed.remove(answer.ticket)
        if isinstance(answer, Failure):
            self._started[worker] = -1
        return answer.ticket.version == self.version

    def lost(self, worker: int) -> list[range]:
        """Forget what a dead worker owed.

        Returns:
            The indices of the version in hand that it held: they are to be handed out again.
        """
        held = [ticket.indices for ticket in self._owed[worker] if ticket.version == self.version]
        self._owed[worker].clear()
        self._started[worker] = -1
        return held

    def owing(self) -> list[int]:
        """The workers that owe an answer for the version in hand: those that are to be told to stop.

        Who still owes one for an older version has been told; telling it in every call would fill its queue.
        """
        return [worker for worker, owed in enumerate(self._owed) if owed and owed[0].version == self.version]
