"""Run workers in processes of `multiprocessing`, each with a pair of queues. Imports nothing that only POSIX has."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any, TypeVar

from streamsampler.core.errors import SamplerError
from streamsampler.core.settings import hash_seed, working_directory
from streamsampler.engines.base import Died
from streamsampler.engines.launch.child import END_SECONDS
from streamsampler.engines.launch.descriptor_limit import make_room
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.linked import GRACE_SECONDS, LinkedWorkers
from streamsampler.engines.queue_link import QueueProcessLink, QueueStart
from streamsampler.workers.board import StatusBoard, board_bytes

_start_lock = threading.Lock()


@contextlib.contextmanager
def _variables_of_workers() -> Iterator[None]:
    """Give started processes the hash seed of workers, and no modules of the current directory.

    After their start they have our `sys.path`, and `ProcessSetup` restores PYTHONSAFEPATH.
    """
    variables = {"PYTHONSAFEPATH": "1", "PYTHONHASHSEED": hash_seed()}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


QueueProcessT = TypeVar("QueueProcessT", bound=QueueProcessLink)


def check_startable(start_method: StartMethod) -> None:
    """Raise a SamplerError in a daemonic process, or if processes do not fork and the working directory is gone."""
    if multiprocessing.current_process().daemon:
        raise SamplerError(
            'engine="queues" cannot start workers in a daemonic process, because Python allows it no children: start '
            "that process with daemon=False, or use LocalSampler or SerialEnvManager, which return the same results"
        )
    if start_method != "fork" and working_directory() is None:
        raise SamplerError(
            f'engine="queues" cannot start workers with start_method="{start_method}": the working directory was '
            'removed. Call os.chdir("/") before, or use engine="processes" or start_method="fork"'
        )


class QueuedWorkers(LinkedWorkers[QueueProcessT]):
    """Runs workers in processes of `multiprocessing`."""

    _how: QueueStart

    @abstractmethod
    def _new_link(self, number: int) -> QueueProcessT:
        """Start a worker; return its link."""

    @abstractmethod
    def _heard(self, link: QueueProcessT, item: Any) -> list[Any]:
        """Return the events of a worker's message; `_untrusted` for any other object."""

    def _start(self, start_method: StartMethod, main: Callable[..., None], setup: Any, **most: int) -> None:
        """Start the workers; after an error all started workers have ended.

        Raises:
            ResourceLimitError: The system does not allow this process the descriptors (an OSError).
            OSError: No process can be started.
            SamplerError: See `check_startable`.
        """
        check_startable(start_method)
        make_room(self.n_workers)
        context = multiprocessing.get_context(start_method)
        memory: Any = context.RawArray(ctypes.c_char, board_bytes(self.n_workers))
        self._how = QueueStart(context, main, setup, memory, **most)
        self._inbox: list[tuple[QueueProcessT, Any]] = []  # messages read; while it has any, a wake-up is pending
        self._inbox_lock = threading.Lock()
        self.board = StatusBoard(memoryview(memory))
        woken, wake = context.Pipe(duplex=False)
        self._woken, self._wake = map(self._opened.enter_context, (woken, wake))
        with self._ended_at_errors():
            for number in range(self.n_workers):  # all, and then threads: a process with threads is not safe to fork
                self._links.append(self._prepared_link(number))
            for link in self._links:
                if not self._record_start(link).lost:
                    link.read(self._post)

    def _close_shared(self) -> None:
        super()._close_shared()
        self._how = replace(self._how, board=None)

    def _prepared_link(self, number: int) -> QueueProcessT:
        with _start_lock, _variables_of_workers():
            return self._new_link(number)

    def _started(self, number: int) -> QueueProcessT:
        link = self._prepared_link(number)
        if link.lost:
            return link
        try:
            link.read(self._post)
        except BaseException:
            link.close(END_SECONDS)
            raise
        return link

    def _post(self, link: QueueProcessT, item: Any) -> None:
        """Put a link's message into the inbox; called in its thread."""
        with self._inbox_lock, contextlib.suppress(OSError):  # closed just now
            self._inbox.append((link, item))
            if len(self._inbox) == 1:
                self._wake.send_bytes(b"!")

    def _sleep(self, timeout: float | None) -> bool:
        # The first wait lets the threads run that write messages. If an answer is a signal to this process, it comes
        # before the second wait, and is noticed; a signal just before a thread blocks is not.
        return bool(wait([self._woken], 0) or wait([self._woken], timeout))

    def _events(self, timeout: float | None) -> list[Any]:
        return self._read() if self._sleep(timeout) else []

    def _read(self) -> list[Any]:
        with self._inbox_lock:
            # In this order: an interrupt in between leaves a wake-up too many, not too few.
            items, self._inbox = self._inbox, []
            self._woken.recv_bytes()
        events: list[Any] = []
        for link, item in items:
            if link.ended:
                continue
            if item is None:
                events += self._record_death(link)
            elif isinstance(item, Exception):
                events += self._untrusted(link, item)
            else:
                events += self._heard(link, item)
        return events

    def _untrusted(self, link: QueueProcessT, error: Exception) -> list[Any]:
        """Kill a worker after an invalid message; return its death."""
        link.kill()
        return self._record_death(link, why=f"sent an invalid answer ({type(error).__name__}: {error})")

    def _record_death(self, link: QueueProcessT, *, abandoned: bool = False, why: str = "") -> list[Any]:
        """Return the death of a worker, after all its messages."""
        link.ended = True
        self._killed.pop(link.number, None)
        if not link.ends_within(0 if abandoned else GRACE_SECONDS):
            link.kill()
            link.ends_within(0 if abandoned else END_SECONDS)
        exitcode, unknown = link.end()
        return [Died(link.number, exitcode, why or unknown)]
