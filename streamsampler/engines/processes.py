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
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from mmap import mmap
from typing import Any

from streamsampler.board import Board, Progress, board_bytes
from streamsampler.engines.base import Answered, Died, Engine, Event, Logged
from streamsampler.engines.children import END_SECONDS, Child
from streamsampler.engines.descriptor_limits import make_room
from streamsampler.engines.descriptors import close_fd, own_fd, pipe_between, readable_within
from streamsampler.engines.launch import ForkServerLostError, launch
from streamsampler.engines.messages import decode_answer, encode_command, split_records
from streamsampler.engines.shared_memory import ArenaReader, ArenaWriter, Region, anonymous_file
from streamsampler.engines.stacks import stacks_of
from streamsampler.engines.start_methods import StartMethod
from streamsampler.engines.wire import INLINE_LIMIT, MessageReader, Stored, pack, send, unframe, unpack
from streamsampler.engines.worker_process import main, setup_file
from streamsampler.failures import unreadable
from streamsampler.protocol import NEVER_AGAIN, Exit, Message, Start
from streamsampler.serialization import Payload

__all__ = ["ProcessEngine"]

CLOSE_SECONDS = 1.0
"""How long all workers together may take to close their environments, before they are killed."""

_GRACE_SECONDS = 1.0  # between a worker's last word and its end
_RELEASES_PER_MESSAGE = 64  # keeps a message below PIPE_BUF; an answer has a few regions, and every ticket a message


@dataclass
class _Link:
    """The sampler's ends of what it shares with one worker."""

    child: Child
    commands_fd: int
    answers_fd: int
    alive_fd: int
    arena_fd: int
    arena: ArenaReader
    answers: MessageReader
    released: list[Region] = field(default_factory=list)
    spaces: bytes = b""
    ended: bool = False
    unlinked: bool = False


