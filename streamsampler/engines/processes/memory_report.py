"""How much private memory a worker process has, for `max_worker_memory`."""

from __future__ import annotations

import mmap
import os
import resource

from streamsampler.workers.board import WorkerRow

__all__ = ["MemoryReporter"]

_HAS_PROC = os.path.exists("/proc/self/statm")


class MemoryReporter:
    """Writes the private memory of this process to the status board, at each call.

    Pages of files do not count, nor does what a fork has inherited from its parent. Where there is no /proc, the
    figure is the most memory that the process ever had.

    Args:
        row: The worker's row of the board.
    """

    def __init__(self, row: WorkerRow) -> None:
        self._row = row
        self._inherited = _inherited_bytes() if _HAS_PROC else 0

    def __call__(self) -> None:
        """Write how much private memory there is now."""
        if _HAS_PROC:
            self._row.set_memory(max(0, _anonymous_bytes() - self._inherited))
        else:
            self._row.set_memory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _inherited_bytes() -> int:
    """Return how much of this process's memory belongs to its parent, too: copied only where one of them writes."""
    with open("/proc/self/smaps_rollup", "rb") as file:
        sizes = dict(line.split(b":") for line in file.read().splitlines()[1:])
    private = sum(1024 * int(sizes[name].split()[0]) for name in (b"Private_Dirty", b"Private_Clean"))
    return max(0, _anonymous_bytes() - private)


def _anonymous_bytes() -> int:
    with open("/proc/self/statm", "rb", buffering=0) as file:
        resident, shared = file.read().split()[1:3]
    return (int(resident) - int(shared)) * mmap.PAGESIZE
