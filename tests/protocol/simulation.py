"""A call without processes: the real gathering, and workers that are two numbers each.

A discrete-event simulation: what is asked, when, and in what order is what `call.Call` does.
"""

import heapq
import operator
from collections.abc import Callable
from dataclasses import dataclass, field

from streamsampler.protocol.gathering import Assignment, Gathering
from streamsampler.protocol.states import CAPACITY
from streamsampler.protocol.throughput import Throughput


def assigned(gathering: Gathering, worker: int) -> Assignment:
    """Return what a worker is to run: there is something."""
    assignment = gathering.take(worker)
    assert assignment is not None
    return assignment


def take(gathering, worker, **options):
    """Return the indices alone of what a worker is to run, or None."""
    assignment = gathering.take(worker, **options)
    return assignment and assignment.indices


@dataclass
class Outcome:
    """What calls took and brought.

    Attributes:
        seconds: Wall time.
        timesteps: What was wanted.
        busy: Seconds that workers ran trajectories, summed.
        useful: Seconds of it for what was returned, run once.
        copies: Tickets that were handed out a second time.
    """

    seconds: float = 0.0
    timesteps: int = 0
    busy: float = 0.0
    useful: float = 0.0
    copies: int = 0

    def add(self, call):
        """Add a call that is complete; what is still under way is abandoned now."""
        under_way = [began for began, queue in zip(call.began, call.queues, strict=True) if queue]
        self.seconds += call.now
        self.timesteps += call.gathering.result.n_timesteps
        self.busy += call.busy + sum(max(0.0, call.now - began) for began in under_way)
        self.useful += sum(
            call.seconds(segment.delivery, segment.indices) for segment in call.gathering.result.segments()
        )
        self.copies += call.copies

    @property
    def waste(self):
        """What was run beside what was returned, as a share of that."""
        return self.busy / self.useful - 1


@dataclass
class Simulation:
    """Workers that take `speeds[w]` seconds for an average timestep.

    Trajectory `index` of call number `call` has `length(call, index)` timesteps, which take `effort(call, index)` times
    as long as on average. A worker that had nothing to do begins `latency` seconds after it was given a ticket.
    """

    speeds: list
    length: Callable[[int, int], int]
    effort: Callable[[int, int], float] = lambda call, index: 1.0
    latency: float = 0.0005
    order: str = "index"
    shows_steps: bool = True
    throughput: Throughput = field(default_factory=Throughput)
    n_calls: int = 0

    def call(self, plan, outcome):
        """Run one call, and add what it took to `outcome`."""
        call = _Call(self, plan)
        self.n_calls += 1
        while not call.gathering.result.complete:
            call.next_report()
        outcome.add(call)
        return call.gathering

    def calls_of(self, plan, n):
        """Run `n` calls after two that show how long trajectories are and how fast the workers."""
        for _ in range(2):
            self.call(plan, Outcome())
        outcome = Outcome()
        for _ in range(n):
            self.call(plan, outcome)
        return outcome


class _Call:
    def __init__(self, simulation, plan):
        self.simulation, self.number = simulation, simulation.n_calls
        n_workers = len(simulation.speeds)
        self.gathering = Gathering(
            plan, n_workers=n_workers, order=simulation.order, throughput=simulation.throughput,
            steps_of=self.steps_of if simulation.shows_steps else None,
        )  # fmt: skip
        self.queues = [[] for _ in range(n_workers)]
        self.began = [0.0] * n_workers
        self.ends = []
        self.now = self.busy = 0.0
        self.given, self.copies, self.looks = set(), 0, 0
        self.feed()

    def lengths(self, indices):
        return [self.simulation.length(self.number, index) for index in indices]

    def seconds(self, worker, indices):
        efforts = [self.simulation.effort(self.number, index) for index in indices]
        return self.simulation.speeds[worker] * sum(map(operator.mul, self.lengths(indices), efforts))

    def begin(self, worker, latency):
        self.began[worker] = self.now + latency
        heapq.heappush(self.ends, (self.began[worker] + self.seconds(worker, self.queues[worker][0]), worker))

    def feed(self):
        for ahead in (False, True):
            for worker, queue in enumerate(self.queues):
                if len(queue) < CAPACITY and ahead == bool(queue):
                    self.hand(worker, ahead)

    def hand(self, worker, ahead):
        indices = take(self.gathering, worker, ahead=ahead, now=self.now)
        if indices is not None:
            self.copies += not self.given.isdisjoint(indices)
            self.given.update(indices)
            self.queues[worker].append(indices)
            if not ahead:
                self.begin(worker, self.simulation.latency)

    def steps_of(self, worker):
        queue = self.queues[worker]
        took = self.seconds(worker, queue[0])
        return int(sum(self.lengths(queue[0])) * min(1.0, max(0.0, self.now - self.began[worker]) / took))

    def next_report(self):
        assert self.ends, "everybody waits"
        while self.now < (look := self.gathering.next_look()) < self.ends[0][0]:
            self.now = look
            self.looks += 1
            self.feed()
        self.now, worker = heapq.heappop(self.ends)
        indices = self.queues[worker].pop(0)
        lengths, took = self.lengths(indices), self.seconds(worker, indices)
        self.busy += took
        if self.queues[worker]:
            self.begin(worker, self.simulation.latency / 10)  # it need not be woken
        self.gathering.add(worker, indices, lengths, worker, self.now)
        self.simulation.throughput.add(lengths, took, worker)
        self.feed()
