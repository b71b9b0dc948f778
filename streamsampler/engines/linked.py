"""Start, watch, replace and end worker processes, for samplers and managers alike.

Each worker has a link: the ends it shares only with the process that started it, so its death breaks nothing of another
worker. Imports nothing that only POSIX has.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from streamsampler.core.by_position import BY_NAME
from streamsampler.core.serialization import Contents, Place, loads_report
from streamsampler.engines.base import Answered, Died, Engine, Event, Logged, unreadable
from streamsampler.engines.launch.child import END_SECONDS
from streamsampler.protocol.messages import NEVER_AGAIN, Answer, Exit, Message, Phase, Start
from streamsampler.workers.board import StatusBoard

_LOG = logging.getLogger("streamsampler")

STUCK_SECONDS = 1.0
"""Seconds for a worker to start closing its environment, before it is killed."""

GRACE_SECONDS = 1.0
"""Seconds for a worker to end after it closed its ends."""

_LATE = (
    "worker %d was killed: closing its environments and running their exit handlers took longer than close_timeout=%g s"
)
_TERM_SECONDS = 0.25  # from SIGTERM to SIGKILL
_OURS = (  # frames of no use to users
    "/streamsampler/workers/loop.py", "/streamsampler/workers/task_loops.py", "/streamsampler/engines/", '"<string>"',
)  # fmt: skip


class Link(ABC):
    """This process's ends of a worker process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ended = False  # whether the worker is dead, or counts as dead: messages to and from it are discarded
        self.lost = ""  # reason why it never ran, as the end of a sentence: its server is lost

    @property
    @abstractmethod
    def pid(self) -> int: ...

    @abstractmethod
    def ends_within(self, timeout: float) -> bool: ...

    @abstractmethod
    def kill(self, *, gently: bool = False) -> None:
        """Kill the worker, from any thread; gently by SIGTERM, if the system has it."""

    @abstractmethod
    def stacks(self) -> str:
        """Return the worker's Python stacks, or the reason for their absence, in parentheses."""

    @abstractmethod
    def close(self, timeout: float) -> None:
        """Kill the worker if it lives, and close all ends; may be repeated, also after an interrupt."""


class EngineLink(Link):
    """The sampler's ends of a worker process."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.spaces = b""  # as last sent by the worker, pickled

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a message; the protocol bounds the messages under way, so it fits."""


class AnswerReader:
    """Makes events of workers' messages."""

    def __init__(self) -> None:
        self.oldest_version = 0  # the oldest agent version with rollouts to unpickle
        # Equal spaces share an object over all workers: Gymnasium takes long to compare two of them.
        self._pickled = b""
        self._spaces: Any = None

    def events(
        self, link: EngineLink, records: bytes, answer: Answer | None, contents: Contents | None,
        places: Sequence[Place], release: Callable[[], None] = lambda: None,
    ) -> list[Event]:  # fmt: skip
        """Return the events of a worker's message: `Logged`, `Answered`, or both; None is no answer."""
        events: list[Event] = [Logged(link.number, records)] if records else []
        if answer is None:
            release()
            return events
        if contents is None or answer.ticket is None or answer.ticket.version < self.oldest_version:
            release()
            return [*events, Answered(link.number, answer)]
        try:
            read = loads_report(contents, places, BY_NAME), self._new_spaces(link, contents[1])
        except Exception as error:
            release()
            return [*events, Answered(link.number, unreadable(answer, error))]
        return [*events, Answered(link.number, answer, read, release)]

    def _new_spaces(self, link: EngineLink, pickled: bytes | None) -> Any:
        """Return a worker's new spaces; None if they have not changed."""
        if pickled is None or pickled == link.spaces:
            return None
        if pickled != self._pickled:
            self._spaces = pickle.loads(pickled)
            self._pickled = pickled
        link.spaces = self._pickled
        return self._spaces


LinkT = TypeVar("LinkT", bound=Link)
EngineLinkT = TypeVar("EngineLinkT", bound=EngineLink)


