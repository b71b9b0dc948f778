"""Make workers: their number, class and arguments, and the sampler's settings for them."""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, Self

from streamsampler.core.errors import CheckMode, UsageError, keywords, positive, positive_seconds
from streamsampler.core.keywords import refuse_unknown, suggesting
from streamsampler.core.seeding import check_seed
from streamsampler.workers.base import Worker, WorkerContext
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.hooks import Hooks, raises_all
from streamsampler.workers.seams import refuse_ignored_seams
from streamsampler.workers.waiting.threads import LEAVE_OUT_THREADS
from streamsampler.workers.waiting.worker import AsyncWorker

__all__ = ["WorkerFactory", "WorkerSetup", "usable_cores"]


def usable_cores() -> int:
    """Return the number of cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


P = ParamSpec("P")


def _with_old_names(init: Callable[P, None]) -> Callable[P, None]:
    """Make a constructor accept garage's argument names, with a DeprecationWarning."""

    @functools.wraps(init)
    def taking(*args: Any, **options: Any) -> None:
        if "max_path_length" in options:
            if "max_episode_length" in options:
                raise TypeError("max_path_length is the old name of max_episode_length: pass max_episode_length alone")
            warnings.warn("max_path_length is deprecated: pass max_episode_length", DeprecationWarning, stacklevel=2)
            options["max_episode_length"] = options.pop("max_path_length")
        if "is_tf_worker" in options:
            if options.pop("is_tf_worker"):
                raise UsageError("is_tf_worker=True: workers open no TensorFlow session; let the agent open its own")
            warnings.warn("is_tf_worker has no effect: leave it out", DeprecationWarning, stacklevel=2)
        init(*args, **options)

    return taking


class WorkerFactory:
    """Makes a sampler's workers: their number, their class and their common arguments.

    See `Sampler` for the arguments. `Sampler.from_worker_factory` uses a subclass as it is: override `__call__` to make
    workers differently. garage's `max_path_length` and `is_tf_worker=False` are accepted with a DeprecationWarning.

    Attributes:
        layout: How its workers run trajectories; see `Worker.layout`.

    Raises:
        UsageError: An argument is invalid.
    """

    @_with_old_names
    @suggesting()
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
        refuse_ignored_seams(worker_class)
        self.worker_args = keywords("worker_args", worker_args)
        if worker_class is DefaultWorker and self.worker_args.keys() & {"in_flight", "threads"}:
            worker_class = AsyncWorker
        self.worker_class = worker_class
        if type(self).__call__ is WorkerFactory.__call__:  # an overridden `__call__` may interpret them
            refuse_unknown(worker_class.__name__, self.worker_args, worker_class, worker_class.further_args)
        self.layout = worker_class.layout(self.worker_args)

    @property
    def fragment_rows(self) -> int:
        """Number of fragment environments which a worker steps together as a group."""
        return self.layout.rows if self.worker_class.continues_side_by_side else 1

    def for_asynchronous(self, *, env: bool) -> Self:
        """Return a factory for asynchronous agents or environments: `AsyncWorker` replaces `DefaultWorker`.

        Args:
            env: Whether the environment is asynchronous, and not only the agent.

        Raises:
            UsageError: The environment is asynchronous, but the arguments request threads for environments.
        """
        if env and self.worker_class is AsyncWorker and self.worker_args.get("threads"):
            raise UsageError(f"the environment {LEAVE_OUT_THREADS}")
        if self.worker_class is not DefaultWorker or type(self) is not WorkerFactory:
            return self
        return type(self)(
            n_workers=self.n_workers, seed=self.seed, max_episode_length=self.max_episode_length,
            worker_class=AsyncWorker, worker_args=self.worker_args,
        )  # fmt: skip

    def __call__(self, context: WorkerContext) -> Worker:
        """Make a worker in the process where it will run.

        Args:
            context: The arguments of engine and sampler; the factory adds `max_episode_length`.
        """
        return self.worker_class(replace(context, max_episode_length=self.max_episode_length), **self.worker_args)


@dataclass(frozen=True)
class WorkerSetup:
    """Holds a sampler's settings for its workers, which the engine receives. It can be pickled.

    Attributes:
        factory: Makes the workers.
        threads: Number of threads for libraries in workers (see `workers.threads`); None changes nothing.
        check: See `WorkerContext`.
        drop_unless: See `WorkerContext`.
        fingerprint: The sampler's reaction to workers with different arithmetic.
        hooks: See `WorkerContext`.
        record_taken: See `WorkerContext`.
        step_timeout: None for no limit.
        trajectory_timeout: None for no limit.

    Raises:
        UsageError: This kind of worker cannot drop trajectories, calls no hooks, or has no `trajectory_timeout`.
    """

    factory: WorkerFactory
    threads: int | None
    check: CheckMode
    drop_unless: Callable[[tuple[str, ...]], bool] | None = None
    fingerprint: CheckMode = "warn"
    hooks: Hooks | None = None
    record_taken: str | None = None
    step_timeout: float | None = None
    trajectory_timeout: float | None = None

    def __post_init__(self) -> None:
        worker_class = self.factory.worker_class
        if self.hooks is not None and not worker_class.can_call_hooks:
            raise UsageError(
                f"{worker_class.__name__} calls no hooks and no drop_if: use DefaultWorker, VecWorker, or a subclass"
            )
        if self.drop_unless not in (None, raises_all) and not worker_class.can_drop:
            raise UsageError(f'{worker_class.__name__} cannot drop trajectories: pass on_failure="raise"')
        if self.trajectory_timeout is not None:
            positive_seconds("trajectory_timeout", self.trajectory_timeout)
            if not worker_class.waits:
                raise UsageError(
                    f"{worker_class.__name__} has no trajectory_timeout: it needs environments with async def step and "
                    'worker_args={"in_flight": 100}. Pass step_timeout, or limit timesteps with max_episode_length'
                )

    def for_replay(self, index: int) -> WorkerSetup:
        """Return a setup whose worker drops no trajectory and checks nothing."""
        hooks = None if self.hooks is None else self.hooks.sparing(index)
        return replace(self, check=None, drop_unless=None, hooks=hooks)

    @property
    def n_workers(self) -> int:
        """Number of workers."""
        return self.factory.n_workers

    @property
    def seed(self) -> int:
        """The sampler's seed."""
        return self.factory.seed

    def make_worker(self, context: WorkerContext) -> Worker:
        """Make a worker in the process where it will run; see `WorkerFactory`."""
        return self.factory(replace(
            context, check=self.check, drop_unless=self.drop_unless, hooks=self.hooks, record_taken=self.record_taken,
            step_timeout=self.step_timeout or math.inf, trajectory_timeout=self.trajectory_timeout or math.inf,
        ))  # fmt: skip
