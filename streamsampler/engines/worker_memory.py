"""Report a worker process's private memory."""

from __future__ import annotations

import mmap
import os

from streamsampler.workers.board import WorkerRow

_HAS_PROC = os.path.exists("/proc/self/statm")


class MemoryReporter:
    """Writes the private memory of this process to its row of the status board at each call.

    Pages of files and memory inherited by a fork do not count. Without /proc it is the maximum so far.
    """

    def __init__(self, row: WorkerRow) -> None:
        self._row = row
        self._inherited = _inherited_bytes() if _HAS_PROC else 0

    def __call__(self) -> None:
        if _HAS_PROC:
            self._row.set_memory(max(0, _anonymous_bytes() - self._inherited))
        else:
            import resource

            self._row.set_memory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _inherited_bytes() -> int:
    """Return the memory shared with the parent: a write by either copies it."""
    with open("/proc/self/smaps_rollup", "rb") as file:
        sizes = dict(line.split(b":") for line in file.read().splitlines()[1:])
    private = sum(1024 * int(sizes[name].split()[0]) for name in (b"Private_Dirty", b"Private_Clean"))
    return max(0, _anonymous_bytes() - private)


def _anonymous_bytes() -> int:
    with open("/proc/self/statm", "rb", buffering=0) as file:
        resident, shared = file.read().split()[1:3]
    return (int(resident) - int(shared)) * mmap.PAGESIZE
