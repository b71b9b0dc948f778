"""Assign tickets of a call for several tasks, with a queue of indices for each section. Pure.

No task waits: workers take indices of the first unfinished section, then of the next, until early trajectories fill the
allowed memory. A task without a report gets tickets of a block, or of all rows. Copies are assigned while all tickets
in flight are of a single section, with comparable times.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from streamsampler.protocol.gathering import NOTABLY_SLOWER, Assignment, Gathering
from streamsampler.protocol.index_queue import IndexQueue
from streamsampler.protocol.plans import GatherPlan, Layout
from streamsampler.protocol.throughput import Throughput
from streamsampler.protocol.tickets import TICKET_BYTES, ticket_size

_TICKETS_AHEAD = 4
"""Tickets that each worker may run ahead of the consumer, counted in bytes of the largest or, if more, trajectories of
the smallest.
"""

_BYTES_OF_TRAJECTORY, _BYTES_OF_TIMESTEP = 2048, 64
"""Bytes of a trajectory and of a timestep besides observations."""


class TaskGathering(Gathering):
    """Tracks a call's progress through the sections of its plan.

    `throughputs`, by task number, include earlier calls; those of new tasks are added.
    """

    def __init__(
        self, plan: GatherPlan, throughputs: MutableMapping[int, Throughput], *, layout: Layout, **options: Any
    ) -> None:
        super().__init__(plan, layout=layout, **options)
        self._sections = plan.sections
        self._throughputs = [throughputs.setdefault(it.task.number, Throughput()) for it in plan.sections]
        self._queues = [
            IndexQueue(range(it.start, it.stop), layout.block, lengthens=layout.lengthens) for it in plan.sections
        ]
        self._taken = [0] * len(plan.sections)  # by section: indices assigned so far
        self._n_new = plan.limit or 0  # indices never assigned
        self._first_new = 0  # the first section with new indices
        self._returned: set[int] = set()  # sections with returned tickets

    def assign(self, worker: int, *, ahead: bool = False, now: float = 0.0) -> Assignment | None:
        """Return the next ticket of `worker`, or None; gaps in the result come first."""
        self.refuses_all = self.result.complete or (ahead and not self._has_plenty)
        indices = range(0) if self.refuses_all else self._take_lost(worker) or self._take_further(worker)
        if not indices:
            self.refuses_all = True
            return None
        self._n_assigned += len(indices)
        self._in_flight.track(worker, indices, now)
        return Assignment(indices, self._queue_of(indices).block_of(indices))

    @property
    def _has_plenty(self) -> bool:
        if self._first_new < len(self._queues) and self._runs_lanes(self._queues[self._first_new]):
            return True
        return self._n_new > self._n_workers * self._unit

    def _runs_lanes(self, queue: IndexQueue) -> bool:
        return queue.block < self._unit

    def _take_lost(self, worker: int) -> range:
        for number in sorted(self._returned):
            queue = self._queues[number]
            if indices := queue.take_returned(self._size(number, worker), self.result.end):
                return indices
            self._returned.discard(number)  # empty, or its indices are not needed
        return range(0)

    def _take_further(self, worker: int) -> range:
        """Assign new indices within the memory for running ahead."""
        room = self._room()
        for number in range(self._first_new, len(self._sections) if room > 0 else 0):
            section = self._sections[number]
            if section.start >= self.result.end:
                break
            queue = self._queues[number]
            unit = max(self._unit, queue.next_block)
            most = max(unit, int(room / self._bytes_of(number)) // unit * unit)
            if indices := queue.take_new(min(most, self._size(number, worker)), min(section.stop, self.result.end)):
                self._taken[number] += len(indices)
                self._n_new -= len(indices)
                while self._first_new < len(self._queues) and not self._n_left(self._first_new):
                    self._first_new += 1
                return indices
        return range(0)

    def _n_left(self, number: int) -> int:
        section = self._sections[number]
        return section.stop - section.start - self._taken[number]

    def _size(self, number: int, worker: int) -> int:
        queue, throughput = self._queues[number], self._throughputs[number]
        unit = max(self._unit, queue.next_block)
        if throughput.timesteps is None:
            return unit
        slowness = throughput.slowness(worker) if self._may_copy else 1.0
        return ticket_size(
            throughput, self._n_new, self._n_workers, slowness=slowness if slowness > NOTABLY_SLOWER else 1.0,
            unit=unit, rows=self._unit if self._runs_lanes(queue) else 0, shortest=self._shortest_ticket,
            parts=self._parts,
        )  # fmt: skip

    def _room(self) -> float:
        """Return the bytes left to run ahead of the consumer; above 0 while workers hold little."""
        n_popped, n_ahead, n_bytes = self.result.n_popped, 0, 0.0
        for number in range(self._sections.number_of(n_popped), len(self._sections)):
            taken = self._taken[number]
            if not taken and number >= self._first_new:
                break
            n = taken - max(0, n_popped - self._sections[number].start)
            n_ahead += n
            n_bytes += n * self._bytes_of(number)
        n_tickets = _TICKETS_AHEAD * self._n_workers
        return max(n_tickets * TICKET_BYTES - n_bytes, float(n_ahead < n_tickets * self._unit))

    def _bytes_of(self, number: int) -> float:
        throughput = self._throughputs[number]
        n_timesteps = throughput.timesteps or 1.0
        return throughput.n_bytes + _BYTES_OF_TRAJECTORY + _BYTES_OF_TIMESTEP * n_timesteps

    def _put_back(self, indices: range) -> None:
        super()._put_back(indices)
        self._returned.add(self._sections.number_of(indices[0]))

    def _queue_for(self, worker: int) -> IndexQueue:
        return self._queues[worker]

    def _queue_of(self, indices: range) -> IndexQueue:
        return self._queues[self._sections.number_of(indices[0])]

    def throughput_of(self, indices: range) -> Throughput:
        return self._throughputs[self._sections.number_of(indices[0])]

    @property
    def may_copy(self) -> bool:
        return super().may_copy and self._measures_one()

    def _measures_one(self) -> bool:
        """Return whether all tickets in flight are of a single task; if so, estimate by its throughput."""
        running = {self._sections.number_of(held[0]) for _, queue in self._in_flight.busy() for held in queue}
        if len(running) != 1:
            return False
        throughput = self._throughputs[running.pop()]
        if throughput is not self.throughput:
            self.throughput = throughput
            self._in_flight.measure_by(throughput)
            self.copies.measure_by(throughput)
        return True

    def assign_copy(self, worker: int, now: float = 0.0) -> Assignment | None:
        indices = self.copies.assign(worker, now, self._block_of, self.result.end) if self.may_copy else None
        return Assignment(indices, self._block_of(indices)) if indices else None

    def _block_of(self, indices: range) -> int:
        return self._queue_of(indices).block_of(indices)
