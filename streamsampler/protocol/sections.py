"""Let one call run the trajectories of several tasks: its indices are cut into sections, each of one task. Pure.

A task has an environment and an agent of its own, and its trajectories are those that a sampler of it alone would
give: they have indices of their own, from which follow their seeds, blocks and rows. To the scheduler they are
trajectories of one call, so that workers go on with the next task while the last trajectories of one run.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple


class TaskName(NamedTuple):
    """Names a task."""

    number: int
    name: str | int

    def __str__(self) -> str:
        return f"task {self.name!r}"


@dataclass(frozen=True, slots=True)
class Section:
    """Consecutive indices of a call whose trajectories are of one task.

    Attributes:
        task: The task.
        start: The first index.
        stop: The index after the last one.
        first: The task's own index of the first trajectory.
        check: Whether the worker that runs the first trajectory is to check the task's environment before.
    """

    task: TaskName
    start: int
    stop: int
    first: int = 0
    check: bool = False

    def own_index(self, index: int) -> int:
        """Return the task's own index of a trajectory."""
        return index - self.start + self.first

    def own_indices(self, indices: range) -> range:
        """Return the task's own indices of trajectories."""
        first = self.own_index(indices.start)
        return range(first, first + indices.stop - indices.start, indices.step)

    def index_of_call(self, own: int) -> int:
        """Return the index that a trajectory of the task has in the call."""
        return own - self.first + self.start

    def indices_of_call(self, own: range) -> range:
        """Return the indices that trajectories of the task have in the call."""
        start = self.index_of_call(own.start)
        return range(start, start + own.stop - own.start, own.step)

    def checks_with(self, indices: range) -> bool:
        """Whether the task's environment is to be checked before a ticket."""
        return self.check and indices[0] == self.start


_START = attrgetter("start")


class Sections(tuple[Section, ...]):
    """The sections of a call, in the order of their indices, without gaps; none where there is one task."""

    __slots__ = ()

    def number_of(self, index: int) -> int:
        """Return the position of the section that an index is in."""
        return bisect_right(self, index, key=_START) - 1

    def of(self, indices: range) -> Section:
        """Return the section that a ticket is cut from."""
        return self[self.number_of(indices[0])]


NO_SECTIONS = Sections()
"""Those of a call for one task."""
