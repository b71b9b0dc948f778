"""Check that a peer's processes fit into memory, where each imports torch."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.contender import Unsupported

__all__ = ["check_memory"]


def check_memory(n_processes: int, megabytes: int) -> None:
    """Check that the processes take at most half of the free memory: others may be running.

    Args:
        n_processes: How many there will be.
        megabytes: Private memory of each, as measured.

    Raises:
        Unsupported: They would take more.
    """
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free, needed = int(line.split()[1]) // 1024, n_processes * megabytes
            if needed > free // 2:
                raise Unsupported(f"{n_processes} processes of {megabytes} MB each: too much for {free} MB of memory")
