"""Workers that run lanes, in the simulation: each batched step takes as long as the rows that are live make it."""

import heapq
from collections import deque
from dataclasses import dataclass, field

from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.plans import Layout
from streamsampler.protocol.states import CAPACITY
from streamsampler.protocol.throughput import Throughput
from tests.protocol.simulation import Outcome


@dataclass
class Costs:
    """Seconds.

    Attributes:
        call: Of a batched step, however many rows are live.
        row: Of each live row in it.
        report: Of a report, in the worker.
        latency: From a ticket's being handed out until an idle worker begins it.
    """

    call: float
    row: float
    report: float = 0.0002
    latency: float = 0.0002


@dataclass
class LaneSimulation:
    """Workers of `n_rows` rows. Trajectory `index` of call `call` has `length(call, index)` timesteps."""

    n_workers: int
    n_rows: int
    length: object
    costs: Costs
    capacity: int = CAPACITY
    slowness: dict = field(default_factory=dict)
    order: str = "index"
    throughput: Throughput = field(default_factory=Throughput)
    n_calls: int = 0

    def call(self, plan, outcome=None):
        """Run one call, and add what it took to `outcome`."""
        call = _LaneCall(self, plan)
        self.n_calls += 1
        while not call.gathering.result.complete:
            call.next_event()
        if outcome is not None:
            outcome.seconds += call.now
            outcome.timesteps += call.gathering.result.n_timesteps
            outcome.copies += call.copies
            for worker in call.workers:
                worker.advance(call.now)
                outcome.busy += worker.ran
            outcome.useful += call.gathering.result.n_timesteps
        return call

    def calls_of(self, plan, n):
        """Run `n` calls after two that show how long trajectories are."""
        for _ in range(2):
            self.call(plan)
        outcome = Outcome()
        for _ in range(n):
            self.call(plan, outcome)
        return outcome

    def share(self, outcome):
        """How fast the calls were beside a loop whose rows are always live, in each of the workers."""
        each = self.costs.call + self.n_rows * self.costs.row
        rate = sum(self.n_rows / (each * self.slowness.get(worker, 1.0)) for worker in range(self.n_workers))
        return outcome.timesteps / outcome.seconds / rate


class _LaneWorker:
    def __init__(self, call, number):
        self.call, self.number = call, number
        simulation = call.simulation
        self.costs, self.n_rows = simulation.costs, simulation.n_rows
        self.slowness = simulation.slowness.get(number, 1.0)
        self.tickets = deque()  # [indices, how many have not ended]
        self.waiting = [deque() for _ in range(self.n_rows)]
        self.ends = []  # (the step in which it ends, row, ticket)
        self.live = set()
        self.clock = self.reported = 0.0
        self.step = self.ran = self.answered = 0

    def step_seconds(self):
        return (self.costs.call + self.costs.row * len(self.live)) * self.slowness

    def advance(self, now):
        """Run all steps that begin before `now`; no row ends in them but in the last one."""
        if self.live and now > self.clock:
            n = min(-int(-(now - self.clock) // self.step_seconds()), self.ends[0][0] - self.step)
            self.run(n)

    def run(self, n):
        self.clock += n * self.step_seconds()
        self.step += n
        self.ran += n * len(self.live)

    def give(self, indices, now):
        if self.live:
            self.advance(now)
        else:
            self.clock = self.reported = now + self.costs.latency * self.slowness
        ticket = [indices, len(indices)]
        self.tickets.append(ticket)
        for index in indices:
            self.waiting[index // indices.step % self.n_rows].append((index, ticket))
        for row in range(self.n_rows):
            if row not in self.live:
                self.begin(row)

    def begin(self, row):
        if self.waiting[row]:
            index, ticket = self.waiting[row].popleft()
            self.live.add(row)
            heapq.heappush(self.ends, (self.step + self.call.length(index), row, ticket))

    def next_end(self):
        return self.clock + (self.ends[0][0] - self.step) * self.step_seconds() if self.ends else None

    def end(self):
        """Run to the next end of a trajectory; return the tickets that are answered then, and their seconds."""
        self.run(self.ends[0][0] - self.step)
        while self.ends and self.ends[0][0] == self.step:
            _, row, ticket = heapq.heappop(self.ends)
            self.live.remove(row)
            ticket[1] -= 1
            self.begin(row)
        answered = []
        while self.tickets and not self.tickets[0][1]:
            self.clock += self.costs.report * self.slowness
            answered.append((self.tickets.popleft()[0], self.clock - self.reported))
            self.answered += sum(map(self.call.length, answered[-1][0]))
            self.reported = self.clock
        return answered


class _LaneCall:
    def __init__(self, simulation, plan):
        self.simulation, self.number = simulation, simulation.n_calls
        n_workers = simulation.n_workers
        self.gathering = Gathering(
            plan, n_workers=n_workers, order=simulation.order, throughput=simulation.throughput,
            layout=Layout(simulation.n_rows, simulation.n_rows), steps_of=self.steps_of,
        )  # fmt: skip
        for worker in range(n_workers):
            self.gathering.run_lanes(worker)
        self.workers = [_LaneWorker(self, number) for number in range(n_workers)]
        self.held = [0] * n_workers
        self.answers = []  # (time, serial, worker, indices, seconds)
        self.serial = self.copies = 0
        self.given = set()
        self.now = 0.0
        self.feed()

    def steps_of(self, number):
        worker = self.workers[number]
        worker.advance(self.now)
        return worker.ran - worker.answered

    def length(self, index):
        return self.simulation.length(self.number, index)

    def feed(self):
        for ahead in (False, True):
            for number in range(len(self.workers)):
                while self.held[number] < self.simulation.capacity and ahead == bool(self.held[number]):
                    assignment = self.gathering.take(number, ahead=ahead, now=self.now)
                    if assignment is None:
                        break
                    indices = assignment.indices
                    self.copies += not self.given.isdisjoint(indices)
                    self.given.update(indices)
                    self.held[number] += 1
                    self.workers[number].give(indices, self.now)

    def next_event(self):
        ends = [(end, worker) for worker in self.workers if (end := worker.next_end()) is not None]
        first = min(ends, key=lambda pair: pair[0], default=None)
        if first is not None and (not self.answers or first[0] < self.answers[0][0]):
            for indices, seconds in first[1].end():
                self.serial += 1
                heapq.heappush(self.answers, (first[1].clock, self.serial, first[1].number, indices, seconds))
            return
        assert self.answers, "everybody waits"
        self.now, _, number, indices, seconds = heapq.heappop(self.answers)
        self.held[number] -= 1
        lengths = [self.length(index) for index in indices]
        self.gathering.add(number, indices, lengths, number, self.now)
        self.simulation.throughput.add(lengths, seconds, number)
        self.feed()
