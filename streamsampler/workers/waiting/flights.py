"""The trajectories in flight, of the current ticket and of later tickets of the worker.

`Flights` begins them in free places, and decides on each exception: drop, retry, or fail the ticket. A ticket is
decided when all its trajectories have ended; after a failure, all before the failed trajectory.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeAlias

from streamsampler.core.errors import DataError
from streamsampler.data.recorder import RolloutRecorder, Rollouts
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.workers.base import AbnormalTrajectoryError, Worker
from streamsampler.workers.explain import is_interrupt
from streamsampler.workers.waiting.deadlines import Clock, Deadlines, TimeLimits
from streamsampler.workers.waiting.driver import FlightDriver
from streamsampler.workers.waiting.event_loop import CLEANUP_SECONDS, WorkerEventLoop, outside_loop
from streamsampler.workers.waiting.turns import FlightTotals

RunInPlace: TypeAlias = Callable[[int, int, int, Any, FlightDriver], Coroutine[Any, Any, Rollouts]]


class Places(Protocol):
    """Lends places, each with an environment and `setup`, to trajectories."""

    def take(self, index: int, /) -> Any:
        """Return a free place for a trajectory, if any."""

    def put_back(self, place: Any, /) -> None:
        """Receive a place that is ready for another trajectory."""

    def replace(self, place: Any, /) -> None:
        """Receive a place with an environment or agent in an unknown state."""

    def abandon(self, place: Any, /) -> None:
        """Remove a place, because its trajectory continues after its cancellation."""

    def new_recorder(self, place: Any, /) -> RolloutRecorder:
        """Return the recorder of the next trajectory in a place."""


@dataclass(slots=True, eq=False)
class Flight:
    """A trajectory in flight.

    `has_begun` says whether its task has run, `is_lost` whether it continues after its cancellation: its result is
    ignored.
    """

    ticket: TicketInFlight
    position: int
    place: Any
    driver: FlightDriver
    task: asyncio.Task[Any] | None = None
    has_begun: bool = False
    is_lost: bool = False

    @property
    def clock(self) -> Clock:
        return self.driver.clock

    def cancel(self) -> None:
        self.driver.is_cancelled = True
        if self.task is not None:
            self.task.cancel()


@dataclass(slots=True, eq=False)
class TicketFailure:
    """The exception that fails a ticket.

    `position` is the failed trajectory's, or environment's, in the ticket.
    """

    position: int
    index: int
    phase: Phase
    error: BaseException


@dataclass(slots=True, eq=False)
class TicketInFlight:
    """A ticket with trajectories in flight, or waiting for a place.

    Attributes:
        ticket: The ticket.
        seeds: Its trajectories' seeds.
        waiting: The positions of waiting trajectories, in order.
        begun: The trajectories in flight, by position.
        recorded: The records and recorders of ended trajectories, by position.
        dropped: The dropped trajectories, by position; see `messages.Report`.
        failure: The first failure so far, in the ticket's order.
        timed_out: The position of each trajectory over a time limit, once for each excess.
        ran_timesteps: The timesteps of trajectories after any kind of end.
        restored_timesteps: The timesteps run to restore their episodes.
    """

    ticket: Ticket
    seeds: list[int]
    waiting: deque[int]
    begun: dict[int, Flight] = field(default_factory=dict)
    recorded: dict[int, tuple[Rollouts, RolloutRecorder]] = field(default_factory=dict)
    dropped: dict[int, Any] = field(default_factory=dict)
    failure: TicketFailure | None = None
    timed_out: list[int] = field(default_factory=list)
    ran_timesteps: int = 0
    restored_timesteps: int = 0

    @property
    def is_decided(self) -> bool:
        if self.failure is not None:
            return not self.waiting and not any(position < self.failure.position for position in self.begun)
        return len(self.recorded) + len(self.dropped) == len(self.seeds)

    def wants(self, position: int) -> bool:
        """Whether a trajectory is needed: none after a failure is."""
        return self.failure is None or position < self.failure.position

    def fail(self, failure: TicketFailure) -> None:
        """Record the first failure in the ticket's order, and cancel the trajectories after it."""
        if self.failure is not None and self.failure.position < failure.position:
            return
        self.failure = failure
        self.waiting = deque(position for position in self.waiting if position < failure.position)
        for position, flight in self.begun.items():
            if position > failure.position:
                flight.cancel()


