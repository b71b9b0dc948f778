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
from streamsampler.protocol.throughput import Throughput


def take(gathering, worker, **options):
    """Return the indices alone of what a worker is to run, or None."""
    assignment = asked(gathering, worker, **options)
    return assignment and assignment.indices


def asked(gathering, worker, *, ahead=False, now=0.0):
    """Return the ticket that a worker runs next, which for an idle one may be a copy, or None."""
    return gathering.assign(worker, ahead=ahead, now=now) or (None if ahead else gathering.assign_copy(worker, now))


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
    """Workers that take `speeds[w]` seconds, or times as long, for a batched step, which may be of one row.

    A step takes `cost[0]`, and `cost[1]` for each row that is live. Trajectory `index` of call number `call` has
    `length(call, index)` timesteps, whose row takes `effort(call, index)` times as long as on average. A worker that
    had nothing to do begins `latency` seconds after it was given a ticket; a report takes `report` seconds.
    """

    speeds: list
    length: Callable[[int, int], int]
    effort: Callable[[int, int], float] = lambda call, index: 1.0
    latency: float = 0.0005
    report: float = 0.00001
    order: str = "index"
    shows_steps: bool = True
    n_rows: int = 1
    cost: tuple[float, float] = (0.0, 1.0)
    throughput: Throughput = field(default_factory=Throughput)
    n_calls: int = 0

    def call(self, plan, outcome=None):
        """Run one call, and add what it took to `outcome`."""
        call = _Call(self, plan)
        self.n_calls += 1
        while not call.gathering.result.complete:
            call.next_report()
        if outcome is not None:
            call.add_to(outcome)
        return call.gathering.result

    def calls_of(self, plan, n):
        """Run `n` calls after two that show how long trajectories are and how fast the workers."""
        for _ in range(2):
            self.call(plan)
        outcome = Outcome()
        for _ in range(n):
            self.call(plan, outcome)
        return outcome

    def share(self, outcome):
        """Return how fast the calls were next to a loop whose rows are always live, in each of the workers."""
        rate = self.n_rows / (self.cost[0] + self.n_rows * self.cost[1])
        return outcome.timesteps / outcome.seconds / (rate * sum(1 / speed for speed in self.speeds))


class _Worker:
    """Runs each trajectory in the row that its index belongs to."""

    def __init__(self, call, speed):
        self.call, self.speed, self.n_rows = call, speed, call.simulation.n_rows
        self.tickets = deque()  # indices, and how many have not ended
        self.waiting = [deque() for _ in range(self.n_rows)]
        self.ends = []  # the step in which a trajectory ends, its row and ticket
        self.live = {}  # the effort of each row that has a trajectory
        self.clock = self.reported = self.busy = 0.0
        self.step = self.ran = self.answered = self.held = 0

    def seconds(self):
        of_step, of_row = self.call.simulation.cost
        return (of_step + of_row * sum(self.live.values())) * self.speed

    def run(self, n):
        self.clock += n * self.seconds()
        self.step += n
        self.ran += n * len(self.live)
        self.busy += n * sum(self.live.values()) * self.speed

    def advance(self, now):
        """Run all steps that begin before `now`; no row ends in them but in the last one."""
        if self.live and now > self.clock:
            self.run(min(math.ceil((now - self.clock) / self.seconds()), self.ends[0][0] - self.step))

    def give(self, indices, now):
        self.advance(now)
        if not self.live:
            self.clock = self.reported = now + self.call.simulation.latency
        self.held += 1
        self.tickets.append([indices, len(indices)])
        for index in indices:
            self.waiting[index // indices.step % self.n_rows].append((index, self.tickets[-1]))
        for row in set(range(self.n_rows)) - self.live.keys():
            self.begin(row)

    def begin(self, row):
        if self.waiting[row]:
            index, ticket = self.waiting[row].popleft()
            self.live[row] = self.call.simulation.effort(self.call.number, index)
            heapq.heappush(self.ends, (self.step + self.call.length(index), row, ticket))

    def next_end(self):
        return self.clock + (self.ends[0][0] - self.step) * self.seconds() if self.ends else math.inf

    def end(self):
        """Run to the next end of a trajectory; yield the tickets that are answered then."""
        self.run(self.ends[0][0] - self.step)
        while self.ends and self.ends[0][0] == self.step:
            _, row, ticket = heapq.heappop(self.ends)
            del self.live[row]
            ticket[1] -= 1
            self.begin(row)
        while self.tickets and not self.tickets[0][1]:
            self.clock += self.call.simulation.report
            indices = self.tickets.popleft()[0]
            self.answered += sum(map(self.call.length, indices))
            yield indices, self.clock - self.reported
            self.reported = self.clock


class _Call:
    def __init__(self, simulation, plan):
        self.simulation, self.number, n_workers = simulation, simulation.n_calls, len(simulation.speeds)
        self.gathering = Gathering(
            plan, n_workers=n_workers, order=simulation.order, throughput=simulation.throughput,
            layout=Layout(simulation.n_rows, simulation.n_rows),
            steps_of=self.steps_of if simulation.shows_steps else None,
        )  # fmt: skip
        for worker in range(n_workers):
            self.gathering.run_lanes(worker)
        self.workers = [_Worker(self, speed) for speed in simulation.speeds]
        self.answers, self.given = [], set()
        self.now, self.copies, self.n_answers = 0.0, 0, itertools.count()
        self.feed()

    def length(self, index):
        return self.simulation.length(self.number, index)

    def steps_of(self, number):
        worker = self.workers[number]
        worker.advance(self.now)
        return worker.ran - worker.answered

    def feed(self):
        for ahead in (False, True):
            for number, worker in enumerate(self.workers):
                while worker.held < CAPACITY and ahead == bool(worker.held):
                    if (indices := take(self.gathering, number, ahead=ahead, now=self.now)) is None:
                        break
                    self.copies += not self.given.isdisjoint(indices)
                    self.given.update(indices)
                    worker.give(indices, self.now)

    def next_report(self):
        while True:
            number = min(range(len(self.workers)), key=lambda number: self.workers[number].next_end())
            first = self.workers[number]
            following = min(first.next_end(), self.answers[0][0] if self.answers else math.inf)
            assert following < math.inf, "all workers wait"
            if self.now < (look := self.gathering.copies.ask_again_at) < following:
                self.now = look
                self.feed()
            elif self.answers and self.answers[0][0] < first.next_end():
                break
            else:
                for answer in first.end():
                    heapq.heappush(self.answers, (first.clock, next(self.n_answers), number, *answer))
        self.now, _, number, indices, seconds = heapq.heappop(self.answers)
        self.workers[number].held -= 1
        lengths = list(map(self.length, indices))
        self.gathering.receive(number, indices, lengths, number, self.now)
        self.gathering.measure_late(self.now)
        self.simulation.throughput.measure(lengths, seconds, number)
        self.feed()

    def add_to(self, outcome):
        """Add a call that is complete; what is still under way is abandoned now."""
        outcome.seconds += self.now
        outcome.timesteps += self.gathering.result.n_timesteps
        outcome.copies += self.copies
        for worker in self.workers:
            worker.advance(self.now)
            outcome.busy += worker.busy
        for span in self.gathering.result.spans():
            work = sum(self.length(index) * self.simulation.effort(self.number, index) for index in span.indices)
            outcome.useful += work * self.simulation.speeds[span.report]
