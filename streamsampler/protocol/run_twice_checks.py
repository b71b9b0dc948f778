"""Decide which worker runs the run-twice check, and when. Pure.

The check runs a trajectory twice and finds trajectories not determined by their seeds.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamsampler.core.errors import CheckMode
from streamsampler.protocol.facts import FilesOverwritten
from streamsampler.protocol.known_worker import KnownWorker
from streamsampler.protocol.task_sections import NO_SECTIONS, Sections

_CHECKS = 0
"""The checking worker: if any worker has a ticket in a call, worker 0 has."""

_NONE = range(0)


class RunTwiceChecks:
    """Decides whether worker 0 checks its environment before the first ticket of its next `Start`.

    A check is due at the first call, and when the environment may be a new one. With mode "error" all other workers
    wait for it: otherwise timing would decide whether a call raises.
    """

    def __init__(self, mode: CheckMode) -> None:
        self._mode = mode
        self._due = mode is not None
        self._reported: set[FilesOverwritten] = set()

    def renew(self) -> None:
        self._due = self._mode is not None

    @property
    def is_exclusive(self) -> bool:
        """Whether only the checking worker may have tickets now."""
        return self._due and self._mode == "error"

    def may_work(self, worker: int) -> bool:
        return worker == _CHECKS or not self.is_exclusive

    def is_due_in(self, known: KnownWorker) -> bool:
        """Return whether a worker's next `Start` asks for a check; if so, expect its answer."""
        known.is_checking = self._due and known.worker == _CHECKS
        return known.is_checking

    def record_answer(
        self,
        known: KnownWorker,
        ticket: range = _NONE,  # noqa: ARG002 - for tasks
        sections: Sections = NO_SECTIONS,  # noqa: ARG002 - likewise
    ) -> None:
        if known.is_checking:
            known.is_checking = self._due = False

    def record_death(self, known: KnownWorker) -> None:
        """With mode "warn", cancel a check that killed its worker: the next might die of it, too."""
        if known.is_checking and self._mode == "warn":
            self._due = False

    def record_files(
        self, known: KnownWorker, others: Sequence[KnownWorker], files: tuple[str, ...]
    ) -> list[FilesOverwritten]:
        """Record the files written by a worker's environments; return those with two writers, once."""
        found = []
        for number, place in enumerate(files):
            worker = known.worker
            owner = next((other.worker for other in others if other is not known and place in other.files), worker)
            if owner != worker or place in files[:number]:
                found.append(FilesOverwritten(tuple(sorted({owner, worker})), place))
        known.files += files
        new = [fact for fact in dict.fromkeys(found) if fact not in self._reported]
        self._reported.update(new)
        return new


class TaskChecks(RunTwiceChecks):
    """Decides which tasks are checked, each by the worker of its first trajectory; no worker waits for a check."""

    def __init__(self, mode: CheckMode) -> None:
        super().__init__(mode)
        self._done: set[int] = set()  # numbers of the tasks without a check due
        self._new_after_check: set[int] = set()  # workers in the place of those lost in a check

    @property
    def is_exclusive(self) -> bool:
        return False

    def is_due(self, task: int) -> bool:
        return self._due and task not in self._done

    def is_due_in(self, known: KnownWorker) -> bool:
        """Return whether a worker's next `Start` asks it to check each task at its first trajectory."""
        return self._due and known.worker not in self._new_after_check

    def begin_call(self) -> None:
        self._new_after_check.clear()

    def record_answer(
        self,
        known: KnownWorker,  # noqa: ARG002 - for one task
        ticket: range = _NONE,
        sections: Sections = NO_SECTIONS,
    ) -> None:
        """Record an answered ticket: the first ticket of a task follows its check."""
        if sections and (section := sections.of(ticket)).checks_with(ticket):
            self._done.add(section.task.number)

    def record_death_in(self, task: int, worker: int) -> None:
        """With mode "warn", cancel the check of a task after a death in it."""
        if self._mode == "warn":
            self._done.add(task)
            self._new_after_check.add(worker)
