"""Assign tickets to workers until a call has the trajectories of its plan. Pure.

`Gathering` decides the next ticket of each worker, and `result.Result` the use of arrived trajectories. Neither the
batch nor a failure depends on timing: in index order the batch is a prefix of trajectories 0, 1, 2, …, and a failure
waits for its turn (see `result`), while the rest of its ticket is assigned again.

*Blocks* are trajectories run together that may influence each other, and fail together. Queues are cut into blocks from
their starts, and tickets have whole blocks: plan and queues decide which trajectories share a block, never ticket
sizes, timing or losses. Blocks may grow along the queue (`index_queue.block_at`).

*Lanes* are rows of independent trajectories; the index decides the row. Lane workers start the next ticket in free
rows, so they get a ticket ahead until the end, and tickets fill all rows while plenty remains.

*Tickets in advance* are assigned before the next call is known. The sampler reads no reports between calls, so each
worker gets as many tickets as may be unanswered. The call adopts them if its plan would cut the same.
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
from streamsampler.protocol.result import Order, PendingFailure, Result, too_many_dropped
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
"""Ratio to the average duration from which a worker counts as slow near the end of a call."""

SAFETY_MARGIN = 0.5
"""Assumed shortfall of the trajectories under way from their mean, in standard deviations of their sum. A late start
makes all workers wait; a surplus trajectory wastes a core. With two workers, batches of 2,000 and 4,000 timesteps and
lengths of 200 to 1,000, the simulation in `tests/protocol/test_schedules.py` finds a wall time 1 % shorter than with 0,
and 6 and 3 % surplus; 2 gains at most 0.7 % more and wastes 14 and 7 %.
"""

LANES_MARGIN = 0.25
"""The same for lanes: more trajectories start at once, and surplus slows the others down."""

LIKE_ONE_LENGTH = 0.1
"""Spread of lengths, as a share of their mean, up to which trajectories started together end about together."""

CLOSE_TO_WHOLE = 0.125
"""Largest remainder, as a share of a worker's rows, left to other workers to make whole rows."""

ADVANCE_BYTES = 1 << 27
"""Most bytes of observations in a ticket assigned in advance."""


def _around(trajectory: int, piece: range, block: int) -> list[range]:
    """Return the parts of a piece around a trajectory's block."""
    if trajectory not in piece:
        return [piece]
    start = piece.index(trajectory) // block * block
    return [rest for rest in (piece[:start], piece[start + block :]) if rest]


class Assignment(NamedTuple):
    """A worker's next ticket; see `protocol.messages.Ticket`."""

    indices: range
    block: int = 1  # trajectories with possible influence on each other


class AdvanceTicket(NamedTuple):
    """A ticket assigned in advance."""

    worker: int
    indices: range
    since: float  # time of assignment


