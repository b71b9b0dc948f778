"""Give a worker process the settings of its sampler's process. Imports nothing that only POSIX has."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any, Self

from streamsampler.core.serialization import Payload, dumps, loads
from streamsampler.core.settings import ProcessSettings, SettingsInForce, hash_seed
from streamsampler.engines.launch.descriptor_limit import lower_limit, original_limit
from streamsampler.engines.launch.exit_handlers import run_exit_handlers
from streamsampler.protocol.messages import Phase
from streamsampler.workers.base import Worker, WorkerContext
from streamsampler.workers.board import WorkerRow
from streamsampler.workers.logs import RecordKeeper
from streamsampler.workers.threads import ThreadLimit, set_unset


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
        """Give this process, a worker, the sampler's settings; return the objects to preserve them."""
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
class StartedProcess:
    """A started worker process with the settings of its starter."""

    number: int
    setup: Any  # a tuple with a `ProcessSetup` first
    row: WorkerRow  # of the status board
    keeper: RecordKeeper
    threads: ThreadLimit
    settings: SettingsInForce

    def end(self) -> None:
        """Run the process's exit handlers; the parent waits for them as for closing environments."""
        self.row.set_phase(Phase.CLOSE)
        run_exit_handlers(self.number)
