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
import select
import selectors
import time
from mmap import mmap

from streamsampler.engines.base import Answered, Died, Engine, Event, Logged
from streamsampler.engines.launch.children import END_SECONDS
from streamsampler.engines.launch.descriptor_limits import make_room
from streamsampler.engines.launch.descriptors import close_fd, own_fd, pipe_between, readable_within
from streamsampler.engines.launch.start import launch
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.launch.worker_child import WatchdogLostError
from streamsampler.engines.processes.links import CAME_BACK, KnownSpaces, Link, await_ends, never_block, terminate
from streamsampler.engines.processes.shared_memory import ArenaReader, ArenaWriter, anonymous_file, read_only
from streamsampler.engines.processes.stacks import stacks_of
from streamsampler.engines.processes.wire import INLINE_LIMIT, GarbageError, MessageReader, Stored, pack, send, unpack
from streamsampler.engines.processes.worker_main import main, setup_file
from streamsampler.protocol.messages import NEVER_AGAIN, Exit, Message, Phase, Start
from streamsampler.serialization import Payload
from streamsampler.workers.board import StatusBoard, board_bytes

__all__ = ["ProcessEngine"]

STUCK_SECONDS = 1.0
"""How long a worker that is not closing its environment may take to begin with it, before it is killed."""

_GRACE_SECONDS = 1.0  # between a worker's last word and its end
_AT_ONCE = 8  # workers that are being started; the kernel bounds how many descriptors may be on their way to a server
_RELEASES_PER_MESSAGE = 64  # keeps a message below PIPE_BUF; an answer has a few regions, and every ticket a message


