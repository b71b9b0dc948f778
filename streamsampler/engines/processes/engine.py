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

import contextlib
import math
import os
import pickle
import selectors
import time

from streamsampler.engines.base import Answered, Died, Engine, Event, Logged
from streamsampler.engines.known_spaces import KnownSpaces
from streamsampler.engines.launch.descriptor_limits import make_room
from streamsampler.engines.launch.descriptors import readable_within
from streamsampler.engines.launch.leftovers import END_SECONDS
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.launch.worker_child import WatchdogLostError
from streamsampler.engines.processes.links import CAME_BACK, Link, await_ends, start_link, terminate
from streamsampler.engines.processes.shared import SharedFiles
from streamsampler.engines.processes.stacks import stacks_of
from streamsampler.engines.processes.wire import INLINE_LIMIT, GarbageError, Stored, flattened, send
from streamsampler.engines.processes.worker_main import setup_file
from streamsampler.protocol.messages import NEVER_AGAIN, Exit, Message, Phase, Start
from streamsampler.serialization import Payload

__all__ = ["ProcessEngine"]

STUCK_SECONDS = 1.0
"""How long a worker that is not closing its environment may take to begin with it, before it is killed."""

_GRACE_SECONDS = 1.0  # from the end of a worker's pipe to the worker's end
_AT_ONCE = 8  # workers that start at a time; the kernel bounds how many descriptors may be on their way to a server
_RELEASES_PER_MESSAGE = 64  # keeps a message below PIPE_BUF; an answer has a few regions, and every ticket a message


