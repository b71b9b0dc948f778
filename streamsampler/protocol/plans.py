"""Define a call's plan: which indices it needs, and which worker may run them. Values; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Self

from streamsampler.core.errors import UsageError
from streamsampler.protocol.task_sections import NO_SECTIONS, Section, Sections

__all__ = [
    "AtLeast", "Exactly", "ExactlyPerWorker", "Fragments", "GatherPlan", "Layout", "Streamed", "endless",
    "expected_rows",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """How a worker runs the trajectories of consecutive indices.

    Attributes:
        rows: Trajectories run together by a worker, each in its own row.
        block: Consecutive trajectories with possible influence on each other; 1 if independent.
        lengthens: Whether blocks grow within a call, if its workers run such blocks (`Worker.runs_longer_blocks`).

    Raises:
        UsageError: `rows` or `block` is below 1.
    """

    rows: int = 1
    block: int = 1
    lengthens: bool = False

    def __post_init__(self) -> None:
        if self.rows < 1 or self.block < 1:
            raise UsageError(f"rows and block must be at least 1, got {self.rows} rows and blocks of {self.block}")


_FOREVER = 2**62


class GatherPlan:
    """The needs of a call, and the worker of each index.

    Attributes:
        first: The index of the first trajectory.
        limit: Number of trajectories in the batch; None if lengths decide.
        timesteps: Least number of timesteps; None if only trajectories count.
        fixed: Whether dropped trajectories are not replaced.
        n_of_task: Consecutive trajectories of each task, if only its own may replace dropped trajectories (see
            `replacements`).
        counts_agents: Whether timesteps are summed over several agents, instead of environment steps.
        sections: The indices of each task, if workers run several.
        kept_before: Trajectories kept before `first`, counted in the limit on dropped trajectories.
    """

    first: int = 0
    limit: int | None = None
    timesteps: int | None = None
    fixed: bool = False
    n_of_task: int | None = None
    counts_agents: bool = False
    sections: Sections = NO_SECTIONS
    kept_before: int = 0

    def starting_at(self, first: int) -> Self:
        """Return an equal plan with another first trajectory."""
        return replace(self, first=first)  # type: ignore[type-var]

    @property
    def goal(self) -> tuple[int, str]:
        """Total and unit of the progress bar."""
        return (self.limit or 0, "trajectories") if self.timesteps is None else (self.timesteps, "timesteps")

    def place_of(self, trajectory: int | None) -> int | None:
        """Return a trajectory's index in the plan; None for None."""
        return trajectory

    def section_of(self, indices: range) -> Section | None:
        """Return a ticket's section; None with a single task."""
        return self.sections.of(indices) if self.sections else None

    def begins_in_the_middle(self, indices: range) -> bool:
        """Whether a ticket's queue starts after trajectory 0 of its task."""
        section = self.section_of(indices)
        return (self.first if section is None else section.first) > 0

    def queue(self, number: int, n_queues: int) -> range:
        """Return the indices of worker `number` if workers differ: by default every `n_queues`-th."""
        stop = _FOREVER if self.limit is None else self.first + self.limit
        return range(self.first + (number - self.first) % n_queues, stop, n_queues)


@dataclass(frozen=True)
class AtLeast(GatherPlan):
    """The shortest prefix of trajectories `first`, `first + 1`, … with at least `timesteps` timesteps."""

    timesteps: int = field()
    first: int = 0
    counts_agents: bool = False


@dataclass(frozen=True)
class Exactly(GatherPlan):
    """Trajectories `first` to `first + limit - 1`; `fixed` if each has a seed or options of its own."""

    limit: int = field()
    fixed: bool = False
    first: int = 0
    n_of_task: int | None = None


@dataclass(frozen=True)
class ExactlyPerWorker(GatherPlan):
    """`n_traj_per_worker` trajectories of each worker, in worker order.

    Worker w's k-th has index `first + w * n_traj_per_worker + k`; unless workers differ, any may run it.
    """

    n_traj_per_worker: int
    n_workers: int
    first: int = 0

    @property
    def limit(self) -> int:  # type: ignore[override]
        """All workers' trajectories."""
        return self.n_traj_per_worker * self.n_workers

    def queue(self, number: int, n_queues: int) -> range:
        """Return a worker's consecutive indices; all of them for a single queue."""
        if n_queues == 1:
            return range(self.first, self.first + self.limit)
        start = self.first + number * self.n_traj_per_worker
        return range(start, start + self.n_traj_per_worker)


@dataclass(frozen=True)
class Streamed(GatherPlan):
    """Trajectories `first`, `first + 1`, … in order of consumption: `limit` of them, or endless."""

    first: int = 0
    limit: int | None = None
    fixed: bool = False
    n_of_task: int | None = None
    sections: Sections = NO_SECTIONS
    kept_before: int = 0


@dataclass(frozen=True)
class Fragments(GatherPlan):
    """`n_timesteps` timesteps of each of `n_envs` environments, with episodes that continue from call to call.

    Indices are groups of `n_rows` environments. Group g stays in worker g modulo the number of workers. A ticket has a
    single group with `side_by_side`, otherwise all environments of a worker. Episodes above `restore_limit` timesteps
    cannot be restored after a loss.
    """

    n_timesteps: int
    n_envs: int
    n_workers: int
    n_rows: int = 1
    side_by_side: bool = False
    fixed: bool = True
    restore_limit: int = 100_000

    @property
    def limit(self) -> int:  # type: ignore[override]
        """Number of groups."""
        return math.ceil(self.n_envs / self.n_rows)

    @property
    def goal(self) -> tuple[int, str]:
        return self.n_timesteps * self.n_envs, "timesteps"

    def place_of(self, trajectory: int | None) -> int | None:
        """Return the group of a trajectory's environment."""
        return None if trajectory is None else trajectory % self.n_envs // self.n_rows

    def envs_of(self, worker: int) -> list[int]:
        """Return the numbers of a worker's environments."""
        groups, n_rows = self.queue(worker, self.n_workers), self.n_rows
        return [row for group in groups for row in range(group * n_rows, min((group + 1) * n_rows, self.n_envs))]

    @property
    def layout(self) -> Layout:
        """The groups of a ticket as rows, and as a block."""
        share = 1 if self.side_by_side else math.ceil(self.limit / self.n_workers)
        return Layout(share, share)


def endless(queue: range, n_queues: int) -> range:
    """Return a plan's queue without an end; raise a UsageError if another starts at its end."""
    if n_queues > 1 and queue.step == 1:
        raise UsageError(
            'with on_failure="drop" or drop_if, obtain_exact_trajectories cannot replace trajectories of workers that '
            "have agents or environments of their own: give all workers the same ones, or call obtain_trajectories"
        )
    return range(queue.start, _FOREVER, queue.step)


def expected_rows(plan: GatherPlan, mean: float | None) -> tuple[int, int]:
    """Estimate the timesteps and trajectories of a plan's result, from the mean length if known."""
    mean = mean or 1.0
    if plan.timesteps is None:
        return math.ceil((plan.limit or 0) * mean * 1.1), plan.limit or 0
    return plan.timesteps + math.ceil(mean), math.ceil(plan.timesteps / mean * 1.1)
