"""What worker processes are given at their start, whatever carries it to them. Imports nothing that only POSIX has."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import Self

from streamsampler.engines.launch.descriptor_limits import lower_limit, original_limit
from streamsampler.engines.launch.import_path import working_directory
from streamsampler.serialization import Payload, loads
from streamsampler.workers.base import Worker, WorkerContext
from streamsampler.workers.threads import ThreadLimit, set_unset

__all__ = ["ProcessSetup"]


@dataclass(frozen=True)
class ProcessSetup:
    """What all workers of a sampler are given, and how their processes become like the sampler's.

    Attributes:
        make_worker: A pickled callable that makes a worker from its context.
        seed: The sampler's seed.
        threads: How many threads libraries compute on; None for no limit.
        path: The sampler's `sys.path`.
        cwd: Its working directory; "/" where that is gone.
        environ: Its environment variables, as they were when the sampler was made.
        title: Its process title; empty where there is none.
        descriptors: How many descriptors a process may have; None for as many as the sampler's process may.
    """

    make_worker: Payload
    seed: int
    threads: int | None
    path: list[str]
    cwd: str
    environ: dict[str, str]
    title: str
    descriptors: int | None

    @classmethod
    def of_this_process(cls, make_worker: Payload, seed: int, threads: int | None) -> Self:
        """Return the setup of workers that are to be like this process; the arguments are as in the class."""
        title = ""
        with contextlib.suppress(ImportError):
            import setproctitle

            title = setproctitle.getproctitle()
        make_worker = Payload(make_worker.data, tuple(bytes(buffer) for buffer in make_worker.buffers))
        cwd = working_directory() or "/"
        return cls(make_worker, seed, threads, list(sys.path), cwd, dict(os.environ), title, original_limit())

    def apply(self) -> ThreadLimit:
        """Make this process, a worker, like the sampler's; return what limits its threads."""
        # Before the environment variables change: the title is written over their first place in memory.
        with contextlib.suppress(ImportError):
            import setproctitle

            setproctitle.setproctitle("worker:" + self.title)
        lower_limit(self.descriptors)
        sys.path[:] = self.path
        for name in os.environ.keys() - self.environ.keys():
            del os.environ[name]  # a fork server may be older than what was deleted
        os.environ.update(self.environ)
        set_unset(os.environ, self.threads)
        for directory in ("/", self.cwd):  # "/" where the other is gone by now
            with contextlib.suppress(OSError):
                os.chdir(directory)
        return ThreadLimit(self.threads, self.environ)

    def worker(self, context: WorkerContext) -> Worker:
        """Make the worker."""
        worker: Worker = loads(self.make_worker)(context)
        return worker
