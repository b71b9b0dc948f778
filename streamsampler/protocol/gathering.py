"""Assign tickets to workers until a call has the trajectories that its plan asks for. Pure.

`Gathering` decides what each worker runs next; `result.Result` decides what becomes of what arrives. Neither knows
processes, clocks or arrays.

The batch never depends on timing. In index order it is a prefix of trajectories 0, 1, 2, …, whenever and in whatever
tickets they arrive, and whichever were lost and run again.

Whether a call fails does not depend on timing either. If one trajectory of a ticket fails, those before and after it
are assigned again, and the failure is held back until its turn comes (see `result`): then the call ends with it, or
the trajectory is assigned again. Trajectories after a failure that ends the call cannot be needed and are not assigned.
If it is unknown which trajectory failed, each block is assigned again by itself. If another worker runs a copy, a final
failure counts at once, since the copy fails as well; what else was lost is left to the copy. Where the copy succeeds
first, the failure does not happen each time, and is forgotten.

Where trajectories that are run together may influence each other, they are run in *blocks*. Every queue of indices is
cut into blocks from its start, and a ticket is whole blocks: which trajectories share a block is fixed by the plan and
the queues, never by ticket sizes, timing or losses. A block fails as a whole. Blocks may get longer from the start of a
queue to its end (`index_queue.block_at`), if workers run such blocks, which is known when the first of them answers.

Workers that run *lanes* run trajectories side by side that do not influence each other, each in a row that its index
decides, and begin those of the next ticket in rows that have none left. So they get a ticket ahead until the end. Their
tickets fill all rows while there is plenty; what remains then is shared at once, so that all workers finish together.

In arrival order any trajectory will do, so no worker is idle while the result is incomplete: trajectories under way may
turn out to be long. A slow worker contributes less.

Tickets *in advance* are assigned before it is known what the call will ask for. Between two calls the sampler reads no
reports, so each worker gets only as many tickets as may be unanswered: together these have all that the next call is
expected to need. All are of one size but for the speed of workers, so that what waits can be copied (see `copies`) if a
worker turns out to be slow. When the call comes, its tickets are taken over if they are what its plan would have cut:
from the start of the same queue of indices, in the same blocks. What the plan does not need of them is surplus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from streamsampler.core.errors import ProtocolError
from streamsampler.protocol.copies import Copies, IsAwaited, StepsOf
from streamsampler.protocol.in_flight import InFlight
from streamsampler.protocol.index_queue import IndexQueue
from streamsampler.protocol.messages import Dropped
from streamsampler.protocol.plans import Exactly, GatherPlan, Layout, Streamed, endless
from streamsampler.protocol.result import HeldFailure, Order, Result, too_many_dropped
from streamsampler.protocol.throughput import Throughput
from streamsampler.protocol.tickets import (
    SHORTEST_TICKET_SECONDS,
    TICKET_BYTES,
    TICKET_SECONDS,
    needed_for,
    ticket_size,
)

_FOREVER = 2**62
_NEXT_BLOCK = attrgetter("next_block")

NOTABLY_SLOWER = 1.5
"""From how many times the average duration on a worker counts as slow near the end of a call."""

SAFETY_MARGIN = 0.5
"""By how many standard deviations the trajectories under way are assumed to fall short of their mean, together. A
trajectory that begins too late makes all workers wait; one that begins in vain wastes a core. With two workers, batches
of 2,000 and 4,000 timesteps and lengths of 200 to 1,000, the simulation in `tests/protocol/test_schedules.py` finds a
wall time 1 % shorter than with 0, and 6 and 3 % of work in vain; 2 gains at most 0.7 % more and wastes 14 and 7 %."""

LANES_MARGIN = 0.25
"""The same for workers that run lanes. There more trajectories begin at once; those in vain slow the others down."""

LIKE_ONE_LENGTH = 0.1
"""The spread of lengths, as a share of their mean, up to which trajectories that began together end about together."""

CLOSE_TO_WHOLE = 0.125
"""How many of a worker's last trajectories are left to others to make whole rows, as a share of its rows."""

ADVANCE_BYTES = 1 << 27
"""What the observations of a ticket that is assigned in advance should take at most."""


def _around(trajectory: int, piece: range, block: int) -> list[range]:
    """Return what a piece has before and after the block of a trajectory; all of it if it does not have that."""
    if trajectory not in piece:
        return [piece]
    start = piece.index(trajectory) // block * block
    return [rest for rest in (piece[:start], piece[start + block :]) if rest]