class ProcessEngine(Engine):
    """Workers in processes.

    Args:
        n_workers: How many.
        make_worker: A pickled callable that makes a worker from its row of the board and its number.
        seed: The sampler's seed.
        start_method: How processes are started.
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
        report_memory: bool = False,
        threads: int | None = None,
    ) -> None:
        self.n_workers = n_workers
        self._owner = os.getpid()
        self._start_method = start_method
        self._threads = threads
        self._links: list[_Link] = []
        self._wanted = 0
        self._ran: list[int] = []  # at the end
        self._restarting = self._closing = self._closed = False
        self._spaces: tuple[bytes, Any] = b"", None  # those told last, and what they are
        self._doomed: dict[int, float] = {}  # until when who was killed may take to be gone
        self._shared = contextlib.ExitStack()  # gives back what all workers share
        make_room(n_workers)
        try:
            setup_fd = setup_file(
                n_workers, make_worker, seed, INLINE_LIMIT, report_memory=report_memory, threads=threads
            )
            self._share(setup_fd)
            for number in range(n_workers):
                self._links.append(self._link(number))
        except BaseException:
            self.close()
            raise

    def _share(self, setup_fd: int) -> None:
        """Make what all workers share."""
        self._setup_fd = self._own(setup_fd)
        self._board_fd = self._own(anonymous_file("streamsampler-board", board_bytes(self.n_workers)))
        self._updates_fd = self._own(anonymous_file("streamsampler-updates"))
        self._stacks_fds = tuple(map(self._own, os.pipe()))
        os.set_blocking(self._stacks_fds[0], False)
        self._selector = self._shared.enter_context(selectors.DefaultSelector())
        board_map = self._shared.enter_context(mmap(self._board_fd, 0))
        self._board = Board(memoryview(board_map))
        self._shared.callback(self._board.release)
        self._shared.callback(self._keep_ran)
        self._updates_writer = ArenaWriter(self._updates_fd)
        self._updates_reader = ArenaReader(self._updates_fd)
        self._shared.callback(self._updates_reader.close)

    def _own(self, fd: int) -> int:
        self._shared.callback(close_fd, own_fd(fd))
        return fd

    # ------------------------------------------------------------------ starting

    def _link(self, number: int) -> _Link:
        try:
            return self._new_link(number)
        except ForkServerLostError:
            # Once more, with everything new. Should the lost server have started a worker all the same, it ends with
            # the pipes of the first attempt.
            return self._new_link(number)

    def _new_link(self, number: int) -> _Link:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            commands_read, commands_write = pipe_between(theirs, ours, ours_is=1)
            answers_read, answers_write = pipe_between(theirs, ours, ours_is=0)
            alive_read, alive_write = pipe_between(theirs, ours, ours_is=1)
            arena_fd = own_fd(anonymous_file(f"streamsampler-worker-{number}"))
            ours.callback(close_fd, arena_fd)
            shared = [self._setup_fd, self._board_fd, arena_fd, self._updates_fd, self._stacks_fds[1]]
            fds = [commands_read, answers_write, alive_read, *shared]
            child = launch(self._start_method, main, number, fds, self._threads)
            ours.callback(child.discard, END_SECONDS)
            link = _Link(
                child,
                commands_write,
                answers_read,
                alive_write,
                arena_fd,
                ArenaReader(arena_fd),
                MessageReader(answers_read),
            )
            self._selector.register(answers_read, selectors.EVENT_READ, (number, False))
            self._selector.register(child.fileno(), selectors.EVENT_READ, (number, True))
            ours.pop_all()
            return link

    def restart(self, worker: int) -> None:
        """Start a new process in the place of a dead one, with pipes and memory of its own."""
        self._board.clear(worker)
        self._restarting = True
        try:
            # The new one first: if it cannot be started, the old one is what it was, and can be tried again.
            new, old = self._link(worker), self._links[worker]
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

    def _unlink(self, link: _Link, timeout: float) -> None:
        """Kill a worker if need be and close everything of it; may be repeated after an interrupt."""
        if link.unlinked:
            return
        link.ended = True
        for fd in (link.answers_fd, link.child.fileno()):
            with contextlib.suppress(KeyError):
                self._selector.unregister(fd)
        link.child.discard(timeout)
        link.arena.close()
        for fd in (link.commands_fd, link.answers_fd, link.alive_fd, link.arena_fd):
            close_fd(fd)
        link.unlinked = True

    # ------------------------------------------------------------------ talking

    def publish(self, payload: Payload) -> Stored:
        """Write a payload once, where all workers can read it."""
        packed = pack(payload.data, payload.buffers)
        if sum(view.nbytes for view in packed) <= INLINE_LIMIT // 3:  # a message carries up to four
            return Stored(None, b"".join(packed))
        return Stored(self._updates_writer.write(packed))

    def recall(self, handle: Stored) -> Payload:
        """Read a payload back."""
        packed = self._updates_reader.read(handle.region) if handle.region is not None else handle.data or b""
        head, buffers, _ = unpack(memoryview(packed))
        return Payload(bytes(head), tuple(bytes(buffer) for buffer in buffers))

    def retract(self, handle: Stored) -> None:
        """Free the memory of a payload."""
        if handle.region is not None:
            self._updates_writer.give_back(handle.region)

    def want(self, version: int) -> None:
        """Let older rollouts be abandoned."""
        self._wanted = version
        if not self._closed and self._is_ours():
            self._board.want(version)

    def send(self, worker: int, message: Message) -> None:
        """Send a message. The protocol bounds what can be under way, so the pipe always has room."""
        link = self._links[worker]
        if link.ended or not self._is_ours():
            return  # its death was, or will be, told by `wait`
        if isinstance(message, Start):
            self._board.heed(worker)
        released = link.released[:_RELEASES_PER_MESSAGE]
        del link.released[:_RELEASES_PER_MESSAGE]  # the very list that unfinished releases append to
        with contextlib.suppress(BrokenPipeError):  # its death is seen in `wait`
            send(link.commands_fd, encode_command(message, released))

    def wait(self, timeout: float | None) -> list[Event]:
        """Sleep until a worker answers or dies, or is given up."""
        events: list[Event] = []
        if self._doomed:
            timeout = min([math.inf if timeout is None else timeout, *self._patience().values()])
        for key, _ in self._selector.select(timeout):
            worker, ended = key.data
            if self._links[worker].ended:
                continue
            # No message means that the worker closed its end: it is about to be gone.
            if ended or not (answered := self._read(worker)):
                events += self._bury(worker)
            else:
                events += answered
        for worker, left in self._patience().items():
            if left <= 0:
                events += self._bury(worker)
        return events

    def _patience(self) -> dict[int, float]:
        """Return for how many seconds more who was killed is waited for."""
        return {worker: max(0.0, until - time.monotonic()) for worker, until in self._doomed.items()}

    def _read(self, worker: int) -> list[Event]:
        events: list[Event] = []
        for message in self._links[worker].answers.read():
            head, buffers, regions = unframe(message, self._links[worker].arena.view)
            records, head = split_records(head)
            if records:
                events.append(Logged(worker, records))
            if head:
                events.append(self._understood(worker, head, buffers, regions))
            else:
                self._links[worker].released.extend(regions)
        return events

    def _understood(self, worker: int, head: memoryview, buffers: list[memoryview], regions: list[Region]) -> Answered:
        link = self._links[worker]
        answer = decode_answer(head)
        contents: Any = None
        # What nobody wants any more is not even looked at.
        if buffers and answer.ticket is not None and answer.ticket.version >= self._wanted:
            try:
                rollouts, spaces = pickle.loads(buffers[0], buffers=buffers[1:])
                contents = rollouts, self._new_spaces(link, spaces)
            except Exception as error:
                answer = unreadable(answer, error)
        if not regions:
            return Answered(worker, answer, contents)
        if contents is None:
            link.released.extend(regions)
            return Answered(worker, answer)
        return Answered(worker, answer, contents, partial(link.released.extend, regions))

    def _new_spaces(self, link: _Link, pickled: bytes | None) -> Any:
        """Return the spaces that a worker tells of; None if it told of the same ones last."""
        if pickled is None or pickled == link.spaces:
            return None
        # Equal ones are one object for all workers: whether two are equal is a question to Gymnasium that takes long.
        if pickled != self._spaces[0]:
            self._spaces = pickled, pickle.loads(pickled)
        link.spaces, spaces = self._spaces
        return spaces

    def _bury(self, worker: int) -> list[Event]:
        """Return what a worker had said before it died, then its death.

        What it sent is complete: a message is written whole or not at all.
        """
        link = self._links[worker]
        link.ended = True
        overdue = self._doomed.pop(worker, math.inf) <= time.monotonic()
        if not overdue and not link.child.ended(_GRACE_SECONDS):
            link.child.kill()  # it closed its end and goes on: nobody will ever hear of it again
        last_words: list[Event] = []
        while readable_within(link.answers_fd, 0) and (answered := self._read(worker)):
            last_words += answered
        self._selector.unregister(link.answers_fd)
        self._selector.unregister(link.child.fileno())
        return [*last_words, Died(worker, link.child.wait(0 if overdue else END_SECONDS))]

    def progress(self, worker: int) -> Progress:
        """Return what a worker was last seen doing."""
        return self._board.progress(worker)

    def ran(self, worker: int) -> int:
        """Return how many timesteps a worker has shown; after the end, those it had shown then."""
        return self._ran[worker] if self._ran else self._board.ran(worker)

    def _keep_ran(self) -> None:
        self._ran = [self._board.ran(worker) for worker in range(self.n_workers)]

    def watch(self, worker: int) -> None:
        """Ask for each timestep and each action."""
        self._board.watch(worker)

    def memory(self, worker: int) -> int:
        """Return the bytes of private memory at the last answer."""
        return self._board.memory(worker)

    def stacks(self, worker: int) -> str:
        """Return the Python stacks."""
        return stacks_of(self._links[worker].child.pid, self._stacks_fds[0])

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
        self.want(NEVER_AGAIN)
        for link in self._links if self._is_ours() else ():
            link.child.kill()

    def _is_ours(self) -> bool:
        """Whether this is the process that started the workers, and not a forked copy of it.

        A copy that leaves a stream's loop, or ends in it, must not stop them: it has the board, and its numbers of
        descriptors may be other files by then.
        """
        return os.getpid() == self._owner

    def close(self, *, kindly: bool = True) -> list[Answered | Logged]:
        """Ask all workers to end; after `CLOSE_SECONDS` terminate and then kill those that have not.

        May be repeated when an interrupt broke it off.
        """
        if not self._is_ours() or self._closed:
            return []
        self._closing = True
        last_words: list[Answered | Logged] = []
        try:
            if self._links:
                self.want(NEVER_AGAIN)
            if kindly:
                for worker in range(len(self._links)):
                    self.send(worker, Exit())
                last_words = self._last_words(time.monotonic() + CLOSE_SECONDS)
                self._terminate()
        finally:
            for link in self._links:
                link.child.kill()
            deadline = time.monotonic() + END_SECONDS
            for link in self._links:
                self._unlink(link, deadline - time.monotonic())
        self._closed = True
        # A worker that is being started is given descriptors by their numbers, which may be somebody else's files soon.
        if not self._restarting:
            self._shared.close()
        return last_words

    def _last_words(self, deadline: float) -> list[Answered | Logged]:
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

    def _terminate(self) -> None:
        late = [link for link in self._links if not link.ended]
        for link in late:
            link.child.kill(signal.SIGTERM)
        deadline = time.monotonic() + CLOSE_SECONDS / 4
        for link in late:
            link.child.ended(deadline - time.monotonic())
