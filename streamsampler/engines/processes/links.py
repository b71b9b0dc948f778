"""The sampler's ends of what it shares with one worker process."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streamsampler.engines.base import Answered, Event, Logged, unreadable
from streamsampler.engines.known_spaces import KnownSpaces
from streamsampler.engines.launch.descriptors import close_fd, own_fd, pipe_between
from streamsampler.engines.launch.leftovers import END_SECONDS
from streamsampler.engines.launch.start import launch
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.launch.worker_child import WorkerChild
from streamsampler.engines.processes.shared import SharedFiles
from streamsampler.engines.processes.shared_memory import ArenaReader, Region, anonymous_file
from streamsampler.engines.processes.wire import FORKED_COPY, GarbageError, MessageReader, unpack_answer
from streamsampler.engines.processes.worker_main import main
from streamsampler.protocol.messages import BY_NAME, Answer
from streamsampler.serialization import Contents, Place, loads_report

__all__ = ["CAME_BACK", "Link", "await_ends", "start_link", "terminate"]

_TERM_SECONDS = 0.25  # from SIGTERM to SIGKILL

CAME_BACK = (
    "called os.fork(), and the copy came back into the worker's own code: what is forked in an environment or an agent "
    "must end by os._exit(), and was stopped"
)


@dataclass
class Link:
    """The sampler's ends of what it shares with one worker.

    Attributes:
        child: The process.
        commands_fd: Where messages are written.
        answers_fd: Where answers are read; never blocking.
        alive_fd: The worker ends when this closes.
        arena_fd: The arena that the worker writes.
        arena: The reading end of the arena.
        answers: Reads answers.
        released: Regions of the arena that are free again, to be sent with the next message.
        spaces: The spaces that the worker sent last, pickled.
        ended: Whether the worker is dead, or counts as dead: it is sent nothing, and nothing is read from it.
        unlinked: Whether all of this is closed.
    """

    child: WorkerChild
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

    def register(self, selector: selectors.BaseSelector, worker: int) -> None:
        """Let a selector report answers as `(worker, False)`, and the worker's end as `(worker, True)`."""
        selector.register(self.answers_fd, selectors.EVENT_READ, (worker, False))
        for fd in self.child.filenos():
            selector.register(fd, selectors.EVENT_READ, (worker, True))

    def unregister(self, selector: selectors.BaseSelector) -> None:
        """Undo `register`, if it was called."""
        for fd in (self.answers_fd, *self.child.filenos()):
            if fd in selector.get_map():
                selector.unregister(fd)

    def read_answers(self, worker: int, oldest: int, known_spaces: KnownSpaces) -> list[Event] | None:
        """Return the events of the answers that are there; None if the worker has closed its end.

        Args:
            worker: The worker number.
            oldest: The oldest agent version whose contents are unpickled.
            known_spaces: The spaces of all workers.

        Raises:
            GarbageError: There is something that is no answer; nothing after it can be trusted.
        """
        messages = self.answers.read()
        if messages is None:
            return None
        events: list[Event] = []
        for message in messages:
            records, answer, contents, places, regions = self._decoded(message)
            if records:
                events.append(Logged(worker, records))
            if answer is None:
                self.released.extend(regions)
                continue
            if contents is not None:
                answer, contents = self._unpickled(answer, contents, places, oldest, known_spaces)
            if contents is None:
                self.released.extend(regions)
                events.append(Answered(worker, answer))
            else:
                events.append(Answered(worker, answer, contents, partial(self.released.extend, regions)))
        return events

    def _decoded(self, message: bytes) -> tuple[bytes, Answer | None, Any, list[Place], list[Region]]:
        if message == FORKED_COPY:
            raise GarbageError(CAME_BACK)
        try:
            return unpack_answer(message, self.arena.look)
        except (OSError, MemoryError):  # this process lacks something
            raise
        except Exception as error:
            raise GarbageError(f"sent what is no answer ({type(error).__name__}: {error})") from error

    def _unpickled(
        self, answer: Answer, contents: Contents, places: list[Place], oldest: int, known_spaces: KnownSpaces
    ) -> tuple[Answer, Any]:
        """Return the answer with the rollouts and the spaces; None instead of them where they are not wanted."""
        if answer.ticket is None or answer.ticket.version < oldest:
            return answer, None
        try:
            return answer, (loads_report(contents, places, BY_NAME), known_spaces.new(self, contents[1]))
        except Exception as error:
            return unreadable(answer, error), None

    def close(self, timeout: float) -> None:
        """Kill the worker if it lives, and close all descriptors; may be repeated after an interrupt."""
        self.child.discard(timeout)
        self.arena.close()
        for fd in (self.commands_fd, self.answers_fd, self.alive_fd, self.arena_fd):
            close_fd(fd)
        self.unlinked = True


def start_link(method: StartMethod, number: int, shared: SharedFiles, inline_limit: int, threads: int | None) -> Link:
    """Start a worker with pipes and an arena of its own, and do not wait until it runs; see `launch` for errors.

    Args:
        method: How processes are started.
        number: The worker number.
        shared: What all workers share.
        inline_limit: Bytes up to which a report travels in messages.
        threads: How many threads libraries compute on; None for no limit.
    """
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        commands_read, commands_write = pipe_between(theirs, ours, ours_is=1)
        answers_read, answers_write = pipe_between(theirs, ours, ours_is=0)
        alive_read, alive_write = pipe_between(theirs, ours, ours_is=1)
        arena_fd = own_fd(anonymous_file(f"streamsampler-worker-{number}"))
        ours.callback(close_fd, arena_fd)
        for fd in (commands_write, answers_read):
            os.set_blocking(fd, False)
        shared_fds = [shared.setup_fd, shared.board_fd, arena_fd, shared.updates_fd, shared.stacks_write_fd]
        child = launch(method, main, number, [commands_read, answers_write, alive_read, *shared_fds], threads)
        ours.callback(child.discard, END_SECONDS)
        # What has more bytes than the longest message lies in the arena.
        answers = MessageReader(answers_read, max(select.PIPE_BUF, 2 * inline_limit))
        link = Link(child, commands_write, answers_read, alive_write, arena_fd, ArenaReader(arena_fd), answers)
        ours.pop_all()
        return link


def await_ends(links: Iterable[Link], deadline: float) -> None:
    """Wait for workers' ends without reading their answers. The protocol leaves room for what they send until then."""
    for link in links:
        if not link.ended and link.child.ended(deadline - time.monotonic()):
            link.ended = True


def terminate(links: Iterable[Link]) -> None:
    """Send SIGTERM to the workers that have not ended, and SIGKILL a quarter of a second later."""
    late = [link for link in links if not link.ended]
    for link in late:
        link.child.kill(signal.SIGTERM)
    deadline = time.monotonic() + _TERM_SECONDS
    for link in late:
        link.child.ended(deadline - time.monotonic())
        link.child.kill()
