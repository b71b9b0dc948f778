"""Decide how large tickets are, track those in flight, and which of them several workers hold. Pure.

A trajectory does not depend on the worker that runs it, so an idle worker may run a *copy* of a part of a ticket that
another worker holds (`copies` says when). Copying cuts the ticket into pieces. Either the ticket arrives before any of
its pieces, and the copies are ignored when they come; or the first copy to arrive decides against the ticket, which is
ignored when it comes: then what was not copied of it is lost, and must be assigned again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from operator import mul
from typing import NamedTuple

from streamsampler.core.errors import ProtocolError

# ----------------------------------------------------------------------
# Estimate how long trajectories are and how fast each worker is, from the reports so far. Pure.
#
# The estimates decide which tickets are assigned, when and to which worker; never what is returned.


_APPROACH = 0.2


class Throughput:
    """Average the lengths of trajectories and the time they take; old reports weigh less and less.

    Lengths are averaged over all workers, since a trajectory's length does not depend on its worker. The time of a
    timestep is also averaged for each worker.
    """

    _MEMORY = 200.0  # trajectories: enough to be steady, few enough to follow a policy that learns
    _KEPT = 0.9  # of a worker's own averages with each of its reports: its last ten count

    def __init__(self) -> None:
        self._weight = 0.0
        self._mean = 0.0
        self._squares = 0.0  # weighted squared deviations from the mean
        self._seconds = 0.0
        self._bytes = 0.0
        self._workers: dict[int, tuple[float, float]] = {}  # timesteps and seconds

    def measure(
        self, lengths: Sequence[int], seconds: float, worker: int | None = None, n_bytes: int = 0, *,
        fills_rows: bool = True,
    ) -> None:  # fmt: skip
        """Add the trajectories of one report.

        Args:
            lengths: Their timesteps.
            seconds: What they took together.
            worker: The worker that ran them; None to leave the averages of single workers alone.
            n_bytes: The size of their observations.
            fills_rows: Whether each of the worker's rows had one. Otherwise they took longer than they need, and a
                worker is taken to be slower a little at a time: with small tickets it would seem slow, and get smaller
                ones.
        """
        if not lengths:
            return
        n, total = len(lengths), sum(lengths)
        self._note_lengths(lengths, total)
        keep = min(1.0, self._MEMORY / (self._weight + n))
        self._weight = (self._weight + n) * keep
        self._squares *= keep
        self._seconds = (self._seconds + seconds) * keep
        self._bytes = (self._bytes + n_bytes) * keep
        if worker is not None:
            old_timesteps, old_seconds = self._workers.get(worker, (0.0, 0.0))
            if not fills_rows and old_timesteps and seconds * old_timesteps > old_seconds * total:
                seconds = (1 - _APPROACH) * old_seconds / old_timesteps * total + _APPROACH * seconds
            self._workers[worker] = (self._KEPT * old_timesteps + total, self._KEPT * old_seconds + seconds)

    def forget(self, worker: int) -> None:
        """Forget the averages of a worker that another one replaces."""
        self._workers.pop(worker, None)

    def raise_to(self, worker: int, each: float) -> None:
        """Take a trajectory to last at least `each` seconds on a worker whose ticket does not arrive."""
        known = self.seconds_with(worker)
        if known is None or each > known:
            self._workers[worker] = max(1.0, self._mean), each

    def approach_average(self, worker: int) -> None:
        """Move a worker's average a fifth of the way to that of all workers.

        A worker without tickets cannot show its speed, and what made it slow may be over.
        """
        if worker in self._workers and self._weight:
            timesteps, seconds = self._workers[worker]
            average = timesteps * self._seconds / (self._weight * max(1.0, self._mean))
            self._workers[worker] = timesteps, seconds + _APPROACH * (average - seconds)

    def _note_lengths(self, lengths: Sequence[int], total: int) -> None:
        # Means and squared deviations of two groups are joined as in Chan, Golub and LeVeque (1979): where all are of
        # one length the mean stays exact and the spread exactly 0, so that nothing is rounded up to a surplus rollout.
        weight, n = self._weight, len(lengths)
        delta = total / n - self._mean
        self._mean += delta * n / (weight + n)
        within = max(0.0, sum(map(mul, lengths, lengths)) - total * total / n)
        self._squares += within + delta * delta * weight * n / (weight + n)

    @property
    def timesteps(self) -> float | None:
        """Timesteps of a trajectory, at least 1; None before the first one."""
        return max(1.0, self._mean) if self._weight else None

    @property
    def spread(self) -> float:
        """The standard deviation of the timesteps of a trajectory; 0 before the second one."""
        return math.sqrt(self._squares / self._weight) if self._weight else 0.0

    @property
    def seconds(self) -> float | None:
        """Seconds of a trajectory; None before the first one."""
        return self._seconds / self._weight if self._weight else None

    def seconds_with(self, worker: int) -> float | None:
        """Return the seconds that a trajectory is expected to take on `worker`; None before its first one."""
        # Without `max`: at the end of a call this is asked of all workers, again and again.
        known = self._workers.get(worker)
        if known is None:
            return None
        timesteps, seconds = known
        mean = self._mean
        return (mean if mean > 1.0 else 1.0) * seconds / (timesteps if timesteps > 1.0 else 1.0)

    def slowness(self, worker: int) -> float:
        """Return how many times the average duration `worker` takes; 1 before its first trajectory."""
        each, mean = self.seconds_with(worker), self.seconds
        return each / mean if each and mean else 1.0

    def trajectories_in(self, seconds: float, n_bytes: int) -> int:
        """Return how many trajectories a worker runs in this time, with so many bytes of observations at most.

        At least 1, and 1 before the first trajectory.
        """
        if not self._weight:
            return 1
        in_time = seconds * self._weight / max(self._seconds, 1e-9)
        in_room = n_bytes * self._weight / max(self._bytes, 1e-9)
        return max(1, int(min(in_time, in_room)))


def needed_for(timesteps: int, mean: float, spread: float) -> int:
    """Return how many trajectories have that many timesteps together, if they fall short of their mean.

    Args:
        timesteps: Timesteps.
        mean: Timesteps of a trajectory.
        spread: By how much a trajectory falls short; n of them do by sqrt(n) times as much.
    """
    # The least n with n * mean - spread * sqrt(n) >= timesteps: a quadratic equation for sqrt(n).
    if timesteps <= 0:
        return 0
    root = (spread + math.sqrt(spread * spread + 4 * mean * timesteps)) / (2 * mean)
    return math.ceil(root * root - 1e-6)


# ----------------------------------------------------------------------
# Decide how many trajectories a ticket has. No I/O.


TRAJECTORIES_A_ROW = 4
"""How many trajectories a ticket should have for each row, where rows run side by side: a row that is done before the
others goes on with the next ticket, but not with the one after it. With one trajectory a row rows whose lengths vary
are idle for a third of the time or more; with four for less than a fifth."""

TICKET_SECONDS = 0.1
"""What a ticket should take: long compared with the cost of a report (some 0.5 ms in either process, with cold caches),
short compared with a human's patience."""

