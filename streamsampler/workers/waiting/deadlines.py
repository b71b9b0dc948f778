"""Cancel trajectories in flight that take too long: a reset, a step or an action of theirs, or the whole trajectory."""

from __future__ import annotations

import asyncio
import math
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Generic, NamedTuple, Protocol, TypeVar

ATTEMPTS = 3
"""How many time limits a trajectory may exceed before that is an error: it might with this seed for ever."""

_NOTICEABLE = 1e-3
"""Seconds: less makes no difference to a limit."""

_OWN, _ASYNCIO = f"{Path(__file__).parents[2]}/", f"{Path(asyncio.__file__).parent}/"
_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib"))


class TimeLimits(NamedTuple):
    """How many seconds parts of a trajectory may take; infinity where there is no limit.

    Attributes:
        step: A reset, a step, or an action of the agent.
        trajectory: The whole trajectory.
    """

    step: float = math.inf
    trajectory: float = math.inf


@dataclass(slots=True, eq=False)
class Clock:
    """Since when a trajectory runs and waits.

    Attributes:
        began: When the trajectory began; infinity before.
        waits_since: When the reset, step or action began that is awaited; None where none is.
        exceeded: The limit that was exceeded, for messages; None where none was.
    """

    began: float
    waits_since: float | None = None
    exceeded: str | None = None

    def deadline(self, limits: TimeLimits, now: float) -> float:
        """Return when a limit may be exceeded: if nothing happens until then, or by what is begun now."""
        waits_since = now if self.waits_since is None else self.waits_since
        return min(min(self.began, now) + limits.trajectory, waits_since + limits.step)

    def judge(self, limits: TimeLimits, now: float) -> bool:
        """Return whether a limit is exceeded which was not before, and note it."""
        if self.exceeded is not None or now < self.deadline(limits, now):
            return False
        is_whole = now >= self.began + limits.trajectory
        name, seconds = ("trajectory_timeout", limits.trajectory) if is_whole else ("step_timeout", limits.step)
        self.exceeded = f"{name}={seconds:g}"
        return True

    def leave_out(self, seconds: float) -> None:
        """Leave out a time in which the event loop did not run."""
        self.began += seconds
        if self.waits_since is not None:
            self.waits_since += seconds


class HasClock(Protocol):
    """A trajectory in flight."""

    @property
    def clock(self) -> Clock:
        """Its clock."""


FlightT = TypeVar("FlightT", bound=HasClock)


class Deadlines(Generic[FlightT]):
    """Looks at trajectories when the first of them may exceed a limit. So a timestep costs no timer of its own.

    Args:
        limits: The limits.
        running: Returns the trajectories in flight.
        loop: Returns the event loop.
        cancel: Cancels a trajectory that exceeded a limit.
    """

    def __init__(
        self, limits: TimeLimits, running: Callable[[], Iterable[FlightT]],
        loop: Callable[[], asyncio.AbstractEventLoop], cancel: Callable[[FlightT], object],
    ) -> None:  # fmt: skip
        self._limits, self._running, self._loop, self._cancel = limits, running, loop, cancel
        self._handle: asyncio.Handle | None = None
        self._stopped: float | None = None

    def begin(self) -> None:
        """Let the time go on: the event loop is about to run."""
        if self._stopped is not None:
            stopped, self._stopped = self._stopped, None
            self.leave_out(perf_counter() - stopped)
        self.arm()

    def leave_out(self, seconds: float) -> None:
        """Leave out a time in which no trajectory could go on."""
        if seconds > _NOTICEABLE and min(self._limits) < math.inf:
            for flight in self._running():
                flight.clock.leave_out(seconds)

    def end(self) -> None:
        """Let the time stand still: the event loop does not run."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._stopped = perf_counter()

    def arm(self) -> None:
        """Look when the first trajectory may exceed a limit, unless that is planned: what begins later, may later."""
        if self._handle is None and min(self._limits) < math.inf:
            now = perf_counter()
            deadlines = [it.clock.deadline(self._limits, now) for it in self._running() if not it.clock.exceeded]
            if deadlines:
                self._handle = self._loop().call_later(max(min(deadlines) - now, 0.0), self._look)

    def _look(self) -> None:
        # An answer that has come in time may not be taken in yet: where other code ran for long. It takes two rounds.
        self._handle = self._loop().call_soon(self._look_once_more)

    def _look_once_more(self) -> None:
        self._handle = self._loop().call_soon(self._judge)

    def _judge(self) -> None:
        self._handle, now = None, perf_counter()
        for flight in [flight for flight in self._running() if flight.clock.judge(self._limits, now)]:
            self._cancel(flight)
        self.arm()


def place_of_wait(error: BaseException) -> str:
    """Return at which line a coroutine waited which an exception was thrown into, for messages.

    That is the innermost line of user code; of installed packages where there is none. asyncio's own say nothing.
    """
    frames = [
        (code.co_filename, line, code.co_name)
        for code, line in ((frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__))
        if not code.co_filename.startswith((_OWN, _ASYNCIO))
    ]
    users = [frame for frame in frames if not frame[0].startswith(_INSTALLED)]
    if not frames:
        return ""
    file, line, name = (users or frames)[-1]
    return f'; it waited at line {line} of "{file}", in {name}'