class LinkedWorkers(ABC, Generic[LinkT]):
    """Runs workers in processes, each with a link.

    A subclass makes `board` and the links, and closes shared files by `_opened`. Events are of any kind; `Died` is a
    worker's last.
    """

    board: StatusBoard

    def __init__(self, n_workers: int, close_timeout: float) -> None:
        self.n_workers = n_workers
        self._close_timeout = close_timeout
        self._owner = os.getpid()
        self._links: list[LinkT] = []
        self._opened = contextlib.ExitStack()  # shared by all workers
        self._killed: dict[int, float] = {}  # workers, and when to stop waiting for their ends
        self._unstarted: list[Died] = []  # deaths, not yet reported, of workers that never ran
        self._restarting = self._closing = self._closed = self._stopped = False

    @abstractmethod
    def _started(self, number: int) -> LinkT:
        """Start a worker; return its link, or raise and leave nothing of it."""

    @abstractmethod
    def _events(self, timeout: float | None) -> list[Any]:
        """Sleep until a worker sends a message or dies; return the events."""

    @abstractmethod
    def _record_death(self, link: LinkT, *, abandoned: bool = False) -> list[Any]:
        """Return the last events of a worker: it has ended, is about to, or is no longer waited for."""

    @abstractmethod
    def _let_end(self, link: LinkT) -> None:
        """Let a worker close its environments and end after all earlier requests."""

    def _stop_work(self) -> None:
        """Let workers skip unneeded work."""

    def _is_ours(self) -> bool:
        # A copy that leaves a stream's loop must not stop the workers: it shares the board, and the numbers of its
        # descriptors may belong to other files.
        return os.getpid() == self._owner

    def wait(self, timeout: float | None) -> list[Any]:
        """Sleep until a worker sends a message, dies or is no longer waited for; return the events."""
        return self._with_abandoned(self._events(self._within(timeout)))

    def _record_start(self, link: LinkT) -> LinkT:
        """Record the death of a worker that never ran; return its link."""
        if link.lost:
            link.ended = True
            self._unstarted.append(Died(link.number, None, link.lost))
        return link

    def _within(self, timeout: float | None) -> float | None:
        """Return the most seconds to sleep."""
        if self._unstarted:
            return 0.0
        if not self._killed:
            return timeout
        return min([math.inf if timeout is None else timeout, *self._seconds_left().values()])

    def _with_abandoned(self, events: list[Any]) -> list[Any]:
        """Add the deaths of workers that never ran, and of killed workers no longer waited for."""
        if self._unstarted:
            events += self._unstarted
            self._unstarted = []
        if self._killed:
            for worker, left in self._seconds_left().items():
                if left <= 0:
                    events += self._record_death(self._links[worker], abandoned=True)
        return events

    def _seconds_left(self) -> dict[int, float]:
        return {worker: max(0.0, until - time.monotonic()) for worker, until in self._killed.items()}

    def restart(self, worker: int) -> None:
        """Start a new process and link in the place of a dead worker."""
        self.board.clear(worker)
        self._restarting = True
        try:
            # First the new worker: if it cannot be started, nothing has changed, and `restart` can be repeated.
            new, old = self._record_start(self._started(worker)), self._links[worker]
            self._links[worker] = new
            if self._stopped:
                new.kill()  # another thread has killed all workers, perhaps without this new worker
            old.close(END_SECONDS)
            if self._closing:
                new.close(END_SECONDS)
        finally:
            self._restarting = False
            if self._closed:
                self._close_shared()

    def stacks(self, worker: int) -> str:
        return self._links[worker].stacks()

    def kill_worker(self, worker: int) -> None:
        """Kill a worker. If it hangs in the kernel, it counts as dead after `END_SECONDS`."""
        if not self._links[worker].ended:
            self._links[worker].kill()
            self._killed.setdefault(worker, time.monotonic() + END_SECONDS)

    def pids(self) -> list[int]:
        return [link.pid for link in self._links if link.pid]

    @contextlib.contextmanager
    def _ended_at_errors(self) -> Iterator[None]:
        """End all workers, and close shared files, after an error."""
        try:
            yield
        except BaseException:
            self._end_all()
            self._opened.close()
            raise

    def kill(self) -> None:
        self._stopped = True
        self._stop_work()
        for link in self._links if self._is_ours() else ():
            link.kill()

    def close(self, *, read_answers: bool = True) -> list[Any]:
        """Let all workers close their environments and end; kill late workers. May be repeated after an interrupt.

        Return the last events; `read_answers` is False after an interrupt in the middle of a message.
        """
        if not self._is_ours() or self._closed:
            return []
        self._closing = self._stopped = True
        last_events: list[Any] = []
        try:
            self._stop_work()
            for link in self._links:
                if not link.ended:
                    self._let_end(link)
            last_events = self._await_ends(read_answers=read_answers)
        finally:
            self._end_all()
        self._closed = True
        # A starting worker receives shared descriptors by number, and other files may get these numbers once closed.
        if not self._restarting:
            self._close_shared()
        return last_events

    def _close_shared(self) -> None:
        self.board = self.board.copy()  # for later requests of timesteps
        self._opened.close()

    def _end_all(self) -> None:
        for link in self._links:
            link.kill()
        deadline = time.monotonic() + END_SECONDS
        for link in self._links:
            link.close(deadline - time.monotonic())

    def _await_ends(self, *, read_answers: bool) -> list[Any]:
        last_events: list[Any] = []
        begin = time.monotonic()
        for limit in sorted({STUCK_SECONDS, self._close_timeout}):
            if read_answers:
                last_events += self._read_until(begin + limit)
            else:  # the protocol leaves room for their messages until then
                for link in self._links:
                    link.ended = link.ended or link.ends_within(begin + limit - time.monotonic())
            late = [link for link in self._links if not link.ended and self._seconds_to_end(link.number) <= limit]
            for link in late:
                if self._is_closing(link.number):
                    _LOG.warning(_LATE, link.number, self._close_timeout)
            _terminate(late)
        return last_events

    def _seconds_to_end(self, worker: int) -> float:
        return self._close_timeout if self._is_closing(worker) else STUCK_SECONDS

    def _is_closing(self, worker: int) -> bool:
        return self.board.progress(worker).phase is Phase.CLOSE

    def _read_until(self, deadline: float) -> list[Any]:
        last_events: list[Any] = []
        while any(not link.ended for link in self._links) and (left := deadline - time.monotonic()) > 0:
            last_events += self.wait(left)
        return last_events


