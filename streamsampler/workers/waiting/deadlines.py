"""Cancel trajectories in flight after their time limits: for a reset, step or action, or for a whole trajectory.

Each trajectory has a `Clock`, a single timer serves all. The clocks stop while the event loop does not run.
"""

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
"""The time limits that a trajectory may exceed before it fails: with this seed it might exceed them for ever."""

_NOTICEABLE = 1e-3
"""Seconds; limits ignore shorter times."""

_OWN, _ASYNCIO = f"{Path(__file__).parents[2]}/", f"{Path(asyncio.__file__).parent}/"
_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib"))


class TimeLimits(NamedTuple):
    """Seconds; infinity without a limit.

    Attributes:
        step: For a reset, a step, or an action of the agent.
        trajectory: For the whole trajectory.
    """

    step: float = math.inf
    trajectory: float = math.inf


@dataclass(slots=True, eq=False)
class Clock:
    """The starting times of a trajectory and of its current wait.

    Attributes:
        began: The start of the trajectory; infinity before.
        waits_since: The start of the awaited call; None without a wait.
        exceeded: The exceeded limit, for messages; None without.
    """

    began: float
    waits_since: float | None = None
    exceeded: str | None = None

    def deadline(self, limits: TimeLimits, now: float) -> float:
        """Return the earliest time at which a limit may be exceeded, also by a call that starts now."""
        waits_since = now if self.waits_since is None else self.waits_since
        return min(min(self.began, now) + limits.trajectory, waits_since + limits.step)

    def judge(self, limits: TimeLimits, now: float) -> bool:
        if self.exceeded is not None or now < self.deadline(limits, now):
            return False
        is_whole = now >= self.began + limits.trajectory
        name, seconds = ("trajectory_timeout", limits.trajectory) if is_whole else ("step_timeout", limits.step)
        self.exceeded = f"{name}={seconds:g}"
        return True

    def leave_out(self, seconds: float) -> None:
        """Exclude seconds without a running event loop."""
        self.began += seconds
        if self.waits_since is not None:
            self.waits_since += seconds


class HasClock(Protocol):
    """A trajectory in flight."""

    @property
    def clock(self) -> Clock: ...


FlightT = TypeVar("FlightT", bound=HasClock)


class Deadlines(Generic[FlightT]):
    """Checks trajectories when the first of them may exceed a limit: so a timestep needs no timer of its own.

    `running` returns the trajectories in flight; `cancel` receives those over a limit.
    """

    def __init__(
        self, limits: TimeLimits, running: Callable[[], Iterable[FlightT]],
        loop: Callable[[], asyncio.AbstractEventLoop], cancel: Callable[[FlightT], object],
    ) -> None:  # fmt: skip
        self._limits, self._running, self._loop, self._cancel = limits, running, loop, cancel
        self._handle: asyncio.Handle | None = None
        self._stopped: float | None = None

    def begin(self) -> None:
        """Start the clocks: the event loop is about to run; `end` stops them."""
        if self._stopped is not None:
            stopped, self._stopped = self._stopped, None
            self.leave_out(perf_counter() - stopped)
        self.arm()

    def leave_out(self, seconds: float) -> None:
        if seconds > _NOTICEABLE and min(self._limits) < math.inf:
            for flight in self._running():
                flight.clock.leave_out(seconds)

    def end(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._stopped = perf_counter()

    def arm(self) -> None:
        """Set the timer for the earliest deadline, unless it is set: later trajectories have later deadlines."""
        if self._handle is None and min(self._limits) < math.inf:
            now = perf_counter()
            deadlines = [it.clock.deadline(self._limits, now) for it in self._running() if not it.clock.exceeded]
            if deadlines:
                self._handle = self._loop().call_later(max(min(deadlines) - now, 0.0), self._look)

    def _look(self) -> None:
        # A result that came in time may still be in the loop's queues, if other code ran for long: two rounds deliver
        # it.
        self._handle = self._loop().call_soon(self._look_once_more)

    def _look_once_more(self) -> None:
        self._handle = self._loop().call_soon(self._judge)

    def _judge(self) -> None:
        self._handle, now = None, perf_counter()
        for flight in [flight for flight in self._running() if flight.clock.judge(self._limits, now)]:
            self._cancel(flight)
        self.arm()


def place_of_wait(error: BaseException) -> str:
    """Return the line at which an interrupted coroutine waited, for messages.

    That is the innermost line of user code, otherwise of installed packages. asyncio's own lines say nothing.
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
