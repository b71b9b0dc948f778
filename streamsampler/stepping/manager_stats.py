"""Count the results, losses and times of a manager of environments."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.data.aggregation import Aggregation
from streamsampler.data.statistics import Stats
from streamsampler.stepping.env_times import WorkerReport


@dataclass
class ManagerStats(Stats):
    """Counts since a manager was made: `Stats` as of a sampler, where a trajectory is an episode.

    The caller received `kept_trajectories` to their end; `failed_trajectories` ended because their environment failed,
    `abandoned_trajectories` by a reset. The caller received `kept_timesteps`; resets discarded `abandoned_timesteps`,
    and `lost_timesteps` were run again to restore environments. `episodes` stays empty, since a manager adds up no
    rewards. `seconds` is the time since the launch, of all launches together. `workers` may be a second old: busy
    workers report so often.

    Attributes:
        failures: How often an environment raised, or a worker died or hung.
        restored: Restored environments.
        not_restored: Failed restores, which ended an episode.
    """

    failures: int = 0
    restored: int = 0
    not_restored: int = 0
    _launched_at: float | None = None

    def tick(self, *, running: bool) -> None:
        now = time.monotonic()
        if self._launched_at is not None:
            self.seconds += now - self._launched_at
        self._launched_at = now if running else None

    def take_worker(self, report: WorkerReport) -> None:
        self.reports += 1
        self.workers[report.worker] = self.workers[report.worker].plus(report.times)
        self.worker_timesteps[report.worker] += report.timesteps
        if report.timed is not None:
            self.add_measured(report.worker, report.timed)

    def take_results(self, timesteps: NDArray[np.int64], ended: NDArray[np.bool_], failed: NDArray[np.bool_]) -> None:
        """Add received results: numbers of timesteps, 0 for a reset; (K,) each, as in `Steps`."""
        n_failed = int(np.count_nonzero(failed))
        self.kept_timesteps += int(np.count_nonzero(timesteps)) - n_failed
        self.kept_trajectories += int(np.count_nonzero(ended)) - n_failed
        self.failed_trajectories += n_failed

    def take_infos(self, batch: Any, how: dict[str, Aggregation]) -> dict[str, float]:  # type: ignore[override]
        """Add values from environments' infos: `manager.stats.take_infos(steps, {"crashes": "sum"})`.

        Args:
            batch: `Steps`.
            how: See `Stats.take_infos`.
        """
        return super().take_infos(_InfosOf(batch.infos), how)


@dataclass(frozen=True)
class _InfosOf:
    env_infos: Any
