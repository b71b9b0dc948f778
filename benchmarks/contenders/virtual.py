"""Run this library's sampler with any number of simulated workers, in virtual time.

The sampler is the real one: gathering, tickets, the protocol, supervision and batches. Workers are a few numbers each:
they hand in trajectories whose lengths and times were measured (see `benchmarks.problems.measured`) when a virtual
clock says that a real worker would have. Some die, and some hang. There are no pipes and no processes, so that ten
thousand workers fit into one process; what pipes cost the sampler's process is charged to the virtual clock.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import Any

from benchmarks.problems.measured import SPACES, Distribution, Replayed, chosen
from streamsampler import Limits, Sampler, TrajectoryBatch
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.core.serialization import loads
from streamsampler.core.times import Times
from streamsampler.engines.base import Answered, Died, Engine, Event
from streamsampler.protocol.messages import Exit, Message, Phase, Report, Start, Stop, Ticket
from streamsampler.protocol.progress import Progress
from streamsampler.workers.board import StatusBoard, board_bytes
from streamsampler.workers.factory import WorkerSetup
from streamsampler.workers.resets import Resets

__all__ = ["Costs", "VirtualSampler"]

_LATENCY = 1e-4  # seconds from a message to a worker that waits for it
_DEATH = 0.01  # seconds from a signal to the end of a process
_NO_RESETS = Resets()


@dataclass(frozen=True)
class Costs:
    """What occupies the sampler's process, and losses.

    Attributes:
        report: Seconds for a report.
        start: Seconds for each worker in each call: the message that begins an agent version.
        restart: Seconds for a worker that takes the place of a lost one.
        ready: Seconds until that worker can run trajectories.
        losses: By how many workers each worker is replaced in an hour, on average. Half of them hang before.
        step_timeout: Seconds after which a worker counts as hung.
    """

    report: float = 0.0
    start: float = 0.0
    restart: float = 0.0
    ready: float = 0.5
    losses: float = 0.0
    step_timeout: float | None = None


class _Worker:
    """One worker, from its start to its death."""

    __slots__ = ("alive", "began", "has_sent", "hung", "in_hand", "ready_at", "resets", "tickets", "version")

    def __init__(self, ready_at: float) -> None:
        self.tickets: deque[Ticket] = deque()
        self.resets = _NO_RESETS
        self.in_hand: Any = None  # the seeds and the lengths of the ticket that runs
        self.version = 0
        self.ready_at = ready_at
        self.began = 0.0
        self.alive, self.hung, self.has_sent = True, False, False


class VirtualEngine(Engine):
    """Workers that are a few numbers each.

    Args:
        setup: How many workers, and the seed.
        distribution: Which trajectories they run.
        costs: What occupies the sampler.

    Attributes:
        now: The virtual time in seconds.
        busy: For how much of it the sampler's process was occupied.
        elsewhere: Seconds of CPU that the simulation itself took.
        deaths: How many workers ended.
    """

    def __init__(self, setup: WorkerSetup, distribution: Distribution, costs: Costs) -> None:
        self.n_workers = setup.n_workers
        self.now = self.busy = self.elsewhere = 0.0
        self.deaths = 0
        self.clock = lambda: self.now
        self.board = StatusBoard(memoryview(bytearray(board_bytes(self.n_workers))))
        self._seed, self._distribution, self._costs = setup.seed, distribution, costs
        self._random = random.Random(setup.seed)
        self._derived: tuple[int, TrajectorySeeds] | None = None
        self._n_pushed = 0
        # Time, number, worker, and what is due: a ticket that ends, the report of one that was given up, "loss" or
        # "end".
        self._due: list[tuple[float, int, int, _Worker, Ticket | Report | str]] = []
        self._workers = [self._new_worker(worker, 0.0) for worker in range(self.n_workers)]

    def _new_worker(self, number: int, ready_at: float) -> _Worker:
        worker = _Worker(ready_at)
        if self._costs.losses:
            self._push(ready_at + self._random.expovariate(self._costs.losses / 3600), number, worker, "loss")
        return worker

    def _push(self, time: float, number: int, worker: _Worker, what: Ticket | Report | str) -> None:
        self._n_pushed += 1
        heapq.heappush(self._due, (time, self._n_pushed, number, worker, what))

    def _occupy(self, seconds: float) -> None:
        self.now += seconds
        self.busy += seconds

    # ------------------------------------------------------------------ the sampler's calls

    def send(self, worker: int, message: Message) -> None:
        """Hand a message to a worker."""
        began, one = process_time(), self._workers[worker]
        if one.alive and not isinstance(message, Exit):
            if isinstance(message, Stop):
                self._give_up(worker, one)
            else:
                if isinstance(message, Start):
                    self._start(worker, one, message)
                was_idle = not one.tickets
                one.tickets.extend(message.tickets)
                if was_idle:
                    self._begin(worker, one, self.now + _LATENCY)
        self.elsewhere += process_time() - began

    def _start(self, number: int, worker: _Worker, message: Start) -> None:
        self.board.lower_flag(number)
        self._occupy(self._costs.start)
        worker.version = message.version
        worker.resets = _NO_RESETS if message.resets is None else loads(message.resets)

    def _seeds(self, worker: _Worker, ticket: Ticket) -> list[int]:
        if self._derived is None or self._derived[0] != ticket.version:
            self._derived = ticket.version, TrajectorySeeds(self._seed, ticket.version)
        return worker.resets.seeds_of(self._derived[1], ticket.indices)

    def _begin(self, number: int, worker: _Worker, earliest: float) -> None:
        worker.began = max(earliest, worker.ready_at)
        ticket = worker.tickets[0]
        if not worker.hung:
            seeds = self._seeds(worker, ticket)
            lengths = self._distribution.lengths_of(seeds)
            worker.in_hand = seeds, lengths
            seconds = float(self._distribution.seconds_of(seeds, lengths).sum())
            self._push(worker.began + seconds, number, worker, ticket)

    def _give_up(self, number: int, worker: _Worker) -> None:
        abandoned, worker.tickets = worker.tickets, deque()
        for ticket in abandoned:
            self._push(self.now + _LATENCY, number, worker, Report(ticket, abandoned=True))

    def wait(self, timeout: float | None) -> list[Event]:
        """Return what is due; let the virtual time pass until something is."""
        began = process_time()
        limit = float("inf") if timeout is None else self.now + timeout
        events: list[Event] = []
        while not events:
            end = self._due[0][0] if self._due else float("inf")
            if end > self.now and end > limit:
                assert limit < float("inf"), "nothing is due, and no limit is set: the sampler would wait for ever"
                self.now = max(self.now, limit)
                break
            self.now = max(self.now, end)
            while self._due and self._due[0][0] <= self.now:
                due, _, number, worker, what = heapq.heappop(self._due)
                if worker is self._workers[number] and worker.alive:
                    events += self._event(number, worker, what, due)
        self._occupy(self._costs.report * sum(isinstance(event, Answered) for event in events))
        self.elsewhere += process_time() - began
        return events

    def _event(self, number: int, worker: _Worker, what: Ticket | Report | str, due: float) -> list[Event]:
        if what == "loss" and self._random.random() < 0.5:
            worker.hung = True
            return []
        if what in ("loss", "end"):
            worker.alive = False
            self.deaths += 1
            return [Died(number, -9)]
        if worker.hung:
            return []
        if isinstance(what, Report):
            return [Answered(number, what)]
        if not worker.tickets or worker.tickets[0] is not what:
            return []  # it was given up
        return [self._report(number, worker, due)]

    def _report(self, number: int, worker: _Worker, due: float) -> Answered:
        # Where the report waits for the sampler, the worker does not: it began its next ticket when it was due.
        ticket = worker.tickets.popleft()
        rollouts = self._distribution.rollouts(*worker.in_hand)
        report = Report(
            ticket,
            n_trajectories=rollouts.n_trajectories,
            n_timesteps=rollouts.n_timesteps,
            seconds=Times(step=due - worker.began),
        )
        spaces = None if worker.has_sent else SPACES
        worker.has_sent = True
        if worker.tickets:
            self._begin(number, worker, due)
        return Answered(number, report, (rollouts, spaces))

    def progress(self, worker: int) -> Progress:
        """Return what a worker shows: it moves with the virtual time, unless the worker hangs."""
        one = self._workers[worker]
        if not one.tickets or one.hung:
            return Progress(one.version, 0, None, Phase.STEP)
        running = max(0.0, self.now - one.began)
        return Progress(one.version, int(1e6 * running), one.tickets[0].indices[0], Phase.STEP)

    # ------------------------------------------------------------------ losses and the end

    def kill_worker(self, worker: int) -> None:
        """Kill a worker."""
        self._push(self.now + _DEATH, worker, self._workers[worker], "end")

    def restart(self, worker: int) -> None:
        """Start a new worker in the place of a dead one."""
        self.board.clear(worker)
        self._occupy(self._costs.restart)
        self._workers[worker] = self._new_worker(worker, self.now + self._costs.ready)

    def kill(self) -> None:
        """Do nothing: there is no process to end."""

    def close(self, *, read_answers: bool = True) -> list[Any]:
        """Do nothing: there is no process to end."""
        del read_answers
        return []


class VirtualSampler(Sampler[Any, Any]):
    """A sampler of simulated workers.

    Args:
        distribution: Which trajectories they run.
        n_workers: How many there are.
        costs: What occupies the sampler.
        seed: Of everything random.
    """

    def __init__(self, distribution: Distribution, n_workers: int, costs: Costs = Costs(), seed: int = 1) -> None:
        self._make: Callable[[WorkerSetup], VirtualEngine] = lambda setup: VirtualEngine(setup, distribution, costs)
        self._step_timeout = costs.step_timeout
        super().__init__(
            chosen,
            Replayed,
            env_kwargs={"distribution": distribution},
            n_workers=n_workers,
            seed=seed,
            check=None,
            max_restarts=None,
            limits=Limits(max_lifetime_restarts=None),
        )

    def make_engine(self, setup: WorkerSetup) -> Engine:
        """Make the engine."""
        self.virtual = self._make(setup)
        return self.virtual

    def measured(self, obtain: Callable[[], TrajectoryBatch[Any, Any]]) -> tuple[TrajectoryBatch[Any, Any], float]:
        """Make an obtaining call; return its batch, and the seconds of CPU that it took the sampler."""
        elsewhere, began = self.virtual.elsewhere, process_time()
        batch = obtain()
        return batch, process_time() - began - (self.virtual.elsewhere - elsewhere)
