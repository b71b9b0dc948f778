"""Start this library's workers, get one short trajectory from each, and measure their memory."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness.contender import Measure, serve
from benchmarks.problems.environments import make_marked
from benchmarks.problems.workloads import Workload, marks
from streamsampler import MultiprocessingSampler


def private_bytes(pid: int) -> int:
    """Return the bytes of a process's private pages, clean and dirty."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(size) for size in re.findall(r"^Private_(?:Clean|Dirty):\s*(\d+) kB", text, re.MULTILINE))


@contextmanager
def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> Iterator[Measure]:
    """Start in the measurement, once in a process: later starts are quicker."""

    def measure(request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - there is one way to start
        begin = time.monotonic()
        with MultiprocessingSampler(
            workload.make_agent(), make_marked, n_workers=n_processes, seed=1, start_method=settings.get("start_method")
        ) as sampler:
            made = time.monotonic()
            trajectories = sampler.stream()
            next(trajectories)
            first = time.monotonic()
            trajectories.close()
            batch = sampler.obtain_trajectories(20 * n_processes)
            end = time.monotonic()
            private = [private_bytes(pid) for pid in sampler.worker_pids()]
        ready = [when - begin for _, when in marks(0) if when > begin]
        return {
            "timesteps": batch.n_timesteps,
            "trajectories": batch.n_trajectories,
            "seconds": end - begin,
            "constructed": made - begin,
            "first_trajectory": first - begin,
            "environments": len(ready),
            "last_environment": max(ready),
            "private_mb": [size / 1e6 for size in private],
        }

    yield measure


if __name__ == "__main__":
    serve(contender, packages=["streamsampler", "numpy"])
