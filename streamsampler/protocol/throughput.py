"""Estimate how long trajectories are and how fast each worker is, from the reports so far. Pure.

The estimates decide which tickets are assigned, when and to which worker; never which trajectories are returned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from operator import mul

_APPROACH = 0.2


class Throughput:
    """Average the lengths of trajectories and the time they take; old reports weigh less and less.

    Lengths are averaged over all workers, since a trajectory's length does not depend on its worker. The time of a
    timestep is also averaged for each worker.
    """

    _MEMORY = 200.0  # trajectories: enough to be steady, few enough to follow a policy that learns
    _KEPT = 0.9  # of a worker's own averages with each of its reports: its last ten count

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
        """Add the trajectories of one report, which took so many seconds together.

        Without a worker the averages of single workers stay as they are. If a worker's rows were not all filled, its
        trajectories took longer than they need, and it is taken to be slower a little at a time: with small tickets it
        would seem slow, and get smaller ones.
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
        """Forget the averages of a worker that another one replaces."""
        self._workers.pop(worker, None)

    def raise_to(self, worker: int, each: float) -> None:
        """Take a trajectory to last at least `each` seconds on a worker whose ticket does not arrive."""
        known = self.seconds_with(worker)
        if known is None or each > known:
            self._workers[worker] = max(1.0, self._mean), each

    def approach_average(self, worker: int) -> None:
        """Move a worker's average a fifth of the way to that of all workers.

        A worker without tickets cannot show its speed, and what made it slow may be over.
        """
        if worker in self._workers and self._weight:
            timesteps, seconds = self._workers[worker]
            average = timesteps * self._seconds / (self._weight * max(1.0, self._mean))
            self._workers[worker] = timesteps, seconds + _APPROACH * (average - seconds)

    def _average_lengths(self, lengths: Sequence[int], total: int) -> None:
        # Means and squared deviations of two groups are joined as in Chan, Golub and LeVeque (1979): where all are of
        # one length the mean stays exact and the spread exactly 0, so that nothing is rounded up to a surplus rollout.
        weight, n = self._weight, len(lengths)
        delta = total / n - self._mean
        self._mean += delta * n / (weight + n)
        within = max(0.0, sum(map(mul, lengths, lengths)) - total * total / n)
        self._squares += within + delta * delta * weight * n / (weight + n)

    @property
    def timesteps(self) -> float | None:
        """Timesteps of a trajectory, at least 1; None before the first one."""
        return max(1.0, self._mean) if self._weight else None

    @property
    def n_bytes(self) -> float:
        """Bytes of a trajectory's observations; 0 before the first one."""
        return self._bytes / self._weight if self._weight else 0.0

    @property
    def spread(self) -> float:
        """The standard deviation of the timesteps of a trajectory; 0 before the second one."""
        return math.sqrt(self._squares / self._weight) if self._weight else 0.0

    @property
    def seconds(self) -> float | None:
        """Seconds of a trajectory; None before the first one."""
        return self._seconds / self._weight if self._weight else None

    def seconds_with(self, worker: int) -> float | None:
        """Return the seconds that a trajectory is expected to take on `worker`; None before its first one."""
        # Without `max`: at the end of a call this is asked of all workers, again and again.
        known = self._workers.get(worker)
        if known is None:
            return None
        timesteps, seconds = known
        mean = self._mean
        return (mean if mean > 1.0 else 1.0) * seconds / (timesteps if timesteps > 1.0 else 1.0)

    def seconds_of_others(self, workers: Set[int]) -> list[float]:
        """Return the seconds of a trajectory on each worker whose speed is known, but for some workers."""
        mean = max(1.0, self._mean)
        return [
            mean * seconds / (timesteps if timesteps > 1.0 else 1.0)
            for worker, (timesteps, seconds) in self._workers.items()
            if seconds and worker not in workers
        ]

    def slowness(self, worker: int) -> float:
        """Return how many times the average duration `worker` takes; 1 before its first trajectory."""
        each, mean = self.seconds_with(worker), self.seconds
        return each / mean if each and mean else 1.0

    def trajectories_in(self, seconds: float, n_bytes: int) -> int:
        """Return how many trajectories a worker runs in this time, with so many bytes of observations at most.

        At least 1, and 1 before the first trajectory.
        """
        if not self._weight:
            return 1
        in_time = seconds * self._weight / max(self._seconds, 1e-9)
        in_room = n_bytes * self._weight / max(self._bytes, 1e-9)
        return max(1, int(min(in_time, in_room)))
