"""Say how much a call needs, and which worker may run which index. Values; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Self

from streamsampler.core.errors import UsageError
from streamsampler.protocol.sections import NO_SECTIONS, Section, Sections

__all__ = [
    "AtLeast", "Exactly", "ExactlyPerWorker", "Fragments", "GatherPlan", "Layout", "Streamed", "endless",
    "expected_rows",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """How a worker runs the trajectories of consecutive indices.

    Attributes:
        rows: How many trajectories a worker runs side by side.
        block: How many consecutive trajectories may influence each other; 1 where each is a function of itself alone.
        lengthens: Whether blocks get longer within a call (see `block_at`), if its workers run such blocks
            (`Worker.runs_longer_blocks`): that is known when they answer.

    Raises:
        UsageError: One of the two numbers is not positive.
    """

    rows: int = 1
    block: int = 1
    lengthens: bool = False

    def __post_init__(self) -> None:
        if self.rows < 1 or self.block < 1:
            raise UsageError(f"rows and blocks are at least 1, got {self.rows} rows and blocks of {self.block}")


_FOREVER = 2**62


class GatherPlan:
    """How much a call needs, and which worker may run which index.

    Attributes:
        first: The index of the first trajectory.
        limit: How many trajectories the batch has; None if lengths decide.
        timesteps: How many timesteps suffice; None if only trajectories count.
        fixed: Whether no other trajectory may take the place of one that is left out.
        n_of_task: How many consecutive trajectories have one task, if only further ones of that task may take the
            places of those left out (see `make_ups`); None if any may.
        counts_agents: Whether timesteps are those of each of several agents, and not steps of the environment.
        sections: Which indices are trajectories of which task, where workers run several.
        kept_before: The number of trajectories that were kept before the first one. They count where it is decided
            whether too many are left out.
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
        """Return a plan for as much, from another first trajectory on."""
        return replace(self, first=first)  # type: ignore[type-var]

    @property
    def goal(self) -> tuple[int, str]:
        """What progress counts up to, and in which unit."""
        return (self.limit or 0, "trajectories") if self.timesteps is None else (self.timesteps, "timesteps")

    def place_of(self, trajectory: int | None) -> int | None:
        """Return the index in the plan that a trajectory belongs to; None for none."""
        return trajectory

    def section_of(self, indices: range) -> Section | None:
        """Return the section that a ticket is cut from; None where there is one task."""
        return self.sections.of(indices) if self.sections else None

    def begins_in_the_middle(self, indices: range) -> bool:
        """Whether the queue that a ticket is cut from begins with another trajectory than number 0 of its task."""
        section = self.section_of(indices)
        return (self.first if section is None else section.first) > 0

    def queue(self, number: int, n_queues: int) -> range:
        """Return the indices that worker `number` runs if each worker has its own agent or environment.

        Unless the plan says otherwise, these are every `n_queues`-th index.
        """
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
    """Trajectories `first` to `first + limit - 1`.

    With `fixed` each has its place, because it has a seed or options of its own: no other one replaces it.
    See `GatherPlan` for `n_of_task`.
    """

    limit: int = field()
    fixed: bool = False
    first: int = 0
    n_of_task: int | None = None


@dataclass(frozen=True)
class ExactlyPerWorker(GatherPlan):
    """`n_traj_per_worker` trajectories of each worker, in worker order.

    Worker w's k-th has index `first + w * n_traj_per_worker + k`. Any worker may run it, unless workers differ.
    """

    n_traj_per_worker: int
    n_workers: int
    first: int = 0

    @property
    def limit(self) -> int:  # type: ignore[override]
        """All workers' trajectories."""
        return self.n_traj_per_worker * self.n_workers

    def queue(self, number: int, n_queues: int) -> range:
        """One block of indices for each worker; all of them for the only queue."""
        if n_queues == 1:
            return range(self.first, self.first + self.limit)
        start = self.first + number * self.n_traj_per_worker
        return range(start, start + self.n_traj_per_worker)


@dataclass(frozen=True)
class Streamed(GatherPlan):
    """Trajectories `first`, `first + 1`, … as a consumer takes them: `limit` of them, or without end.

    See `Exactly` for `fixed`, and `GatherPlan` for `n_of_task`, `sections` and `kept_before`.
    """

    first: int = 0
    limit: int | None = None
    fixed: bool = False
    n_of_task: int | None = None
    sections: Sections = NO_SECTIONS
    kept_before: int = 0


@dataclass(frozen=True)
class Fragments(GatherPlan):
    """`n_timesteps` timesteps of each of `n_envs` environments, of episodes that go on from call to call.

    Indices are the numbers of groups of `n_rows` environments that a worker runs side by side: group g belongs to
    worker g modulo the number of workers, because its episodes run there. A ticket has one group where workers run
    environments `side_by_side`, and all environments of a worker otherwise.

    Of episodes that have more than `restore_limit` timesteps nothing is kept to restore them from after a loss.
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
        """How many groups there are."""
        return math.ceil(self.n_envs / self.n_rows)

    @property
    def goal(self) -> tuple[int, str]:
        """All timesteps."""
        return self.n_timesteps * self.n_envs, "timesteps"

    def place_of(self, trajectory: int | None) -> int | None:
        """Return the group whose environment runs a trajectory."""
        return None if trajectory is None else trajectory % self.n_envs // self.n_rows

    def envs_of(self, worker: int) -> list[int]:
        """Return the numbers of a worker's environments."""
        groups, n_rows = self.queue(worker, self.n_workers), self.n_rows
        return [row for group in groups for row in range(group * n_rows, min((group + 1) * n_rows, self.n_envs))]

    @property
    def layout(self) -> Layout:
        """How many groups a ticket has."""
        share = 1 if self.side_by_side else math.ceil(self.limit / self.n_workers)
        return Layout(share, share)


def endless(queue: range, n_queues: int) -> range:
    """Return a plan's queue without its end; refuse where another queue begins there."""
    if n_queues > 1 and queue.step == 1:
        raise UsageError(
            'with on_failure="drop" or drop_if, obtain_exact_trajectories cannot replace trajectories of workers that '
            "have agents or environments of their own"
        )
    return range(queue.start, _FOREVER, queue.step)


def expected_rows(plan: GatherPlan, mean: float | None) -> tuple[int, int]:
    """Estimate how many timesteps and trajectories a plan's result will have, from the mean length if it is known."""
    mean = mean or 1.0
    if plan.timesteps is None:
        return math.ceil((plan.limit or 0) * mean * 1.1), plan.limit or 0
    return plan.timesteps + math.ceil(mean), math.ceil(plan.timesteps / mean * 1.1)