class ProcessEngine(Engine):
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

    has_own_loggers = True

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
        self.n_workers = n_workers
        self._close_timeout = close_timeout
        self._owner = os.getpid()
        self._start_method = start_method
        self._threads = threads
        self._inline_limit = INLINE_LIMIT
        self._links: list[Link] = []
        self._oldest_version = 0  # that is not abandoned
        self._ran: list[int] = []  # timesteps by worker, at the end
        self._restarting = self._closing = self._closed = False
        self._spaces = KnownSpaces()
        self._killed: dict[int, float] = {}  # workers, and the time at which their ends are no longer waited for
        self._opened = contextlib.ExitStack()  # what all workers share
        make_room(n_workers)
        try:
            self._selector = self._opened.enter_context(selectors.DefaultSelector())
            setup_fd = setup_file(make_worker, seed, self._inline_limit, report_memory=report_memory, threads=threads)
            self._shared = SharedFiles(setup_fd, n_workers, self._inline_limit)
            self._opened.callback(self._shared.close)
            self.board = self._shared.board
            self._start_all()
        except BaseException:
            self._end_all()  # without closing environments: no worker has made one
            self._opened.close()
            raise

    # ------------------------------------------------------------------ starting

    def _start_all(self) -> None:
        """Start the workers, several at a time: the start of a worker passes through several processes."""
        for number in range(self.n_workers + _AT_ONCE):
            first = number - _AT_ONCE
            if first >= 0:
                self._links[first] = self._started(self._links[first], first)
            if number < self.n_workers:
                self._links.append(self._starting(number))

    def _starting(self, number: int) -> Link:
        """Begin to start a worker; return its link, which `_started` completes."""
        try:
            return self._new_link(number)
        except WatchdogLostError:
            return self._new_link(number)  # with another server

    def _started(self, link: Link, number: int) -> Link:
        """Wait until a worker runs; return its link, or that of a second attempt."""
        try:
            try:
                link.child.await_start()
            except WatchdogLostError:
                # A second attempt, with new pipes. If the first server did start a worker, it ends with the old pipes.
                self._unlink(link, 0)
                link = self._new_link(number)
                link.child.await_start()
            link.register(self._selector, number)
        except BaseException:
            self._unlink(link, END_SECONDS)
            raise
        return link

    def _new_link(self, number: int) -> Link:
        return start_link(self._start_method, number, self._shared, self._inline_limit, self._threads)

    def restart(self, worker: int) -> None:
        """Start a new process in the place of a dead one, with pipes and memory of its own."""
        self.board.clear(worker)
        self._restarting = True
        try:
            # First the new worker: if it cannot be started, nothing has changed, and `restart` can be repeated.
            new, old = self._started(self._starting(worker), worker), self._links[worker]
            self._links[worker] = new
            if self._oldest_version == NEVER_AGAIN:
                new.child.kill()  # another thread has killed all workers, and may not have seen this one
            self._unlink(old, END_SECONDS)
            if self._closing:
                self._unlink(new, END_SECONDS)
        finally:
            self._restarting = False
            if self._closed:
                self._close_shared()

    def _unlink(self, link: Link, timeout: float) -> None:
        """Kill a worker if it lives, and close its pipes and memory; may be repeated after an interrupt."""
        if not link.unlinked:
            link.ended = True
            link.unregister(self._selector)
            link.close(timeout)

    # ------------------------------------------------------------------ talking

    def publish(self, payload: Payload) -> Stored:
        """Write a payload once, where all workers can read it."""
        return self._shared.write(payload)

    def published(self, handle: Stored) -> Payload:
        """Read a payload back."""
        return self._shared.read(handle)

    def unpublish(self, handle: Stored) -> None:
        """Free the memory of a payload."""
        self._shared.free(handle)

    def abandon_older(self, version: int) -> None:
        """Let workers abandon rollouts of versions older than `version`."""
        self._oldest_version = version
        if not self._closed and self._is_ours():
            self.board.abandon_older(version)

    def send(self, worker: int, message: Message) -> None:
        """Send a message. The protocol bounds the messages under way, so the pipe always has room."""
        link = self._links[worker]
        if link.ended or not self._is_ours():
            return  # `wait` reports its death
        if isinstance(message, Start):
            self.board.lower_flag(worker)
        released = list(map(tuple, link.released[:_RELEASES_PER_MESSAGE]))
        del link.released[:_RELEASES_PER_MESSAGE]  # in place: releases append to this list
        try:
            send(link.commands_fd, pickle.dumps((flattened(message), released), protocol=5))
        except BrokenPipeError:
            pass  # `wait` reports its death
        except BlockingIOError:  # the messages under way leave room: other code has written to the pipe
            link.child.kill()

    def wait(self, timeout: float | None) -> list[Event]:
        """Sleep until a worker answers, dies or is given up."""
        events: list[Event] = []
        if self._killed:
            timeout = min([math.inf if timeout is None else timeout, *self._seconds_left().values()])
        for key, _ in self._selector.select(timeout):
            worker, ended = key.data
            if self._links[worker].ended:
                continue
            if ended:
                events += self._take_in_death(worker)
                continue
            try:
                # None: the worker has closed its end, and is about to end.
                answered = self._read_answers(worker)
                events += self._take_in_death(worker) if answered is None else answered
            except GarbageError as error:
                events.append(self._kill_untrusted(worker, str(error)))
        for worker, left in self._seconds_left().items():
            if left <= 0:
                events += self._take_in_death(worker)
        return events

    def _seconds_left(self) -> dict[int, float]:
        """Return for how many more seconds the end of each killed worker is waited for."""
        return {worker: max(0.0, until - time.monotonic()) for worker, until in self._killed.items()}

    def _read_answers(self, worker: int) -> list[Event] | None:
        return self._links[worker].read_answers(worker, self._oldest_version, self._spaces)

    def _take_in_death(self, worker: int) -> list[Event]:
        """Return the last answers of a worker, then its death. Each message was written whole or not at all."""
        link = self._links[worker]
        overdue = self._killed.pop(worker, math.inf) <= time.monotonic()
        if not overdue and link.child.unwatched() and not link.child.ended(0):
            return [self._kill_untrusted(worker, "lost its watchdog process, and was killed,")]
        link.ended = True
        if not overdue and not link.child.ended(_GRACE_SECONDS):
            link.child.kill()  # it has closed its pipe, and cannot answer any more
        last_answers: list[Event] = []
        while readable_within(link.answers_fd, 0):
            try:
                answered = self._read_answers(worker)
            except GarbageError as error:
                return [*last_answers, self._kill_untrusted(worker, str(error))]
            if not answered:
                break
            last_answers += answered
        link.unregister(self._selector)
        return [*last_answers, Died(worker, link.child.wait(0 if overdue else END_SECONDS))]

    def _kill_untrusted(self, worker: int, why: str) -> Died:
        """Kill a worker whose messages cannot be trusted any more; return its death."""
        link = self._links[worker]
        link.ended = True
        self._killed.pop(worker, None)
        link.child.kill_all()
        link.unregister(self._selector)
        return Died(worker, link.child.wait(END_SECONDS), why, hopeless=why == CAME_BACK)

    def ran_timesteps(self, worker: int) -> int:
        """Return how many timesteps a worker has shown since its start; also after `close`."""
        return self._ran[worker] if self._ran else self.board.ran_timesteps(worker)

    def stacks(self, worker: int) -> str:
        """Return the Python stacks of a worker."""
        return stacks_of(self._links[worker].child, self._shared.stacks_fd)

    def kill_worker(self, worker: int) -> None:
        """Kill a worker. If it hangs in the kernel, it counts as dead after `END_SECONDS`."""
        if not self._links[worker].ended:
            self._links[worker].child.kill()
            self._killed.setdefault(worker, time.monotonic() + END_SECONDS)

    def retire(self, worker: int) -> bool:
        """Let a worker end."""
        self.send(worker, Exit())
        return True

    def pids(self) -> list[int]:
        """Return the workers' process ids."""
        return [link.child.pid for link in self._links]

    # ------------------------------------------------------------------ ending

    def kill(self) -> None:
        """Kill all workers."""
        self.abandon_older(NEVER_AGAIN)
        for link in self._links if self._is_ours() else ():
            link.child.kill()

    def _is_ours(self) -> bool:
        """Whether this is the process that started the workers, and not a forked copy of it.

        A copy that leaves a stream's loop must not stop the workers: it shares the board, and the numbers of its
        descriptors may belong to other files.
        """
        return os.getpid() == self._owner

    def close(self, *, read_answers: bool = True) -> list[Answered | Logged]:
        """Let all workers close their environments and end; send SIGTERM, then SIGKILL, to those that take too long.

        May be repeated after an interrupt.
        """
        if not self._is_ours() or self._closed:
            return []
        self._closing = True
        last_answers: list[Answered | Logged] = []
        try:
            if self._links:
                self.abandon_older(NEVER_AGAIN)
            for worker in range(len(self._links)):
                self.send(worker, Exit())
            last_answers = self._await_ends(read_answers=read_answers)
        finally:
            self._end_all()
        self._closed = True
        # A worker that is being started is given descriptors by their numbers, which other files may get once closed.
        if not self._restarting:
            self._close_shared()
        return last_answers

    def _close_shared(self) -> None:
        self._ran = self._ran or [self.board.ran_timesteps(worker) for worker in range(self.n_workers)]
        self._opened.close()

    def _end_all(self) -> None:
        """Kill the workers that live, and close all pipes and memory."""
        for link in self._links:
            link.child.kill()
        deadline = time.monotonic() + END_SECONDS
        for link in self._links:
            self._unlink(link, deadline - time.monotonic())

    def _await_ends(self, *, read_answers: bool) -> list[Answered | Logged]:
        """Wait for the workers' ends; return their last answers."""
        last_answers: list[Answered | Logged] = []
        begin = time.monotonic()
        for limit in sorted({STUCK_SECONDS, self._close_timeout}):
            if read_answers:
                last_answers += self._read_until(begin + limit)
            else:
                await_ends(self._links, begin + limit)
            terminate([link for number, link in enumerate(self._links) if self._seconds_to_end(number) <= limit])
        return last_answers

    def _seconds_to_end(self, worker: int) -> float:
        """Return how many seconds a worker has to end, from the beginning of `close`."""
        closing = self.board.progress(worker).phase is Phase.CLOSE
        return self._close_timeout if closing else STUCK_SECONDS

    def _read_until(self, deadline: float) -> list[Answered | Logged]:
        """Wait for the workers' ends until the deadline; return their answers."""
        last_answers: list[Answered | Logged] = []
        while any(not link.ended for link in self._links):
            timeout = deadline - time.monotonic()
            if timeout <= 0:
                break
            for event in self.wait(timeout):
                if isinstance(event, Logged):
                    last_answers.append(event)
                elif isinstance(event, Answered):
                    last_answers.append(Answered(event.worker, event.answer))
        return last_answers
