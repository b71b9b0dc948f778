"""Assign tickets before it is known what the call will ask for, and go on from there when it is. Pure.

Between two calls nobody reads reports, so a worker gets no tickets besides those that it may have unanswered: together
these have all that the next call is expected to need. All are of one size but for the speed of workers, so that what
waits can be copied (see `copies`) if a worker turns out to be slow.

When the call comes, its plan decides. The tickets are taken over if they are what the plan would have cut: from the
start of the same queue of indices, in the same blocks. What the plan does not need of them is surplus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from streamsampler.scheduling.gathering import LANES_MARGIN, NOTABLY_SLOWER, SAFETY_MARGIN, Assignment, Gathering

__all__ = ["ADVANCE_BYTES", "AdvanceGathering", "GivenTicket"]

ADVANCE_BYTES = 1 << 27
"""What the observations of a ticket that is assigned in advance should take at most."""


class GivenTicket(NamedTuple):
    """A ticket that was assigned in advance.

    Attributes:
        worker: Whose it is.
        indices: Its trajectories.
        since: When it was assigned.
    """

    worker: int
    indices: range
    since: float


class AdvanceGathering(Gathering):
    """A gathering whose first tickets are assigned in advance; for its arguments see `Gathering`."""

    def sizes_in_advance(self, workers: Sequence[int], n_tickets: int) -> dict[int, int]:
        """Return, by worker, how many trajectories its tickets have.

        Args:
            workers: The workers that get some.
            n_tickets: How many each of them gets.
        """
        speeds = {worker: self._speed(worker) for worker in workers}
        total, needed = sum(speeds.values()), self._n_in_advance()
        most = self.throughput.trajectories_in(math.inf, ADVANCE_BYTES)
        sizes = {}
        for worker, speed in speeds.items():
            block = self._queue_for(worker).block
            share = math.ceil(needed * speed / total / n_tickets / block)
            sizes[worker] = max(1, min(share, most // block)) * block
        return sizes

    def _speed(self, worker: int) -> float:
        """Return how fast a worker is, as a share of the fastest one's speed; 1 if it is not notably slower."""
        if not self._may_copy:  # no other worker runs what is its own
            return 1.0
        known = self.throughput.seconds_by_worker()
        slowness = known[worker] / (min(known.values()) or 1.0) if worker in known else 1.0
        return 1 / slowness if slowness > NOTABLY_SLOWER else 1.0

    def _n_in_advance(self) -> int:
        return self._n_needed(LANES_MARGIN if self._has_lanes else SAFETY_MARGIN)

    def take_in_advance(self, worker: int, size: int) -> Assignment | None:
        """Return the next ticket of a worker; None if nothing is left that the call is expected to need."""
        queue = self._queue_for(worker)
        # What was handed out is no part of it: the estimate is that of the beginning.
        indices = queue.take_new(size, self._first + self._n_in_advance())
        return Assignment(indices, queue.block) if indices else None

    def take_over(self, given: Sequence[GivenTicket]) -> bool:
        """Take over tickets that were assigned in advance, in the order in which they were.

        Returns:
            Whether they are what this plan would have cut; otherwise nothing has changed.
        """
        may_extend = len(self._queues) == 1
        taken: dict[int, int] = {}  # by queue, how many indices
        for worker, indices, _ in given:
            number = worker % len(self._queues)
            position = taken.get(number, 0)
            if not self._queues[number].has_at(position, indices, may_extend=may_extend):
                return False
            taken[number] = position + len(indices)
        for worker, indices, since in given:
            self._queue_for(worker).skip(indices)
            self._handed_out += len(indices)
            self._in_flight.add(worker, indices, since)
            self._considered.add(worker)
        return True
