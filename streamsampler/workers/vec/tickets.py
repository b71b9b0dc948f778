"""Choose the next trajectory of a row, from the tickets of a worker in lanes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from streamsampler.protocol.messages import Ticket
from streamsampler.workers.base import Worker
from streamsampler.workers.vec.agents import BatchedAgent
from streamsampler.workers.vec.row_recorders import RowTrajectory

_LOOK_SECONDS = 1e-3
"""The seconds between requests of free rows for a ticket; a request costs some microseconds."""


def _position_of(trajectory: RowTrajectory) -> int:
    return trajectory.position


@dataclass(slots=True, eq=False)
class RunningTicket:
    """A ticket with running or waiting trajectories.

    Attributes:
        ticket: The ticket.
        seeds: Its trajectories' seeds.
        prepared: The result of `BatchedAgent.prepare`.
        waiting: For each row the positions of its waiting trajectories.
        begun: The trajectories begun.
        n_ended: The number of ended ones.
    """

    ticket: Ticket
    seeds: list[int]
    prepared: Any
    waiting: list[Iterator[int]]
    begun: list[RowTrajectory] = field(default_factory=list)
    n_ended: int = 0

    def ended(self) -> list[RowTrajectory]:
        """Return the ended and kept trajectories, in the ticket's order."""
        ended = (each for each in self.begun if each.length and each.left_out is None)
        return sorted(ended, key=_position_of)

    def left_out(self) -> list[RowTrajectory]:
        return sorted((each for each in self.begun if each.left_out is not None), key=_position_of)


def positions_by_row(indices: range, positions: range, n_rows: int) -> list[Iterator[int]]:
    """Return for each row the positions of its trajectories: trajectory i runs in row i mod n_rows.

    If the ticket has every k-th index, all rows get trajectories, too.
    """
    first = indices[positions.start] // indices.step
    return [iter(positions[(row - first) % n_rows :: n_rows]) for row in range(n_rows)]


class RunningTickets:
    """The current ticket of a worker, and later tickets with running trajectories.

    Attributes:
        alone: Whether no trajectory of a later ticket may begin.
        any_row: Whether a free row runs the next trajectory of all; otherwise i runs in row i mod n_rows.
    """

    def __init__(self, worker: Worker, n_rows: int) -> None:
        self._worker, self._n_rows = worker, n_rows
        self._agent: BatchedAgent | None = None
        self._tickets: deque[RunningTicket] = deque()
        self._look_at = 0.0
        self.alone, self.any_row = True, False

    @property
    def current(self) -> RunningTicket:
        return self._tickets[0]

    @property
    def ran_ahead(self) -> bool:
        return any(later.begun for later in self._tickets if later is not self._tickets[0])

    def begun(self) -> list[RowTrajectory]:
        return [trajectory for running in self._tickets for trajectory in running.begun]

    def holds_first(self, ticket: Ticket) -> bool:
        return bool(self._tickets) and self._tickets[0].ticket == ticket

    def begin(self, ticket: Ticket, seeds: list[int], agent: BatchedAgent) -> RunningTicket:
        self._agent = agent
        self._tickets.clear()
        return self._append(ticket, seeds)

    def end(self) -> None:
        self._tickets.popleft()

    def clear(self) -> None:
        self._tickets.clear()

    def next_in(self, row: int) -> tuple[RunningTicket, int] | None:
        """Return the ticket and position of a row's next trajectory; None if no ticket has any."""
        for running in self._tickets:
            if (position := next(running.waiting[row], None)) is not None:
                return running, position
        while self.look_ahead():
            running = self._tickets[-1]
            if (position := next(running.waiting[row], None)) is not None:
                return running, position
        return None

    def look_ahead(self) -> bool:
        """Append the worker's next ticket; return whether it has any."""
        if self.alone or (now := perf_counter()) < self._look_at:
            return False
        found = self._worker.look_ahead(len(self._tickets))
        if found is None:
            self._look_at = now + _LOOK_SECONDS
            return False
        self._append(*found)
        return True

    def _append(self, ticket: Ticket, seeds: list[int]) -> RunningTicket:
        assert self._agent is not None
        if self.any_row:
            waiting: list[Iterator[int]] = [iter(range(len(seeds)))] * self._n_rows
        else:
            waiting = positions_by_row(ticket.indices, range(len(seeds)), self._n_rows)
        running = RunningTicket(ticket, seeds, self._agent.prepare(seeds), waiting)
        self._tickets.append(running)
        return running
