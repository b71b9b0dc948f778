"""Measure the parent alone: this library's sampler with simulated workers, in one process.

Pipes, arenas and messages are the real ones, and so is everything on the sampler's side of them. Workers do not run:
each answers a ticket, with rollouts that were made before, when a virtual clock says that a real one would have, one
answer at a time. What the workers' side costs is not counted.

    python -m benchmarks.contenders.simulated 2,64,128,256 [--reports 3000] [--profile]

prints for each number of workers the µs of CPU for a report.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import heapq
import json
import os
import pstats
import statistics
from collections import deque
from inspect import signature
from time import process_time
from typing import Any

import gymnasium
import numpy as np

from streamsampler import RandomAgent, Sampler, VecWorker
from streamsampler.data.info_columns import InfoColumns
from streamsampler.data.recorder import Rollouts
from streamsampler.engines.base import Engine, Event
from streamsampler.engines.processes.engine import ProcessEngine

try:
    from streamsampler.engines.processes import pool
    from streamsampler.engines.processes.channel import ProcessChannel
except ImportError:  # an earlier version, which is measured as well
    from streamsampler.engines.processes import engine as pool  # type: ignore[no-redef]
    from streamsampler.engines.processes.wire import ProcessChannel  # type: ignore[attr-defined,no-redef]
try:
    from streamsampler.core.times import Times
except ImportError:
    from streamsampler.protocol.messages import Times  # type: ignore[attr-defined,no-redef]
from streamsampler.core.serialization import dumps
from streamsampler.protocol.messages import Exit, Message, Report, Start, Stop, Ticket
from streamsampler.workers.factory import WorkerSetup

STEP_SECONDS = 1e-4
_LONGEST = 30
_MOST = 2_000  # trajectories in a ticket


class Child:
    """Stand in for a worker process that never ends by itself."""

    def __init__(self, fds: list[int]) -> None:
        self.fds = [os.dup(fd) for fd in fds]
        self.pid, self._end, self.is_given_up = 1, os.pipe(), False

    def await_start(self) -> None:
        """Return at once."""

    def filenos(self) -> set[int]:
        """Return a descriptor that becomes readable at the worker's end."""
        return {self._end[0]}

    def ended(self, timeout: float) -> bool:
        """Return that it has ended: it is asked at the end only."""
        del timeout
        return True

    def wait(self, timeout: float) -> int:
        """Return an exit code."""
        del timeout
        return 0

    def kill(self, signal_number: int = 9) -> None:
        """Do nothing."""

    def discard(self, timeout: float) -> None:
        """Close the descriptors."""
        del timeout
        for fd in (*self.fds, *self._end):
            with contextlib.suppress(OSError):
                os.close(fd)


class Silent:
    """Stand in for what a worker's channel asks about logs and threads."""

    def take(self) -> bytes:
        """Return no log records."""
        return b""

    def hold(self, *_: object) -> None:
        """Do nothing."""

    apply = loaded = hold

    def set_levels(self, levels: Any) -> None:
        """Do nothing."""


class SimulatedWorker:
    """Answer tickets with rollouts that were made before."""

    def __init__(self, number: int, fds: list[int], spaces: Any, rows: int) -> None:
        commands, answers, _, _, _, _, updates, arena = fds
        self.channel = ProcessChannel(commands, answers, arena, updates, 1536, Silent(), Silent(), Silent(), None)  # type: ignore[arg-type]
        self.tickets: deque[Ticket] = deque()
        self._spaces, self._sent, self._rows = spaces, False, rows
        numbers = np.random.default_rng(number)
        self._lengths = numbers.integers(10, _LONGEST, _MOST)
        n = int(self._lengths.sum())
        self._columns = np.zeros((n, 4), np.float32), np.zeros(n, np.int64), np.ones(n)
        self._last, self._flags = np.zeros((_MOST, 4), np.float32), np.ones(_MOST, np.bool_)

    def hear(self) -> None:
        """Take in all messages."""
        while (message := self.channel.receive(wait=False)) is not None:
            if isinstance(message, Start):
                self._sent = False
            if isinstance(message, Stop | Exit):
                while self.tickets:
                    self.channel.answer(Report(self.tickets.popleft(), abandoned=True))
            else:
                self.tickets.extend(message.tickets)

    def seconds(self) -> float:
        """Return what the ticket in hand takes."""
        return float(self._lengths[: len(self.tickets[0].indices)].sum()) * STEP_SECONDS / self._rows

    def answer(self) -> None:
        """Answer the ticket in hand."""
        ticket, seconds = self.tickets[0], self.seconds()
        self.tickets.popleft()
        lengths = self._lengths[: len(ticket.indices)].astype(np.int64)
        n, t = len(lengths), int(lengths.sum())
        nothing = InfoColumns(t, {})
        rollouts = Rollouts(
            self._columns[0][:t], self._last[:n], self._columns[1][:t], self._columns[2][:t], self._flags[:n],
            ~self._flags[:n], lengths, nothing, nothing, InfoColumns(n, {}),
        )  # fmt: skip
        lanes: dict[str, Any] = {"runs_lanes": True} if self._rows > 1 else {}  # another version may not know them
        report = Report(ticket, n_trajectories=n, n_timesteps=t, seconds=Times(step=seconds), **lanes)
        self.channel.answer(report, (rollouts, None if self._sent else self._spaces))
        self._sent = True


