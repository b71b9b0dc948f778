"""Cut the indices of a call into sections, each for a task. Pure.

Trajectories of a task equal those of a sampler of it alone: their own indices decide seeds, blocks and rows.
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
    """Consecutive indices of a call, for the trajectories of a task."""

    task: TaskName
    start: int  # the first index
    stop: int  # the index after the last
    first: int = 0  # the task's own index of the first trajectory
    check: bool = False  # whether the worker of the first trajectory runs the run-twice check before

    def own_index(self, index: int) -> int:
        """Convert an index of the call to the task's own."""
        return index - self.start + self.first

    def own_indices(self, indices: range) -> range:
        first = self.own_index(indices.start)
        return range(first, first + indices.stop - indices.start, indices.step)

    def index_of_call(self, own: int) -> int:
        """Convert a task's own index to the call's."""
        return own - self.first + self.start

    def indices_of_call(self, own: range) -> range:
        start = self.index_of_call(own.start)
        return range(start, start + own.stop - own.start, own.step)

    def checks_with(self, indices: range) -> bool:
        """Whether a run-twice check precedes this ticket."""
        return self.check and indices[0] == self.start


_START = attrgetter("start")


class Sections(tuple[Section, ...]):
    """The sections of a call, in the order of their indices, without gaps; empty with a single task."""

    __slots__ = ()

    def number_of(self, index: int) -> int:
        """Return the position of an index's section."""
        return bisect_right(self, index, key=_START) - 1

    def of(self, indices: range) -> Section:
        """Return a ticket's section."""
        return self[self.number_of(indices[0])]


NO_SECTIONS = Sections()
"""The sections of a call for a single task."""
