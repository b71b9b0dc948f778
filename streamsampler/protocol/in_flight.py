"""Track the tickets held by workers, and pieces of tickets held by several workers. Pure.

A *copy* of a part of another worker's ticket (see `copies`) cuts the ticket into pieces. If the ticket arrives before
all copies, they are ignored later. If a copy arrives first, the ticket is ignored later, and its pieces without a copy
must be assigned again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from streamsampler.core.errors import ProtocolError
from streamsampler.protocol.throughput import Throughput

MOST_COPIES = 2
"""How often a piece is copied if the copies fail while another worker still runs it. Such failures use up no quota of
losses and may repeat each time, but a single one may be the worker's fault.
"""


class Arrival(NamedTuple):
    """Consequences of a ticket's arrival."""

    counts: bool  # whether its trajectories are new; if not, copies arrived before
    lost: list[range]  # to assign again: not counted, and without another holder
    late: list[int]  # workers with copies of pieces that arrived first here


class InFlight:
    """Tracks the tickets of a call."""

    def __init__(self, n_workers: int, throughput: Throughput) -> None:
        self._throughput = throughput
        # The tickets of each worker, in the order in which it runs them. Tuples, because the garbage collector stops
        # tracking tuples of ranges and numbers, with any number of workers.
        self.queues: list[tuple[range, ...]] = [()] * n_workers
        self.started = [0.0] * n_workers  # when each worker started the first ticket of its queue
        self._holders: dict[range, tuple[int, ...]] = {}  # of pieces
        self._pieces: dict[range, list[range]] = {}  # of cut tickets; others are a single piece
        self._n_abandoned: dict[range, int] = {}  # how often a holder abandoned a piece still held by another
        self._done: set[range] = set()  # arrived pieces with a holder left
        self.n_removed = 0  # tickets
        self._estimated_after = -1  # tickets removed
        self._rate, self._owed, self._fastest = 0.0, 0.0, math.inf  # of all busy workers; see `expected_end_of_all`
        # Estimates over all workers are computed again after so many more: computing them after each report would make
        # a report dearer with each worker. With a dozen workers it does not matter.
        self.n_between_estimates = max(0, n_workers - 12) // 4

    def measure_by(self, throughput: Throughput) -> None:
        """Estimate by another task's throughput: all tickets in flight are of this task now."""
        self._throughput, self._estimated_after = throughput, -1

    def track(self, worker: int, indices: range, now: float) -> None:
        queue = self.queues[worker]
        if not queue:
            self.started[worker] = now
        self.queues[worker] = (*queue, indices)
        self._holders[indices] = (*self._holders.get(indices, ()), worker)

    def add_copy(self, worker: int, ticket: range, part: range, now: float) -> None:
        """Track a copy of the first indices of a piece of `ticket`."""
        pieces = self._pieces.get(ticket, [ticket])
        position = next(number for number, piece in enumerate(pieces) if piece[0] == part[0])
        piece = pieces[position]
        if len(part) < len(piece):
            holders = self._holders.pop(piece)
            parts = [part, piece[len(part) :]]
            self._pieces[ticket] = [*pieces[:position], *parts, *pieces[position + 1 :]]
            for cut in parts:
                self._holders[cut] = holders
            if n_abandoned := self._n_abandoned.pop(piece, 0):
                self._n_abandoned.update(dict.fromkeys(parts, n_abandoned))
        self.track(worker, part, now)

    def busy(self) -> list[tuple[int, tuple[range, ...]]]:
        return [(worker, queue) for worker, queue in enumerate(self.queues) if queue]

    def uncopied(self, ticket: range) -> list[range]:
        """Return a ticket's pieces with a single holder, neither arrived nor failed too often."""
        pieces = self._pieces.get(ticket, [ticket])
        single = [piece for piece in pieces if len(self._holders.get(piece, ())) == 1 and piece not in self._done]
        if not self._n_abandoned:
            return single
        return [piece for piece in single if self._n_abandoned.get(piece, 0) < MOST_COPIES]

    def left(self, worker: int, now: float) -> float:
        """Return the expected number of trajectories left to a worker."""
        queue, each = self.queues[worker], self._throughput.seconds_with(worker)
        n_held = sum(map(len, queue))
        return max(0.0, n_held - (now - self.started[worker]) / each) if queue and each else n_held

    def arrive(self, worker: int, indices: range, now: float) -> Arrival:
        pieces = self._remove(worker, indices, now)
        counts = self._done.isdisjoint(pieces)
        late: list[int] = []
        for piece in pieces:
            if counts and (others := self._holders.get(piece)):
                self._done.add(piece)
                late += others
        return Arrival(counts, [] if counts else self._forget(pieces), late if counts else [])

    def abandon(self, worker: int, indices: range, now: float) -> tuple[list[range], list[range]]:
        """Remove a ticket without a result; return its pieces to assign again, and those with a copy in flight."""
        pieces = self._remove(worker, indices, now)
        left = [piece for piece in pieces if piece in self._holders and piece not in self._done]
        for piece in left:
            self._n_abandoned[piece] = self._n_abandoned.get(piece, 0) + 1
        return self._forget(pieces), left

    def _forget(self, pieces: list[range]) -> list[range]:
        free = [piece for piece in pieces if piece not in self._holders]
        lost = [piece for piece in free if piece not in self._done]
        self._done.difference_update(free)
        return lost

    def _remove(self, worker: int, indices: range, now: float) -> list[range]:
        queue = self.queues[worker]
        if indices not in queue:
            raise ProtocolError(f"worker {worker} does not hold trajectories {indices}, or ran them twice")
        if queue[0] == indices:
            self.started[worker] = now
        position = queue.index(indices)
        self.queues[worker] = queue[:position] + queue[position + 1 :]
        self.n_removed += 1
        pieces = self._pieces.pop(indices, [indices])
        for piece in pieces:
            if holders := tuple([other for other in self._holders[piece] if other != worker]):
                self._holders[piece] = holders
            else:
                del self._holders[piece]
                self._n_abandoned.pop(piece, None)
        return pieces

    def expected_end(self, worker: int, now: float) -> float:
        """Return the expected end of a worker's tickets; now if its speed is unknown."""
        queue, each = self.queues[worker], self._throughput.seconds_with(worker)
        if not queue or each is None:
            return now
        return max(now, self.started[worker] + each * len(queue[0])) + each * sum(map(len, queue[1:]))

    def expected_end_of_all(self, remaining: int, now: float) -> float | None:
        """Return the expected end of all tickets and `remaining` more trajectories; None if unknown."""
        if self._estimated_after < 0 or self.n_removed - self._estimated_after >= self.n_between_estimates:
            self._estimated_after = self.n_removed
            busy = [worker for worker, queue in enumerate(self.queues) if queue]
            seconds = [self._throughput.seconds_with(worker) or math.inf for worker in busy]
            is_known = math.inf not in seconds
            self._rate = sum(1 / each for each in seconds) if is_known else 0.0
            self._owed = sum(self.left(worker, now) for worker in busy)
            self._fastest = min(seconds, default=math.inf)
        return now + (self._owed + remaining) / self._rate + self._fastest if self._rate else None
