"""A call without processes: the real gathering, and workers that are a few numbers each.

A discrete-event simulation: what is asked, when, and in what order is what `call.Call` does.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.plans import Layout
from streamsampler.protocol.states import CAPACITY
from streamsampler.protocol.throughput import Throughput


def take(gathering, worker, **options):
    """Return the indices alone of what a worker is to run, or None."""
    assignment = gathering.take(worker, **options)
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
        busy: What workers ran, in seconds of one row.
        useful: What of it was returned, run once.
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
    """Workers that step `n_rows` environments at once, in `speeds[w] * (costs[0] + costs[1] * live rows)` seconds.

    Trajectory `index` of call number `call` has `length(call, index)` timesteps, which take `effort(call, index)` times
    as long as on average. A worker that had nothing to do begins `latency` seconds after it was given a ticket.
    """

    speeds: list
    length: Callable[[int, int], int]
    effort: Callable[[int, int], float] = lambda call, index: 1.0
    n_rows: int = 1
    costs: tuple = (0.0, 1.0)
    latency: float = 0.0005
    report: float = 0.00005
    order: str = "index"
    shows_steps: bool = True
    throughput: Throughput = field(default_factory=Throughput)
    n_calls: int = 0

    def call(self, plan, outcome=None):
        """Run one call, and add what it took to `outcome`."""
        call = _Call(self, plan)
        self.n_calls += 1
        while not call.gathering.result.complete:
            call.next_event()
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
        """Return how fast calls were beside workers whose rows are always live."""
        each = self.costs[0] + self.n_rows * self.costs[1]
        return outcome.timesteps / outcome.seconds / sum(self.n_rows / (each * speed) for speed in self.speeds)


class _Worker:
    def __init__(self, call, number):
        self.call, self.number, self.simulation = call, number, call.simulation
        self.speed, self.n_rows = self.simulation.speeds[number], self.simulation.n_rows
        self.tickets = deque()  # [indices, how many have not ended]
        self.waiting = [deque() for _ in range(self.n_rows)]
        self.ends = []  # (what the worker has done when it ends, row, ticket)
        self.clock = self.reported = self.done = self.ran = self.answered = 0.0

    def step_seconds(self):
        return (self.simulation.costs[0] + self.simulation.costs[1] * len(self.ends)) * self.speed

    def advance(self, now):
        """Go on until `now`, or until the next trajectory ends."""
        if self.ends and now > self.clock:
            self.run(min((now - self.clock) / self.step_seconds(), self.ends[0][0] - self.done))

    def run(self, steps):
        self.clock += steps * self.step_seconds()
        self.done += steps
        self.ran += steps * len(self.ends)

    def give(self, indices, now):
        if self.ends:
            self.advance(now)
        else:
            self.clock = self.reported = max(self.clock, now + self.simulation.latency)
        ticket = [indices, len(indices)]
        self.tickets.append(ticket)
        for index in indices:
            self.waiting[index // indices.step % self.n_rows].append((index, ticket))
        busy = {row for _, row, _ in self.ends}
        for row in range(self.n_rows):
            if row not in busy:
                self.begin(row)

    def begin(self, row):
        if self.waiting[row]:
            index, ticket = self.waiting[row].popleft()
            heapq.heappush(self.ends, (self.done + self.call.effort_of([index]), row, ticket))

    def next_end(self):
        return self.clock + (self.ends[0][0] - self.done) * self.step_seconds()

    def end(self):
        """Run to the next end of a trajectory; return the tickets that are answered then, and their seconds."""
        self.run(self.ends[0][0] - self.done)
        ended = []
        while self.ends and self.ends[0][0] <= self.done + 1e-9:
            _, row, ticket = heapq.heappop(self.ends)
            ticket[1] -= 1
            ended.append(row)
        for row in ended:
            self.begin(row)
        answered = []
        while self.tickets and not self.tickets[0][1]:
            self.clock += self.simulation.report
            answered.append((self.tickets.popleft()[0], self.clock - self.reported))
            self.answered += self.call.effort_of(answered[-1][0])
            self.reported = self.clock
        return answered


class _Call:
    def __init__(self, simulation, plan):
        self.simulation, self.number = simulation, simulation.n_calls
        n_workers, n_rows = len(simulation.speeds), simulation.n_rows
        self.gathering = Gathering(
            plan, n_workers=n_workers, order=simulation.order, throughput=simulation.throughput,
            layout=Layout(n_rows, n_rows), steps_of=self.steps_of if simulation.shows_steps else None,
        )  # fmt: skip
        for worker in range(n_workers if n_rows > 1 else 0):
            self.gathering.run_lanes(worker)
        self.workers = [_Worker(self, number) for number in range(n_workers)]
        self.held = [0] * n_workers
        self.answers = []  # (time, serial, worker, indices, seconds)
        self.serial = self.copies = 0
        self.given = set()
        self.now = 0.0
        self.feed()

    def steps_of(self, number):
        worker = self.workers[number]
        worker.advance(self.now)
        return int(worker.ran - worker.answered)

    def effort_of(self, indices):
        simulation = self.simulation
        return sum(simulation.length(self.number, i) * simulation.effort(self.number, i) for i in indices)

    def feed(self):
        for ahead in (False, True):
            for number in range(len(self.workers)):
                if self.held[number] < CAPACITY and ahead == bool(self.held[number]):
                    self.hand(number, ahead)

    def hand(self, number, ahead):
        indices = take(self.gathering, number, ahead=ahead, now=self.now)
        if indices is not None:
            self.copies += not self.given.isdisjoint(indices)
            self.given.update(indices)
            self.held[number] += 1
            self.workers[number].give(indices, self.now)

    def next_event(self):
        first = min((worker for worker in self.workers if worker.ends), key=_Worker.next_end, default=None)
        end = first.next_end() if first else float("inf")
        if self.now < (look := self.gathering.next_look()) < min([end, *(answer[0] for answer in self.answers[:1])]):
            self.now = look
            self.feed()
            return
        if first is not None and (not self.answers or end < self.answers[0][0]):
            for indices, seconds in first.end():
                self.serial += 1
                heapq.heappush(self.answers, (first.clock, self.serial, first.number, indices, seconds))
            return
        assert self.answers, "all workers wait"
        self.now, _, number, indices, seconds = heapq.heappop(self.answers)
        self.held[number] -= 1
        lengths = [self.simulation.length(self.number, index) for index in indices]
        self.gathering.add(number, indices, lengths, number, self.now)
        self.simulation.throughput.add(lengths, seconds, number)
        self.feed()

    def add_to(self, outcome):
        """Add a call that is complete; what is still under way is abandoned now."""
        outcome.seconds += self.now
        outcome.timesteps += self.gathering.result.n_timesteps
        outcome.copies += self.copies
        for worker in self.workers:
            worker.advance(self.now)
            outcome.busy += worker.ran * worker.speed
        outcome.useful += sum(
            self.effort_of(segment.indices) * self.simulation.speeds[segment.delivery]
            for segment in self.gathering.result.segments()
        )
