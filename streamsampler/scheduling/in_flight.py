"""Track tickets in flight, and pick one for an idle worker to run a second time. Pure.

An idle worker may run a *copy* of a ticket that another worker holds, as the backup tasks of MapReduce (Dean and
Ghemawat, 2004). A trajectory does not depend on the worker that runs it, so the first result is used. A copy costs CPU
time that a learner or another worker could use; so a ticket is copied only if its holder is expected to need notably
longer than the copy: it is slower, or the ticket waits for another one.
"""

from __future__ import annotations

import math

from streamsampler.errors import ProtocolError
from streamsampler.scheduling.throughput import Throughput

__all__ = ["WORTH_A_COPY", "InFlight"]

WORTH_A_COPY = 1.5
"""How many times longer than its copy a ticket must be expected to take. Noise in the averages of equally fast workers
stays below it."""

COPY_SECONDS = 0.001
"""What a copy costs besides its rollouts: a message, a worker that wakes up, and a report."""


class InFlight:
    """Track the tickets of one call that workers hold. Times are seconds of one monotonic clock.

    Args:
        n_workers: The number of workers.
        throughput: How fast they are.
    """

    def __init__(self, n_workers: int, throughput: Throughput) -> None:
        self._pace = throughput
        self._queues: list[list[range]] = [[] for _ in range(n_workers)]
        self._since = [0.0] * n_workers  # when each worker began the first ticket of its queue
        self._holders: dict[range, int] = {}
        self._done: set[range] = set()  # arrived, while a copy is still in flight
        self._last: tuple[float, range] | None = None
        self._fastest = math.inf  # seconds of a trajectory on the fastest worker without a ticket
        self._fresh = False  # whether these two are up to date

    def add(self, worker: int, indices: range, now: float) -> None:
        """Track a ticket, or a copy of one, that `worker` got."""
        queue = self._queues[worker]
        if not queue:
            self._since[worker] = now
        queue.append(indices)
        self._holders[indices] = self._holders.get(indices, 0) + 1
        self._fresh = False

    def left(self, worker: int, now: float) -> float:
        """Return how many of its trajectories `worker` is expected not to have run yet."""
        queue, each = self._queues[worker], self._pace.seconds_with(worker)
        n_held = sum(map(len, queue))
        return max(0.0, n_held - (now - self._since[worker]) / each) if queue and each else n_held

    def arrive(self, worker: int, indices: range, now: float) -> bool:
        """Remove a ticket that `worker` has run; return whether it is the first of its copies to arrive.

        Raises:
            ProtocolError: The worker does not hold the ticket.
        """
        others = self._remove(worker, indices, now)
        first = indices not in self._done
        if others:
            self._done.add(indices)
        else:
            self._done.discard(indices)
        return first

    def remove(self, worker: int, indices: range, now: float) -> bool:
        """Remove a ticket that `worker` will not run.

        Returns:
            Whether it must be assigned again: it has not arrived, and no other worker holds it.
        """
        others = self._remove(worker, indices, now)
        done = indices in self._done
        if not others:
            self._done.discard(indices)
        return not others and not done

    def _remove(self, worker: int, indices: range, now: float) -> int:
        queue = self._queues[worker]
        if indices not in queue:
            raise ProtocolError(f"worker {worker} does not hold trajectories {indices}, or ran them twice")
        if queue[0] == indices:
            self._since[worker] = now
        queue.remove(indices)
        others = self._holders.pop(indices) - 1
        if others:
            self._holders[indices] = others
        self._fresh = False
        return others

    def ticket_to_copy(self, worker: int, now: float) -> range | None:
        """Return the ticket that the idle `worker` should run a second time; None if that does not pay."""
        own = self._pace.seconds_with(worker)
        return None if own is None or self._queues[worker] else self._copy_that_pays(own, now)

    def copies_pay(self, now: float) -> bool:
        """Whether `ticket_to_copy` has a ticket for any idle worker."""
        self._find_last_to_end(now)
        return self._copy_that_pays(self._fastest, now) is not None

    def _copy_that_pays(self, each: float, now: float) -> range | None:
        """Return the ticket for a worker that takes `each` seconds for a trajectory."""
        self._find_last_to_end(now)
        if self._last is None:
            return None
        end, indices = self._last
        return indices if end - now > WORTH_A_COPY * (each * len(indices) + COPY_SECONDS) else None

    def _find_last_to_end(self, now: float) -> None:
        """Find the last of the tickets without a copy, when it is expected to end, and the fastest idle worker."""
        if self._fresh:
            return
        last: tuple[float, range] | None = None
        self._fastest = math.inf
        seconds = self._pace.seconds_by_worker()
        for worker, queue in enumerate(self._queues):
            each = seconds.get(worker)
            if each is None:
                continue
            if not queue:
                self._fastest = min(self._fastest, each)
                continue
            end = max(now, self._since[worker] + each * len(queue[0]))
            for position, indices in enumerate(queue):
                end += each * len(indices) if position else 0.0
                if self._holders[indices] == 1 and indices not in self._done and (last is None or end > last[0]):
                    last = end, indices
        self._last, self._fresh = last, True

    def expected_end(self, worker: int, now: float) -> float:
        """Return when `worker` is expected to finish its tickets; now if its speed is unknown."""
        queue, each = self._queues[worker], self._pace.seconds_with(worker)
        if not queue or each is None:
            return now
        return max(now, self._since[worker] + each * len(queue[0])) + each * sum(map(len, queue[1:]))

    def expected_end_of_others(self, worker: int, remaining: int, now: float) -> float | None:
        """Return when the other busy workers are expected to finish their tickets and `remaining` more trajectories.

        Returns:
            None if no other worker is busy, or the speed of one is unknown.
        """
        rate = owed = 0.0
        fastest = float("inf")
        for other, queue in enumerate(self._queues):
            if other == worker or not queue:
                continue
            each = self._pace.seconds_with(other)
            if not each:
                return None
            held = sum(map(len, queue)) - (now - self._since[other]) / each
            rate += 1 / each
            owed += max(0.0, held)
            fastest = min(fastest, each)
        return now + (owed + remaining) / rate + fastest if rate else None
