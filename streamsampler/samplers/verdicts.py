"""What became of checking that trajectories depend on their seeds alone, and what is told of it: pure."""

from __future__ import annotations

from streamsampler.errors import CheckMode
from streamsampler.protocol.messages import Checked, CheckOrder

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
        self._ordered = False
        self._told: set[str] = set()
        self._files: dict[str, int] = {}

    def renew(self) -> None:
        """Look at the environment again: there may be another one."""
        self._due = self._mode is not None

    @property
    def exclusive(self) -> bool:
        """Whether only the worker that checks may have work for now."""
        return self._due and self._mode == "error"

    def may_work(self, worker: int) -> bool:
        """Whether a worker may have work for now."""
        return worker == _CHECKS or not self.exclusive

    def order_for(self, worker: int) -> CheckOrder | None:
        """Return what a worker that is started is to check; None for nothing."""
        if worker != _CHECKS or not self._due:
            return None
        self._ordered = True
        return self._order

    def lost(self, worker: int) -> None:
        """Take in that a worker ended. One that ended while it checked might do so each time."""
        if worker == _CHECKS and self._ordered and self._mode == "warn":
            self._due = False
        for place in [place for place, owner in self._files.items() if owner == worker]:
            del self._files[place]

    def take(self, worker: int, checked: Checked, *, current: bool) -> tuple[list[str], str]:
        """Take in what a worker found out.

        Args:
            worker: The worker.
            checked: What it found out.
            current: Whether it belongs to the call in hand.

        Returns:
            What to warn of, and what to raise; "" for nothing.
        """
        warnings = self._take_files(worker, checked.files)
        if not checked.kind and not checked.complete:
            return warnings, ""
        self._ordered = False
        if checked.finding and self._mode == "error":
            # Nothing is noted: the next call finds the same.
            return warnings, checked.finding if current else ""
        if checked.finding:
            warnings += self._once(checked.finding)
        if checked.complete:
            self._due, self._order = False, CheckOrder(done=checked.kind)
        else:
            self._order = CheckOrder(self._order.done, checked.kind, checked.seconds)
        return warnings, ""

    def _take_files(self, worker: int, files: tuple[str, ...]) -> list[str]:
        warnings: list[str] = []
        mine: set[str] = set()
        for place in files:
            owner = self._files.setdefault(place, worker)
            if owner != worker or place in mine:
                both = sorted((owner, worker))
                whose = f"workers {both[0]} and {both[1]}" if owner != worker else f"environments of worker {worker}"
                warnings += self._once(
                    f"{whose} write to the same files, {place}, and overwrite each other's. Give each worker a place "
                    "of its own: a function that makes the environment is given the worker's number if it has a "
                    "parameter `worker_number`"
                )
            mine.add(place)
        return warnings

    def _once(self, text: str) -> list[str]:
        if text in self._told:
            return []
        self._told.add(text)
        return [text]