class Flights:
    """Begins trajectories in free places, and handles their ends.

    Attributes:
        totals: The seconds and timesteps of trajectories since the last report.
        raised_in: The phase of an exception while a place was prepared; None without.
    """

    raised_in: Phase | None = None
    _places: Places
    _run: RunInPlace
    _attempts: int

    def __init__(self, worker: Worker, loop: WorkerEventLoop, limits: TimeLimits) -> None:
        self._worker, self._loop = worker, loop
        self._tickets: deque[TicketInFlight] = deque()
        self._decided = asyncio.Event()  # wakes the current `run` when a trajectory ends
        self._raised: BaseException | None = None  # an exception of no trajectory, such as an interrupt
        self._deadlines = Deadlines(limits, self._running, loop.get, self._cancel_late)
        self.totals = FlightTotals()

    def use(self, places: Places, run: RunInPlace, attempts: int) -> None:
        """Set the places of the next tickets' trajectories.

        `run` returns the coroutine of a trajectory or fragment, which records it. `attempts` is the number of time
        limits it may exceed.
        """
        self._places, self._run, self._attempts = places, run, attempts

    @property
    def current(self) -> TicketInFlight:
        return self._tickets[0]

    def make_current(self, ticket: Ticket, seeds: list[int]) -> TicketInFlight:
        if not self._tickets or self._tickets[0].ticket != ticket:
            self.cancel()
            self._append(ticket, seeds)
        return self._tickets[0]

    def _append(self, ticket: Ticket, seeds: list[int]) -> None:
        self._tickets.append(TicketInFlight(ticket, seeds, deque(range(len(seeds)))))

    def _running(self) -> Iterator[Flight]:
        return (flight for running in self._tickets for flight in running.begun.values())

    async def run(self) -> bool:
        """Run until the current ticket is decided; return False if its version may not run any more."""
        row, running, self._decided = self._worker.row, self.current, asyncio.Event()
        self._look_ahead()
        self._deadlines.begin()
        try:
            while True:
                # First, because the next ticket's first trajectory would begin with this ticket's global generators.
                if running.is_decided:
                    return True
                if self._raised is not None:
                    raise self._raised
                self.begin_more()
                if self._worker.is_called_off() or not row.may_run(running.ticket.version):
                    return False
                self._decided.clear()
                await self._decided.wait()
        finally:
            self._deadlines.end()

    def notify(self) -> None:
        """Let `run` check whether more trajectories can begin."""
        self._decided.set()

    def on_message(self) -> bool:
        """Receive new tickets; return whether to call this again for more."""
        self._look_ahead()
        self._decided.set()
        return not self._worker.is_called_off()

    def _look_ahead(self) -> None:
        while (later := self._worker.look_ahead(len(self._tickets))) is not None:
            self._append(*later)

    def begin_more(self) -> None:
        began = perf_counter()
        try:
            with outside_loop():  # constructors may run their own event loops
                while (found := self._next()) is not None:
                    self._launch(*found)
        except BaseException:
            self.raised_in = self._worker.phase  # before another trajectory's turn changes it
            raise
        self._deadlines.leave_out(perf_counter() - began)
        self._deadlines.arm()

    def _next(self) -> tuple[TicketInFlight, int, Any] | None:
        for running in self._tickets:
            if running.waiting:
                place = self._places.take(running.ticket.indices[running.waiting[0]])
                return None if place is None else (running, running.waiting.popleft(), place)
            if running.failure is not None:
                return None  # later trajectories need not begin
        return None

    def _launch(self, running: TicketInFlight, position: int, place: Any) -> None:
        index, seed = running.ticket.indices[position], running.seeds[position]
        driver = FlightDriver(self._worker, place.setup, index, self.totals)
        flight = running.begun[position] = Flight(running, position, place, driver)
        trajectory = self._run(running.ticket.version, index, seed, place, driver)
        flight.task = task = self._loop.start(self._run_flight(flight, trajectory))
        task.add_done_callback(partial(self._end_unbegun, flight, self._places, trajectory))

    def _end_unbegun(
        self, flight: Flight, places: Places, trajectory: Coroutine[Any, Any, Rollouts], _task: asyncio.Task[Any]
    ) -> None:
        """End a task that was cancelled before any line of its coroutine ran."""
        trajectory.close()
        if not flight.has_begun:
            places.put_back(flight.place)
            self._forget(flight)

    async def _run_flight(self, flight: Flight, trajectory: Coroutine[Any, Any, Rollouts]) -> None:
        place, places = flight.place, self._places
        flight.has_begun, flight.clock.began = True, perf_counter()
        try:
            flight.ticket.recorded[flight.position] = await trajectory, place.setup.recorder
            place.setup.recorder = places.new_recorder(place)
            places.put_back(place)
        except BaseException as error:
            if not flight.is_lost:
                self._end_raised(flight, places, error)
        finally:
            if not flight.is_lost:
                self._forget(flight)

    def _end_raised(self, flight: Flight, places: Places, error: BaseException) -> None:
        """End a trajectory that raised, or was cancelled; raise interrupts."""
        place = flight.place
        if isinstance(error, asyncio.CancelledError | AbnormalTrajectoryError):
            places.put_back(place)
        if isinstance(error, asyncio.CancelledError):
            return
        if is_interrupt(error):
            self._raised = error
            raise error
        if type(error) is RuntimeError and isinstance(error.__cause__, StopIteration):
            error = error.__cause__  # Python wraps a coroutine's StopIteration
        self._handle_error(flight, error)
        if not isinstance(error, AbnormalTrajectoryError):
            places.replace(place)  # its environment, and its copy of the agent, may be in any state

    def _forget(self, flight: Flight) -> None:
        flight.ticket.begun.pop(flight.position, None)
        flight.ticket.ran_timesteps += flight.driver.n_timesteps
        flight.ticket.restored_timesteps += flight.driver.restored_timesteps
        self._decided.set()

    def _handle_error(self, flight: Flight, error: BaseException) -> None:
        """Drop a trajectory, retry it, or fail its ticket."""
        worker, position, running = self._worker, flight.position, flight.ticket
        ticket = running.ticket
        index = worker.trajectory = flight.driver.index
        worker.phase = flight.driver.phase
        if isinstance(error, DataError) and error.position is not None:
            error.position = position
        if is_late := flight.clock.exceeded is not None:
            running.timed_out.append(position)
            self.totals.n_timed_out += 1
        if worker.drops(error):
            running.dropped[position] = worker.left_out_by(error, ticket, index)[index]
        elif is_late and running.wants(position) and running.timed_out.count(position) < self._attempts:
            insort(running.waiting, position)
        else:
            running.fail(TicketFailure(position, index, worker.phase, error))

    def _cancel_late(self, flight: Flight) -> None:
        """Cancel a trajectory over a time limit; abandon it if it does not end."""
        flight.cancel()
        self._loop.get().call_later(CLEANUP_SECONDS, self._abandon_late, flight)

    def _abandon_late(self, flight: Flight) -> None:
        """Abandon a trajectory that continues after its cancellation, with its place."""
        assert flight.task is not None
        if flight.is_lost or flight.task.done() or flight.ticket not in self._tickets:
            return  # `cancel` abandons trajectories of cancelled tickets
        self._abandon(flight)
        self._handle_error(flight, flight.driver.error_of_limit())
        self._forget(flight)

    def _abandon(self, flight: Flight) -> None:
        assert flight.task is not None
        flight.is_lost = True
        flight.clock.exceeded = flight.clock.exceeded or "the time to end"  # so that its script never continues
        self._loop.abandon(flight.task)
        self._places.abandon(flight.place)

    def end_ticket(self) -> None:
        """Forget the current ticket: the next becomes current."""
        self._tickets.popleft()

    def cancel(self) -> tuple[int, int]:
        """Cancel all trajectories, and forget all tickets.

        Returns:
            The unreported trajectories, without dropped ones, and the unreported timesteps.
        """
        flights = [*self._running()]
        n_trajectories = sum(len(running.recorded) for running in self._tickets)
        self._tickets.clear()
        self._raised = None
        for flight in flights:
            flight.cancel()
        unfinished = self._loop.cancel()  # first: calls on threads end in spite of it, and their timesteps count
        n_trajectories += sum(flight.driver.has_begun for flight in flights)
        n_timesteps, self.totals.n_timesteps = self.totals.n_timesteps, 0
        for flight in flights:
            if flight.task in unfinished and not flight.is_lost:
                self._abandon(flight)
        if unfinished - {flight.task for flight in flights}:
            self._worker.warn_once(
                "requests end late",
                "a request of get_actions was cancelled, but still runs: it catches asyncio.CancelledError, and should "
                "raise it again",
            )
        return n_trajectories, n_timesteps
