"""A sampler's arguments for several tasks, each with its own environment and perhaps agent, shared by all workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from streamsampler.core.errors import UsageError, positive
from streamsampler.core.keywords import suggesting
from streamsampler.core.words import count
from streamsampler.protocol.task_sections import Section, Sections, TaskName
from streamsampler.workers.resets import ResetOptions, Resets, streamed_resets

Item = TypeVar("Item")
OPEN_ENVS = 2
"""Default number of tasks for which a worker has environments."""


@suggesting()
class PerTask(Generic[Item]):
    """Give each task its own environment (`envs`) or agent (`agents`); for samplers with the call `task_stream` alone.

    Args:
        items: An item for each task, in any form accepted by samplers except `PerWorker` and lists.
        names: The tasks' names, for errors; None for their numbers.
        open_envs: Largest number of tasks for which a worker has environments at a time, at least 1. They are made at
            the first ticket of a task, after those of the task used least recently were closed.

    Raises:
        UsageError: No item is given, the number of names differs, two names are equal, or `open_envs` is less than 1.
    """

    def __init__(
        self, items: Iterable[Item], names: Iterable[str] | None = None, *, open_envs: int = OPEN_ENVS
    ) -> None:
        if not isinstance(items, Iterable) or isinstance(items, str | bytes | Mapping | Set):
            raise UsageError(f"PerTask takes a list with one item for each task, not a {type(items).__qualname__}")
        self.items = tuple(items)
        self.names: tuple[str | int, ...] = tuple(range(len(self.items))) if names is None else tuple(names)
        self.open_envs = positive("open_envs", open_envs)
        if isinstance(names, str | bytes):
            raise UsageError(f"names must be a list with one name for each task, got {names!r}")
        if not self.items:
            raise UsageError("PerTask got an empty list: pass at least one item")
        if len(self.names) != len(self.items):
            raise UsageError(f"PerTask has {count(len(self.items), 'item')}, but {count(len(self.names), 'name')}")
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise UsageError(f"two tasks have the name {twice!r}: names must differ")

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __getitem__(self, task: int) -> Item:
        return self.items[task]

    def __repr__(self) -> str:
        return f"PerTask({list(self.items)!r}, {list(self.names)!r})"

    @property
    def tasks(self) -> list[TaskName]:
        return [TaskName(number, name) for number, name in enumerate(self.names)]


@dataclass(frozen=True)
class TaskRun:
    """Consecutive trajectories of a task."""

    task: int  # its number
    first: int  # index within the task
    n: int  # at least 1


def sections_of(
    runs: Sequence[TaskRun], tasks: Sequence[TaskName], block: int, to_check: Set[int], *, whole: bool = False
) -> Sections:
    """Return the sections of a call for runs, in their order; a task's first section checks its environment if due.

    Runs must start with a block, and, if `whole`, end with one: the replacements of dropped trajectories would be the
    next ones, from this block.
    """
    if not runs:
        raise UsageError("task_stream got no runs: pass at least one")
    sections: list[Section] = []
    unchecked, start = set(to_check), 0
    for run in runs:
        task = _task_of(run, tasks)
        first, n = positive(f"first of {task}", run.first, least=0), positive(f"n of {task}", run.n)
        if first % block:
            raise UsageError(
                f"a run of {task} must start at a multiple of {block}, got {first}, because workers run blocks of "
                f"{block} trajectories together"
            )
        if whole and n % block:
            raise UsageError(
                f"a run of {task} must have a multiple of {block} trajectories, got {n}, because dropped trajectories "
                f"are replaced, and workers run blocks of {block} together"
            )
        sections.append(Section(task, start, start + n, first, task.number in unchecked))
        unchecked.discard(task.number)
        start += n
    return Sections(sections)


def _task_of(run: TaskRun, tasks: Sequence[TaskName]) -> TaskName:
    number = positive("the task of a run", run.task, least=0)
    if number >= len(tasks):
        raise UsageError(f"task {number} does not exist: this sampler has tasks 0 to {len(tasks) - 1}")
    return tasks[number]


def resets_of(sections: Sections, seeds: Any, reset_options: ResetOptions | None) -> Resets:
    """Return the resets for all sections: seeds and options by the tasks' own indices, the same for all tasks.

    The agent version is 1 in every call, as in a new sampler of the task alone.
    """
    given: Resets | None = None
    seeds = tuple(seeds) if isinstance(seeds, Iterable) and not isinstance(seeds, str | bytes) else seeds
    last = max(sections, key=lambda section: section.own_index(section.stop))
    try:
        _, given = streamed_resets(last.first, last.stop - last.start, seeds, reset_options)
    except UsageError as error:
        raise UsageError(f"{last.task}: {error}") from None
    of_all = given or Resets()
    return Resets(of_all.seeds, of_all.options, version=1, sections=sections)
