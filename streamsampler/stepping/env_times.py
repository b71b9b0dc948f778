"""Measure, inside a process with environments, where its time goes."""

from __future__ import annotations

from time import perf_counter
from typing import Final, NamedTuple

from streamsampler.core.times import Times
from streamsampler.core.timing import Collector, Measured, collecting

IN_STEP: Final = 0
_IN_RESET: Final = 1
_TIMED_AS = ("step", "reset")


class WorkerReport(NamedTuple):
    """A process's times, timesteps and own measurements since its last report."""

    worker: int
    times: Times
    timesteps: int
    timed: Measured | None


class _Resetting:
    def __init__(self, times: EnvTimes) -> None:
        self._times = times
        self._began = 0.0

    def __enter__(self) -> None:
        self._began, self._times.phase[0] = perf_counter(), _IN_RESET

    def __exit__(self, *_: object) -> None:
        self._times.reset_seconds += perf_counter() - self._began
        self._times.phase[0] = IN_STEP


class EnvTimes:
    """Adds up the time of environments between two reports."""

    def __init__(self, worker: int) -> None:
        self.phase = [IN_STEP]  # or a reset: the phase of environments' own measurements
        self.resetting = _Resetting(self)  # measures a block as a reset
        self._worker = worker
        self._collector = Collector(self.phase, 0, _TIMED_AS)
        self._clear()

    def _clear(self) -> None:
        self.timesteps = 0
        self.reset_seconds = self.env_seconds = self.busy_seconds = 0.0
        self._began = perf_counter()

    def collecting(self) -> collecting:
        return collecting(self._collector)

    @property
    def seconds(self) -> float:
        return perf_counter() - self._began

    def take(self) -> WorkerReport:
        busy = max(self.busy_seconds, self.env_seconds)
        times = Times(
            reset=self.reset_seconds, step=max(0.0, self.env_seconds - self.reset_seconds),
            sending=busy - self.env_seconds, idle=max(0.0, self.seconds - busy),
        )  # fmt: skip
        report = WorkerReport(self._worker, times, self.timesteps, self._collector.take())
        self._clear()
        return report
