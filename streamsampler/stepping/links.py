"""Worker processes with environments: what the parent knows of each, and asks of all, whatever connects them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from streamsampler.core.errors import WorkerError
from streamsampler.core.serialization import Payload
from streamsampler.engines.launch.child import END_SECONDS
from streamsampler.engines.linked import Link, LinkedWorkers
from streamsampler.engines.worker_side import ProcessSetup
from streamsampler.protocol.hangs import Stillness
from streamsampler.stepping.frames import pickle_frame
from streamsampler.stepping.rows import EnvSpaces, Rows
from streamsampler.workers.logs import Levels, levels_here


class Said(NamedTuple):
    """A message of a worker."""

    worker: int
    kind: int
    data: bytes


class EnvLink(Link):
    """A worker process with environments."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.waiting: set[int] = set()  # environments whose requests have no answer yet
        self.restoring: set[int] = set()  # environments that it is to restore, and has not
        self.is_making = True  # whether it still makes its environments
        self.spaces: Any = None  # theirs, when it has made them, pickled
        self.asked: list[int] = []  # environments that are to carry out what is no step, and have not
        self.answer: tuple[Any, ...] | None = None  # what the worker said to that last
        self.error: WorkerError | None = None  # why it was lost
        # Whether its loss was handed out: before, no other worker is started in its place, since what that one was
        # asked for would count as lost, too.
        self.is_told = False
        self.stillness = Stillness()
        self.held: list[bytes] | None = None  # what the worker that takes its place, once it ended, is to be told
        self.start_at = 0.0  # when that is, by the monotonic clock

    @property
    def is_busy(self) -> bool:
        """Whether the worker has something to do."""
        return self.is_making or bool(self.waiting or self.restoring or self.asked)

    @property
    @abstractmethod
    def n_moved(self) -> int:
        """How many bytes are known to have gone there and back: a worker that reads or writes makes progress."""

    def write(self, data: bytes) -> None:
        """Send a message. Nothing is waited for: what there is no room for is sent when there is."""
        if self.ended:
            if self.held is not None:
                self.held.append(data)
            return
        if not self.is_busy:
            self.stillness.reset()
        self._send(data)

    @abstractmethod
    def _send(self, data: bytes) -> None:
        """Send a message to a worker that has not ended."""

    def take_over(self, ended: EnvLink) -> None:
        """Do what a worker was to do that had ended, and in whose place this one is."""
        self.waiting, self.restoring, self.asked = ended.waiting, ended.restoring, ended.asked
        for data in ended.held or ():
            self.write(data)

    def forget(self) -> None:
        """Wait for nothing of it: the worker has ended."""
        self.is_making, self.asked, self.held = False, [], None
        self.waiting.clear()
        self.restoring.clear()


EnvLinkT = TypeVar("EnvLinkT", bound=EnvLink)


class EnvPool(LinkedWorkers[EnvLinkT]):
    """Worker processes with environments."""

    @abstractmethod
    def set_up(self, given: Payload) -> None:
        """Let workers that are started from now on be given something else; all others have read theirs."""

    @abstractmethod
    def new_rows(self, spaces: EnvSpaces) -> Rows:
        """Return the rows of environments, which no worker has opened yet."""

    @abstractmethod
    def sleep(self, timeout: float | None, awaited: EnvLinkT | None = None) -> Any:
        """Sleep until a worker says something, dies or is given up; return what `read` takes.

        May be interrupted. Without the answer of `awaited` nothing goes on: other workers need not end the sleep.
        """

    @abstractmethod
    def read(self, ready: Any) -> list[Any]:
        """Return what workers said: `Said`, and `Died`."""

    @abstractmethod
    def nap(self, seconds: float) -> None:
        """Sleep until a worker says something or ends, for about so many seconds: also for less than `sleep` can."""

    def _let_end(self, link: EnvLinkT) -> None:
        link.write(pickle_frame(("exit",)))

    def __getitem__(self, number: int) -> EnvLinkT:
        return self._links[number]

    def __iter__(self) -> Iterator[EnvLinkT]:
        return iter(self._links)

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that started the workers, and not a forked copy of it."""
        return self._is_ours()

    def give_up(self, link: EnvLinkT) -> None:
        """Kill a worker, and take in nothing more of it."""
        link.close(END_SECONDS)
        link.forget()
        self._killed.pop(link.number, None)


NewPool = Callable[[Payload, int, int | None, float], EnvPool[Any]]
"""Starts worker processes with environments, given what `worker_main.new_worker` loads, how many there are, how many
threads libraries compute on, and the seconds that all of them together may take to close."""


def setup_of(given: Payload, threads: int | None, *, is_forked: bool = False) -> tuple[ProcessSetup, Levels]:
    """Return what workers are given at their start; see `NewPool`."""
    return ProcessSetup.of_this_process(given, 0, threads, is_forked=is_forked), levels_here()
