"""What a manager of environments did, in numbers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.timing import Collector, Measured, collecting
from streamsampler.data.statistics import Aggregation, Stats, Timer
from streamsampler.protocol.messages import Times

# ----------------------------------------------------------------------
# Where the time of a process with environments goes, measured there.


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


# ----------------------------------------------------------------------


@dataclass
class ManagerStats(Stats):
    """What a manager did in its whole life: `Stats` of a sampler, in which a trajectory is an episode.

    `kept_trajectories` are episodes whose end was handed out, `failed_trajectories` those that ended because their
    environment failed, and `abandoned_trajectories` those that a reset by the caller cut short. `kept_timesteps` are
    all that were handed out, `abandoned_timesteps` those whose results a reset discarded, and `lost_timesteps` those
    that were run to restore environments. `episodes` stays empty, since a manager adds up no rewards. `seconds` is the
    time since the launch, of all launches together; `workers` has what workers last said, which is at most about a
    second old for those that are at work.

    Attributes:
        failures: How often an environment raised, or a worker died or hung.
        restored: Environments that were made what they were.
        not_restored: Environments that could not be, so that their episodes ended.
    """

    failures: int = 0
    restored: int = 0
    not_restored: int = 0
    _launched_at: float | None = None

    @classmethod
    def for_workers(cls, n_workers: int) -> ManagerStats:
        """Return empty accounts."""
        return cls(workers=[Times()] * n_workers, worker_timesteps=[0] * n_workers)

    def tick(self, *, running: bool) -> None:
        """Add the time since the last call, and begin to count, or stop."""
        now = time.monotonic()
        if self._launched_at is not None:
            self.seconds += now - self._launched_at
        self._launched_at = now if running else None

    def take_worker(self, report: WorkerReport) -> None:
        """Add what a worker says of its time."""
        self.reports += 1
        self.workers[report.worker] = self.workers[report.worker].plus(report.times)
        self.worker_timesteps[report.worker] += report.timesteps
        if report.timed:
            self.timed.setdefault(report.worker, Timer()).add(report.timed)

    def take_results(self, timesteps: NDArray[np.int64], ended: NDArray[np.bool_], failed: NDArray[np.bool_]) -> None:
        """Add results that are handed out.

        Args:
            timesteps: (K,) the number of each in its episode; 0 for a reset.
            ended: (K,) whether the episode ended.
            failed: (K,) whether it ended because its environment failed.
        """
        n_failed = int(np.count_nonzero(failed))
        self.kept_timesteps += int(np.count_nonzero(timesteps)) - n_failed
        self.kept_trajectories += int(np.count_nonzero(ended)) - n_failed
        self.failed_trajectories += n_failed

    def take_infos(self, batch: Any, how: dict[str, Aggregation]) -> dict[str, float]:  # type: ignore[override]
        """Add values that environments report in infos: `manager.stats.take_infos(steps, {"crashes": "sum"})`.

        Args:
            batch: `Steps`.
            how: See `Stats.take_infos`, as the rest.
        """
        return super().take_infos(_InfosOf(batch.infos), how)


@dataclass(frozen=True)
class _InfosOf:
    env_infos: Any
