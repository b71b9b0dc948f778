"""What a sampler's workers are made from."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from streamsampler.errors import CheckMode, UsageError, check_mode, positive
from streamsampler.seeding import check_seed
from streamsampler.workers.base import Worker
from streamsampler.workers.board import WorkerRow
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.threads import check_threads

__all__ = ["WorkerFactory", "usable_cores"]


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class WorkerFactory:
    """How many workers, of which kind, and with what arguments.

    See `Sampler` for the arguments.

    Attributes:
        blocks: Which trajectories its workers run together; see `Worker.blocks`.
        check: What its workers do about data that may be wrong; see `set_check`.
        threads: How many threads libraries compute on in its workers; see `set_threads`.

    Raises:
        UsageError: An argument cannot work.
    """

    def __init__(
        self,
        *,
        n_workers: int | None = None,
        seed: int | None = None,
        max_episode_length: float | None = None,
        worker_class: type[Worker] = DefaultWorker,
        worker_args: Mapping[str, Any] | None = None,
    ) -> None:
        self.n_workers = usable_cores() if n_workers is None else positive("n_workers", n_workers)
        self.seed = check_seed(seed)
        unlimited = max_episode_length is None or max_episode_length == math.inf
        self.max_episode_length = None if unlimited else positive("max_episode_length", max_episode_length)
        if not (isinstance(worker_class, type) and issubclass(worker_class, Worker)):
            raise UsageError(f"worker_class must be a subclass of streamsampler.Worker, got {worker_class!r}")
        self.worker_class = worker_class
        self.worker_args = dict(worker_args or {})
        self.blocks = worker_class.blocks(self.worker_args)
        self.check: CheckMode = "warn"
        self.threads: int | None = 1
        self._dropping: Callable[[tuple[str, ...]], bool] | None = None

    def __call__(self, row: WorkerRow, worker_number: int) -> Worker:
        """Make a worker, where it is to run.

        Args:
            row: Its row of the shared board.
            worker_number: 0 to n_workers-1.
        """
        worker = self.worker_class(
            row, worker_number=worker_number, max_episode_length=self.max_episode_length, **self.worker_args
        )
        worker.dropping = self._dropping
        worker.check = self.check
        return worker

    def set_check(self, check: Any) -> None:
        """Say what workers do about data that may be wrong.

        Args:
            check: "warn", "error", or None for nothing.

        Raises:
            UsageError: It is none of these.
        """
        self.check = check_mode(check)

    def set_threads(self, threads: Any) -> None:
        """Say how many threads libraries compute on in workers.

        Args:
            threads: A positive integer; None leaves all as it is.

        Raises:
            UsageError: It is neither.
        """
        self.threads = check_threads(threads)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that make an equal factory, with the numbers that were drawn or counted."""
        return {
            "n_workers": self.n_workers,
            "seed": self.seed,
            "max_episode_length": self.max_episode_length,
            "worker_class": self.worker_class,
            "worker_args": self.worker_args,
        }

    def drop(self, but: Callable[[tuple[str, ...]], bool]) -> None:
        """Let workers leave out trajectories that raise.

        Args:
            but: Tells, from the names of an exception's classes, what is not to be left out but raised.

        Raises:
            UsageError: This kind of worker cannot.
        """
        if not self.worker_class.can_drop:
            raise UsageError(f'{self.worker_class.__name__} cannot leave out trajectories: on_failure must be "raise"')
        self._dropping = but
