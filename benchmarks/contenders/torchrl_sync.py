"""TorchRL's MultiSyncCollector: all processes make their share of a batch, and wait for each other.

Settings: see `torchrl_common`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torchrl.collectors import MultiSyncCollector

from benchmarks.contenders.torchrl_common import PACKAGES, collecting
from benchmarks.harness.contender import Measure, serve
from benchmarks.problems.workloads import Workload


def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> AbstractContextManager[Measure]:
    """Start the collector."""
    return collecting(MultiSyncCollector, workload, n_processes, settings, share=False)


if __name__ == "__main__":
    serve(contender, packages=PACKAGES)
