"""The engine of this machine: a process for each worker.

::

                         board: oldest version wanted ─▶        ◀─ progress of each worker
              ┌─────────┐                                                         ┌──────────┐
              │         │─── commands: Start, Continue, Stop, Exit (pipe) ───────▶│          │
              │ sampler │─── arena of updates, written once for all ─────────────▶│ worker w │
              │         │◀── answers: one a ticket (pipe) ────────────────────────│          │
              └─────────┘◀── arena of w's rollouts, read where they lie ──────────└──────────┘

Each worker has pipes and memory of its own, made before it starts, and each end is held by one process only. So the
death of a worker, at any instant, breaks nothing that another one uses, and is seen at once. There are no locks, no
threads, and no names in any file system.
"""

from __future__ import annotations

from streamsampler.engines.launch.descriptor_limits import make_room
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.linked import LinkedEngine
from streamsampler.engines.processes.links import ArenaLink
from streamsampler.engines.processes.pool import ProcessPool
from streamsampler.engines.processes.shared import PublishedFiles
from streamsampler.engines.processes.wire import INLINE_LIMIT, Stored
from streamsampler.engines.processes.worker_main import main
from streamsampler.engines.worker_setup import ProcessSetup
from streamsampler.serialization import Payload

__all__ = ["ProcessEngine"]


class ProcessEngine(ProcessPool[ArenaLink], LinkedEngine[ArenaLink]):
    """Workers in processes.

    Args:
        n_workers: How many workers there are.
        make_worker: A pickled callable that makes a worker from its context.
        seed: The sampler's seed.
        start_method: How processes are started.
        close_timeout: Seconds that all workers together may take to close their environments at the end.
        report_memory: Whether workers write to the status board how much memory they have.

    Raises:
        ResourceLimitError: The system does not allow this process the descriptors (an OSError).
        OSError: No process can be started; those that were started have ended.
    """

    def __init__(
        self,
        n_workers: int,
        make_worker: Payload,
        seed: int,
        start_method: StartMethod,
        *,
        close_timeout: float,
        report_memory: bool = False,
        threads: int | None = None,
    ) -> None:
        super().__init__(n_workers, close_timeout)
        make_room(n_workers)
        setup = ProcessSetup.of_this_process(make_worker, seed, threads), INLINE_LIMIT, report_memory
        self._shared = PublishedFiles(setup, n_workers, INLINE_LIMIT)
        self._start(start_method, main, threads, self._shared)

    def _new_link(self, number: int) -> ArenaLink:
        return ArenaLink(self._how, number, self._shared, lambda: self._oldest_version, self._spaces)

    def publish(self, payload: Payload) -> Stored:
        """Write a payload once, where all workers can read it."""
        return self._shared.write(payload)

    def published(self, handle: Stored) -> Payload:
        """Read a payload back."""
        return self._shared.read(handle)

    def unpublish(self, handle: Stored) -> None:
        """Free the memory of a payload."""
        self._shared.free(handle)