SHARE_OF_TICKETS, SHARE_OF_SHORTEST = 1e-3, 5e-5
"""For each worker, so many seconds are added to what a ticket should take, and to the shortest one, where there are so
many workers that this is longer. One process takes in the reports of all of them, each in 0.1 to 0.5 ms: with full
tickets it is busy for half of its time at most."""

TICKET_BYTES = 1 << 24
"""What a ticket's observations should take at most: they are in memory twice for a while, and should be in the
processor's cache when they are copied."""

SHORTEST_TICKET_SECONDS = 0.003
"""Below this the last tickets of a call cost more than workers lose by finishing at different times. An engine whose
reports cost more has a limit of its own."""


def ticket_size(
    throughput: Throughput, remaining: int, n_workers: int, slowness: float, unit: int, rows: int = 0,
    shortest: float = SHORTEST_TICKET_SECONDS,
) -> int:  # fmt: skip
    """Return the number of trajectories of the next ticket: a multiple of `unit`.

    Args:
        throughput: How long trajectories take.
        remaining: How many trajectories are still to be assigned.
        n_workers: How many workers share them.
        slowness: How many times as long as the average the ticket's worker takes.
        unit: How many trajectories a worker runs side by side, or a block has.
        rows: How many rows the worker fills from several tickets at once; 0 where it does not.
        shortest: Seconds below which the last tickets cost more than workers lose by finishing at different times.
    """
    # Guided self-scheduling (Polychronopoulos and Kuck, 1987): a share of what remains, so that the last tickets
    # are small and all workers finish together. A slow worker's share is smaller: weighted factoring (Hummel,
    # Schmidt, Uma and Wein, 1996).
    share = math.ceil(remaining / (2 * n_workers * slowness))
    shortest = max(shortest, SHARE_OF_SHORTEST * n_workers)
    worth_a_report = throughput.trajectories_in(shortest / slowness, TICKET_BYTES)
    most = trajectories_in_ticket(throughput, max(TICKET_SECONDS, SHARE_OF_TICKETS * n_workers) / slowness)
    if rows:
        most = max(most, min(TRAJECTORIES_A_ROW * rows, throughput.trajectories_in(math.inf, TICKET_BYTES)))
    size = min(most, max(share, worth_a_report))
    return max(1, size // unit) * unit


def trajectories_in_ticket(throughput: Throughput, seconds: float = TICKET_SECONDS) -> int:
    """Return how many trajectories fill a ticket's time and memory."""
    return throughput.trajectories_in(seconds, TICKET_BYTES)


# ----------------------------------------------------------------------


MOST_COPIES = 2
"""So often a piece is copied if the copies fail while another worker runs it. What fails then uses up no quota of
losses, and may fail each time. One worker may have been at fault."""


class Arrival(NamedTuple):
    """What becomes of a ticket that arrived.

    Attributes:
        counts: Whether its trajectories are new; otherwise copies of them arrived before.
        lost: What must be assigned again, since the ticket does not count, and no other worker holds it.
        late: The workers that hold copies of what arrived first here.
    """

    counts: bool
    lost: list[range]
    late: list[int]


def removals_between_looks(n_workers: int) -> int:
    """Return after how many more removals of tickets all workers are looked at again.

    To look at all of them after each report would make a report dearer with each worker. With a dozen that does not
    matter.
    """
    return max(0, n_workers - 12) // 4


class InFlight:
    """Track the tickets of one call that workers hold. Times are seconds of one monotonic clock.

    Args:
        n_workers: The number of workers.
        throughput: How fast they are.

    Attributes:
        n_removed: How many tickets were removed so far.
    """

    def __init__(self, n_workers: int, throughput: Throughput) -> None:
        self._pace = throughput
        # Tuples: the garbage collector does not look at those of ranges and numbers again, with any number of workers.
        self._queues: list[tuple[range, ...]] = [()] * n_workers
        self._since = [0.0] * n_workers  # when each worker began the first ticket of its queue
        self._holders: dict[range, tuple[int, ...]] = {}  # of pieces
        self._pieces: dict[range, list[range]] = {}  # of the tickets that are cut; other tickets are one piece
        self._given_up: dict[range, int] = {}  # how often one of several holders gave up a piece that is held
        self._done: set[range] = set()  # pieces that arrived, while another worker still holds them
        self.n_removed = 0
        self._looked_after = -1  # tickets removed
        self._rate, self._owed, self._fastest = 0.0, 0.0, math.inf  # of all busy workers; see `expected_end_of_all`
        self._kept_for = removals_between_looks(n_workers)

    def track(self, worker: int, indices: range, now: float) -> None:
        """Track a ticket that `worker` got."""
        queue = self._queues[worker]
        if not queue:
            self._since[worker] = now
        self._queues[worker] = (*queue, indices)
        self._holders[indices] = (*self._holders.get(indices, ()), worker)

    def add_copy(self, worker: int, ticket: range, part: range, now: float) -> None:
        """Track that `worker` got a copy of the first indices of a piece of `ticket`."""
        pieces = self._pieces.get(ticket, [ticket])
        position = next(number for number, piece in enumerate(pieces) if piece[0] == part[0])
        piece = pieces[position]
        if len(part) < len(piece):
            holders = self._holders.pop(piece)
            parts = [part, piece[len(part) :]]
            self._pieces[ticket] = [*pieces[:position], *parts, *pieces[position + 1 :]]
            for cut in parts:
                self._holders[cut] = holders
            if n_given_up := self._given_up.pop(piece, 0):
                self._given_up.update(dict.fromkeys(parts, n_given_up))
        self.track(worker, part, now)

    def queue(self, worker: int) -> tuple[range, ...]:
        """Return the tickets that `worker` holds, in the order in which it runs them."""
        return self._queues[worker]

    def since(self, worker: int) -> float:
        """Return when `worker` began the first of its tickets."""
        return self._since[worker]

    def uncopied(self, ticket: range) -> list[range]:
        """Return the pieces of a ticket that one worker alone holds, and that may be copied.

        Not those that have arrived, nor those of which copies failed again and again.
        """
        pieces = self._pieces.get(ticket, [ticket])
        single = [piece for piece in pieces if len(self._holders.get(piece, ())) == 1 and piece not in self._done]
        if not self._given_up:
            return single
        return [piece for piece in single if self._given_up.get(piece, 0) < MOST_COPIES]

    def left(self, worker: int, now: float) -> float:
        """Return how many of its trajectories `worker` is expected not to have run yet."""
        queue, each = self._queues[worker], self._pace.seconds_with(worker)
        n_held = sum(map(len, queue))
        return max(0.0, n_held - (now - self._since[worker]) / each) if queue and each else n_held

    def arrive(self, worker: int, indices: range, now: float) -> Arrival:
        """Remove a ticket that `worker` has run.

        Raises:
            ProtocolError: The worker does not hold the ticket.
        """
        pieces = self._remove(worker, indices, now)
        counts = self._done.isdisjoint(pieces)
        late: list[int] = []
        for piece in pieces:
            if counts and (others := self._holders.get(piece)):
                self._done.add(piece)
                late += others
        return Arrival(counts, [] if counts else self._forget(pieces), late if counts else [])

    def remove(self, worker: int, indices: range, now: float) -> list[range]:
        """Remove a ticket that `worker` will not run.

        Returns:
            What of it must be assigned again: what has not arrived, and no other worker holds.
        """
        return self.give_up(worker, indices, now)[0]

    def give_up(self, worker: int, indices: range, now: float) -> tuple[list[range], list[range]]:
        """Remove a ticket that `worker` will not run; return what `remove` does, and what is left to copies."""
        pieces = self._remove(worker, indices, now)
        left = [piece for piece in pieces if piece in self._holders and piece not in self._done]
        for piece in left:
            self._given_up[piece] = self._given_up.get(piece, 0) + 1
        return self._forget(pieces), left

    def _forget(self, pieces: list[range]) -> list[range]:
        """Forget the pieces that are not held any more; return those of them that have not arrived."""
        free = [piece for piece in pieces if piece not in self._holders]
        lost = [piece for piece in free if piece not in self._done]
        self._done.difference_update(free)
        return lost

    def _remove(self, worker: int, indices: range, now: float) -> list[range]:
        """Remove a ticket; return its pieces."""
        queue = self._queues[worker]
        if indices not in queue:
            raise ProtocolError(f"worker {worker} does not hold trajectories {indices}, or ran them twice")
        if queue[0] == indices:
            self._since[worker] = now
        position = queue.index(indices)
        self._queues[worker] = queue[:position] + queue[position + 1 :]
        self.n_removed += 1
        pieces = self._pieces.pop(indices, [indices])
        for piece in pieces:
            if holders := tuple([other for other in self._holders[piece] if other != worker]):
                self._holders[piece] = holders
            else:
                del self._holders[piece]
                self._given_up.pop(piece, None)
        return pieces

    def expected_end(self, worker: int, now: float) -> float:
        """Return when `worker` is expected to finish its tickets; now if its speed is unknown."""
        queue, each = self._queues[worker], self._pace.seconds_with(worker)
        if not queue or each is None:
            return now
        return max(now, self._since[worker] + each * len(queue[0])) + each * sum(map(len, queue[1:]))

    def expected_end_of_all(self, remaining: int, now: float) -> float | None:
        """Return when the busy workers are expected to finish their tickets and `remaining` more trajectories.

        Returns:
            None if no worker is busy, or the speed of one is unknown.
        """
        if self._looked_after < 0 or self.n_removed - self._looked_after >= self._kept_for:
            self._looked_after = self.n_removed
            busy = [worker for worker, queue in enumerate(self._queues) if queue]
            seconds = [self._pace.seconds_with(worker) or math.inf for worker in busy]
            is_known = math.inf not in seconds
            self._rate = sum(1 / each for each in seconds) if is_known else 0.0
            self._owed = sum(self.left(worker, now) for worker in busy)
            self._fastest = min(seconds, default=math.inf)
        return now + (self._owed + remaining) / self._rate + self._fastest if self._rate else None


# ----------------------------------------------------------------------
# Pick what an idle worker runs a second time, and estimate when. Pure.
#
# These are the backup tasks of MapReduce (Dean and Ghemawat, 2004). As in LATE (Zaharia et al., 2008), the ticket
# that is expected to end last is copied, by the progress that its worker shows. The idle workers share it by their
# speeds.
#
# A copy costs CPU time that a learner or another worker could use. So a ticket is copied only if its worker is
# expected to need notably longer than a copy: the worker is slower, or the ticket waits for another one. What fails
# in copies while its worker runs it is not copied without end (`MOST_COPIES`).
#
# A ticket that is overdue has a slow worker or long trajectories: only the timesteps that the worker shows tell
# which. Where a worker shows none, its ticket is taken to need as long again as it is overdue. When that would be so,
# idle workers look again, even if nothing arrives until then.


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
    """A piece that might be copied: when it is expected to end, its ticket, and what is left of it."""

    end: float
    ticket: range
    rest: range


def _worth(indices: range, each: float) -> float:
    """Return how long a ticket must be expected to take from now on if a copy takes `each` seconds a trajectory."""
    return WORTH_A_COPY * (each * len(indices) + COPY_SECONDS)


class Copies:
    """Pick copies for the idle workers of one call. Times are seconds of one monotonic clock.

    Args:
        n_workers: The number of workers.
        in_flight: What they hold.
        throughput: How fast they are.
        steps_of: What they show; None if they show nothing.
        shortest: Seconds of the shortest parts that a ticket is cut into.
        is_awaited: Whose tickets are not copied.
    """

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
        self._next_look = math.inf

    def assign(self, worker: int, now: float, block_of: Callable[[range], int], end: int) -> range | None:
        """Assign to the idle `worker` what it should run a second time; None if that does not pay.

        Args:
            worker: The worker number.
            now: The time.
            block_of: Returns how many trajectories of a ticket must stay together.
            end: The first index that is of no use.
        """
        each = self._pace.seconds_with(worker)
        if not each or self._in_flight.queue(worker):
            return None
        if self._in_flight.n_removed > self._valid_until or now >= self._next_look:
            self._look(now)
        if (late := self._worth_a_copy(each, now)) is None or late.rest[0] >= end:
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

    def pay(self, now: float) -> bool:
        """Whether `assign` has something for any idle worker."""
        return self._worth_a_copy(self._fastest, now) is not None

    def next_look(self) -> float:
        """Return when an idle worker should ask again, even if nothing arrives until then; infinity for never."""
        return self._next_look

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
        self._valid_until = self._in_flight.n_removed + removals_between_looks(self._n_workers)
        self._rate, self._fastest, self._pieces = 0.0, math.inf, []
        begun = now
        for worker in range(self._n_workers):
            queue = self._in_flight.queue(worker)
            each = self._pace.seconds_with(worker)
            if queue:
                begun = min(begun, since := self._in_flight.since(worker))
                self._pieces += self._of_worker(worker, queue, now)
                self._rate += 1 / each if each and since + each * len(queue[0]) >= now else 0.0
            elif each:
                self._rate += 1 / each
                self._fastest = min(self._fastest, each)
        self._pieces.sort(key=lambda late: late.end)
        self._next_look = math.inf
        if self._pieces and self._fastest < math.inf:
            late = min(late.end + _worth(late.rest, self._fastest) for late in self._pieces)
            self._next_look = max(late, now + _PATIENCE * (now - begun) + COPY_SECONDS)

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
        first, elapsed = len(queue[0]), now - self._in_flight.since(worker)
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

    def note_late(self, worker: int, now: float) -> None:
        """Note that a copy of what `worker` holds arrived first, and learn from it how slow the worker is now.

        A worker that has not answered yet is taken to be slower: it may have been starting for most of the time.
        """
        first, elapsed = len(self._in_flight.queue(worker)[0]), now - self._in_flight.since(worker)
        each = self._pace.seconds_with(worker)
        if each is None:
            self._pace.raise_to(worker, min(elapsed / first, SLOW_AT_FIRST * (self._pace.seconds or math.inf)))
        elif elapsed > each * first:
            self._pace.raise_to(worker, elapsed / (self._ran(worker) or first))