class ProcessEngine(Engine):
    """Workers in processes.

    Args:
        n_workers: How many.
        make_worker: A pickled callable that makes a worker from its context.
        seed: The sampler's seed.
        start_method: How processes are started.
        close_timeout: Seconds that all workers together may take to close their environments at the end.
        report_memory: Whether workers tell how much memory they have.

    Raises:
        ResourceLimitError: The system does not allow this process the descriptors (an OSError).
        OSError: There are no processes left; whatever was started is gone again.
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
        # Bytes of the longest message of a worker: what has more lies in its arena.
        self._longest = max(select.PIPE_BUF, 2 * INLINE_LIMIT)
        self._owner = os.getpid()
        self._start_method = start_method
        self._threads = threads
        self._links: list[Link] = []
        self._wanted = 0
        self._ran: list[int] = []  # at the end
        self._restarting = self._closing = self._closed = False
        self._spaces = KnownSpaces()
        self._doomed: dict[int, float] = {}  # until when who was killed may take to be gone
        self._shared = contextlib.ExitStack()  # gives back what all workers share
        make_room(n_workers)
        try:
            setup_fd = setup_file(
                n_workers, make_worker, seed, INLINE_LIMIT, report_memory=report_memory, threads=threads
            )
            self._share(setup_fd)
            self._start_all()
        except BaseException:
            # None has made an environment that would have to be closed.
            self._end_all()
            self._shared.close()
            raise

    def _share(self, setup_fd: int) -> None:
        """Make what all workers share."""
        self._own(setup_fd)
        self._board_fd = self._own(anonymous_file("streamsampler-board", board_bytes(self.n_workers)))
        updates_fd = self._own(anonymous_file("streamsampler-updates"))
        # What one worker writes there, by mistake, all others would read.
        self._setup_fd, self._updates_fd = self._own(read_only(setup_fd)), self._own(read_only(updates_fd))
        self._stacks_fds = tuple(map(self._own, os.pipe()))
        os.set_blocking(self._stacks_fds[0], False)
        self._selector = self._shared.enter_context(selectors.DefaultSelector())
        board_map = self._shared.enter_context(mmap(self._board_fd, 0))
        self.board = StatusBoard(memoryview(board_map))
        self._shared.callback(self.board.release)
        self._shared.callback(self._keep_ran)
        self._updates_writer = ArenaWriter(updates_fd)
        self._updates_reader = ArenaReader(self._updates_fd)
        self._shared.callback(self._updates_reader.close)

    def _own(self, fd: int) -> int:
        self._shared.callback(close_fd, own_fd(fd))
        return fd

    # ------------------------------------------------------------------ starting

    def _start_all(self) -> None:
        """Start the workers, some side by side: each takes the turns of several processes, one after another."""
        for number in range(self.n_workers + _AT_ONCE):
            first = number - _AT_ONCE
            if first >= 0:
                self._links[first] = self._started(self._links[first], first)
            if number < self.n_workers:
                self._links.append(self._asked_for(number))

    def _asked_for(self, number: int) -> Link:
        """Ask for a worker, and do not wait until it runs; return its link, which `_started` completes."""
        try:
            return self._new_link(number)
        except WatchdogLostError:
            return self._new_link(number)  # with another server

    def _started(self, link: Link, number: int) -> Link:
        """Wait until a worker runs; return its link, or that of another attempt."""
        try:
            try:
                link.child.await_start()
            except WatchdogLostError:
                # Once more, with everything new. Should the lost server have started a worker all the same, it ends
                # with the pipes of the first attempt.
                self._unlink(link, 0)
                link = self._new_link(number)
                link.child.await_start()
            link.register(self._selector, number)
        except BaseException:
            self._unlink(link, END_SECONDS)
            raise
        return link

    def _new_link(self, number: int) -> Link:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            commands_read, commands_write = pipe_between(theirs, ours, ours_is=1)
            answers_read, answers_write = pipe_between(theirs, ours, ours_is=0)
            alive_read, alive_write = pipe_between(theirs, ours, ours_is=1)
            arena_fd = own_fd(anonymous_file(f"streamsampler-worker-{number}"))
            ours.callback(close_fd, arena_fd)
            shared = [self._setup_fd, self._board_fd, arena_fd, self._updates_fd, self._stacks_fds[1]]
            fds = [commands_read, answers_write, alive_read, *shared]
            never_block(commands_write, answers_read)
            child = launch(self._start_method, main, number, fds, self._threads)
            ours.callback(child.discard, END_SECONDS)
            link = Link(
                child,
                commands_write,
                answers_read,
                alive_write,
                arena_fd,
                ArenaReader(arena_fd),
                MessageReader(answers_read, self._longest),
            )
            ours.pop_all()
            return link

    def restart(self, worker: int) -> None:
        """Start a new process in the place of a dead one, with pipes and memory of its own."""
        self.board.clear(worker)
        self._restarting = True
        try:
            # The new one first: if it cannot be started, the old one is what it was, and can be tried again.
            new, old = self._started(self._asked_for(worker), worker), self._links[worker]
            self._links[worker] = new
            if self._wanted == NEVER_AGAIN:
                new.child.kill()  # as all others were by another thread, which may not have seen this one
            self._unlink(old, END_SECONDS)
            if self._closing:
                self._unlink(new, END_SECONDS)
        finally:
            self._restarting = False
            if self._closed:
                self._shared.close()

    def _unlink(self, link: Link, timeout: float) -> None:
        """Kill a worker if need be and close everything of it; may be repeated after an interrupt."""
        if not link.unlinked:
            link.ended = True
            link.unregister(self._selector)
            link.close(timeout)

    # ------------------------------------------------------------------ talking

    def publish(self, payload: Payload) -> Stored:
        """Write a payload once, where all workers can read it."""
        packed = pack(payload.data, payload.buffers)
        if sum(view.nbytes for view in packed) <= INLINE_LIMIT // 3:  # a message carries up to four
            return Stored(None, b"".join(packed))
        return Stored(self._updates_writer.write(packed))

    def published(self, handle: Stored) -> Payload:
        """Read a payload back."""
        packed = self._updates_reader.read(handle.region) if handle.region is not None else handle.data or b""
        head, buffers, _ = unpack(memoryview(packed))
        return Payload(bytes(head), tuple(bytes(buffer) for buffer in buffers))

    def unpublish(self, handle: Stored) -> None:
        """Free the memory of a payload."""
        if handle.region is not None:
            self._updates_writer.give_back(handle.region)

    def abandon_older(self, version: int) -> None:
        """Let older rollouts be abandoned."""
        self._wanted = version
        if not self._closed and self._is_ours():
            self.board.abandon_older(version)

    def send(self, worker: int, message: Message) -> None:
        """Send a message. The protocol bounds what can be under way, so the pipe always has room."""
        link = self._links[worker]
        if link.ended or not self._is_ours():
            return  # its death was, or will be, told by `wait`
        if isinstance(message, Start):
            self.board.lower_flag(worker)
        released = link.released[:_RELEASES_PER_MESSAGE]
        del link.released[:_RELEASES_PER_MESSAGE]  # the very list that unfinished releases append to
        try:
            send(link.commands_fd, pickle.dumps((message, released), protocol=5))
        except BrokenPipeError:
            pass  # its death is seen in `wait`
        except BlockingIOError:  # what is under way has room: something else fills its pipe
            link.child.kill()

    def wait(self, timeout: float | None) -> list[Event]:
        """Sleep until a worker answers or dies, or is given up."""
        events: list[Event] = []
        if self._doomed:
            timeout = min([math.inf if timeout is None else timeout, *self._patience().values()])
        for key, _ in self._selector.select(timeout):
            worker, ended = key.data
            if self._links[worker].ended:
                continue
            if ended:
                events += self._bury(worker)
                continue
            try:
                # None means that the worker closed its end: it is about to be gone.
                answered = self._hear(worker)
                events += self._bury(worker) if answered is None else answered
            except GarbageError as error:
                events.append(self._execute(worker, str(error)))
        for worker, left in self._patience().items():
            if left <= 0:
                events += self._bury(worker)
        return events

    def _patience(self) -> dict[int, float]:
        """Return for how many seconds more who was killed is waited for."""
        return {worker: max(0.0, until - time.monotonic()) for worker, until in self._doomed.items()}

    def _hear(self, worker: int) -> list[Event] | None:
        return self._links[worker].hear(worker, self._wanted, self._spaces)

    def _bury(self, worker: int) -> list[Event]:
        """Return what a worker had said before it died, then its death.

        What it sent is complete: a message is written whole or not at all.
        """
        link = self._links[worker]
        overdue = self._doomed.pop(worker, math.inf) <= time.monotonic()
        if not overdue and link.child.unwatched() and not link.child.ended(0):
            return [self._execute(worker, "lost its watchdog process, and was killed,")]
        link.ended = True
        if not overdue and not link.child.ended(_GRACE_SECONDS):
            link.child.kill()  # it closed its end and goes on: nothing will ever be heard of it again
        last_words: list[Event] = []
        while readable_within(link.answers_fd, 0):
            try:
                answered = self._hear(worker)
            except GarbageError as error:
                return [*last_words, self._execute(worker, str(error))]
            if not answered:
                break
            last_words += answered
        link.unregister(self._selector)
        return [*last_words, Died(worker, link.child.wait(0 if overdue else END_SECONDS))]

    def _execute(self, worker: int, why: str) -> Died:
        """Kill a worker of which nothing that it says can be trusted any more."""
        link = self._links[worker]
        link.ended = True
        self._doomed.pop(worker, None)
        link.child.kill_all()
        link.unregister(self._selector)
        return Died(worker, link.child.wait(END_SECONDS), why, hopeless=why == CAME_BACK)

    def ran_timesteps(self, worker: int) -> int:
        """Return how many timesteps a worker has shown; after the end, those it had shown then."""
        return self._ran[worker] if self._ran else self.board.ran_timesteps(worker)

    def _keep_ran(self) -> None:
        self._ran = [self.board.ran_timesteps(worker) for worker in range(self.n_workers)]

    def stacks(self, worker: int) -> str:
        """Return the Python stacks."""
        return stacks_of(self._links[worker].child, self._stacks_fds[0])

    def kill_worker(self, worker: int) -> None:
        """Kill a worker; if it hangs in the kernel, it is given up after `END_SECONDS`, and counts as dead."""
        if not self._links[worker].ended:
            self._links[worker].child.kill()
            self._doomed.setdefault(worker, time.monotonic() + END_SECONDS)

    def retire(self, worker: int) -> bool:
        """Ask a worker to end."""
        self.send(worker, Exit())
        return True

    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [link.child.pid for link in self._links]

    # ------------------------------------------------------------------ ending

    def kill(self) -> None:
        """Kill all workers."""
        self.abandon_older(NEVER_AGAIN)
        for link in self._links if self._is_ours() else ():
            link.child.kill()

    def _is_ours(self) -> bool:
        """Whether this is the process that started the workers, and not a forked copy of it.

        A copy that leaves a stream's loop, or ends in it, must not stop them: it has the board, and its numbers of
        descriptors may be other files by then.
        """
        return os.getpid() == self._owner

    def close(self, *, read_answers: bool = True) -> list[Answered | Logged]:
        """Let all workers close their environments and end; terminate and then kill those that take too long.

        May be repeated when an interrupt broke it off.
        """
        if not self._is_ours() or self._closed:
            return []
        self._closing = True
        last_words: list[Answered | Logged] = []
        try:
            if self._links:
                self.abandon_older(NEVER_AGAIN)
            for worker in range(len(self._links)):
                self.send(worker, Exit())
            last_words = self._await_ends(read_answers=read_answers)
        finally:
            self._end_all()
        self._closed = True
        # A worker that is being started is given descriptors by their numbers, which may be somebody else's files soon.
        if not self._restarting:
            self._shared.close()
        return last_words

    def _end_all(self) -> None:
        """Kill the workers if need be, and close everything of them."""
        for link in self._links:
            link.child.kill()
        deadline = time.monotonic() + END_SECONDS
        for link in self._links:
            self._unlink(link, deadline - time.monotonic())

    def _await_ends(self, *, read_answers: bool) -> list[Answered | Logged]:
        """Wait for the workers' ends; return what they still said."""
        last_words: list[Answered | Logged] = []
        begin = time.monotonic()
        for limit in sorted({STUCK_SECONDS, self._close_timeout}):
            if read_answers:
                last_words += self._listen(begin + limit)
            else:
                await_ends(self._links, begin + limit)
            terminate([link for number, link in enumerate(self._links) if self._patience_with(number) <= limit])
        return last_words

    def _patience_with(self, worker: int) -> float:
        """Return how many seconds a worker has, from the beginning of the end."""
        closing = self.board.progress(worker).phase is Phase.CLOSE
        return self._close_timeout if closing else STUCK_SECONDS

    def _listen(self, deadline: float) -> list[Answered | Logged]:
        """Wait for the workers' ends, until the deadline, and return what they still said."""
        last_words: list[Answered | Logged] = []
        while any(not link.ended for link in self._links):
            timeout = deadline - time.monotonic()
            if timeout <= 0:
                break
            for event in self.wait(timeout):
                if isinstance(event, Logged):
                    last_words.append(event)
                elif isinstance(event, Answered):
                    last_words.append(Answered(event.worker, event.answer))
        return last_words