class Assignment(NamedTuple):
    """The ticket that a worker runs next; see `protocol.messages.Ticket`."""

    indices: range
    block: int = 1  # how many of them may influence each other


class GivenTicket(NamedTuple):
    """A ticket that was assigned in advance."""

    worker: int
    indices: range
    since: float  # when it was assigned


class Gathering:
    """Track one call's progress through its plan.

    With `own_queues` each worker runs only its own indices. Only `concurrent` workers can run another's ticket sooner.
    With `dropping` later indices take the places of trajectories that are left out; where there are none, it is a
    UsageError. The throughput is that of earlier calls as well.
    """

    def __init__(
        self, plan: GatherPlan, *, n_workers: int, order: Order = "index", throughput: Throughput | None = None,
        own_queues: bool = False, layout: Layout = Layout(), concurrent: bool = True, dropping: bool = False,
        shortest_ticket: float = SHORTEST_TICKET_SECONDS,
        steps_of: StepsOf | None = None, is_awaited: IsAwaited | None = None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.throughput = throughput if throughput is not None else Throughput()
        order, dropping = ("index", False) if plan.fixed or plan.n_of_task else (order, dropping)
        self._never_idle = order == "arrival" and concurrent
        self._is_stream = isinstance(plan, Streamed)
        self._n_workers = n_workers
        self._shortest_ticket = shortest_ticket
        self._unit = max(layout.rows, layout.block)
        self._has_lanes = False
        # What waits takes no time from what runs beside it: where rows wait, the last tickets are small only where few
        # trajectories remain. Tickets of one trajectory a row would leave a fifth of 200 rows without any.
        self._parts = 1 if layout.block == 1 < layout.rows else 2
        self._shared_after = -1  # trajectories that had arrived; see `_last_share`
        self._n_to_share, self._all_speeds = 0.0, 1.0
        self._may_copy = concurrent and not own_queues
        n_queues = n_workers if own_queues else 1
        is_endless = plan.limit is not None and (dropping or (order == "arrival" and isinstance(plan, Exactly)))
        self._queues: list[IndexQueue] = []
        self._first = _FOREVER
        for number in range(n_queues):
            own = plan.queue(number, n_queues)
            self._first = min(self._first, own.start)
            own = endless(own, n_queues) if is_endless else own
            self._queues.append(IndexQueue(own, layout.block, lengthens=layout.lengthens))
        self.result = Result(plan, order, self._first)
        self._in_flight = InFlight(n_workers, self.throughput)
        self.copies = Copies(n_workers, self._in_flight, self.throughput, steps_of, shortest_ticket, is_awaited)
        self._n_assigned = 0  # trajectories that arrived, were left out, are in flight or held back, copies not counted
        self._considered: set[int] = set()  # workers that got a ticket, or were passed over because they are slow
        self.arrived_trajectories = self.arrived_timesteps = 0  # of those that were not left out
        self.arrived_dropped = 0
        self.refuses_all = False  # whether the last refusal of `assign` holds for all workers that ask for the same
        self.late: list[int] = []  # workers that were overtaken by a copy of their ticket, until `measure_late`

    def assign(self, worker: int, *, ahead: bool = False, now: float = 0.0) -> Assignment | None:
        """Return the ticket that `worker` should run next, or None if there is none for it now.

        A worker so slow that the others would finish everything sooner gets nothing. One that still runs a ticket gets
        the next one `ahead` only if it runs lanes, or while there is plenty for all: near the end a ticket that waits
        for another one is late, and may be surplus.
        """
        # The workers of a complete call are about to be stopped: a loss or a copy of its surplus is not run, either.
        self.refuses_all = self.result.complete or (ahead and not self._has_plenty)
        if self.refuses_all:
            return None
        queue = self._queue_for(worker)
        in_lanes, unit = queue.block < self._unit, max(self._unit, queue.next_block)
        needed = self._n_needed(LANES_MARGIN if in_lanes else SAFETY_MARGIN)
        remaining = max(0, needed - self._n_assigned)
        slowness = self._slowness(worker)
        if in_lanes and 0 < remaining <= self._n_workers * self._unit:
            # Shares are estimates: if every worker were refused, no report would come, and no worker be asked again.
            size = max(self._last_share(worker, remaining, now), 0 if ahead else 1)
            if not size:
                return None
        else:
            rows = self._unit if in_lanes else 0
            size = ticket_size(
                self.throughput, remaining, self._n_workers, slowness=slowness, unit=unit, rows=rows,
                shortest=self._shortest_ticket, parts=self._parts,
            )  # fmt: skip
        # Even if none remain, a returned ticket must run: without it the prefix has a gap.
        if remaining and slowness > 1 and self._is_better_idle(worker, size, remaining, now):
            indices = self._pass_over(worker)
        else:
            indices = queue.take_returned(size, self.result.end) or self._take_new(queue, size, needed, remaining)
            self.refuses_all = not indices and len(self._queues) == 1
        if not indices:
            return None
        self._n_assigned += len(indices)
        self._in_flight.track(worker, indices, now)
        self._considered.add(worker)
        return Assignment(indices, queue.block_of(indices))

    @property
    def may_copy(self) -> bool:
        """Whether idle workers may run what others hold."""
        # While the consumer of a stream has trajectories to take, a slow ticket does not make it wait.
        return self._may_copy and not self.result.complete and not (self._is_stream and self.result.has_spans)

    def assign_copy(self, worker: int, now: float = 0.0) -> Assignment | None:
        """Return a copy of a part of another worker's ticket for an idle one; None if that does not pay.

        If it does not pay for a worker, it pays for no slower one.
        """
        queue = self._queue_for(worker)
        indices = self.copies.assign(worker, now, queue.block_of, self.result.end) if self.may_copy else None
        if not indices:
            return None
        self._considered.add(worker)
        return Assignment(indices, queue.block_of(indices))

    def run_lanes(self, worker: int) -> None:
        """Cut tickets for a worker as is best: none of its trajectories influences another one."""
        self.run_blocks(worker, longer=False)
        self._queue_for(worker).block, self._has_lanes = 1, self._unit > 1

    def run_blocks(self, worker: int, *, longer: bool) -> None:
        """Cut tickets for a worker into blocks that get longer, or not, as it runs them."""
        queue = self._queue_for(worker)
        queue.lengthens, queue.is_certain = queue.lengthens and longer, True

    def is_certain(self, worker: int) -> bool:
        """Return whether it is known how a worker runs trajectories; until then it gets those of the first blocks."""
        return self._queue_for(worker).is_certain

    def block_of(self, worker: int, indices: range) -> int:
        """Return how many trajectories each block of a worker's ticket has."""
        return self._queue_for(worker).block_of(indices)

    def _last_share(self, worker: int, remaining: int, now: float) -> int:
        """Return how many of the last trajectories a worker gets at once, so that all workers finish together.

        All trajectories that are not run yet, assigned or not, are shared by the workers' speeds. Where all have about
        one length, rows begin and end together, and one trajectory more than there are rows takes as long as all rows
        once more: a few too many for whole rows are left to others.
        """
        in_flight, everybody = self._in_flight, range(self._n_workers)
        if self._shared_after != self.arrived_trajectories:  # to assign some changes nothing of their number
            self._shared_after = self.arrived_trajectories
            self._n_to_share = remaining + sum(in_flight.left(other, now) for other in everybody)
            self._all_speeds = sum(1 / self._slowness(other) for other in everybody)
        share = self._n_to_share / self._all_speeds / self._slowness(worker)
        size = math.ceil(share - in_flight.left(worker, now))
        if self.throughput.spread <= LIKE_ONE_LENGTH * (self.throughput.timesteps or 0.0):
            over = (sum(map(len, in_flight.queues[worker])) + size) % self._unit
            size -= over if over <= CLOSE_TO_WHOLE * self._unit and over < size else 0
        return min(remaining, size)

    def put_back(self, worker: int, indices: range, now: float = 0.0) -> None:
        """Assign a lost ticket again, before new indices, unless a copy of it is in flight or has arrived."""
        for lost in self._in_flight.give_up(worker, indices, now)[0]:
            self._put_back(lost)
        self.copies.mark_idle(worker)

    def _put_back(self, indices: range) -> None:
        self._n_assigned -= len(indices)
        self._queue_of(indices).put_back(indices)

    def _queue_for(self, worker: int) -> IndexQueue:
        return self._queues[worker % len(self._queues)]

    def _queue_of(self, indices: range) -> IndexQueue:
        queues, index = self._queues, indices[0]
        # Workers' own queues are every n-th index of n queues, or as many in a row as the others have.
        own = queues[0].own
        return queues[index % len(queues) if own.step > 1 else (index - self._first) // len(own) % len(queues)]

    @property
    def _has_plenty(self) -> bool:
        """Whether workers may get a ticket ahead.

        In lanes its trajectories begin at once, in rows that have none left. Otherwise enough indices must remain for
        all workers, even if trajectories turn out rather long.
        """
        if self._has_lanes:
            return True
        unit: int = max(self._unit, *map(_NEXT_BLOCK, self._queues))
        return self._n_needed(-SAFETY_MARGIN) - self._n_assigned > self._n_workers * unit

    def _slowness(self, worker: int) -> float:
        """How many times the average duration `worker` takes; 1 if it does not count as slow."""
        if not self._may_copy:
            return 1.0
        slowness = self.throughput.slowness(worker)
        return slowness if slowness > NOTABLY_SLOWER else 1.0

    def _take_new(self, queue: IndexQueue, size: int, needed: int, remaining: int) -> range:
        if self._never_idle:
            most = remaining or (0 if self._is_stream else math.ceil(needed / (2 * self._n_workers)))
            return queue.take_new(min(size, most), _FOREVER) if most else range(0)
        n_kept = self.arrived_trajectories + self.plan.kept_before
        if self.arrived_dropped and too_many_dropped(self.arrived_dropped, n_kept):
            return range(0)  # the call is about to end, unless earlier trajectories that are still in flight succeed
        return queue.take_new(size, min(self._first + needed, self.result.end))

    def _pass_over(self, worker: int) -> range:
        # Once a call, so that after some calls the worker is tried again.
        if worker not in self._considered:
            self._considered.add(worker)
            self.throughput.approach_average(worker)
        return range(0)

    def _is_better_idle(self, worker: int, size: int, remaining: int, now: float) -> bool:
        """Whether the busy workers would finish all that remains before `worker` finishes `size` trajectories."""
        each = self.throughput.seconds_with(worker)
        if self._is_stream or self._never_idle or each is None:
            return False
        end = self._in_flight.expected_end_of_all(remaining, now)
        return end is not None and self._in_flight.expected_end(worker, now) + each * size > end

    def _n_needed(self, margin: float) -> int:
        """Estimate how many trajectories the call needs in all, if they are shorter by `margin` standard deviations."""
        most = _FOREVER if self.plan.limit is None else self.plan.limit + self.arrived_dropped
        if self._is_stream:
            return min(most, self.result.n_popped + self._window())
        if self.plan.timesteps is None:
            return most
        mean = self.throughput.timesteps
        if mean is None and self.arrived_trajectories:
            mean = self.arrived_timesteps / self.arrived_trajectories
        if mean is None:
            # Lengths are unknown: assign one block to each worker, to learn them. Each trajectory has at least one
            # timestep; those that were left out showed nothing.
            return self.arrived_dropped + min(self._n_workers * self._unit, self.plan.timesteps)
        missing = self.plan.timesteps - self.arrived_timesteps
        # In flight, or of failures that are held back.
        under_way = self._n_assigned - self.arrived_trajectories - self.arrived_dropped
        return self._n_assigned + max(0, needed_for(missing, mean, margin * self.throughput.spread) - under_way)

    @property
    def n_in_flight(self) -> int:
        """How many trajectories run, where a worker fills its rows from all tickets that it holds."""
        under_way = self._n_assigned - self.arrived_trajectories - self.arrived_dropped
        return min(under_way, self._n_workers * self._unit)

    def _window(self) -> int:
        # How far workers run ahead of a stream's consumer: enough to stay busy, few enough to bound memory.
        return 4 * self._n_workers * max(self._unit, self.throughput.trajectories_in(TICKET_SECONDS, TICKET_BYTES))

    def receive(
        self, worker: int, indices: range, lengths: Sequence[int], report: int, now: float = 0.0,
        dropped: Sequence[Dropped] = (),
    ) -> bool:  # fmt: skip
        """Add the trajectories of a report, by its number; return whether they are new, or a copy arrived before.

        `lengths` are the timesteps of the ticket's trajectories that were not dropped.
        """
        if len(lengths) + len(dropped) != len(indices):
            raise ProtocolError(f"trajectories {indices} came with {len(lengths)} lengths, {len(dropped)} left out")
        counts, lost, late = self._in_flight.arrive(worker, indices, now)
        self.copies.mark_idle(worker)
        self.late += late
        for piece in lost:
            self._put_back(piece)
        if not counts:
            return False
        self.arrived_dropped += len(dropped)
        self.arrived_trajectories += len(lengths)
        self.arrived_timesteps += sum(lengths)
        self.result.receive(worker, indices, lengths, report, dropped)
        if self.plan.n_of_task is not None:
            for more in self.result.pop_made_up():
                self._put_in(more)
        return True

    def measure_late(self, now: float) -> None:
        """Learn from tickets that arrived from other workers first how slow their workers are, by their progress."""
        late, self.late = self.late, []
        for worker in late:
            self.copies.learn_from_late(worker, now)

    def _put_in(self, indices: range) -> None:
        """Let workers run indices that are in no queue."""
        for first in indices[: len(self._queues)]:
            own = range(first, indices.stop, len(self._queues))
            self._queue_of(own).put_back(own)

    def add_failure(
        self, worker: int, indices: range, trajectory: int | None, reason: Any, *, final: bool, now: float = 0.0,
    ) -> None:  # fmt: skip
        """Hold back the failure of a ticket until its turn comes, and assign the rest of the ticket again.

        `trajectory` is None where it is unknown which trajectory failed. A `final` failure is never run again: the
        caller decides that by the reason.
        """
        queue = self._queue_of(indices)
        size = queue.block_of(indices)
        if trajectory is None and len(indices) <= size:
            trajectory = indices[0]
        lost, copied = self._in_flight.give_up(worker, indices, now)
        self.copies.mark_idle(worker)
        for piece in lost:
            for block in queue.blocks_of(piece) if trajectory is None else _around(trajectory, piece, size):
                self._put_back(block)
        # A final failure counts at once, since a copy fails as well; another one is left to the copy.
        for piece in [*lost, *copied] if final else lost:
            if trajectory in piece:
                block = next(block for block in queue.blocks_of(piece) if trajectory in block)
                self.result.hold_failure(HeldFailure(block, reason, final))

    def retry(self, held: HeldFailure) -> None:
        """Assign what failed again."""
        self._put_back(held.indices)
        self.result.remove_failure(held)

    def sizes_in_advance(self, workers: Sequence[int], n_tickets: int) -> dict[int, int]:
        """Return, by worker, how many trajectories each of its tickets has."""
        speeds = self._speeds(workers)
        total, needed = sum(speeds.values()), self._n_in_advance()
        most = self.throughput.trajectories_in(math.inf, ADVANCE_BYTES)
        sizes = {}
        for worker, speed in speeds.items():
            block = self._queue_for(worker).next_block
            share = math.ceil(needed * speed / total / n_tickets / block)
            sizes[worker] = max(1, min(share, most // block)) * block
        return sizes

    def _speeds(self, workers: Sequence[int]) -> dict[int, float]:
        """Return how fast workers are, as shares of the fastest one's speed; 1 where it is not notably slower."""
        if not self._may_copy:  # no other worker runs what is its own
            return dict.fromkeys(workers, 1.0)
        seconds = [self.throughput.seconds_with(worker) for worker in range(self._n_workers)]
        fastest = min((each for each in seconds if each is not None), default=0.0) or 1.0
        slowness = {worker: (seconds[worker] or fastest) / fastest for worker in workers}
        return {worker: 1 / each if each > NOTABLY_SLOWER else 1.0 for worker, each in slowness.items()}

    def _n_in_advance(self) -> int:
        return self._n_needed(LANES_MARGIN if self._has_lanes else SAFETY_MARGIN)

    def take_in_advance(self, worker: int, size: int) -> Assignment | None:
        """Return the next ticket of a worker; None if nothing is left that the call is expected to need."""
        queue = self._queue_for(worker)
        # Assigned trajectories are no part of it: the estimate is that of the beginning.
        indices = queue.take_new(size, self._first + self._n_in_advance())
        return Assignment(indices, queue.block_of(indices)) if indices else None

    def take_over(self, given: Sequence[GivenTicket]) -> bool:
        """Take over tickets assigned in advance; return False, and change nothing, if the plan has others."""
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
            self._n_assigned += len(indices)
            self._in_flight.track(worker, indices, since)
            self._considered.add(worker)
        return True
