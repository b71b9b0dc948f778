"""The engine that needs nothing but Python's own `multiprocessing`: a process and a pair of queues for each worker.

::

                    board: oldest version wanted ─▶      ◀─ progress of each worker
              ┌─────────┐                                                   ┌──────────┐
              │         │─── commands: Start, Continue, Stop, Exit ────────▶│          │
              │ sampler │                                                   │ worker w │
              │         │◀── answers: one a ticket, with what was recorded ─│          │
              └─────────┘                                                   └──────────┘

The textbook form, for every system that Python runs on. The queues are bounded, and tickets guarantee the room in them:
neither side ever waits for it. No queue is shared by workers: a killed worker would keep its lock, and everybody would
wait. A worker that is started in the place of a dead one gets new queues.

Slower than `processes` where observations are large: they are copied several times on their way.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import pickle
import threading
from multiprocessing.connection import wait
from typing import Any

from streamsampler.engines.base import Answered, Died, Event, Logged
from streamsampler.engines.launch.child import END_SECONDS
from streamsampler.engines.launch.descriptor_limits import make_room
from streamsampler.engines.launch.import_path import working_directory
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.linked import GRACE_SECONDS, LinkedEngine
from streamsampler.engines.queue_link import QueueLink
from streamsampler.engines.worker_setup import ProcessSetup
from streamsampler.errors import SamplerError
from streamsampler.serialization import Payload
from streamsampler.workers.board import StatusBoard, board_bytes

__all__ = ["QueueEngine"]


class QueueEngine(LinkedEngine[QueueLink]):
    """Workers in processes of `multiprocessing`.

    Args:
        n_workers: How many workers there are.
        make_worker: A pickled callable that makes a worker from its context.
        seed: The sampler's seed.
        start_method: How processes are started.
        close_timeout: Seconds that all workers together may take to close their environments at the end.
        threads: How many threads libraries compute on in workers; None for no limit.

    Raises:
        ResourceLimitError: The system does not allow this process the descriptors (an OSError).
        OSError: No process can be started; those that were started have ended.
        SamplerError: This is a daemonic process of `multiprocessing`, which may have no children; or the working
            directory was removed, which `multiprocessing` needs for every start method but "fork".
    """

    def __init__(
        self,
        n_workers: int,
        make_worker: Payload,
        seed: int,
        start_method: StartMethod,
        *,
        close_timeout: float,
        threads: int | None = None,
    ) -> None:
        if multiprocessing.current_process().daemon:
            raise SamplerError(
                'engine="queues" cannot start workers in a daemonic process, whose children Python forbids: start that '
                "process with daemon=False, or use LocalSampler, which returns the same batches"
            )
        if start_method != "fork" and working_directory() is None:
            raise SamplerError(
                f'engine="queues" cannot start workers by start_method="{start_method}": the working directory was '
                'removed. Call os.chdir("/") before, or use engine="processes" or start_method="fork"'
            )
        super().__init__(n_workers, close_timeout)
        make_room(n_workers)
        self._context = multiprocessing.get_context(start_method)
        self._setup = ProcessSetup.of_this_process(make_worker, seed, threads)
        self._inbox: list[tuple[QueueLink, Any]] = []  # what was read; while it has something, there is a wake-up
        self._inbox_lock = threading.Lock()
        self._memory: Any = self._context.RawArray(ctypes.c_char, board_bytes(n_workers))
        self.board = StatusBoard(memoryview(self._memory))
        woken, wake = self._context.Pipe(duplex=False)
        self._woken, self._wake = map(self._opened.enter_context, (woken, wake))
        try:
            for number in range(n_workers):  # all, and then threads: a process with threads is not safe to fork
                self._links.append(self._new_link(number))
            for link in self._links:
                link.read(self._post)
        except BaseException:
            self._end_all()
            self._opened.close()
            raise

    def _close_shared(self) -> None:
        super()._close_shared()
        self._memory = None

    def _new_link(self, number: int) -> QueueLink:
        return QueueLink(self._context, number, self._setup, self._memory)

    def _started(self, number: int) -> QueueLink:
        link = self._new_link(number)
        try:
            link.read(self._post)
        except BaseException:
            link.close(END_SECONDS)
            raise
        return link

    def _post(self, link: QueueLink, item: Any) -> None:
        """Take in what a link read; called in its thread."""
        with self._inbox_lock, contextlib.suppress(OSError):  # closed just now
            self._inbox.append((link, item))
            if len(self._inbox) == 1:
                self._wake.send_bytes(b"!")

    def _events(self, timeout: float | None) -> list[Event]:
        events: list[Event] = []
        if wait([self._woken], timeout):
            with self._inbox_lock:
                self._woken.recv_bytes()
                items = self._inbox
                self._inbox = []
            for link, item in items:
                if not link.ended:
                    events += self._events_of(link, item)
        return events

    def _events_of(self, link: QueueLink, item: Any) -> list[Event]:
        if item is None:
            return self._take_in_death(link)
        try:
            records, pickled, contents, arrays = item
            answer = pickle.loads(pickled)
        except Exception as error:
            error = item if isinstance(item, Exception) else error
            link.kill()
            return self._take_in_death(link, why=f"sent what is no answer ({type(error).__name__}: {error})")
        events: list[Event] = [Logged(link.number, records)] if records else []
        if answer is None:
            return events
        if contents is not None:
            places = [(array, 0) for array in arrays]
            answer, contents = link.unpickled(answer, contents, places, self._oldest_version, self._spaces)
        return [*events, Answered(link.number, answer, contents)]

    def _take_in_death(self, link: QueueLink, *, given_up: bool = False, why: str = "") -> list[Event]:
        """Return the death of a worker; all that it had sent came before."""
        link.ended = True
        self._killed.pop(link.number, None)
        if not link.ends_within(0 if given_up else GRACE_SECONDS):
            link.kill()
            link.ends_within(0 if given_up else END_SECONDS)
        return [Died(link.number, link.process.exitcode, why)]
