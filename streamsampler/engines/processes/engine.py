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

import selectors
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from streamsampler.core.serialization import Payload
from streamsampler.engines.base import Died
from streamsampler.engines.launch.child import END_SECONDS, Main
from streamsampler.engines.launch.descriptors import make_room, readable_within
from streamsampler.engines.launch.worker_child import WatchdogLostError
from streamsampler.engines.linked import GRACE_SECONDS, LinkedEngine, LinkedWorkers
from streamsampler.engines.processes.links import (
    CAME_BACK,
    ENDED,
    HAS_ROOM,
    ArenaLink,
    PipeLink,
    PublishedFiles,
    SharedFiles,
    WorkerStart,
)
from streamsampler.engines.processes.wire import INLINE_LIMIT, GarbageError, Stored
from streamsampler.engines.processes.worker_main import main
from streamsampler.engines.worker_side import ProcessSetup

# ----------------------------------------------------------------------
# Start processes with pipes, notice their ends, and read what they say until then; whatever their messages are.


_AT_ONCE = 8  # workers that start at a time; the kernel bounds how many descriptors may be on their way to a server

PipeLinkT = TypeVar("PipeLinkT", bound=PipeLink)


class ProcessPool(LinkedWorkers[PipeLinkT]):
    """Workers in processes with pipes.

    Each worker has pipes of its own, made before it starts, and each end is held by one process only. So the death of a
    worker, at any instant, breaks nothing that another one uses, and is seen at once. There are no locks, no threads,
    and no names in any file system.
    """

    _how: WorkerStart
    _selector: selectors.BaseSelector

    @abstractmethod
    def _new_link(self, number: int) -> PipeLinkT:
        """Begin to start a worker; return its link."""

    # ------------------------------------------------------------------ starting

    def _start(self, main: Main, threads: int | None, shared: SharedFiles) -> None:
        """Start the workers, several at a time: the start of a worker passes through several processes.

        If that fails, those that were started have ended, without closing environments: no worker has made one.

        Args:
            main: What a worker runs.
            threads: How many threads libraries compute on; None for no limit.
            shared: What all workers share; closed together with the pool.
        """
        self._opened.callback(shared.close)
        try:
            self._selector = self._opened.enter_context(selectors.DefaultSelector())
            self.board = shared.board
            self._how = WorkerStart(main, threads, shared, self._selector)
            self._start_all()
        except BaseException:
            self._end_all()
            self._opened.close()
            raise

    def _start_all(self) -> None:
        for number in range(self.n_workers + _AT_ONCE):
            first = number - _AT_ONCE
            if first >= 0:
                self._links[first] = self._running(self._links[first])
            if number < self.n_workers:
                self._links.append(self._asked_for(number))

    def _started(self, number: int) -> PipeLinkT:
        return self._running(self._asked_for(number))

    def _asked_for(self, number: int) -> PipeLinkT:
        """Begin to start a worker; return its link, which `_running` completes."""
        try:
            return self._new_link(number)
        except WatchdogLostError:
            return self._new_link(number)  # with another server

    def _running(self, link: PipeLinkT) -> PipeLinkT:
        """Wait until a worker runs; return its link, or that of a second attempt."""
        try:
            try:
                link.await_start()
            except WatchdogLostError:
                # A second attempt, with new pipes. If the first server did start a worker, it ends with the old pipes.
                link.close(0)
                link = self._new_link(link.number)
                link.await_start()
        except BaseException:
            link.close(END_SECONDS)
            raise
        return link

    # ------------------------------------------------------------------ events

    def _events(self, timeout: float | None) -> list[Any]:
        return self._said(self._selector.select(timeout))

    def _said(self, ready: Sequence[tuple[selectors.SelectorKey, int]]) -> list[Any]:
        """Return the events of workers that the selector reported."""
        events: list[Any] = []
        for key, _ in ready:
            link, what = key.data
            if what is HAS_ROOM:
                link.flush()
                continue
            if link.ended:
                continue
            try:
                # None: the worker has closed its end, and is about to end.
                said = None if what is ENDED else link.read()
                events += self._take_in_death(link) if said is None else said
            except GarbageError as error:
                events.append(self._kill_untrusted(link, str(error)))
        return events

    def _take_in_death(self, link: PipeLinkT, *, given_up: bool = False) -> list[Any]:
        """Return what a worker said last, then its death. Of a message that it did not finish nothing is known."""
        self._killed.pop(link.number, None)
        if not given_up and link.child.unwatched() and not link.child.ended(0):
            return [self._kill_untrusted(link, "lost its watchdog process, and was killed,")]
        link.ended = True
        if not given_up and not link.child.ended(GRACE_SECONDS):
            link.kill()  # it has closed its pipe, and cannot answer any more
        last: list[Any] = []
        while readable_within(link.answers_fd, 0):
            try:
                said = link.read()
            except GarbageError as error:
                return [*last, self._kill_untrusted(link, str(error))]
            if said is None:
                break
            last += said
        link.unregister()
        return [*last, Died(link.number, link.child.wait(0 if given_up else END_SECONDS))]

    def _kill_untrusted(self, link: PipeLinkT, why: str) -> Died:
        """Kill a worker whose messages cannot be trusted any more; return its death."""
        link.ended = True
        self._killed.pop(link.number, None)
        link.child.kill_all()
        link.unregister()
        return Died(link.number, link.child.wait(END_SECONDS), why, hopeless=why == CAME_BACK)


# ----------------------------------------------------------------------


class ProcessEngine(ProcessPool[ArenaLink], LinkedEngine[ArenaLink]):
    """Workers in processes.

    Args:
        n_workers: How many workers there are.
        make_worker: A pickled callable that makes a worker from its context.
        seed: The sampler's seed.
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
        *,
        close_timeout: float,
        report_memory: bool = False,
        threads: int | None = None,
    ) -> None:
        super().__init__(n_workers, close_timeout)
        make_room(n_workers)
        setup = ProcessSetup.of_this_process(make_worker, seed, threads), INLINE_LIMIT, report_memory
        self._shared = PublishedFiles(setup, n_workers, INLINE_LIMIT)
        self._start(main, threads, self._shared)

    def _new_link(self, number: int) -> ArenaLink:
        return ArenaLink(self._how, number, self._shared, self._answers)

    def publish(self, payload: Payload) -> Stored:
        """Write a payload once, where all workers can read it."""
        return self._shared.write(payload)

    def published(self, handle: Stored) -> Payload:
        """Read a payload back."""
        return self._shared.read(handle)

    def unpublish(self, handle: Stored) -> None:
        """Free the memory of a payload."""
        self._shared.free(handle)
