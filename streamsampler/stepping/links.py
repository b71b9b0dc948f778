"""Connect a manager with its worker processes, for every engine: their state, requests and messages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from streamsampler.core.errors import WorkerError
from streamsampler.core.serialization import Payload
from streamsampler.engines.launch.child import END_SECONDS
from streamsampler.engines.linked import Link, LinkedWorkers
from streamsampler.engines.process_setup import ProcessSetup
from streamsampler.protocol.hangs import Stillness
from streamsampler.stepping.frames import pickle_frame
from streamsampler.stepping.rows import EnvSpaces, Rows
from streamsampler.workers.logs import Levels, levels_here


class WorkerMessage(NamedTuple):
    """A message of a worker."""

    worker: int
    kind: int
    data: bytes


class EnvLink(Link):
    """A worker process with environments."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.waiting: set[int] = set()  # environments with an unanswered request
        self.restoring: set[int] = set()  # environments the worker has to restore
        self.is_making = True  # whether it still makes its environments
        self.spaces: Any = None  # its environments' spaces, once made, pickled
        self.requested: list[int] = []  # environments with an unanswered request other than a step
        self.answer: tuple[Any, ...] | None = None  # the worker's answer to the last of these
        self.error: WorkerError | None = None  # why it was lost
        # Whether its loss was reported. No replacement starts before: its requests would count as lost as well.
        self.is_reported = False
        self.stillness = Stillness()
        self.held: list[bytes] | None = None  # messages for the replacement, once the worker has ended
        self.start_at = 0.0  # when the replacement starts, by the monotonic clock

    @property
    def is_busy(self) -> bool:
        return self.is_making or bool(self.waiting or self.restoring or self.requested)

    @property
    @abstractmethod
    def n_moved(self) -> int:
        """Bytes sent and received, which are progress."""

    def write(self, data: bytes) -> None:
        """Send a message without waiting, or keep it until its replacement starts."""
        if self.ended:
            if self.held is not None:
                self.held.append(data)
            return
        if not self.is_busy:
            self.stillness.reset()
        self._send(data)

    @abstractmethod
    def _send(self, data: bytes) -> None: ...

    def inherit(self, ended: EnvLink) -> None:
        """Inherit the requests and messages of the dead worker that this one replaces."""
        self.waiting, self.restoring, self.requested = ended.waiting, ended.restoring, ended.requested
        for data in ended.held or ():
            self.write(data)

    def forget(self) -> None:
        self.is_making, self.requested, self.held = False, [], None
        self.waiting.clear()
        self.restoring.clear()


EnvLinkT = TypeVar("EnvLinkT", bound=EnvLink)


class EnvPool(LinkedWorkers[EnvLinkT]):
    """Worker processes with environments."""

    @abstractmethod
    def set_up(self, given: Payload) -> None:
        """Set the payload for later starts; all running workers have read theirs."""

    @abstractmethod
    def new_rows(self, spaces: EnvSpaces) -> Rows: ...

    @abstractmethod
    def sleep(self, timeout: float | None, awaited: EnvLinkT | None = None) -> Any:
        """Sleep until a worker sends, dies or is killed; return the argument for `read`. May be interrupted.

        If the caller needs the answer of `awaited`, other workers need not end the sleep.
        """

    @abstractmethod
    def read(self, ready: Any) -> list[Any]:
        """Return the workers' messages, and deaths as `Died`."""

    @abstractmethod
    def nap(self, seconds: float) -> None:
        """Sleep for about so many seconds, or until a worker sends or ends; more precise than `sleep`."""

    def _let_end(self, link: EnvLinkT) -> None:
        link.write(pickle_frame(("exit",)))

    def __getitem__(self, number: int) -> EnvLinkT:
        return self._links[number]

    def __iter__(self) -> Iterator[EnvLinkT]:
        return iter(self._links)

    @property
    def is_ours(self) -> bool:
        """Whether this process started the workers, and is no forked copy."""
        return self._is_ours()

    def discard_worker(self, link: EnvLinkT) -> None:
        """Kill a worker, and receive nothing more from it."""
        link.close(END_SECONDS)
        link.forget()
        self._killed.pop(link.number, None)


NewPool = Callable[[Payload, int, int | None, float], EnvPool[Any]]
"""Starts worker processes with environments. Arguments: the payload for `worker_main.new_worker`, the number of
workers, the threads libraries compute on, and the seconds all workers together may take to close."""


def setup_of(given: Payload, threads: int | None, *, is_forked: bool = False) -> tuple[ProcessSetup, Levels]:
    return ProcessSetup.of_this_process(given, 0, threads, is_forked=is_forked), levels_here()
