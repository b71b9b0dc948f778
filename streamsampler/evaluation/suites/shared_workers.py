"""Share workers between all tasks of a suite: each evaluation of a single task reads its own part of their stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.statistics import DroppedTrajectory, FoundAnomaly
from streamsampler.evaluation.agents import make_sampler
from streamsampler.evaluation.opening import closed_in_the_end
from streamsampler.protocol.plans import Layout
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.per_task import PerTask, TaskRun
from streamsampler.samplers.task_streaming import TaskStream


class SharedWorkers:
    """A sampler with workers for the trajectories of all tasks, stream after stream.

    A context manager, which closes the workers. A stream has the runs requested from sources since the stream before
    it. Runs are consumed in order, each to its end, or as far as it is needed.

    Attributes:
        has_ended: Whether the last stream raised: its remaining trajectories must be run in another stream.
    """

    def __init__(
        self, agents: Mapping[str, Any], envs: Mapping[str, Any], open_envs: int, options: Mapping[str, Any]
    ) -> None:
        self._names = list(envs)
        of_tasks = partial(PerTask, names=self._names, open_envs=open_envs)
        self._agents, self._envs = of_tasks(list(agents.values())), of_tasks(list(envs.values()))
        self._options = options
        self._exits = ExitStack()
        self.sampler: Sampler[Any, Any]
        self._runs: list[TaskRun] = []
        self._given: dict[str, Any] = {}
        self._stream: TaskStream | None = None
        self._ahead: TrajectoryBatch[Any, Any] | None = None  # of a later run
        self.has_ended = False

    def __enter__(self) -> Self:
        made = make_sampler(self._agents, self._envs, self._options)
        self.sampler = self._exits.enter_context(closed_in_the_end(made))
        return self

    def __exit__(self, *error: Any) -> None:
        self._exits.__exit__(*error)

    def source(self, name: str, stretch: int = 1) -> TaskSource:
        """Return the source of a task's trajectories for its evaluation: the next stream."""
        self._stream = None
        return TaskSource(self, self._names.index(name), stretch)

    def register(self, run: TaskRun, seeds: Any, reset_options: Any) -> None:
        """Add a run to the next stream; seeds and options are the same for all tasks, by the tasks' own indices."""
        self._runs.append(run)
        known = self._given.get("seeds")
        if known is None or (seeds is not None and len(seeds) > len(known)):
            self._given = {"seeds": seeds, "reset_options": reset_options}

    def begin(self) -> None:
        """Start a stream of the registered runs, if any."""
        self.has_ended, self._ahead, self._stream = False, None, None
        if self._runs:
            self._stream = self.sampler.task_stream(self._runs, **self._given)
        self._runs, self._given = [], {}

    def next_of(self, task: int) -> TrajectoryBatch[Any, Any] | None:
        """Return the next trajectory of a task; None after its last. Tasks come in the order of their runs."""
        assert self._stream is not None
        try:
            while True:
                trajectory, self._ahead = self._ahead or next(self._stream, None), None
                if trajectory is None or self._stream.task == task:
                    return trajectory
                if self._stream.task > task:
                    self._ahead = trajectory
                    return None
        except BaseException:
            self.has_ended = True
            raise

    def left_out(self, task: int) -> list[DroppedTrajectory]:
        """Return the trajectories of a task that the last stream left out."""
        return [] if self._stream is None else self._stream.left_out.get(task, [])

    def anomalies(self, task: int) -> tuple[int, FoundAnomaly | None]:
        """Return the number of anomalies of a task in the last stream, and the first anomaly."""
        return (0, None) if self._stream is None else self._stream.anomalies_of_tasks.get(task, (0, None))

    def watch(self, watch: Any, interval: float | None) -> None:
        """Call `watch` during the stream's waits; see `Stream.watch`."""
        if self._stream is not None:
            self._stream.watch(watch, interval)


@dataclass(frozen=True)
class TaskStats:
    """The statistics of a task that an evaluation reads."""

    dropped: Sequence[DroppedTrajectory]

    @property
    def dropped_trajectories(self) -> int:
        """Number of dropped trajectories."""
        return len(self.dropped)


class TaskSource:
    """A task of shared workers, with the members of a `Sampler` that an `EvaluationCall` uses.

    Attributes:
        seed: The sampler's seed.
        agent_version: 0: each stream has the trajectories of version 1.
        filters: The filters, which do not change.
        policy_names: The names of several policies; empty for a single agent.
    """

    agent_version = 0

    def __init__(self, shared: SharedWorkers, number: int, stretch: int) -> None:
        self._shared, self._sampler, self._number, self._stretch = shared, shared.sampler, number, stretch
        self.seed, self.filters = self._sampler.seed, self._sampler.filters
        self.policy_names = self._sampler.tasks[number].policy_names

    @property
    def layout(self) -> Layout:
        """How workers run trajectories."""
        return self._sampler.layout

    @property
    def stats(self) -> TaskStats:
        """The task's statistics in the last stream."""
        return TaskStats(self._shared.left_out(self._number))

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Fingerprints of the kernels of workers that returned trajectories of the task."""
        return tuple(self.provenance().get("fingerprints", ()))

    def provenance(self) -> dict[str, Any]:
        """Return everything that decides about the trajectories, as a sampler of the task alone would."""
        return self._sampler.provenance(self._number)

    def seeds(self, version: int, indices: Iterable[int]) -> tuple[int, ...]:
        """Return the seeds of trajectories; see `Sampler.seeds`."""
        derived = TrajectorySeeds(self.seed, version)
        return tuple(derived[index] for index in indices)

    def refuse_prefetching(self, what: str) -> None:
        """Refuse `staleness=1`."""
        self._sampler.refuse_prefetching(what)

    def restore_filters(self, filters: Any) -> None:
        """Keep the filters: streams of tasks do not change them."""

    def stream(
        self, *, first_trajectory: int, n_trajectories: int, seeds: Any, reset_options: Any, **_: Any
    ) -> TaskTrajectories:
        """Return the trajectories of a run in the next stream of the shared workers.

        If trajectories are dropped the run may be short: a later run has their replacements.
        """
        is_fixed = seeds is not None or isinstance(reset_options, list)
        block, n = 1, n_trajectories
        if self._sampler.replaces_trajectories and not is_fixed:
            block, n = self.layout.block, n * self._stretch
        n = -(-n // block) * block
        self._shared.register(TaskRun(self._number, first_trajectory, n), seeds, reset_options)
        return TaskTrajectories(self._shared, self._number, n_trajectories)


class TaskTrajectories(Iterator[TrajectoryBatch[Any, Any]]):
    """The trajectories of a run, each a batch of one."""

    def __init__(self, shared: SharedWorkers, number: int, n: int) -> None:
        self._shared, self._number, self._left = shared, number, n

    def __next__(self) -> TrajectoryBatch[Any, Any]:
        trajectory = self._shared.next_of(self._number) if self._left else None
        if trajectory is None:
            raise StopIteration
        self._left -= 1
        return trajectory

    @property
    def anomalies(self) -> tuple[int, FoundAnomaly | None]:
        """The number of anomalies in the returned trajectories, and the first anomaly."""
        return self._shared.anomalies(self._number)

    def close(self) -> None:
        """Leave the stream open for the other tasks."""
