"""Start, watch, replace and end workers that are processes, whatever they are asked and answer.

Samplers and managers of environments have this in common. Each worker has a link: what only it shares with the process
that started it. So its death breaks nothing that another worker uses. Imports nothing that only POSIX has.
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
"""How long a worker that is not closing its environment may take to begin with it, before it is killed."""

GRACE_SECONDS = 1.0
"""How long a worker may take to end once it has closed its end of what it shares with the sampler."""

_LATE = (
    "worker %d was killed: to close its environments and to run their exit handlers took longer than close_timeout=%g s"
)
_TERM_SECONDS = 0.25  # from SIGTERM to SIGKILL
_OURS = (  # frames that a user has no use for
    "/streamsampler/workers/loop.py", "/streamsampler/workers/task_loops.py", "/streamsampler/engines/", '"<string>"',
)  # fmt: skip


class Link(ABC):
    """This process's ends of what it shares with one worker process.

    Args:
        number: The worker number.

    Attributes:
        number: The worker number.
        ended: Whether the worker is dead, or counts as dead: it is sent nothing, and nothing of it is taken in.
        lost: Why it never ran, as the end of a sentence: what was to start it is lost. Empty where it ran.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.ended = False
        self.lost = ""

    @property
    @abstractmethod
    def pid(self) -> int:
        """The worker's process id."""

    @abstractmethod
    def ends_within(self, timeout: float) -> bool:
        """Return whether the worker ends within `timeout` seconds."""

    @abstractmethod
    def kill(self, *, gently: bool = False) -> None:
        """Kill the worker; gently, if the system knows the difference, by SIGTERM. From any thread."""

    @abstractmethod
    def stacks(self) -> str:
        """Return the worker's Python stacks; the reason why there are none, in parentheses."""

    @abstractmethod
    def close(self, timeout: float) -> None:
        """Kill the worker if it lives, and close all ends; may be repeated, also after an interrupt.

        Args:
            timeout: Seconds that the worker may take to be gone; one that hangs in the kernel takes longer.
        """


class EngineLink(Link):
    """The sampler's ends of what it shares with one worker process.

    Attributes:
        spaces: The spaces that the worker sent last, pickled; empty before.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.spaces = b""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a message. The protocol bounds the messages under way, so there is always room."""


