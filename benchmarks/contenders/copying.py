"""Copy the workload's parameters in one process, once for each worker of the others: the limit of updates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.harness.contender import Measure, Unsupported, serve
from benchmarks.problems.workloads import Workload


@contextmanager
def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> Iterator[Measure]:  # noqa: ARG001
    """Copy into memory that is allocated already, as an agent does with new parameters."""
    if workload.parameters is None:
        raise Unsupported("this workload has no parameters")
    source: np.ndarray = workload.parameters(0)["weights"]
    targets = [np.zeros_like(source) for _ in range(n_processes)]

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        times = []
        begin = now = time.perf_counter()
        while now - begin < request.get("seconds", 1.0):
            for target in targets:
                np.copyto(target, source)
            before, now = now, time.perf_counter()
            times.append(now - before)
        # Nothing is stepped: one copy counts as a timestep.
        n = len(times) * n_processes
        return {"timesteps": n, "trajectories": 0, "seconds": now - begin, "delays": [[t] for t in times]}

    yield measure


if __name__ == "__main__":
    serve(contender, packages=["numpy"])
