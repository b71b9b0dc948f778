"""Whose turn it is: many trajectories share a thread, and what belongs to one is in place while its code runs."""

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
    """Whether code of a trajectory runs in this thread, and not asyncio's.

    Attributes:
        here: The same.
    """

    here = False


has_turn = HasTurn()

_LONGEST_TURN = 1e-2
"""Seconds for which a trajectory may go on, from step to step, without waiting: a sampler may have called it off."""


@dataclass(slots=True, eq=False)
class Spent:
    """Seconds of trajectories in flight, summed over them.

    Attributes:
        running: In which their code ran.
        waiting: In which they waited, or their code could have run and another one's did.
    """

    running: float = 0.0
    waiting: float = 0.0


@dataclass(slots=True, eq=False)
class FlightTotals:
    """What trajectories in flight have taken since the last report, summed over them.

    Attributes:
        reset: Seconds of resets.
        agent: Seconds of the agent.
        step: Seconds of steps.
        n_timesteps: Their timesteps that are in no answer yet.
        n_timed_out: How often one exceeded a time limit.
    """

    reset: Spent = field(default_factory=Spent)
    agent: Spent = field(default_factory=Spent)
    step: Spent = field(default_factory=Spent)
    n_timesteps: int = 0
    n_timed_out: int = 0

    def take_timed_out(self) -> int:
        """Return how often a trajectory exceeded a time limit, and set it to 0."""
        taken, self.n_timed_out = self.n_timed_out, 0
        return taken

    def take_seconds(self) -> tuple[Spent, Spent, Spent]:
        """Return the seconds of resets, of the agent and of steps, and set them to 0."""
        seconds = self.reset, self.agent, self.step
        self.reset, self.agent, self.step = Spent(), Spent(), Spent()
        return seconds


class Turns:
    """Lets one trajectory have its turn: what belongs to it is in place while its code runs, and no other's.

    Args:
        worker: The worker, whose board shows which trajectory's code runs, and in which phase.
        index: The trajectory's index.
        clock: Is told since when the trajectory waits.

    Attributes:
        index: The trajectory's index.
        phase: The phase of the last turn.
    """

    def __init__(self, worker: Worker, index: int, clock: Clock) -> None:
        self._worker, self.index, self._clock = worker, index, clock
        self.phase = Phase.RESET
        self._waited_at = perf_counter()  # when others could have a turn last

    def begin(self, phase: Phase) -> None:
        """Begin a turn."""
        worker, self.phase = self._worker, phase
        row = worker.row
        worker.phase, worker.trajectory = phase, self.index
        number = row.words[row.phase_word] = phase_number(phase)
        row.words[row.trajectory_word] = self.index + row.index_base
        phase_of_task.set(number)
        has_turn.here = True

    def end(self) -> None:
        """End a turn."""
        has_turn.here = False

    async def let_others(self, phase: Phase, spent: Spent) -> None:
        """Let others have a turn, and messages come in, where this trajectory has waited for nothing for long."""
        if perf_counter() - self._waited_at > _LONGEST_TURN:
            await self.take(asyncio.sleep(0), phase, spent)

    @coroutine
    def take(self, awaitable: Any, phase: Phase, spent: Spent) -> Generator[Any, Any, Any]:
        """Await something, with a turn each time that it goes on."""
        steps, clock = awaitable.__await__(), self._clock
        resume: Callable[[], Any] = partial(next, steps)
        began = clock.waits_since = perf_counter()
        try:
            while True:
                self.begin(phase)
                try:
                    future = resume()
                except GeneratorExit as error:  # which would close this, and is nobody's doing
                    raise RuntimeError("GeneratorExit was raised") from error
                except StopIteration as stopped:
                    if clock.exceeded is not None:
                        raise asyncio.CancelledError from None  # it came too late, although it came
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