class AnswerReader:
    """Makes events of what workers said.

    Attributes:
        oldest_version: The oldest agent version whose rollouts are unpickled; of others the answer is enough.
    """

    def __init__(self) -> None:
        self.oldest_version = 0
        # Equal spaces are one object for all workers: Gymnasium takes long to compare two of them.
        self._pickled = b""
        self._spaces: Any = None

    def events(
        self, link: EngineLink, records: bytes, answer: Answer | None, contents: Contents | None,
        places: Sequence[Place], release: Callable[[], None] = lambda: None,
    ) -> list[Event]:  # fmt: skip
        """Return the events of what a worker said at once: `Logged`, `Answered`, or both.

        Args:
            link: The worker.
            records: Its log records.
            answer: Its answer; None for log records alone.
            contents: What came with a report besides arrays.
            places: Where these arrays lie.
            release: Gives their memory back.
        """
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
        """Return the spaces that a worker sent; None if they are those that it sent last."""
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
    """Workers in processes, each behind a link.

    A subclass makes `board` and the links, and closes what all workers share when `_opened` is left. What workers say
    are events of any kind; a death is `Died`, after all that the worker had sent.

    Args:
        n_workers: How many workers there are.
        close_timeout: Seconds that all workers together may take to close their environments at the end.

    Attributes:
        n_workers: How many workers there are.
        board: What workers show of their progress.
    """

    board: StatusBoard

    def __init__(self, n_workers: int, close_timeout: float) -> None:
        self.n_workers = n_workers
        self._close_timeout = close_timeout
        self._owner = os.getpid()
        self._links: list[LinkT] = []
        self._opened = contextlib.ExitStack()  # what all workers share
        self._killed: dict[int, float] = {}  # workers, and the time at which their ends are no longer waited for
        self._unstarted: list[Died] = []  # the deaths of workers that never ran, until they are reported
        self._restarting = self._closing = self._closed = self._stopped = False

    # ------------------------------------------------------------------ to be written

    @abstractmethod
    def _started(self, number: int) -> LinkT:
        """Start a worker; return its link. If the worker cannot be started, nothing is left of it."""

    @abstractmethod
    def _events(self, timeout: float | None) -> list[Any]:
        """Sleep until a worker says something or dies; return the events."""

    @abstractmethod
    def _take_in_death(self, link: LinkT, *, given_up: bool = False) -> list[Any]:
        """Return the last events of a worker which has ended, or is about to, or whose end is not waited for."""

    @abstractmethod
    def _let_end(self, link: LinkT) -> None:
        """Let a worker close its environments and end, as soon as it has carried out what it was asked before."""

    def _stop_work(self) -> None:
        """Let workers leave undone what they can."""

    # ------------------------------------------------------------------ events

    def _is_ours(self) -> bool:
        """Whether this is the process that started the workers, and not a forked copy of it.

        A copy that leaves a stream's loop must not stop the workers: it shares the board, and the numbers of its
        descriptors may belong to other files.
        """
        return os.getpid() == self._owner

    def wait(self, timeout: float | None) -> list[Any]:
        """Sleep until a worker says something, dies or is given up."""
        return self._with_given_up(self._events(self._within(timeout)))

    def _note_start(self, link: LinkT) -> LinkT:
        """Report the death of a worker that never ran; return its link."""
        if link.lost:
            link.ended = True
            self._unstarted.append(Died(link.number, None, link.lost))
        return link

    def _within(self, timeout: float | None) -> float | None:
        """Return for how many seconds to sleep at most: until the end of a killed worker is no longer waited for."""
        if self._unstarted:
            return 0.0
        if not self._killed:
            return timeout
        return min([math.inf if timeout is None else timeout, *self._seconds_left().values()])

    def _with_given_up(self, events: list[Any]) -> list[Any]:
        """Add the deaths of workers that never ran, and of killed ones whose ends are no longer waited for."""
        if self._unstarted:
            events += self._unstarted
            self._unstarted = []
        if self._killed:
            for worker, left in self._seconds_left().items():
                if left <= 0:
                    events += self._take_in_death(self._links[worker], given_up=True)
        return events

    def _seconds_left(self) -> dict[int, float]:
        """Return for how many more seconds the end of each killed worker is waited for."""
        return {worker: max(0.0, until - time.monotonic()) for worker, until in self._killed.items()}

    # ------------------------------------------------------------------ workers that hang or are replaced

    def restart(self, worker: int) -> None:
        """Start a new process in the place of a dead one, with a link of its own."""
        self.board.clear(worker)
        self._restarting = True
        try:
            # First the new worker: if it cannot be started, nothing has changed, and `restart` can be repeated.
            new, old = self._note_start(self._started(worker)), self._links[worker]
            self._links[worker] = new
            if self._stopped:
                new.kill()  # another thread has killed all workers, and may not have seen this one
            old.close(END_SECONDS)
            if self._closing:
                new.close(END_SECONDS)
        finally:
            self._restarting = False
            if self._closed:
                self._close_shared()

    def stacks(self, worker: int) -> str:
        """Return the Python stacks of a worker."""
        return self._links[worker].stacks()

    def kill_worker(self, worker: int) -> None:
        """Kill a worker. If it hangs in the kernel, it counts as dead after `END_SECONDS`."""
        if not self._links[worker].ended:
            self._links[worker].kill()
            self._killed.setdefault(worker, time.monotonic() + END_SECONDS)

    def pids(self) -> list[int]:
        """Return the workers' process ids, of those that run or ran."""
        return [link.pid for link in self._links if link.pid]

    # ------------------------------------------------------------------ ending

    @contextlib.contextmanager
    def _ended_at_errors(self) -> Iterator[None]:
        """End all workers, and close what they share, if an error is raised."""
        try:
            yield
        except BaseException:
            self._end_all()
            self._opened.close()
            raise

    def kill(self) -> None:
        """Kill all workers."""
        self._stopped = True
        self._stop_work()
        for link in self._links if self._is_ours() else ():
            link.kill()

    def close(self, *, read_answers: bool = True) -> list[Any]:
        """Let all workers close their environments and end; send SIGTERM, then SIGKILL, to those that take too long.

        May be repeated after an interrupt.

        Args:
            read_answers: Whether the workers' last answers are read. False where an interrupt may have left a message
                half read.

        Returns:
            The last events.
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
        # A worker that is being started is given what is shared: by its numbers, which other files may get once closed.
        if not self._restarting:
            self._close_shared()
        return last_events

    def _close_shared(self) -> None:
        self.board = self.board.copy()  # which is asked for timesteps still
        self._opened.close()

    def _end_all(self) -> None:
        """Kill the workers that live, and close all links."""
        for link in self._links:
            link.kill()
        deadline = time.monotonic() + END_SECONDS
        for link in self._links:
            link.close(deadline - time.monotonic())

    def _await_ends(self, *, read_answers: bool) -> list[Any]:
        """Wait for the workers' ends; return the events until then."""
        last_events: list[Any] = []
        begin = time.monotonic()
        for limit in sorted({STUCK_SECONDS, self._close_timeout}):
            if read_answers:
                last_events += self._read_until(begin + limit)
            else:  # the protocol leaves room for what they send until then
                for link in self._links:
                    link.ended = link.ended or link.ends_within(begin + limit - time.monotonic())
            late = [link for link in self._links if not link.ended and self._seconds_to_end(link.number) <= limit]
            for link in late:
                if self._is_closing(link.number):
                    _LOG.warning(_LATE, link.number, self._close_timeout)
            _terminate(late)
        return last_events

    def _seconds_to_end(self, worker: int) -> float:
        """Return how many seconds a worker has to end, from the beginning of `close`."""
        return self._close_timeout if self._is_closing(worker) else STUCK_SECONDS

    def _is_closing(self, worker: int) -> bool:
        return self.board.progress(worker).phase is Phase.CLOSE

    def _read_until(self, deadline: float) -> list[Any]:
        """Wait for the workers' ends until the deadline; return the events."""
        last_events: list[Any] = []
        while any(not link.ended for link in self._links) and (left := deadline - time.monotonic()) > 0:
            last_events += self.wait(left)
        return last_events


