"""Decide which worker checks that trajectories depend on their seeds alone, and what is reported of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from streamsampler.errors import CheckMode
from streamsampler.protocol.messages import Checked, CheckOrder
from streamsampler.samplers.records import WorkerRecord

__all__ = ["Verdicts"]

_CHECKS = 0
"""The worker that checks: it has a ticket in every call, if any worker has."""


class Verdicts:
    """Whether a sampler's environment is still to be checked, and what was found.

    One worker checks, at the first call and after an update that makes another environment. With "error" no other
    worker has any work before its verdict is there, so that whether a call raises never depends on timing.

    Args:
        mode: The sampler's argument `check`.
    """

    def __init__(self, mode: CheckMode) -> None:
        self._mode = mode
        self._due = mode is not None
        self._order = CheckOrder()
        self._reported: set[str] = set()

    def renew(self) -> None:
        """Check again: the environment may be another one."""
        self._due = self._mode is not None

    @property
    def exclusive(self) -> bool:
        """Whether only the worker that checks may have work for now."""
        return self._due and self._mode == "error"

    def may_work(self, record: WorkerRecord) -> bool:
        """Whether a worker may have work for now."""
        return not self.exclusive or record.worker == _CHECKS

    def order_for(self, record: WorkerRecord) -> CheckOrder | None:
        """Return what a worker that is started is to check; None for nothing."""
        if record.worker != _CHECKS or not self._due:
            return None
        record.is_checking = True
        return self._order

    def worker_died(self, record: WorkerRecord) -> None:
        """Check no more if the worker died while it checked, since the next might do so, too."""
        if record.is_checking and self._mode == "warn":
            self._due = False

    def take(
        self, record: WorkerRecord, records: Sequence[WorkerRecord], checked: Checked, *, current: bool
    ) -> tuple[list[str], str]:
        """Record what a worker found.

        Args:
            record: The worker.
            records: All workers.
            checked: What it found.
            current: Whether it belongs to the current call.

        Returns:
            What to warn of, and what to raise; "" for nothing.
        """
        warnings = self._shared_files(record, records, checked.files)
        if checked.unstable:
            warnings += self._once(checked.unstable)
        if not checked.kind and not checked.complete:
            return warnings, ""
        record.is_checking = False
        if checked.finding and self._mode == "error":
            # The check stays due: the next call finds the same.
            return warnings, checked.finding if current else ""
        if checked.finding:
            warnings += self._once(checked.finding)
        if checked.complete:
            self._due, self._order = False, CheckOrder(done=checked.kind)
        else:
            self._order = CheckOrder(self._order.done, checked.kind, checked.seconds)
        return warnings, ""

    def _shared_files(self, record: WorkerRecord, records: Sequence[WorkerRecord], files: tuple[str, ...]) -> list[str]:
        worker = record.worker
        warnings: list[str] = []
        for number, place in enumerate(files):
            owner = next((other.worker for other in records if other is not record and place in other.files), worker)
            if owner != worker or place in files[:number]:
                both = sorted((owner, worker))
                whose = f"workers {both[0]} and {both[1]}" if owner != worker else f"environments of worker {worker}"
                warnings += self._once(
                    f"{whose} write to the same files, {place}, and overwrite each other's. Give each worker a place "
                    "of its own: a function that makes the environment is given the worker's number if it has a "
                    "parameter `worker_number`"
                )
        record.files += files
        return warnings

    def _once(self, text: str) -> list[str]:
        if text in self._reported:
            return []
        self._reported.add(text)
        return [text]
