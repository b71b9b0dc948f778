"""Where the time of a process with environments goes, measured there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Final, NamedTuple

from streamsampler.protocol.messages import Times
from streamsampler.timing import Collector, Measured, collecting

__all__ = ["IN_STEP", "EnvTimes", "WorkerReport"]

IN_STEP: Final = 0
_IN_RESET: Final = 1
_TIMED_AS = ("step", "reset")


class WorkerReport(NamedTuple):
    """What a process did since its last report.

    Attributes:
        worker: The worker number.
        times: Where its time went.
        timesteps: How many timesteps its environments ran.
        timed: What they timed, by phase.
    """

    worker: int
    times: Times
    timesteps: int
    timed: Measured


class EnvTimes:
    """Adds up the time of environments, between two reports.

    Args:
        worker: The worker number.

    Attributes:
        phase: One word: `IN_STEP`, or that it is a reset, for what environments time themselves.
        timesteps: How many timesteps were run.
        reset_seconds: What resets took, and making environments anew.
        env_seconds: What resets and steps took.
        busy_seconds: The same, and what was done to receive actions and send results.
    """

    def __init__(self, worker: int) -> None:
        self.phase = [IN_STEP]
        self._worker = worker
        self._collector = Collector(self.phase, 0, _TIMED_AS)
        self._clear()

    def _clear(self) -> None:
        self.timesteps = 0
        self.reset_seconds = self.env_seconds = self.busy_seconds = 0.0
        self._began = perf_counter()

    def collecting(self) -> AbstractContextManager[None]:
        """Collect what environments time."""
        return collecting(self._collector)

    def not_collecting(self) -> AbstractContextManager[None]:
        """Collect nothing in a block, which is in one of `collecting`."""
        return collecting(Collector(self.phase, 0, _TIMED_AS))

    @contextlib.contextmanager
    def resetting(self) -> Iterator[None]:
        """Take a block for a reset."""
        began, self.phase[0] = perf_counter(), _IN_RESET
        try:
            yield
        finally:
            self.reset_seconds += perf_counter() - began
            self.phase[0] = IN_STEP

    @property
    def seconds(self) -> float:
        """How long ago the last report was."""
        return perf_counter() - self._began

    def take(self) -> WorkerReport:
        """Return what was added up, and begin again."""
        busy = max(self.busy_seconds, self.env_seconds)
        times = Times(
            reset=self.reset_seconds, step=max(0.0, self.env_seconds - self.reset_seconds),
            sending=busy - self.env_seconds, idle=max(0.0, self.seconds - busy),
        )  # fmt: skip
        report = WorkerReport(self._worker, times, self.timesteps, self._collector.take())
        self._clear()
        return report