class LinkedEngine(LinkedWorkers[EngineLinkT], Engine):
    """An engine whose workers are processes, each behind a link."""

    has_own_settings = True
    can_retire = True

    def __init__(self, n_workers: int, close_timeout: float) -> None:
        super().__init__(n_workers, close_timeout)
        self._answers = AnswerReader()

    def abandon_older(self, version: int) -> None:
        """Let workers abandon rollouts of versions older than `version`."""
        self._answers.oldest_version = version
        if self._is_ours():
            self.board.abandon_older(version)

    def _stop_work(self) -> None:
        self.abandon_older(NEVER_AGAIN)

    def begin_end(self) -> None:
        """Let workers end as soon as they can: one that waits for environments notices a message, and not the board."""
        self._stop_work()
        if self._is_ours():
            for link in self._links:
                if not link.ended:
                    self._let_end(link)

    def send(self, worker: int, message: Message) -> None:
        """Send a message."""
        link = self._links[worker]
        if link.ended or os.getpid() != self._owner:  # not a call of `_is_ours`: once a report
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
    """Send SIGTERM to workers, and SIGKILL a quarter of a second later."""
    for link in late:
        link.kill(gently=True)
    deadline = time.monotonic() + _TERM_SECONDS
    for link in late:
        link.ends_within(deadline - time.monotonic())
        link.kill()


def shown_stacks(text: str, hidden: Sequence[str] = ()) -> str:
    """Return stacks without the frames of engines and of the worker's loop, and without those that are `hidden`."""
    frames = (*_OURS, *hidden)
    return "\n".join(line for line in text.splitlines() if not any(it in line.replace(os.sep, "/") for it in frames))
