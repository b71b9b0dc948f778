"""Connect a worker process to its sampler, and give it the sampler's settings. Imports nothing that only POSIX has."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

from streamsampler.core.by_position import BY_NAME
from streamsampler.core.serialization import Contents, Payload, dumps, dumps_report, loads
from streamsampler.core.settings import ProcessSettings, SettingsInForce, hash_seed
from streamsampler.engines.launch.descriptor_limit import lower_limit, original_limit
from streamsampler.engines.launch.exit_handlers import run_exit_handlers
from streamsampler.protocol.messages import Answer, Message, Phase, Start
from streamsampler.workers.base import Worker, WorkerContext
from streamsampler.workers.board import WorkerRow
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.threads import ThreadLimit, set_unset


class WorkerChannel(ABC):
    """A worker's connection to a sampler in another process; see `streamsampler.workers.loop.Channel`."""

    interruptible = False
    descriptor: int | None = None

    def __init__(self, keeper: RecordKeeper, threads: ThreadLimit, settings: SettingsInForce) -> None:
        self._keeper, self._threads, self._settings = keeper, threads, settings
        self._pid = os.getpid()

    @abstractmethod
    def _next(self, *, wait: bool) -> Message | None:
        """Return the next message, like `receive`."""

    @abstractmethod
    def _loaded(self, payload: Any) -> Any:
        """Return the object of a payload."""

    @abstractmethod
    def _part(self, buffer: Any) -> Any:
        """Return an array's memory as it is sent; the recorder overwrites the original for the next ticket."""

    @abstractmethod
    def _send(self, records: bytes, answer: Answer | None, contents: Contents | None, parts: list[Any]) -> None:
        """Send log records, an answer or None, and its contents with their arrays' `_part`, without ever waiting."""

    def _end_copy(self) -> None:
        """End this process, a forked copy of the worker: both would read messages and answer them."""
        os._exit(1)

    def receive(self, *, wait: bool) -> Message | None:
        """Return the next message; `Exit` when the sampler is gone."""
        if os.getpid() != self._pid:
            self._end_copy()
        self._threads.hold()
        message = self._next(wait=wait)
        if isinstance(message, Start):
            if message.settings is not None:
                settings, levels = self.load(message.settings)
                self._settings.apply(settings)
                self._keeper.set_levels(levels)
            else:
                self._keeper.apply()
        return message

    def load(self, payload: Any) -> Any:
        n_modules = len(sys.modules)
        loaded = self._loaded(payload)
        # Newly imported modules may have set levels and settings of their own; torch may be among them.
        self._keeper.apply()
        self._settings.loaded(n_modules)
        self._threads.hold()
        return loaded

    def answer(self, answer: Answer, contents: Any = None) -> None:
        """Send an answer, with the log records since the last."""
        if os.getpid() != self._pid:
            self._end_copy()
        pickled, parts = None, []
        if contents is not None and not isinstance(contents, BaseException):  # a failure has it pickled, and as text
            # An exception here reaches the sampler: nothing has been sent yet.
            rollouts, spaces = contents
            pickled, buffers = dumps_report(rollouts, spaces, BY_NAME)
            parts = [self._part(buffer) for buffer in buffers]
        self._send(self._keeper.take(), answer, pickled, parts)

    def flush(self) -> None:  # noqa: B027 - where `_send` has written all when it returns
        """Wait until all answers have left this process."""

    def send_records(self) -> None:
        """Send the log records since the last answer."""
        if records := self._keeper.take():
            self._send(records, None, None, [])


@dataclass(frozen=True)
class ProcessSetup:
    """The settings of the sampler's process, which a worker process receives at its start."""

    make_worker: Payload  # makes a worker from its context
    seed: int
    threads: int | None  # the number of threads for libraries; None for no limit
    folders: ProcessSettings  # environment variables, `sys.path` and working directory, perhaps needed for loading
    settings: Payload  # all settings
    hash_seed: str  # "" for forks, which have the sampler's
    title: str  # the sampler's process title; empty if unknown
    descriptors: int | None  # their limit; None for the sampler's

    @classmethod
    def of_this_process(cls, make_worker: Payload, seed: int, threads: int | None, *, is_forked: bool = False) -> Self:
        """Return the setup of workers with this process's settings; `is_forked` for forks of this very process."""
        title = ""
        with contextlib.suppress(ImportError):
            import setproctitle

            title = setproctitle.getproctitle()
        here = ProcessSettings.of_this_process()
        settings = dumps(here, "the settings of this process").owned()
        return cls(
            make_worker.owned(), seed, threads=threads, folders=here.without_values(), settings=settings,
            hash_seed="" if is_forked else hash_seed(), title=title, descriptors=original_limit(),
        )  # fmt: skip

    def apply(self) -> tuple[ThreadLimit, SettingsInForce]:
        """Give this process, a worker, the sampler's settings; return the objects that preserve them."""
        # Before the environment variables change: the title is written over their first place in memory.
        with contextlib.suppress(ImportError):
            import setproctitle

            setproctitle.setproctitle("worker:" + self.title)
        lower_limit(self.descriptors)
        settings = SettingsInForce()
        settings.apply_folders(self.folders)
        set_unset(os.environ, self.threads)
        settings.apply(loads(self.settings))
        return ThreadLimit(self.threads, self.folders.environ), settings

    def worker(self, context: WorkerContext) -> Worker:
        worker: Worker = loads(self.make_worker)(context)
        return worker


@dataclass(frozen=True)
class Begun:
    """A started worker process with the settings of its starter."""

    number: int
    setup: Any  # a tuple that starts with a `ProcessSetup`
    row: WorkerRow  # of the status board
    keeper: RecordKeeper
    threads: ThreadLimit
    settings: SettingsInForce

    def end(self) -> None:
        """Run the process's exit handlers; the parent waits for them as for closing environments."""
        self.row.set_phase(Phase.CLOSE)
        run_exit_handlers(self.number)


_HAS_PROC = os.path.exists("/proc/self/statm")


class MemoryReporter:
    """Writes the private memory of this process to its row of the status board at each call.

    Pages of files and memory inherited by a fork do not count. Without /proc it is the maximum so far.
    """

    def __init__(self, row: WorkerRow) -> None:
        self._row = row
        self._inherited = _inherited_bytes() if _HAS_PROC else 0

    def __call__(self) -> None:
        if _HAS_PROC:
            self._row.set_memory(max(0, _anonymous_bytes() - self._inherited))
        else:
            import resource

            self._row.set_memory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _inherited_bytes() -> int:
    """Return the memory shared with the parent: a write by either copies it."""
    with open("/proc/self/smaps_rollup", "rb") as file:
        sizes = dict(line.split(b":") for line in file.read().splitlines()[1:])
    private = sum(1024 * int(sizes[name].split()[0]) for name in (b"Private_Dirty", b"Private_Clean"))
    return max(0, _anonymous_bytes() - private)


def _anonymous_bytes() -> int:
    with open("/proc/self/statm", "rb", buffering=0) as file:
        resident, shared = file.read().split()[1:3]
    return (int(resident) - int(shared)) * mmap.PAGESIZE
