"""Start processes with pipes, notice their ends, and read their messages until then."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from streamsampler.engines.base import Died
from streamsampler.engines.launch.child import END_SECONDS, Main
from streamsampler.engines.launch.descriptors import pipe_between, readable_within
from streamsampler.engines.launch.start import launch
from streamsampler.engines.launch.worker_child import WatchdogLostError
from streamsampler.engines.linked import GRACE_SECONDS, Link, LinkedWorkers
from streamsampler.engines.processes.shared_files import SharedFiles
from streamsampler.engines.processes.stacks import stacks_of
from streamsampler.engines.processes.wire import GarbageError

CAME_BACK = (
    "called os.fork(), and the forked process, which must end with os._exit(), returned into the worker's own code, "
    "and was stopped"
)

SAYS, ENDED, HAS_ROOM = range(3)
"""Events of a selector: a worker has sent a message, has ended, or has room for another message."""


@dataclass(frozen=True)
class PipeStart:
    """How the workers of a pool are started."""

    main: Main
    threads: int | None
    shared: SharedFiles
    selector: selectors.BaseSelector  # reports `(link, SAYS)`, `(link, ENDED)` or `(link, HAS_ROOM)`


class PipeLink(Link):
    """A worker process with two pipes; its constructor starts the process without waiting.

    Raises an OSError if no processes or descriptors are left.
    """

    def __init__(self, start: PipeStart, number: int, fds: Sequence[int] = ()) -> None:
        super().__init__(number)
        self._start = start
        self._closed = False
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            commands_read, self.commands_fd = pipe_between(theirs, ours, ours_is=1)
            self.answers_fd, answers_write = pipe_between(theirs, ours, ours_is=0)
            alive_read, _ = pipe_between(theirs, ours, ours_is=1)  # the worker ends when this closes
            for fd in (self.commands_fd, self.answers_fd):
                os.set_blocking(fd, False)
            given = [commands_read, answers_write, alive_read, *start.shared.fds, *fds]
            self.child = launch(start.main, number, given, start.threads)
            ours.callback(self.child.discard, END_SECONDS)
            self._ours = ours.pop_all()

    @abstractmethod
    def read(self) -> list[Any] | None:
        """Return the events of arrived messages; None if the worker has closed its end.

        Raises:
            GarbageError: Other data arrived.
        """

    def flush(self) -> None:
        """Send messages the pipe had no room for; none if the protocol bounds the messages under way."""

    def runs(self) -> bool:
        """Wait until the worker runs, and register it at the selector; see `WorkerChild.await_start` for errors.

        Return False if its server was lost, as an earlier worker has shown; if this is the first, close the link and
        set `lost`.
        """
        was_lost = self.child.is_given_up
        try:
            self.child.await_start()
        except WatchdogLostError as error:
            if was_lost:
                return False
            self.lost = f"was lost, because {error},"
            self.close(0)
            return True
        self._register()
        return True

    def _register(self) -> None:
        self._start.selector.register(self.answers_fd, selectors.EVENT_READ, (self, SAYS))
        for fd in self.child.filenos():
            self._start.selector.register(fd, selectors.EVENT_READ, (self, ENDED))

    def unregister(self) -> None:
        """Stop the selector's events of this worker."""
        for fd in (self.answers_fd, *self.child.filenos()):
            if fd in self._start.selector.get_map():
                self._start.selector.unregister(fd)

    @property
    def pid(self) -> int:
        return self.child.pid

    def ends_within(self, timeout: float) -> bool:
        return self.child.ended(timeout)

    def kill(self, *, gently: bool = False) -> None:
        self.child.kill(signal.SIGTERM if gently else signal.SIGKILL)

    def stacks(self) -> str:
        return stacks_of(self.child, self._start.shared.stacks_fd)

    def close(self, timeout: float) -> None:
        self.ended = True
        if not self._closed:  # or the numbers of its descriptors may belong to other files
            self.unregister()
            self.child.discard(timeout)
            self._ours.close()
            self._closed = True


_AT_ONCE = 8  # workers started together; the kernel bounds the descriptors on their way to a server

PipeLinkT = TypeVar("PipeLinkT", bound=PipeLink)


class ProcessPool(LinkedWorkers[PipeLinkT]):
    """Runs workers in processes with pipes."""

    _how: PipeStart
    _selector: selectors.BaseSelector

    @abstractmethod
    def _new_link(self, number: int) -> PipeLinkT:
        """Start a worker without waiting; return its link."""

    def _start(self, main: Main, threads: int | None, shared: SharedFiles) -> None:
        """Start the workers, several at a time: the start of a worker passes through several processes."""
        self._opened.callback(shared.close)
        with self._ended_at_errors():
            self._selector = self._opened.enter_context(selectors.DefaultSelector())
            self.board = shared.board
            self._how = PipeStart(main, threads, shared, self._selector)
            for number in range(self.n_workers + _AT_ONCE):
                first = number - _AT_ONCE
                if first >= 0:
                    self._links[first] = self._record_start(self._running(self._links[first]))
                if number < self.n_workers:
                    self._links.append(self._new_link(number))

    def _started(self, number: int) -> PipeLinkT:
        return self._running(self._new_link(number))

    def _running(self, link: PipeLinkT) -> PipeLinkT:
        """Wait until a worker runs, or will never run; return its link.

        The loss of a server is the loss of a single worker: the next server starts its other workers.
        """
        try:
            while not link.runs():
                # A new link, with new pipes: a worker started by the lost server ends with the old pipes.
                link.close(0)
                link = self._new_link(link.number)
        except BaseException:
            link.close(END_SECONDS)
            raise
        return link

    def _events(self, timeout: float | None) -> list[Any]:
        return self._said(self._selector.select(timeout))

    def _said(self, ready: Sequence[tuple[selectors.SelectorKey, int]]) -> list[Any]:
        """Return the events of workers reported by the selector."""
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
                events += self._record_death(link) if said is None else said
            except GarbageError as error:
                events.append(self._kill_untrusted(link, str(error)))
        return events

    def _record_death(self, link: PipeLinkT, *, abandoned: bool = False) -> list[Any]:
        """Return a worker's last events, then its death; an unfinished message is discarded."""
        self._killed.pop(link.number, None)
        if not abandoned and link.child.unwatched() and not link.child.ended(0):
            return [self._kill_untrusted(link, "lost its watchdog process, and was killed,")]
        link.ended = True
        if not abandoned and not link.child.ended(GRACE_SECONDS):
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
        return [*last, Died(link.number, link.child.wait(0 if abandoned else END_SECONDS))]

    def _kill_untrusted(self, link: PipeLinkT, why: str) -> Died:
        """Kill a worker after untrustworthy messages; return its death."""
        link.ended = True
        self._killed.pop(link.number, None)
        link.child.kill_all()
        link.unregister()
        return Died(link.number, link.child.wait(END_SECONDS), why, hopeless=why == CAME_BACK)
