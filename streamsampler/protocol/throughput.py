"""Estimate the lengths of trajectories and the speed of each worker from reports. Pure.

Estimates decide about tickets, never about the trajectories of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from operator import mul

_APPROACH = 0.2


class Throughput:
    """Averages lengths and durations of trajectories; old reports weigh less and less.

    Lengths are averaged over all workers, times of a timestep also for each worker.
    """

    _MEMORY = 200.0  # trajectories: enough to be steady, few enough to follow a learning policy
    _KEPT = 0.9  # of a worker's own averages at each report: its last ten count

    def __init__(self) -> None:
        self._weight = 0.0
        self._mean = 0.0
        self._squares = 0.0  # weighted squared deviations from the mean
        self._seconds = 0.0
        self._bytes = 0.0
        self._workers: dict[int, tuple[float, float]] = {}  # timesteps and seconds

    def measure(
        self, lengths: Sequence[int], seconds: float, worker: int | None = None, n_bytes: int = 0, *,
        fills_rows: bool = True,
    ) -> None:  # fmt: skip
        """Add the trajectories of a report, `seconds` long together.

        Without a worker, workers' averages stay the same. A worker with empty rows took longer than necessary, so its
        average rises slowly: small tickets would make it seem slow, and get it even smaller tickets.
        """
        if not lengths:
            return
        n, total = len(lengths), sum(lengths)
        self._average_lengths(lengths, total)
        keep = min(1.0, self._MEMORY / (self._weight + n))
        self._weight = (self._weight + n) * keep
        self._squares *= keep
        self._seconds = (self._seconds + seconds) * keep
        self._bytes = (self._bytes + n_bytes) * keep
        if worker is not None:
            old_timesteps, old_seconds = self._workers.get(worker, (0.0, 0.0))
            if not fills_rows and old_timesteps and seconds * old_timesteps > old_seconds * total:
                seconds = (1 - _APPROACH) * old_seconds / old_timesteps * total + _APPROACH * seconds
            self._workers[worker] = (self._KEPT * old_timesteps + total, self._KEPT * old_seconds + seconds)

    def forget(self, worker: int) -> None:
        self._workers.pop(worker, None)

    def raise_to(self, worker: int, each: float) -> None:
        """Raise a trajectory's duration on a late worker to at least `each` seconds."""
        known = self.seconds_with(worker)
        if known is None or each > known:
            self._workers[worker] = max(1.0, self._mean), each

    def approach_average(self, worker: int) -> None:
        """Move a worker's average a fifth towards that of all: without tickets it cannot show its speed."""
        if worker in self._workers and self._weight:
            timesteps, seconds = self._workers[worker]
            average = timesteps * self._seconds / (self._weight * max(1.0, self._mean))
            self._workers[worker] = timesteps, seconds + _APPROACH * (average - seconds)

    def _average_lengths(self, lengths: Sequence[int], total: int) -> None:
        # Means and squared deviations of two groups are joined as in Chan, Golub and LeVeque (1979): with equal lengths
        # the mean stays exact and the spread exactly 0, so rounding adds no surplus rollout.
        weight, n = self._weight, len(lengths)
        delta = total / n - self._mean
        self._mean += delta * n / (weight + n)
        within = max(0.0, sum(map(mul, lengths, lengths)) - total * total / n)
        self._squares += within + delta * delta * weight * n / (weight + n)

    @property
    def timesteps(self) -> float | None:
        """Mean timesteps of a trajectory, at least 1; None before the first."""
        return max(1.0, self._mean) if self._weight else None

    @property
    def n_bytes(self) -> float:
        return self._bytes / self._weight if self._weight else 0.0

    @property
    def spread(self) -> float:
        return math.sqrt(self._squares / self._weight) if self._weight else 0.0

    @property
    def seconds(self) -> float | None:
        """Mean seconds of a trajectory; None before the first."""
        return self._seconds / self._weight if self._weight else None

    def seconds_with(self, worker: int) -> float | None:
        """Return the expected seconds of a trajectory on `worker`; None before its first."""
        # Without `max`, because near the end of a call all workers are asked, again and again.
        known = self._workers.get(worker)
        if known is None:
            return None
        timesteps, seconds = known
        mean = self._mean
        return (mean if mean > 1.0 else 1.0) * seconds / (timesteps if timesteps > 1.0 else 1.0)

    def seconds_of_others(self, workers: Set[int]) -> list[float]:
        """Return the known seconds of a trajectory on workers outside `workers`."""
        mean = max(1.0, self._mean)
        return [
            mean * seconds / (timesteps if timesteps > 1.0 else 1.0)
            for worker, (timesteps, seconds) in self._workers.items()
            if seconds and worker not in workers
        ]

    def slowness(self, worker: int) -> float:
        """Return `worker`'s duration relative to the average; 1 at first."""
        each, mean = self.seconds_with(worker), self.seconds
        return each / mean if each and mean else 1.0

    def trajectories_in(self, seconds: float, n_bytes: int) -> int:
        """Return how many trajectories fit in these seconds and bytes; at least 1."""
        if not self._weight:
            return 1
        in_time = seconds * self._weight / max(self._seconds, 1e-9)
        in_room = n_bytes * self._weight / max(self._bytes, 1e-9)
        return max(1, int(min(in_time, in_room)))
