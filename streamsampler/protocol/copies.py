"""Choose the tickets that idle workers run a second time, and estimate when. Pure.

These are the backup tasks of MapReduce (Dean and Ghemawat, 2004). As in LATE (Zaharia et al., 2008), the ticket that is
expected to end last is copied, by the progress that its worker shows. The idle workers share it by their speeds.

A copy costs CPU time that a learner or another worker could use. So a ticket is copied only if its worker is expected
to need notably longer than a copy: the worker is slower, or the ticket waits for another one. Tickets whose copies fail
while their worker runs them are not copied without end (`MOST_COPIES`).

A ticket that is overdue has a slow worker or long trajectories: only the timesteps that the worker shows tell which.
Where a worker shows none, its ticket is taken to need as long again as it is overdue. When that would be so, idle
workers look again, even if nothing arrives until then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from streamsampler.protocol.in_flight import InFlight
from streamsampler.protocol.throughput import Throughput
from streamsampler.protocol.tickets import SHORTEST_TICKET_SECONDS

StepsOf = Callable[[int], int]
"""Returns the timesteps that a worker has shown since it began the first of its tickets."""

IsAwaited = Callable[[int], bool]
"""Returns whether a call needs an answer of this worker, whatever the others answer."""

WORTH_A_COPY = 1.5
"""How many times longer than its copy a ticket must be expected to take. Noise in the averages of equally fast workers
stays below it."""

COPY_SECONDS = 0.001
"""What a copy costs besides its rollouts: a message, a worker that wakes up, and a report."""

SLOW_AT_FIRST = 2.0
"""While a worker has answered no ticket, it counts as slower than the average by this factor at most: it may be
importing a library for seconds, while others run the same ticket in a tenth of a second."""

_PATIENCE = 0.25
"""After which share of the time that a ticket has taken so far it is looked at again."""


class _Late(NamedTuple):
    """A piece that might be copied."""

    end: float  # expected
    ticket: range
    rest: range  # the indices of the piece that no copy has


def _worth(indices: range, each: float) -> float:
    """Return how long a ticket must be expected to take from now on if a copy takes `each` seconds a trajectory."""
    return WORTH_A_COPY * (each * len(indices) + COPY_SECONDS)


class Copies:
    """Pick copies for the idle workers of one call. Times are seconds of one monotonic clock."""

    def __init__(
        self, n_workers: int, in_flight: InFlight, throughput: Throughput, steps_of: StepsOf | None = None,
        shortest: float = SHORTEST_TICKET_SECONDS, is_awaited: IsAwaited | None = None,
    ) -> None:  # fmt: skip
        self._is_awaited = is_awaited or (lambda _: False)
        self._shortest = shortest
        self._n_workers = n_workers
        self._in_flight = in_flight
        self._pace = throughput
        self._steps_of = steps_of
        self._pieces: list[_Late] = []  # the last to end is the last one
        self._rate = 0.0  # trajectories per second of all workers that are not late
        self._fastest = math.inf  # seconds of a trajectory on the fastest worker without a ticket
        self._valid_until = -1  # tickets removed
        self.next_look = math.inf  # when an idle worker should ask again, even if nothing arrives until then

    def measure_by(self, throughput: Throughput) -> None:
        """Expect copies to last as long as another throughput says: the tickets in flight are of another task now."""
        self._pace, self._valid_until = throughput, -1

    def assign(self, worker: int, now: float, block_of: Callable[[range], int], end: int) -> range | None:
        """Assign to the idle `worker` what it should run a second time; None if that does not pay.

        Idle workers are asked in the order of their speed, the fastest first.

        `block_of` returns how many trajectories of a ticket must stay together; indices from `end` on are of no use.
        """
        each = self._pace.seconds_with(worker)
        if not each or self._in_flight.queues[worker] or not self.pay(now):
            return None
        if (late := self._worth_a_copy(each, now)) is None:
            # Those that were faster are not idle any more: workers are asked in the order of their speed.
            self._fastest = max(self._fastest, each)
        if late is None or late.rest[0] >= end:
            return None
        self._pieces.pop()
        # Those who are about to be idle will help as well.
        share = math.ceil(len(late.rest) / max(1.0, each * self._rate))
        block = block_of(late.rest)
        n = math.ceil(max(share, self._shortest / each) / block) * block
        if n < len(late.rest):
            self._pieces.append(late._replace(rest=late.rest[n:]))
        self._rate -= 1 / each
        self._in_flight.add_copy(worker, late.ticket, late.rest[:n], now)
        return late.rest[:n]

    def _must_look(self, now: float) -> bool:
        return self._in_flight.n_removed > self._valid_until or now >= self.next_look

    def overdue(self, now: float) -> list[int]:
        """Return the workers with a ticket that should have ended, if `assign` looks at all workers now."""
        if not self._must_look(now):
            return []
        in_flight, average, overdue = self._in_flight, self._pace.seconds, []
        for worker, queue in in_flight.busy():
            each = self._pace.seconds_with(worker) or average
            if each and in_flight.begun[worker] + each * len(queue[0]) < now:
                overdue.append(worker)
        return overdue

    def pay(self, now: float) -> bool:
        """Whether a copy may pay for the fastest idle worker."""
        if self._must_look(now):
            self._look(now)
        return self._fastest < math.inf and self._worth_a_copy(self._fastest, now) is not None

    def mark_idle(self, worker: int) -> None:
        """Record that `worker` has no ticket any more."""
        if not self._in_flight.queues[worker]:
            self._fastest = min(self._fastest, self._pace.seconds_with(worker) or math.inf)

    def _worth_a_copy(self, each: float, now: float) -> _Late | None:
        """Return the piece that ends last, if it pays that idle workers, one of which takes `each` seconds, run it."""
        while self._pieces and self._pieces[-1].rest not in self._in_flight.uncopied(self._pieces[-1].ticket):
            self._pieces.pop()  # it has arrived
        if not self._pieces:
            return None
        late = self._pieces[-1]
        return late if late.end - now > _worth(late.rest, each) else None

    def _look(self, now: float) -> None:
        """Look at all workers."""
        self._valid_until = self._in_flight.n_removed + self._in_flight.n_between_looks
        self._rate, self._fastest, self._pieces = 0.0, math.inf, []
        begun, busy = now, self._in_flight.busy()
        for worker, queue in busy:
            each = self._pace.seconds_with(worker)
            begun = min(begun, since := self._in_flight.begun[worker])
            self._pieces += self._of_worker(worker, queue, now)
            self._rate += 1 / each if each and since + each * len(queue[0]) >= now else 0.0
        idle = self._pace.seconds_of_others({worker for worker, _ in busy})
        self._rate += sum([1 / each for each in idle])
        self._fastest = min(idle, default=math.inf)
        self._pieces.sort(key=lambda late: late.end)
        self.next_look = math.inf
        if self._pieces and self._fastest < math.inf:
            late = min(late.end + _worth(late.rest, self._fastest) for late in self._pieces)
            self.next_look = max(late, now + _PATIENCE * (now - begun) + COPY_SECONDS)

    def _of_worker(self, worker: int, queue: Sequence[range], now: float) -> Iterator[_Late]:
        """Return what might be copied of a worker's tickets."""
        if self._is_awaited(worker):
            return
        for ticket, end in zip(queue, self._ends(worker, queue, now), strict=False):
            for piece in self._in_flight.uncopied(ticket):
                yield _Late(end, ticket, piece)

    def _ends(self, worker: int, queue: Sequence[range], now: float) -> Iterator[float]:
        """Return when a worker is expected to finish each of its tickets; nothing if no speed is known at all."""
        each = self._pace.seconds_with(worker) or self._pace.seconds
        if not each:
            return
        first, elapsed = len(queue[0]), now - self._in_flight.begun[worker]
        end = now - elapsed + each * first
        if end < now:
            each, end = self._overdue(worker, first, each, elapsed, now)
        for position, ticket in enumerate(queue):
            end += each * len(ticket) if position else 0.0
            yield end

    def _overdue(self, worker: int, first: int, each: float, elapsed: float, now: float) -> tuple[float, float]:
        """Return the seconds of a trajectory, and the end of the first ticket, on a worker whose ticket is overdue."""
        ran = self._ran(worker)
        if not ran:
            return elapsed / first, now + elapsed - each * first
        slow = max(each, (elapsed + each) / (ran + 1.0))  # one trajectory may be slow by chance
        return slow, now + slow * max(0.0, first - ran)

    def _ran(self, worker: int) -> float:
        """Return how many trajectories of average length a worker has shown since it began its first ticket."""
        steps = 0 if self._steps_of is None else self._steps_of(worker)
        return steps / (self._pace.timesteps or 1.0)

    def learn_from_late(self, worker: int, now: float) -> None:
        """Learn from a copy of what `worker` holds, which arrived first, how slow the worker is now.

        A worker that has not answered yet is taken to be slower: it may have been starting for most of the time.
        """
        if not (queue := self._in_flight.queues[worker]):
            return  # it has answered in the meantime
        first, elapsed, each = len(queue[0]), now - self._in_flight.begun[worker], self._pace.seconds_with(worker)
        if each is None:
            self._pace.raise_to(worker, min(elapsed / first, SLOW_AT_FIRST * (self._pace.seconds or math.inf)))
        elif elapsed > each * first:
            self._pace.raise_to(worker, elapsed / (self._ran(worker) or first))