class Gathering:
    """Tracks a call's progress through its plan.

    With `own_queues` each worker runs only its own indices. Only `concurrent` workers run copies. With `dropping` later
    indices replace dropped trajectories, or a UsageError is raised if the plan has none.
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
        # A waiting environment takes no time from others: where rows wait, the last tickets are small only when few
        # trajectories remain. Tickets with a trajectory a row would leave a fifth of 200 rows idle.
        self._parts = 1 if layout.block == 1 < layout.rows else 2
        self._shared_after = -1  # arrived trajectories at the last share; see `_last_share`
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
        self._n_assigned = 0  # arrived, dropped, in flight or held back; without copies
        self._considered: set[int] = set()  # workers with a ticket so far, or passed over as slow
        self.arrived_trajectories = self.arrived_timesteps = 0  # without dropped trajectories
        self.arrived_dropped = 0
        self.refuses_all = False  # whether the last refusal of `assign` holds for all workers
        self.late: list[int] = []  # workers overtaken by a copy of their ticket, until `measure_late`

    def assign(self, worker: int, *, ahead: bool = False, now: float = 0.0) -> Assignment | None:
        """Return the next ticket of `worker`, or None.

        A worker gets none if others finish everything sooner. A busy worker gets a ticket `ahead` only for lanes, or
        while plenty remains: near the end a waiting ticket is late, and may be surplus.
        """
        # Workers of a complete call are about to be stopped: lost or copied surplus is not run either.
        self.refuses_all = self.result.complete or (ahead and not self._has_plenty)
        if self.refuses_all:
            return None
        queue = self._queue_for(worker)
        in_lanes, unit = queue.block < self._unit, max(self._unit, queue.next_block)
        needed = self._n_needed(LANES_MARGIN if in_lanes else SAFETY_MARGIN)
        remaining = max(0, needed - self._n_assigned)
        slowness = self._slowness(worker)
        if in_lanes and 0 < remaining <= self._n_workers * self._unit:
            # Shares are estimates: if every worker were refused, no report would come, and none would ask again.
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
        # A stream's consumer with trajectories to read does not wait for a slow ticket.
        return self._may_copy and not self.result.complete and not (self._is_stream and self.result.has_spans)

    def assign_copy(self, worker: int, now: float = 0.0) -> Assignment | None:
        """Return a copy of a part of another worker's ticket; None if it pays neither here nor on slower workers."""
        queue = self._queue_for(worker)
        indices = self.copies.assign(worker, now, queue.block_of, self.result.end) if self.may_copy else None
        if not indices:
            return None
        self._considered.add(worker)
        return Assignment(indices, queue.block_of(indices))

    def run_lanes(self, worker: int) -> None:
        self.run_blocks(worker, longer=False)
        self._queue_for(worker).block, self._has_lanes = 1, self._unit > 1

    def run_blocks(self, worker: int, *, longer: bool) -> None:
        queue = self._queue_for(worker)
        queue.lengthens, queue.is_certain = queue.lengthens and longer, True

    def is_certain(self, worker: int) -> bool:
        """Return whether a worker's run mode is known; until then it gets indices of the first blocks."""
        return self._queue_for(worker).is_certain

    def block_of(self, worker: int, indices: range) -> int:
        return self._queue_for(worker).block_of(indices)

    def _last_share(self, worker: int, remaining: int, now: float) -> int:
        """Return a worker's share, by speed, of all trajectories still to run.

        With equal lengths, a single trajectory above whole rows takes as long as all rows: small remainders are left to
        others.
        """
        in_flight, everybody = self._in_flight, range(self._n_workers)
        if self._shared_after != self.arrived_trajectories:  # assigning does not change their number
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
        """Assign a lost ticket again, before new indices, unless a copy is in flight or has arrived."""
        for lost in self._in_flight.abandon(worker, indices, now)[0]:
            self._put_back(lost)
        self.copies.mark_idle(worker)

    def _put_back(self, indices: range) -> None:
        self._n_assigned -= len(indices)
        self._queue_of(indices).put_back(indices)

    def _queue_for(self, worker: int) -> IndexQueue:
        return self._queues[worker % len(self._queues)]

    def _queue_of(self, indices: range) -> IndexQueue:
        queues, index = self._queues, indices[0]
        # A worker's own queue is every n-th index of n queues, or its share of consecutive indices.
        own = queues[0].own
        return queues[index % len(queues) if own.step > 1 else (index - self._first) // len(own) % len(queues)]

    @property
    def _has_plenty(self) -> bool:
        """Whether free rows start a ticket at once, or enough remains for all workers."""
        if self._has_lanes:
            return True
        unit: int = max(self._unit, *map(_NEXT_BLOCK, self._queues))
        return self._n_needed(-SAFETY_MARGIN) - self._n_assigned > self._n_workers * unit

    def _slowness(self, worker: int) -> float:
        """Return a worker's duration relative to the average; 1 unless notably slower."""
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
            return range(0)  # the call is about to end, unless earlier trajectories in flight succeed
        return queue.take_new(size, min(self._first + needed, self.result.end))

    def _pass_over(self, worker: int) -> range:
        # Once a call: after some calls the worker is tried again.
        if worker not in self._considered:
            self._considered.add(worker)
            self.throughput.approach_average(worker)
        return range(0)

    def _is_better_idle(self, worker: int, size: int, remaining: int, now: float) -> bool:
        """Whether busy workers would finish everything before `worker` finishes `size` trajectories."""
        each = self.throughput.seconds_with(worker)
        if self._is_stream or self._never_idle or each is None:
            return False
        end = self._in_flight.expected_end_of_all(remaining, now)
        return end is not None and self._in_flight.expected_end(worker, now) + each * size > end

    def _n_needed(self, margin: float) -> int:
        """Estimate the call's trajectories if they fall short by `margin` standard deviations."""
        most = _FOREVER if self.plan.limit is None else self.plan.limit + self.arrived_dropped
        if self._is_stream:
            return min(most, self.result.n_popped + self._window())
        if self.plan.timesteps is None:
            return most
        mean = self.throughput.timesteps
        if mean is None and self.arrived_trajectories:
            mean = self.arrived_timesteps / self.arrived_trajectories
        if mean is None:
            # Lengths are unknown: assign a block to each worker to learn them. Each trajectory has at least 1 timestep;
            # dropped trajectories show none.
            return self.arrived_dropped + min(self._n_workers * self._unit, self.plan.timesteps)
        missing = self.plan.timesteps - self.arrived_timesteps
        # In flight, or held back as failures.
        under_way = self._n_assigned - self.arrived_trajectories - self.arrived_dropped
        return self._n_assigned + max(0, needed_for(missing, mean, margin * self.throughput.spread) - under_way)

    @property
    def n_in_flight(self) -> int:
        """Trajectories running now, with rows filled from all tickets."""
        under_way = self._n_assigned - self.arrived_trajectories - self.arrived_dropped
        return min(under_way, self._n_workers * self._unit)

    def _window(self) -> int:
        # How far workers run ahead of a stream's consumer: enough to stay busy, few enough to bound memory.
        return 4 * self._n_workers * max(self._unit, self.throughput.trajectories_in(TICKET_SECONDS, TICKET_BYTES))

    def receive(
        self, worker: int, indices: range, lengths: Sequence[int], report: int, now: float = 0.0,
        dropped: Sequence[Dropped] = (),
    ) -> bool:  # fmt: skip
        """Add a report's trajectories, with `lengths` except of those dropped; return False if copies came first."""
        if len(lengths) + len(dropped) != len(indices):
            raise ProtocolError(f"trajectories {indices} came with {len(lengths)} lengths and {len(dropped)} dropped")
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
            for more in self.result.pop_replacements():
                self._put_in(more)
        return True

    def measure_late(self, now: float) -> None:
        """Learn the speed of workers overtaken by a copy."""
        late, self.late = self.late, []
        for worker in late:
            self.copies.learn_from_late(worker, now)

    def _put_in(self, indices: range) -> None:
        for first in indices[: len(self._queues)]:
            own = range(first, indices.stop, len(self._queues))
            self._queue_of(own).put_back(own)

    def add_failure(
        self, worker: int, indices: range, trajectory: int | None, reason: Any, *, final: bool, now: float = 0.0,
    ) -> None:  # fmt: skip
        """Hold back a ticket's failure until its turn, and assign the rest of the ticket again.

        `trajectory` is None if unknown; then each block is assigned by itself. A `final` failure is never run again.
        """
        queue = self._queue_of(indices)
        size = queue.block_of(indices)
        if trajectory is None and len(indices) <= size:
            trajectory = indices[0]
        lost, copied = self._in_flight.abandon(worker, indices, now)
        self.copies.mark_idle(worker)
        for piece in lost:
            for block in queue.blocks_of(piece) if trajectory is None else _around(trajectory, piece, size):
                self._put_back(block)
        # A final failure counts at once, since a copy fails as well; any other is left to the copy.
        for piece in [*lost, *copied] if final else lost:
            if trajectory in piece:
                block = next(block for block in queue.blocks_of(piece) if trajectory in block)
                self.result.hold_failure(PendingFailure(block, reason, final))

    def retry(self, held: PendingFailure) -> None:
        self._put_back(held.indices)
        self.result.remove_failure(held)

    def sizes_in_advance(self, workers: Sequence[int], n_tickets: int) -> dict[int, int]:
        """Return the size of each ticket in advance, by worker."""
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
        """Return speeds relative to the fastest worker; 1 unless notably slower."""
        if not self._may_copy:  # no other worker runs its indices
            return dict.fromkeys(workers, 1.0)
        seconds = [self.throughput.seconds_with(worker) for worker in range(self._n_workers)]
        fastest = min((each for each in seconds if each is not None), default=0.0) or 1.0
        slowness = {worker: (seconds[worker] or fastest) / fastest for worker in workers}
        return {worker: 1 / each if each > NOTABLY_SLOWER else 1.0 for worker, each in slowness.items()}

    def _n_in_advance(self) -> int:
        return self._n_needed(LANES_MARGIN if self._has_lanes else SAFETY_MARGIN)

    def assign_in_advance(self, worker: int, size: int) -> Assignment | None:
        """Return a worker's next ticket; None when the expected call has enough."""
        queue = self._queue_for(worker)
        # Without assigned trajectories: the estimate is from the start.
        indices = queue.take_new(size, self._first + self._n_in_advance())
        return Assignment(indices, queue.block_of(indices)) if indices else None

    def adopt(self, given: Sequence[AdvanceTicket]) -> bool:
        """Adopt tickets assigned in advance; return False, without effect, if the plan would cut others."""
        may_extend = len(self._queues) == 1
        taken: dict[int, int] = {}  # indices by queue
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
