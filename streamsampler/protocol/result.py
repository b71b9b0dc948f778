"""Put the trajectories of a call in order, and hold back failures until their turn. Pure.

Trajectories arrive in any order, and some fail. In index order neither affects the result, a prefix of trajectories 0,
1, 2, …. A failure's turn comes when an incomplete result has all trajectories before it; then the caller raises it, or
retries. So the seed alone decides whether a call fails, and at which trajectory. In arrival order a failure's turn
comes at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from streamsampler.protocol.messages import Dropped
from streamsampler.protocol.plans import GatherPlan
from streamsampler.protocol.replacements import Replacements

Order = Literal["index", "arrival"]

_NEVER = 2**62
_MANY_DROPPED = 100
_DROPPED_FOR_EACH = 10  # kept


def too_many_dropped(n_dropped: int, n_kept: int) -> bool:
    """Return whether nearly all trajectories are dropped, so that the call must end."""
    return n_dropped >= _MANY_DROPPED and n_dropped > _DROPPED_FOR_EACH * n_kept


class Span(NamedTuple):
    """Trajectories with positions `start` to `stop` - 1 in a report, adjacent in the result."""

    report: int
    start: int
    stop: int
    indices: range


class DroppedReport(NamedTuple):
    """A trajectory dropped from the result because it raised."""

    worker: int
    trajectory: int
    dropped: Dropped
    n_before: int  # trajectories of the result before it


@dataclass(frozen=True, slots=True)
class PendingFailure:
    """A failed block or trajectory, held back until its turn."""

    indices: range  # a block, or a single trajectory
    reason: Any  # as given by the caller
    final: bool  # whether it is never run again at its turn

    @property
    def turn(self) -> int:
        """The index at which the failure counts."""
        return self.indices[0]


@dataclass(slots=True)
class _Arrived:
    """Trajectories before their turn, from position `start` of a report."""

    report: int
    start: int
    indices: range
    lengths: Sequence[int]


class Result:
    """Collects the result of a call, in index order from index `first` on."""

    def __init__(self, plan: GatherPlan, order: Order, first: int) -> None:
        self._plan = plan
        self._in_order = order == "index"
        self._first = first
        self._pending: dict[int, _Arrived | DroppedReport] = {}  # by their first index
        self._held: dict[int, PendingFailure] = {}
        self._spans: list[Span | None] = []  # None after `forget_spans`
        self._left_out: list[DroppedReport] = []
        self._passed = 0  # indices in the result, or dropped
        self._skipped = 0  # indices never run
        n, limit = plan.n_of_task, plan.limit
        self._replacements = None if n is None or limit is None else Replacements(first, limit, n)
        self._section, self._n_dropped_before = -1, 0  # the last section with a dropped trajectory; dropped before it
        self.n_trajectories = self.n_timesteps = 0
        self.complete = False
        self.n_popped = 0  # `_passed` at the last call of `pop_spans`
        self.end = _NEVER  # the first index with a final failure: none from it on is needed
        self.one_too_many: DroppedReport | None = (
            None  # the dropped trajectory that exceeded the limit; then nothing is added
        )
        self._is_open = True  # whether more may be added

    def receive(
        self, worker: int, indices: range, lengths: Sequence[int], report: int, dropped: Sequence[Dropped]
    ) -> None:
        """Add a report's trajectories at their turn, except for `dropped`, which have no `lengths`."""
        if self._held:
            for held in [held for held in self._held.values() if held.turn in indices]:
                self.remove_failure(held)  # a copy succeeded, so the failure does not repeat each time
        start = position = 0
        for left_out in dropped:
            if n := left_out.position - position:
                own = indices[position : position + n]
                self._queue(own[0], _Arrived(report, start, own, lengths[start : start + n]))
                start += n
            position = left_out.position + 1
            index = indices[left_out.position]
            self._queue(index, DroppedReport(worker, index, left_out, 0))
        if own := indices[position:]:
            self._queue(own[0], _Arrived(report, start, own, lengths[start:]))

    def _queue(self, first: int, entry: _Arrived | DroppedReport) -> None:
        self._pending[first] = entry
        if self._in_order:
            while self._is_open and (following := self._pending.pop(self.next, None)) is not None:
                self._accept(following)
        elif self._is_open:
            self._accept(self._pending.pop(first))

    def hold_failure(self, held: PendingFailure) -> None:
        self._held[held.turn] = held
        if held.final:
            self.end = min(self.end, held.turn)

    def remove_failure(self, held: PendingFailure) -> None:
        del self._held[held.turn]
        if held.final:
            self.end = min((other.turn for other in self._held.values() if other.final), default=_NEVER)

    def _accept(self, entry: _Arrived | DroppedReport) -> None:
        """Add the needed part of `entry`; the rest stays pending."""
        plan = self._plan
        if isinstance(entry, DroppedReport):
            self._leave_out(entry)
        else:
            self._record(entry)
        if plan.timesteps is not None:
            self.complete = self.n_timesteps >= plan.timesteps
        else:
            self.complete = (self._passed if plan.fixed else self.n_trajectories) == plan.limit
        self._is_open = self.one_too_many is None and not self.complete
        if self._replacements is not None and self._is_open:
            self._skipped += self._replacements.turn_after(self.next) - self.next

    def _record(self, entry: _Arrived) -> None:
        contiguous = entry.indices.step == 1 or not self._in_order
        lengths = entry.lengths if contiguous else entry.lengths[:1]
        n, n_timesteps = self._needed_of(lengths)
        self._spans.append(Span(entry.report, entry.start, entry.start + n, entry.indices[:n]))
        self._passed += n
        self.n_trajectories += n
        self.n_timesteps += n_timesteps
        if n < len(entry.indices):
            rest = _Arrived(entry.report, entry.start + n, entry.indices[n:], entry.lengths[n:])
            self._pending[rest.indices[0]] = rest

    def _leave_out(self, entry: DroppedReport) -> None:
        self._passed += 1
        self._left_out.append(entry._replace(n_before=self.n_trajectories))
        plan = self._plan
        too_many = too_many_dropped(self.n_dropped, self.n_trajectories + plan.kept_before)
        if self._replacements is not None:
            too_many = too_many_dropped(*self._replacements.leave_out(entry.trajectory))
        if plan.sections:
            too_many = too_many_dropped(*self.counts_of_section(entry.trajectory))
        elif plan.fixed and not plan.kept_before:
            too_many = too_many or self.n_dropped == plan.limit
        if too_many:
            self.one_too_many = self._left_out[-1]

    def counts_of_section(self, index: int) -> tuple[int, int]:
        """Return the trajectories dropped and kept so far in the section of the last index."""
        number = self._plan.sections.number_of(index)
        if number != self._section:
            self._section, self._n_dropped_before = number, self.n_dropped - 1
        n_dropped = self.n_dropped - self._n_dropped_before
        return n_dropped, index + 1 - self._plan.sections[number].start - n_dropped

    def pop_replacements(self) -> list[range]:
        """Return, once, further indices in place of dropped trajectories; see `replacements`."""
        return [] if self._replacements is None else self._replacements.pop_new()

    def _needed_of(self, lengths: Sequence[int]) -> tuple[int, int]:
        """Return how many of the next trajectories are needed, and their timesteps."""
        plan, n, n_timesteps = self._plan, len(lengths), sum(lengths)
        if plan.timesteps is not None:
            missing = plan.timesteps - self.n_timesteps
            if n_timesteps - lengths[-1] >= missing:
                n = 1 + sum(1 for total in accumulate(lengths[:-1]) if total < missing)
        elif plan.limit is not None:
            n = min(n, plan.limit - self.n_trajectories)
        return n, n_timesteps if n == len(lengths) else sum(lengths[:n])

    @property
    def next(self) -> int:
        return self._first + self._passed + self._skipped

    @property
    def due(self) -> PendingFailure | None:
        """The failure at its turn, or None."""
        if not self._held or not self._is_open:
            return None
        return self._held.get(self.next) if self._in_order else next(iter(self._held.values()))

    def held_failures(self) -> list[PendingFailure]:
        return list(self._held.values())

    @property
    def n_dropped(self) -> int:
        return self._passed - self.n_trajectories

    @property
    def has_spans(self) -> bool:
        return bool(self._spans)

    def spans(self, first: int = 0) -> list[Span]:
        """Return the result so far, from span `first` on, without forgotten spans."""
        return list(filter(None, self._spans[first:]))

    def forget_spans(self, first: int, stop: int) -> None:
        self._spans[first:stop] = [None] * (stop - first)

    def pop_spans(self) -> list[Span]:
        """Return and forget the result so far, for the consumer of a stream."""
        spans, self._spans = self.spans(), []
        self.n_popped = self._passed
        return spans

    def pop_dropped(self, n_before: int | None = None) -> list[DroppedReport]:
        """Return and forget dropped trajectories: all, or those with fewer than `n_before` before them."""
        if not self._left_out:
            return []
        left_out = [it for it in self._left_out if n_before is None or it.n_before < n_before]
        del self._left_out[: len(left_out)]
        return left_out

    def pending(self) -> tuple[int, int]:
        """Return the numbers of trajectories and timesteps not yet in the result."""
        if not self._pending:
            return 0, 0
        lengths = [entry.lengths for entry in self._pending.values() if isinstance(entry, _Arrived)]
        return sum(map(len, lengths)), sum(map(sum, lengths))
