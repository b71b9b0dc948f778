"""Turns of trajectories that share a thread: a trajectory's phase, index and clock are set while its code runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from types import coroutine
from typing import Any

from streamsampler.core.timing import phase_of_task
from streamsampler.protocol.messages import Phase
from streamsampler.workers.base import Worker
from streamsampler.workers.board import phase_number
from streamsampler.workers.waiting.deadlines import Clock


class HasTurn(threading.local):
    """Whether this thread runs code of a trajectory, and not asyncio's.

    Attributes:
        here: The same.
    """

    here = False


has_turn = HasTurn()

_LONGEST_TURN = 1e-2
"""Seconds of steps without a wait before others get a turn: the worker may have a message."""


@dataclass(slots=True, eq=False)
class Spent:
    """Seconds of trajectories in flight, summed over them; `waiting` includes the turns of others."""

    running: float = 0.0
    waiting: float = 0.0


@dataclass(slots=True, eq=False)
class FlightTotals:
    """The sums over trajectories in flight since the last report.

    Attributes:
        reset: Seconds of resets.
        agent: Seconds of the agent.
        step: Seconds of steps.
        n_timesteps: Unreported timesteps.
        n_timed_out: Exceeded time limits.
    """

    reset: Spent = field(default_factory=Spent)
    agent: Spent = field(default_factory=Spent)
    step: Spent = field(default_factory=Spent)
    n_timesteps: int = 0
    n_timed_out: int = 0

    def take_timed_out(self) -> int:
        """Return the number of exceeded time limits, and reset it."""
        taken, self.n_timed_out = self.n_timed_out, 0
        return taken

    def take_seconds(self) -> tuple[Spent, Spent, Spent]:
        """Return the seconds of resets, of the agent and of steps, and reset them."""
        seconds = self.reset, self.agent, self.step
        self.reset, self.agent, self.step = Spent(), Spent(), Spent()
        return seconds


class Turns:
    """The turns of a trajectory, shown on the worker's board; its `clock` has the start of each wait."""

    def __init__(self, worker: Worker, index: int, clock: Clock) -> None:
        self._worker, self.index, self._clock = worker, index, clock
        self.phase = Phase.RESET
        self._waited_at = perf_counter()  # the last wait's end: others could have a turn

    def begin(self, phase: Phase) -> None:
        worker, self.phase = self._worker, phase
        row = worker.row
        worker.phase, worker.trajectory = phase, self.index
        number = row.words[row.phase_word] = phase_number(phase)
        row.words[row.trajectory_word] = self.index + row.index_base
        phase_of_task.set(number)
        has_turn.here = True

    def end(self) -> None:
        has_turn.here = False

    async def let_others(self, phase: Phase, spent: Spent) -> None:
        """Let others have a turn, and messages come in, if this trajectory has not waited for long."""
        if perf_counter() - self._waited_at > _LONGEST_TURN:
            await self.take(asyncio.sleep(0), phase, spent)

    @coroutine
    def take(self, awaitable: Any, phase: Phase, spent: Spent) -> Generator[Any, Any, Any]:
        """Await an object, with a turn for each of its steps."""
        steps, clock = awaitable.__await__(), self._clock
        resume: Callable[[], Any] = partial(next, steps)
        began = clock.waits_since = perf_counter()
        try:
            while True:
                self.begin(phase)
                try:
                    future = resume()
                except GeneratorExit as error:  # otherwise it would close this generator
                    raise RuntimeError("GeneratorExit was raised") from error
                except StopIteration as stopped:
                    if clock.exceeded is not None:
                        raise asyncio.CancelledError from None  # the result came after the limit
                    return stopped.value
                finally:
                    ended = perf_counter()
                    spent.running += ended - began
                    self.end()
                try:
                    yield future
                    resume = partial(next, steps)
                except GeneratorExit:
                    steps.close()
                    raise
                except BaseException as error:
                    resume = partial(steps.throw, error)
                finally:
                    began = self._waited_at = perf_counter()
                    spent.waiting += began - ended
        finally:
            clock.waits_since = None
