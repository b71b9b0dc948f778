"""How many worker processes keep the cores busy."""

from __future__ import annotations

import math
from time import perf_counter, process_time

from streamsampler.data.words import count

__all__ = ["Spinning", "processes_for"]

_WAITS, _THREADS = 0.7, 1.3
_FREE, _SURELY_WAITS = 0.7, 0.3
_MOST = 8
"""How many processes at most, where environments wait and there are fewer cores."""


class Spinning:
    """Computes, and nothing else: how much of a core is to be had."""

    def __init__(self) -> None:
        self._wall = self._cpu = 0.0

    def run(self, seconds: float) -> None:
        """Compute for so long."""
        began, cpu = perf_counter(), process_time()
        while perf_counter() - began < seconds:
            sum(range(1_000))
        self._wall += perf_counter() - began
        self._cpu += process_time() - cpu

    @property
    def share(self) -> float:
        """Seconds of processor time for each second."""
        return max(0.01, min(1.0, self._cpu / self._wall)) if self._wall else 1.0


def processes_for(cpu_share: float, free_share: float, n_cores: int) -> tuple[int, str]:
    """Return how many processes to use, and why. Pure.

    Args:
        cpu_share: Seconds of processor time for each second that environment and agent take, as a share of what code
            gets that only computes: below 1 they wait, above 1 they use threads.
        free_share: Seconds of processor time for each second that such code got.
        n_cores: How many cores there are to use.
    """
    cores = count(n_cores, "core")
    if free_share < _FREE and cpu_share > _SURELY_WAITS:
        cpu_share = 1.0  # with other programs running that is too uncertain to rely on
    if cpu_share < _WAITS:
        n = max(n_cores, min(_MOST, math.ceil(n_cores / max(cpu_share, 1e-9))))
        return n, f"environment and agent compute {cpu_share:.0%} of the time and wait otherwise"
    if cpu_share > _THREADS:
        return max(1, int(n_cores / cpu_share)), f"one keeps {cpu_share:.1f} of {cores} busy, with threads of its own"
    return n_cores, f"there {'is' if n_cores == 1 else 'are'} {cores} to use, and one keeps one busy"
