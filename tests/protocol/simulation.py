"""A call without processes: the real gathering, and workers that are two numbers each.

A discrete-event simulation: what is asked, when, and in what order is what `call.Call` does.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.plans import Layout
from streamsampler.protocol.states import CAPACITY
from streamsampler.protocol.tickets import Throughput


def take(gathering, worker, **options):
    """Return the indices alone of what a worker is to run, or None."""
    assignment = gathering.assign(worker, **options)
    return assignment and assignment.indices


def taken_by(gathering, worker):
    """Return all tickets that a worker gets until there is none for it."""
    tickets = []
    while (indices := take(gathering, worker)) is not None:
        tickets.append(indices)
    return tickets


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

    def call(self, plan, outcome=None):
        """Run one call, and add what it took to `outcome`."""
        call = self.begin(plan)
        self.n_calls += 1
        while not call.gathering.result.complete:
            call.next_report()
        if outcome is not None:
            call.add_to(outcome)
        return call.gathering.result

    def begin(self, plan):
        return _Call(self, plan)

    def calls_of(self, plan, n):
        """Run `n` calls after two that show how long trajectories are and how fast the workers."""
        for _ in range(2):
            self.call(plan)
        outcome = Outcome()
        for _ in range(n):
            self.call(plan, outcome)
        return outcome

    def share(self, outcome):
        """Return what is left of the timesteps that the workers could have run in that time."""
        return outcome.timesteps / outcome.seconds / sum(1 / speed for speed in self.speeds)


class _Call:
    def __init__(self, simulation, plan):
        self.simulation, self.number = simulation, simulation.n_calls
        n_workers = len(simulation.speeds)
        self.gathering = Gathering(
            plan, n_workers=n_workers, order=simulation.order, throughput=simulation.throughput,
            steps_of=self.steps_of if simulation.shows_steps else None,
        )  # fmt: skip
        self.queues = [[] for _ in range(n_workers)]
        self.began, self.ends, self.given = [0.0] * n_workers, [], set()
        self.now = self.busy = 0.0
        self.copies = 0
        self.feed()

    def lengths(self, indices):
        return [self.simulation.length(self.number, index) for index in indices]

    def seconds(self, worker, indices):
        efforts = [self.simulation.effort(self.number, index) for index in indices]
        return self.simulation.speeds[worker] * sum(a * b for a, b in zip(self.lengths(indices), efforts, strict=True))

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
        first = self.queues[worker][0]
        took = self.seconds(worker, first)
        return int(sum(self.lengths(first)) * min(1.0, max(0.0, self.now - self.began[worker]) / took))

    def next_report(self):
        assert self.ends, "all workers wait"
        while self.now < (look := self.gathering.next_look()) < self.ends[0][0]:
            self.now = look
            self.feed()
        self.now, worker = heapq.heappop(self.ends)
        indices = self.queues[worker].pop(0)
        lengths, took = self.lengths(indices), self.seconds(worker, indices)
        self.busy += took
        if self.queues[worker]:
            self.begin(worker, self.simulation.latency / 10)  # it need not be woken
        self.gathering.receive(worker, indices, lengths, worker, self.now)
        self.simulation.throughput.measure(lengths, took, worker)
        self.feed()

    def add_to(self, outcome):
        """Add a call that is complete; what is still under way is abandoned now."""
        under_way = [began for began, queue in zip(self.began, self.queues, strict=True) if queue]
        outcome.seconds += self.now
        outcome.timesteps += self.gathering.result.n_timesteps
        outcome.busy += self.busy + sum(max(0.0, self.now - began) for began in under_way)
        outcome.useful += sum(self.seconds(one.delivery, one.indices) for one in self.gathering.result.segments())
        outcome.copies += self.copies


# ---------------------------------------------------------------------- lanes


@dataclass
class LaneSimulation(Simulation):
    """Workers of `n_rows` rows that take `speeds[w]` times as long as others for a batched step.

    A step takes `cost[0]` seconds, and `cost[1]` for each row that is live.
    """

    n_rows: int = 8
    cost: tuple[float, float] = (0.0, 0.0)

    def begin(self, plan):
        return _LaneCall(self, plan)

    def share(self, outcome):
        """Return how fast the calls were next to a loop whose rows are always live, in each of the workers."""
        rate = self.n_rows / (self.cost[0] + self.n_rows * self.cost[1])
        return outcome.timesteps / outcome.seconds / (rate * sum(1 / speed for speed in self.speeds))


class _Rows:
    """A worker's rows; each takes the trajectories whose index belongs to it in turn."""

    def __init__(self, call, speed):
        self.length, self.n_rows, self.speed = call.length, call.simulation.n_rows, speed
        self.cost = call.simulation.cost
        self.tickets = deque()  # indices, and how many have not ended
        self.waiting = [deque() for _ in range(self.n_rows)]
        self.ends = []  # the step in which a trajectory ends, its row and ticket
        self.live = set()
        self.clock = self.reported = 0.0
        self.step = self.ran = self.answered = self.held = 0

    def seconds(self):
        return (self.cost[0] + self.cost[1] * len(self.live)) * self.speed

    def run(self, n):
        self.clock += n * self.seconds()
        self.step += n
        self.ran += n * len(self.live)

    def advance(self, now):
        """Run all steps that begin before `now`; no row ends in them but in the last one."""
        if self.live and now > self.clock:
            self.run(min(math.ceil((now - self.clock) / self.seconds()), self.ends[0][0] - self.step))

    def give(self, indices, now, latency):
        self.advance(now)
        if not self.live:
            self.clock = self.reported = now + latency
        self.held += 1
        self.tickets.append([indices, len(indices)])
        for index in indices:
            self.waiting[index // indices.step % self.n_rows].append((index, self.tickets[-1]))
        for row in set(range(self.n_rows)) - self.live:
            self.begin(row)

    def begin(self, row):
        if self.waiting[row]:
            index, ticket = self.waiting[row].popleft()
            self.live.add(row)
            heapq.heappush(self.ends, (self.step + self.length(index), row, ticket))

    def next_end(self):
        return self.clock + (self.ends[0][0] - self.step) * self.seconds() if self.ends else math.inf

    def end(self, latency):
        """Run to the next end of a trajectory; yield the tickets that are answered then."""
        self.run(self.ends[0][0] - self.step)
        while self.ends and self.ends[0][0] == self.step:
            _, row, ticket = heapq.heappop(self.ends)
            self.live.remove(row)
            ticket[1] -= 1
            self.begin(row)
        while self.tickets and not self.tickets[0][1]:
            self.clock += latency
            indices = self.tickets.popleft()[0]
            self.answered += sum(map(self.length, indices))
            yield indices, self.clock - self.reported
            self.reported = self.clock


class _LaneCall:
    def __init__(self, simulation, plan):
        self.simulation, self.number, n_workers = simulation, simulation.n_calls, len(simulation.speeds)
        layout = Layout(simulation.n_rows, simulation.n_rows)
        self.gathering = Gathering(
            plan, n_workers=n_workers, throughput=simulation.throughput, layout=layout, steps_of=self.steps_of
        )
        for worker in range(n_workers):
            self.gathering.run_lanes(worker)
        self.workers = [_Rows(self, speed) for speed in simulation.speeds]
        self.answers, self.given = [], set()
        self.now, self.copies, self.n_answers = 0.0, 0, itertools.count()
        self.feed()

    def length(self, index):
        return self.simulation.length(self.number, index)

    def steps_of(self, worker):
        rows = self.workers[worker]
        rows.advance(self.now)
        return rows.ran - rows.answered

    def feed(self):
        for ahead in (False, True):
            for worker, rows in enumerate(self.workers):
                while rows.held < CAPACITY and ahead == bool(rows.held):
                    if (indices := take(self.gathering, worker, ahead=ahead, now=self.now)) is None:
                        break
                    self.copies += not self.given.isdisjoint(indices)
                    self.given.update(indices)
                    rows.give(indices, self.now, self.simulation.latency)

    def next_report(self):
        first = min(range(len(self.workers)), key=lambda worker: self.workers[worker].next_end())
        while not self.answers or self.workers[first].next_end() <= self.answers[0][0]:
            for answer in self.workers[first].end(self.simulation.latency):
                heapq.heappush(self.answers, (self.workers[first].clock, next(self.n_answers), first, *answer))
            first = min(range(len(self.workers)), key=lambda worker: self.workers[worker].next_end())
        self.now, _, worker, indices, seconds = heapq.heappop(self.answers)
        self.workers[worker].held -= 1
        lengths = list(map(self.length, indices))
        self.gathering.receive(worker, indices, lengths, worker, self.now)
        self.simulation.throughput.measure(lengths, seconds, worker)
        self.feed()

    def add_to(self, outcome):
        """Add a call that is complete; the timesteps that were run stand for seconds of work."""
        outcome.seconds += self.now
        outcome.timesteps += self.gathering.result.n_timesteps
        outcome.useful += self.gathering.result.n_timesteps
        outcome.copies += self.copies
        for rows in self.workers:
            rows.advance(self.now)
            outcome.busy += rows.ran
