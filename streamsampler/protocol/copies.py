"""Choose the tickets for idle workers to run a second time, and estimate when. Pure.

These are the backup tasks of MapReduce (Dean and Ghemawat, 2004). As in LATE (Zaharia et al., 2008), the ticket with
the latest expected end, by its worker's progress, is copied. Idle workers share it in proportion to their speeds. A
copy costs CPU time of a learner or another worker, so it must be expected to end notably sooner.

A worker with an overdue ticket, but without visible timesteps, is expected to need as long again as it is overdue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from streamsampler.protocol.in_flight import InFlight
from streamsampler.protocol.throughput import Throughput
from streamsampler.protocol.tickets import SHORTEST_TICKET_SECONDS

StepsOf = Callable[[int], int]
"""Returns the timesteps of a worker since it started the first of its tickets."""

IsAwaited = Callable[[int], bool]
"""Returns whether a call needs an answer of this worker, whatever the others answer."""

WORTH_A_COPY = 1.5
"""Least ratio of a ticket's expected time left to that of its copy. Noise in the averages of equally fast workers stays
below it.
"""

COPY_SECONDS = 0.001
"""Cost of a copy besides its rollouts: a message, a worker that wakes up, and a report."""

SLOW_AT_FIRST = 2.0
"""Largest slowness, relative to the average, assumed of a worker before its first answer: it may be importing a library
for seconds, while others run the same ticket in a tenth of a second.
"""

_PATIENCE = 0.25
"""Share of a ticket's time so far after which its worker is examined again."""


class _Late(NamedTuple):
    """A piece of a ticket, worth a copy if it ends late."""

    end: float  # expected
    ticket: range
    rest: range  # indices of the piece without a copy


def _worth(indices: range, each: float) -> float:
    """Return the least time left of a ticket to justify a copy, at `each` seconds a trajectory."""
    return WORTH_A_COPY * (each * len(indices) + COPY_SECONDS)


