"""How long trajectories are and how fast each worker is, as far as one can tell from what came in: pure.

It decides how much work is handed out, when and to whom; never what is returned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

__all__ = ["SHORTEST_TICKET_SECONDS", "TICKET_BYTES", "TICKET_SECONDS", "Throughput", "needed_for"]

TICKET_SECONDS = 0.1
"""What a ticket should take: long beside the cost of a report (some 0.5 ms on either side, with caches that have gone
cold since the last one), short beside a human's patience."""

TICKET_BYTES = 1 << 24
"""What a ticket's observations should have at most: they lie in memory twice for a while, and had better be in the
processor's cache when they are copied."""

SHORTEST_TICKET_SECONDS = 0.003
"""Below this the last tickets of a call cost more than what workers lose that end at different times."""

_APPROACH = 0.2


class Throughput:
    """The lengths of trajectories, and the time they take: averages that forget.

    Lengths are averaged over all workers, since a trajectory's length does not depend on who runs it. The time of a
    timestep is averaged for each worker, too.
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

    def add(self, lengths: Sequence[int], seconds: float, worker: int | None = None, n_bytes: int = 0) -> None:
        """Take note of trajectories that one worker ran in a row.

        Args:
            lengths: Their timesteps.
            seconds: What they took together.
            worker: Who ran them; None where nobody asks for single workers.
            n_bytes: The size of their observations.
        """
        if not lengths:
            return
        n, total = len(lengths), sum(lengths)
        self._note_lengths(lengths, total)
        keep = min(1.0, self._MEMORY / (self._weight + n))
        self._weight = (self._weight + n) * keep
        self._squares *= keep
        self._seconds = (self._seconds + seconds) * keep
        self._bytes = (self._bytes + n_bytes) * keep
        if worker is not None:
            old_timesteps, old_seconds = self._workers.get(worker, (0.0, 0.0))
            self._workers[worker] = (self._KEPT * old_timesteps + total, self._KEPT * old_seconds + seconds)

    def forget(self, worker: int) -> None:
        """Take note that another one works under this number from now on."""
        self._workers.pop(worker, None)

    def approach_average(self, worker: int) -> None:
        """Believe a fifth less that a worker is slower than the average, because it is given nothing to show it by.

        It may have been the machine's fault, and over by now.
        """
        if worker in self._workers and self._weight:
            timesteps, seconds = self._workers[worker]
            average = timesteps * self._seconds / (self._weight * max(1.0, self._mean))
            self._workers[worker] = timesteps, seconds + _APPROACH * (average - seconds)

    def _note_lengths(self, lengths: Sequence[int], total: int) -> None:
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
    def spread(self) -> float:
        """The standard deviation of the timesteps of a trajectory; 0 before the second one."""
        return math.sqrt(self._squares / self._weight) if self._weight else 0.0

    @property
    def seconds(self) -> float | None:
        """Seconds of a trajectory; None before the first one."""
        return self._seconds / self._weight if self._weight else None

    def seconds_with(self, worker: int) -> float | None:
        """Seconds that a trajectory is expected to take with `worker`; None before its first one."""
        if worker not in self._workers:
            return None
        timesteps, seconds = self._workers[worker]
        return max(1.0, self._mean) * seconds / max(1.0, timesteps)

    def slowness(self, worker: int) -> float:
        """How many times as long as the average `worker` takes; 1 before its first trajectory."""
        each, mean = self.seconds_with(worker), self.seconds
        return each / mean if each and mean else 1.0

    def trajectories_in(self, seconds: float) -> int:
        """How many trajectories one worker runs in so many seconds on average; at least 1, and 1 if unknown.

        No more than `TICKET_BYTES` hold.
        """
        if not self._weight:
            return 1
        in_time = seconds * self._weight / max(self._seconds, 1e-9)
        in_room = TICKET_BYTES * self._weight / max(self._bytes, 1e-9)
        return max(1, int(min(in_time, in_room)))

    def ticket_size(self, share: int, slowness: float) -> int:
        """How many trajectories make a ticket.

        Args:
            share: How many are to be had; no fewer than are worth a report are taken.
            slowness: How many times as long as the average their worker takes.
        """
        share = max(share, self.trajectories_in(SHORTEST_TICKET_SECONDS / slowness))
        return min(self.trajectories_in(TICKET_SECONDS / slowness), share)


def needed_for(timesteps: int, mean: float, spread: float) -> int:
    """How many trajectories have that many timesteps together, if they fall short of their mean.

    Args:
        timesteps: Timesteps.
        mean: Timesteps of a trajectory.
        spread: By how much a trajectory falls short; n of them do by sqrt(n) times as much.
    """
    # The least n with n * mean - spread * sqrt(n) >= timesteps: a quadratic equation for sqrt(n).
    if timesteps <= 0:
        return 0
    root = (spread + math.sqrt(spread * spread + 4 * mean * timesteps)) / (2 * mean)
    return math.ceil(root * root - 1e-6)