class SimulatedEngine(ProcessEngine):
    """Workers in this process, and a virtual clock.

    Attributes:
        now: The virtual time.
        elsewhere: CPU seconds of the workers' side.
        profiler: Is switched off on the workers' side.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        env = gymnasium.make("CartPole-v1")
        spaces = env.observation_space, env.action_space
        self.now = self.elsewhere = 0.0
        self.profiler: cProfile.Profile | None = None
        self._workers: list[SimulatedWorker] = []
        self._written: set[int] = set()
        self._ends: list[tuple[float, int, Ticket]] = []

        def launch(*arguments: Any) -> Any:
            *_, number, fds, _ = arguments  # earlier versions, which are measured as well, begin with a start method
            child = Child(fds)
            rows = setup.factory.worker_args.get("n_envs", 1)
            self._workers.append(SimulatedWorker(number, child.fds, spaces, rows))
            return child

        real, pool.launch = pool.launch, launch
        try:
            make_worker = dumps(setup.make_worker, "workers")
            earlier = {"start_method": None} if "start_method" in signature(ProcessEngine).parameters else {}
            super().__init__(setup.n_workers, make_worker, setup.seed, close_timeout=1.0, **earlier)  # type: ignore[arg-type]
        finally:
            pool.launch = real

    def send(self, worker: int, message: Message) -> None:
        """Note that a worker has a message."""
        super().send(worker, message)
        self._written.add(worker)

    def wait(self, timeout: float | None) -> list[Event]:
        """Let the worker whose ticket ends first answer."""
        began = process_time()
        if self.profiler is not None:
            self.profiler.disable()
        self._answer_next()
        if self.profiler is not None:
            self.profiler.enable()
        self.elsewhere += process_time() - began
        return super().wait(timeout)

    def _answer_next(self) -> None:
        for worker in self._written:
            one = self._workers[worker]
            was_idle = not one.tickets
            one.hear()
            if was_idle and one.tickets:
                self._begin(worker)
        self._written.clear()
        while self._ends:
            end, worker, ticket = heapq.heappop(self._ends)
            one = self._workers[worker]
            if not one.tickets or one.tickets[0] is not ticket:
                continue  # given up
            self.now = end
            one.answer()
            if one.tickets:
                self._begin(worker)
            return

    def _begin(self, worker: int) -> None:
        one = self._workers[worker]
        heapq.heappush(self._ends, (self.now + one.seconds(), worker, one.tickets[0]))

    def _await_ends(self, *, read_answers: bool) -> list[Any]:
        del read_answers
        return []


class SimulatedSampler(Sampler[Any, Any]):
    """A sampler of simulated workers."""

    def make_engine(self, setup: WorkerSetup) -> Engine:
        """Make the engine."""
        self.simulated = SimulatedEngine(setup)
        return self.simulated

    def use_virtual_clock(self) -> None:
        """Let tickets be assigned by the virtual clock."""
        self._life.session.clock = lambda: self.simulated.now


class ParentCost:
    """Measure the CPU seconds of the parent for a report.

    Args:
        n_workers: How many workers there are.
        tickets: How many tickets of full size each call has for a worker.
        profiler: Profiles the parent.
        rows: How many trajectories a worker runs side by side, in lanes.
    """

    def __init__(self, n_workers: int, tickets: float, profiler: cProfile.Profile | None = None, rows: int = 1) -> None:
        options: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": rows}} if rows > 1 else {}
        self._sampler = SimulatedSampler(
            RandomAgent(), "CartPole-v1", n_workers=n_workers, seed=1, check=None, **options
        )
        self._sampler.use_virtual_clock()
        self._sampler.simulated.profiler = self._profiler = profiler
        self._n_samples = int(tickets * n_workers * 0.1 / STEP_SECONDS) * rows
        self.measure(1)

    def measure(self, n_reports: int) -> float:
        """Return the seconds for each of so many reports, or more."""
        sampler, profiler = self._sampler, self._profiler
        engine = sampler.simulated
        engine.elsewhere = 0.0
        first, began = sampler.stats.reports, process_time()
        if profiler is not None:
            profiler.enable()
        while sampler.stats.reports - first < n_reports:
            sampler.obtain_samples(self._n_samples)
        if profiler is not None:
            profiler.disable()
        return (process_time() - began - engine.elsewhere) / (sampler.stats.reports - first)

    def close(self) -> None:
        """Close the sampler, which has a dozen descriptors for each worker."""
        self._sampler.close()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workers", nargs="?", default="2,64,128,256")
    parser.add_argument("--tickets", type=float, default=8)
    parser.add_argument("--reports", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    numbers = [int(number) for number in arguments.workers.split(",")]
    profiler = cProfile.Profile() if arguments.profile else None
    measured = {number: ParentCost(number, arguments.tickets, profiler, arguments.rows) for number in numbers}
    costs: dict[int, list[float]] = {number: [] for number in numbers}
    for _ in range(arguments.rounds):
        for number, cost in measured.items():
            costs[number].append(1e6 * cost.measure(arguments.reports))
    print(json.dumps({number: round(statistics.median(each), 1) for number, each in costs.items()}))
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