class Copies:
    """Picks copies for the idle workers of a call."""

    def __init__(
        self, n_workers: int, in_flight: InFlight, throughput: Throughput, steps_of: StepsOf | None = None,
        shortest: float = SHORTEST_TICKET_SECONDS, is_awaited: IsAwaited | None = None,
    ) -> None:  # fmt: skip
        self._is_awaited = is_awaited or (lambda _: False)
        self._shortest = shortest
        self._n_workers = n_workers
        self._in_flight = in_flight
        self._throughput = throughput
        self._steps_of = steps_of
        self._pieces: list[_Late] = []  # sorted by expected end
        self._rate = 0.0  # trajectories per second of all workers on time
        self._fastest = math.inf  # seconds of a trajectory on the fastest worker without a ticket
        self._valid_until = -1  # tickets removed
        self.ask_again_at = math.inf  # when idle workers are asked again, even without a report

    def measure_by(self, throughput: Throughput) -> None:
        """Estimate by another task's throughput: all tickets in flight are of this task now."""
        self._throughput, self._valid_until = throughput, -1

    def assign(self, worker: int, now: float, block_of: Callable[[range], int], end: int) -> range | None:
        """Return indices for the idle `worker` to run a second time; None if that does not pay.

        Ask for the fastest idle worker first. `block_of` returns how many trajectories of a ticket must stay together;
        indices from `end` on are not needed.
        """
        each = self._throughput.seconds_with(worker)
        if not each or self._in_flight.queues[worker] or not self.pay(now):
            return None
        if (late := self._worth_a_copy(each, now)) is None:
            # Faster workers are busy by now: workers are asked in the order of their speed.
            self._fastest = max(self._fastest, each)
        if late is None or late.rest[0] >= end:
            return None
        self._pieces.pop()
        # Workers about to be idle will take a share as well.
        share = math.ceil(len(late.rest) / max(1.0, each * self._rate))
        block = block_of(late.rest)
        n = math.ceil(max(share, self._shortest / each) / block) * block
        if n < len(late.rest):
            self._pieces.append(late._replace(rest=late.rest[n:]))
        self._rate -= 1 / each
        self._in_flight.add_copy(worker, late.ticket, late.rest[:n], now)
        return late.rest[:n]

    def _is_outdated(self, now: float) -> bool:
        return self._in_flight.n_removed > self._valid_until or now >= self.ask_again_at

    def overdue(self, now: float) -> list[int]:
        """Return the workers with an overdue ticket, or none while the last estimate is valid."""
        if not self._is_outdated(now):
            return []
        in_flight, average, overdue = self._in_flight, self._throughput.seconds, []
        for worker, queue in in_flight.busy():
            each = self._throughput.seconds_with(worker) or average
            if each and in_flight.started[worker] + each * len(queue[0]) < now:
                overdue.append(worker)
        return overdue

    def pay(self, now: float) -> bool:
        if self._is_outdated(now):
            self._estimate(now)
        return self._fastest < math.inf and self._worth_a_copy(self._fastest, now) is not None

    def mark_idle(self, worker: int) -> None:
        if not self._in_flight.queues[worker]:
            self._fastest = min(self._fastest, self._throughput.seconds_with(worker) or math.inf)

    def _worth_a_copy(self, each: float, now: float) -> _Late | None:
        """Return the last piece to end if a copy pays at `each` seconds a trajectory."""
        while self._pieces and self._pieces[-1].rest not in self._in_flight.uncopied(self._pieces[-1].ticket):
            self._pieces.pop()  # it has arrived
        if not self._pieces:
            return None
        late = self._pieces[-1]
        return late if late.end - now > _worth(late.rest, each) else None

    def _estimate(self, now: float) -> None:
        self._valid_until = self._in_flight.n_removed + self._in_flight.n_between_estimates
        self._rate, self._fastest, self._pieces = 0.0, math.inf, []
        first_start, busy = now, self._in_flight.busy()
        for worker, queue in busy:
            each = self._throughput.seconds_with(worker)
            first_start = min(first_start, since := self._in_flight.started[worker])
            self._pieces += self._of_worker(worker, queue, now)
            self._rate += 1 / each if each and since + each * len(queue[0]) >= now else 0.0
        idle = self._throughput.seconds_of_others({worker for worker, _ in busy})
        self._rate += sum([1 / each for each in idle])
        self._fastest = min(idle, default=math.inf)
        self._pieces.sort(key=lambda late: late.end)
        self.ask_again_at = math.inf
        if self._pieces and self._fastest < math.inf:
            late = min(late.end + _worth(late.rest, self._fastest) for late in self._pieces)
            self.ask_again_at = max(late, now + _PATIENCE * (now - first_start) + COPY_SECONDS)

    def _of_worker(self, worker: int, queue: Sequence[range], now: float) -> Iterator[_Late]:
        if self._is_awaited(worker):
            return
        for ticket, end in zip(queue, self._ends(worker, queue, now), strict=False):
            for piece in self._in_flight.uncopied(ticket):
                yield _Late(end, ticket, piece)

    def _ends(self, worker: int, queue: Sequence[range], now: float) -> Iterator[float]:
        each = self._throughput.seconds_with(worker) or self._throughput.seconds
        if not each:
            return
        first, elapsed = len(queue[0]), now - self._in_flight.started[worker]
        end = now - elapsed + each * first
        if end < now:
            each, end = self._overdue(worker, first, each, elapsed, now)
        for position, ticket in enumerate(queue):
            end += each * len(ticket) if position else 0.0
            yield end

    def _overdue(self, worker: int, first: int, each: float, elapsed: float, now: float) -> tuple[float, float]:
        ran = self._ran(worker)
        if not ran:
            return elapsed / first, now + elapsed - each * first
        slow = max(each, (elapsed + each) / (ran + 1.0))  # a single trajectory may be slow by chance
        return slow, now + slow * max(0.0, first - ran)

    def _ran(self, worker: int) -> float:
        """Return a worker's timesteps so far, in trajectories of average length."""
        steps = 0 if self._steps_of is None else self._steps_of(worker)
        return steps / (self._throughput.timesteps or 1.0)

    def learn_from_late(self, worker: int, now: float) -> None:
        """Lower the speed of `worker` after a copy of its ticket arrived first."""
        if not (queue := self._in_flight.queues[worker]):
            return  # it has answered in the meantime
        first, elapsed, each = (
            len(queue[0]),
            now - self._in_flight.started[worker],
            self._throughput.seconds_with(worker),
        )
        if each is None:
            self._throughput.raise_to(
                worker, min(elapsed / first, SLOW_AT_FIRST * (self._throughput.seconds or math.inf))
            )
        elif elapsed > each * first:
            self._throughput.raise_to(worker, elapsed / (self._ran(worker) or first))
