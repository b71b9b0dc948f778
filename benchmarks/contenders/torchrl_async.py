"""TorchRL's MultiAsyncCollector: each process makes batches without waiting; they are used in order of arrival.

Settings: see `torchrl_common`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torchrl.collectors import MultiAsyncCollector

from benchmarks.contenders.torchrl_common import PACKAGES, collecting
from benchmarks.harness.contender import Measure, Unsupported, serve
from benchmarks.problems.workloads import Workload


def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> AbstractContextManager[Measure]:
    """Start the collector.

    Raises:
        Unsupported: The workload has new parameters for each batch.
    """
    if workload.parameters is not None:
        raise Unsupported("its next batches are under way already, under the parameters before")
    return collecting(MultiAsyncCollector, workload, n_processes, settings, share=True)


if __name__ == "__main__":
    serve(contender, packages=PACKAGES)
