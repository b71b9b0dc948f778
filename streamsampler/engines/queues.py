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
import math
import multiprocessing
import os
import pickle
import queue
import threading
import time
from collections.abc import Iterable
from multiprocessing.connection import wait
from typing import Any

from streamsampler.engines.base import Answered, Died, Engine, Event, Logged, unreadable
from streamsampler.engines.known_spaces import KnownSpaces
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.queue_link import END_SECONDS, QueueLink
from streamsampler.engines.worker_setup import ProcessSetup
from streamsampler.errors import SamplerError
from streamsampler.protocol.messages import NEVER_AGAIN, Exit, Message, Phase, Start
from streamsampler.serialization import Payload, loads_report
from streamsampler.workers.board import StatusBoard, board_bytes

__all__ = ["QueueEngine"]

_STUCK_SECONDS = 1.0  # that a worker may take to begin to close its environment
_TERM_SECONDS = 0.25  # from SIGTERM to SIGKILL


class QueueEngine(Engine):
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
        SamplerError: This is a daemonic process of `multiprocessing`, which may have no children.
    """

    has_own_loggers = True

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
        self.n_workers = n_workers
        self._close_timeout = close_timeout
        self._owner = os.getpid()
        self._context = multiprocessing.get_context(start_method)
        self._setup = ProcessSetup.of_this_process(make_worker, seed, threads)
        self._links: list[QueueLink] = []
        self._oldest_version = 0  # that is not abandoned
        self._closing = self._closed = False
        self._spaces = KnownSpaces()
        self._killed: dict[int, float] = {}  # workers, and the time at which their ends are no longer waited for
        self._inbox: list[tuple[QueueLink, Any]] = []  # what was read; while it has something, there is a wake-up
        self._inbox_lock = threading.Lock()
        self._shared = self._context.RawArray(ctypes.c_char, board_bytes(n_workers))
        self.board = StatusBoard(memoryview(self._shared))
        self._descriptors = _make_room(n_workers)
        self._woken, self._wake = self._context.Pipe(duplex=False)
        try:
            for number in range(n_workers):  # all, and then threads: a process with threads is not safe to fork
                self._links.append(self._new_link(number))
            for link in self._links:
                link.read(self._post)
        except BaseException:
            self._end_all()
            raise

    def _new_link(self, number: int) -> QueueLink:
        return QueueLink(self._context, number, self._setup, self._shared, self._descriptors)

    def restart(self, worker: int) -> None:
        """Start a new process in the place of a dead one, with queues of its own."""
        self.board.clear(worker)
        # First the new worker: if it cannot be started, nothing has changed, and `restart` can be repeated.
        new, old = self._new_link(worker), self._links[worker]
        try:
            new.read(self._post)
        except BaseException:
            new.close(END_SECONDS)
            raise
        self._links[worker] = new
        if self._oldest_version == NEVER_AGAIN:
            new.kill()  # another thread has killed all workers, and may not have seen this one
        old.close(END_SECONDS)
        if self._closing:
            new.close(END_SECONDS)

    # ------------------------------------------------------------------ talking

    def abandon_older(self, version: int) -> None:
        """Let workers abandon rollouts of versions older than `version`."""
        self._oldest_version = version
        if self._is_ours():
            self.board.abandon_older(version)

    def send(self, worker: int, message: Message) -> None:
        """Send a message."""
        link = self._links[worker]
        if link.ended or not self._is_ours():
            return  # `wait` reports its death
        if isinstance(message, Start):
            self.board.lower_flag(worker)
        try:
            link.send(pickle.dumps(message, protocol=5))
        except queue.Full:  # the messages under way leave room: it has died, or its queue is broken
            link.kill()

    def _post(self, link: QueueLink, item: Any) -> None:
        """Take in what a link read; called in its thread."""
        with self._inbox_lock, contextlib.suppress(OSError):  # closed just now
            self._inbox.append((link, item))
            if len(self._inbox) == 1:
                self._wake.send_bytes(b"!")

    def wait(self, timeout: float | None) -> list[Event]:
        """Sleep until a worker answers, dies or is given up."""
        if self._killed:
            timeout = min([math.inf if timeout is None else timeout, *self._seconds_left().values()])
        events: list[Event] = []
        if wait([self._woken], timeout):
            with self._inbox_lock:
                self._woken.recv_bytes()
                items = self._inbox
                self._inbox = []
            for link, item in items:
                if not link.ended:
                    events += self._events_of(link, item)
        for worker, left in self._seconds_left().items():
            if left <= 0:
                events.append(self._death(self._links[worker], 0))
        return events

    def _seconds_left(self) -> dict[int, float]:
        """Return for how many more seconds the end of each killed worker is waited for."""
        return {worker: max(0.0, until - time.monotonic()) for worker, until in self._killed.items()}

    def _events_of(self, link: QueueLink, item: Any) -> list[Event]:
        if item is None:
            return [self._death(link)]
        try:
            records, pickled, contents, arrays = item
            answer = pickle.loads(pickled)
        except Exception as error:
            error = item if isinstance(item, Exception) else error
            link.kill()
            return [self._death(link, why=f"sent what is no answer ({type(error).__name__}: {error})")]
        events: list[Event] = [Logged(link.number, records)] if records else []
        if answer is None:
            return events
        loaded: Any = None
        if contents is not None and answer.ticket is not None and answer.ticket.version >= self._oldest_version:
            try:
                loaded = loads_report(contents, [(array, 0) for array in arrays]), self._spaces.new(link, contents[1])
            except Exception as error:
                answer, loaded = unreadable(answer, error), None
        return [*events, Answered(link.number, answer, loaded)]

    def _death(self, link: QueueLink, timeout: float | None = None, why: str = "") -> Died:
        """Return the death of a worker, which has ended, or is about to.

        Args:
            link: The worker.
            timeout: Seconds for which the end is waited for, of a worker that may hang in the kernel.
            why: See `Died`.
        """
        link.ended = True
        self._killed.pop(link.number, None)
        return Died(link.number, link.exitcode() if timeout is None else link.process.exitcode, why)

    # ------------------------------------------------------------------ workers that hang or are replaced

    def stacks(self, worker: int) -> str:
        """Return the Python stacks of a worker."""
        return self._links[worker].stacks()

    def kill_worker(self, worker: int) -> None:
        """Kill a worker. If it hangs in the kernel, it counts as dead after `END_SECONDS`."""
        if not self._links[worker].ended:
            self._links[worker].kill()
            self._killed.setdefault(worker, time.monotonic() + END_SECONDS)

    def retire(self, worker: int) -> bool:
        """Let a worker end."""
        self.send(worker, Exit())
        return True

    def pids(self) -> list[int]:
        """Return the workers' process ids."""
        return [link.process.pid or 0 for link in self._links]

    # ------------------------------------------------------------------ ending

    def kill(self) -> None:
        """Kill all workers."""
        self.abandon_older(NEVER_AGAIN)
        for link in self._links if self._is_ours() else ():
            link.kill()

    def _is_ours(self) -> bool:
        """Whether this is the process that started the workers, and not a forked copy of it."""
        return os.getpid() == self._owner

    def close(self, *, read_answers: bool = True) -> list[Answered | Logged]:
        """Let all workers close their environments and end; end those that take too long.

        May be repeated after an interrupt.
        """
        if not self._is_ours() or self._closed:
            return []
        self._closing = True
        last_answers: list[Answered | Logged] = []
        try:
            self.abandon_older(NEVER_AGAIN)
            for worker in range(len(self._links)):
                self.send(worker, Exit())
            begin = time.monotonic()
            for limit in sorted({_STUCK_SECONDS, self._close_timeout}):
                if read_answers:
                    last_answers += self._read_until(begin + limit)
                else:  # an interrupt may have come between a wake-up and what was read
                    self._await_ends(self._links, begin + limit)
                self._terminate([link for link in self._links if self._seconds_to_end(link.number) <= limit])
        finally:
            self._end_all()
        self._closed = True
        return last_answers

    def _seconds_to_end(self, worker: int) -> float:
        """Return how many seconds a worker has to end, from the beginning of `close`."""
        closing = self.board.progress(worker).phase is Phase.CLOSE
        return self._close_timeout if closing else _STUCK_SECONDS

    def _read_until(self, deadline: float) -> list[Answered | Logged]:
        """Wait for the workers' ends until the deadline; return their answers, without contents."""
        last_answers: list[Answered | Logged] = []
        while any(not link.ended for link in self._links) and (left := deadline - time.monotonic()) > 0:
            for event in self.wait(left):
                if isinstance(event, Logged):
                    last_answers.append(event)
                elif isinstance(event, Answered):
                    last_answers.append(Answered(event.worker, event.answer))
        return last_answers

    def _await_ends(self, links: Iterable[QueueLink], deadline: float) -> None:
        for link in links:
            if not link.ended:
                link.process.join(max(0.0, deadline - time.monotonic()))
                link.ended = link.process.exitcode is not None

    def _terminate(self, links: list[QueueLink]) -> None:
        """End workers that take too long: by SIGTERM, and by SIGKILL a quarter of a second later."""
        late = [link for link in links if not link.ended]
        for link in late:
            link.kill(gently=True)
        self._await_ends(late, time.monotonic() + _TERM_SECONDS)
        for link in late:
            link.kill()

    def _end_all(self) -> None:
        """Kill the workers that live, and close all queues."""
        for link in self._links:
            link.kill()
        deadline = time.monotonic() + END_SECONDS
        for link in self._links:
            link.close(deadline - time.monotonic())
        self._woken.close()
        self._wake.close()


def _make_room(n_workers: int) -> int | None:
    """Raise this process's limit of descriptors, where there is one; return the limit for workers."""
    try:
        from streamsampler.engines.launch.descriptor_limits import make_room, original_limit
    except ImportError:  # Windows
        return None
    make_room(n_workers)
    return original_limit()
