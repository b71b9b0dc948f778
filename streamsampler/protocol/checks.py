"""Decide which worker checks that trajectories depend on their seeds alone, and when. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from streamsampler.core.errors import CheckMode
from streamsampler.protocol.instructions import FilesOverwritten
from streamsampler.protocol.known_worker import KnownWorker
from streamsampler.protocol.sections import NO_SECTIONS, Sections

_CHECKS = 0
"""The worker that checks: it has a ticket in every call, if any worker has."""

_NONE = range(0)


class PurityChecks:
    """Whether worker 0 is to check its environment, which it does before the first ticket of its next `Start`.

    It checks at the first call and after an update that makes another environment. With "error" no other worker has
    any work until that ticket is answered, so that whether a call raises never depends on timing.
    """

    def __init__(self, mode: CheckMode) -> None:
        self._mode = mode
        self._due = mode is not None
        self._reported: set[FilesOverwritten] = set()

    def renew(self) -> None:
        """Check again: the environment may be another one."""
        self._due = self._mode is not None

    @property
    def is_exclusive(self) -> bool:
        """Whether only the worker that checks may have work for now."""
        return self._due and self._mode == "error"

    def may_work(self, worker: int) -> bool:
        """Whether a worker may have work for now."""
        return worker == _CHECKS or not self.is_exclusive

    def is_due_in(self, known: KnownWorker) -> bool:
        """Return whether a worker that is sent a `Start` is to check; it owes an answer if it is."""
        known.is_checking = self._due and known.worker == _CHECKS
        return known.is_checking

    def record_answer(
        self,
        known: KnownWorker,
        ticket: range = _NONE,  # noqa: ARG002 - for tasks
        sections: Sections = NO_SECTIONS,  # noqa: ARG002 - likewise
    ) -> None:
        """Record that a worker ran a ticket of the current version: it has checked before, if it was to."""
        if known.is_checking:
            known.is_checking = self._due = False

    def record_death(self, known: KnownWorker) -> None:
        """Check no more if the worker died while it checked, since the next might do so, too."""
        if known.is_checking and self._mode == "warn":
            self._due = False

    def record_files(
        self, known: KnownWorker, others: Sequence[KnownWorker], files: tuple[str, ...]
    ) -> list[FilesOverwritten]:
        """Record where wrappers of a worker's environments write files; return the places to warn of."""
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


class TaskChecks(PurityChecks):
    """Whether the environments of several tasks are to be checked, each by the worker that runs its first trajectory.

    No worker waits for a check: where it ends the call, it does so at the turn of that trajectory.
    """

    def __init__(self, mode: CheckMode) -> None:
        super().__init__(mode)
        self._done: set[int] = set()  # the numbers of tasks that are not to be checked, or not any more
        self._new_after_check: set[int] = set()  # workers that took the places of those that died while they checked

    @property
    def is_exclusive(self) -> bool:
        """Whether only one worker may have work for now: never."""
        return False

    def is_due(self, task: int) -> bool:
        """Whether a task is to be checked in the next call."""
        return self._due and task not in self._done

    def is_due_in(self, known: KnownWorker) -> bool:
        """Return whether a worker that is sent a `Start` is to check the tasks whose first trajectories it runs."""
        return self._due and known.worker not in self._new_after_check

    def begin_call(self) -> None:
        """Let all workers check again: a task whose check may have killed one is not checked any more."""
        self._new_after_check.clear()

    def record_answer(
        self,
        known: KnownWorker,  # noqa: ARG002 - for one task
        ticket: range = _NONE,
        sections: Sections = NO_SECTIONS,
    ) -> None:
        """Record that a worker ran a ticket: it has checked the task before, if it was to."""
        if sections and (section := sections.of(ticket)).checks_with(ticket):
            self._done.add(section.task.number)

    def record_death_in(self, task: int, worker: int) -> None:
        """Check a task no more if a worker died that may have checked it, since the next might do so, too."""
        if self._mode == "warn":
            self._done.add(task)
            self._new_after_check.add(worker)