class LinkedEngine(LinkedWorkers[EngineLinkT], Engine):
    """An engine with worker processes, each with a link."""

    has_own_settings = True
    can_retire = True

    def __init__(self, n_workers: int, close_timeout: float) -> None:
        super().__init__(n_workers, close_timeout)
        self._answers = AnswerReader()

    def abandon_older(self, version: int) -> None:
        self._answers.oldest_version = version
        if self._is_ours():
            self.board.abandon_older(version)

    def _stop_work(self) -> None:
        self.abandon_older(NEVER_AGAIN)

    def start_ending(self) -> None:
        """Let workers end as soon as they can: in waits for environments they notice messages, not the board."""
        self._stop_work()
        if self._is_ours():
            for link in self._links:
                if not link.ended:
                    self._let_end(link)

    def send(self, worker: int, message: Message) -> None:
        link = self._links[worker]
        if link.ended or os.getpid() != self._owner:  # not a call of `_is_ours`: this runs once a report
            return  # `wait` reports its death
        if isinstance(message, Start):
            self.board.lower_flag(worker)
        link.send(message)

    def _let_end(self, link: EngineLinkT) -> None:
        link.send(Exit())

    def close(self, *, read_answers: bool = True) -> list[Answered | Logged]:
        """End all workers; return their last answers, without contents, and log records."""
        last_events = super().close(read_answers=read_answers)
        answers = [Answered(it.worker, it.answer) if isinstance(it, Answered) else it for it in last_events]
        return [it for it in answers if isinstance(it, Answered | Logged)]


def _terminate(late: Iterable[Link]) -> None:
    for link in late:
        link.kill(gently=True)
    deadline = time.monotonic() + _TERM_SECONDS
    for link in late:
        link.ends_within(deadline - time.monotonic())
        link.kill()


def shown_stacks(text: str, hidden: Sequence[str] = ()) -> str:
    """Return stacks without the frames of engines, of the worker's loop, and of `hidden` files."""
    frames = (*_OURS, *hidden)
    return "\n".join(line for line in text.splitlines() if not any(it in line.replace(os.sep, "/") for it in frames))
