"""Put the trajectories of a call in order, and hold back failures until their turn comes. Pure.

Trajectories arrive in any order, and some fail. In index order neither shows in the result: it is a prefix of
trajectories 0, 1, 2, …, and the turn of a failure comes when all trajectories before it are in an incomplete result.
Then the caller raises it, or has the trajectory run again. If the result is complete before, the failure is surplus. So
whether a call fails, and with which trajectory, depends on the seed alone, as the batch does.

A failure concerns the trajectories that may influence each other: one trajectory, or one block. Its turn is that of
the first of them.

In arrival order it is every failure's turn at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from streamsampler.protocol.make_ups import MakeUps
from streamsampler.protocol.messages import Dropped
from streamsampler.protocol.plans import GatherPlan

Order = Literal["index", "arrival"]

_NEVER = 2**62
_MANY_DROPPED = 100
_DROPPED_FOR_EACH = 10  # kept


def too_many_dropped(n_dropped: int, n_kept: int) -> bool:
    """Return whether so many trajectories were left out that the call must end: nearly all of them fail."""
    return n_dropped >= _MANY_DROPPED and n_dropped > _DROPPED_FOR_EACH * n_kept


class Span(NamedTuple):
    """Consecutive trajectories of one report that stand together in the result.

    They are numbers `start` to `stop` - 1 of those that the report brought.
    """

    report: int
    start: int
    stop: int
    indices: range


class LeftOut(NamedTuple):
    """A trajectory that is not in the result because it raised."""

    worker: int
    trajectory: int
    dropped: Dropped
    n_before: int  # how many trajectories of the result precede it


@dataclass(frozen=True, slots=True)
class HeldFailure:
    """Trajectories that could not be run."""

    indices: range  # one block, or one trajectory
    reason: Any  # as the caller gave it
    final: bool  # whether they are never run again once they are needed

    @property
    def turn(self) -> int:
        """The index at whose turn the failure counts."""
        return self.indices[0]


@dataclass(slots=True)
class _Arrived:
    """Trajectories that wait for their turn; `start` is the position of the first one in its report."""

    report: int
    start: int
    indices: range
    lengths: Sequence[int]


class Result:
    """Collect the result of one call, in index order from index `first` on."""

    def __init__(self, plan: GatherPlan, order: Order, first: int) -> None:
        self._plan = plan
        self._in_order = order == "index"
        self._first = first
        self._pending: dict[int, _Arrived | LeftOut] = {}  # by their first index
        self._held: dict[int, HeldFailure] = {}
        self._spans: list[Span | None] = []  # None for those that were forgotten
        self._left_out: list[LeftOut] = []
        self._passed = 0  # indices that are in the result, or left out of it
        self._skipped = 0  # indices that nothing is run for
        n, limit = plan.n_of_task, plan.limit
        self._make_ups = None if n is None or limit is None else MakeUps(first, limit, n)
        self._section, self._n_dropped_before = -1, 0  # the last one with a trajectory left out; those before it
        self.n_trajectories = self.n_timesteps = 0
        self.complete = False
        self.n_popped = 0  # indices in the result, or left out of it, at the last call of `pop_spans`
        self.end = _NEVER  # the first index that failed for good: nothing from it on is of use
        self.one_too_many: LeftOut | None = None  # with which too many were left out: nothing more is added then
        self._is_open = True  # whether more may be added

    def receive(
        self, worker: int, indices: range, lengths: Sequence[int], report: int, dropped: Sequence[Dropped]
    ) -> None:
        """Add the trajectories of a report when their turn comes, and leave out those that were dropped.

        The lengths are those of the others.
        """
        if self._held:
            for held in [held for held in self._held.values() if held.turn in indices]:
                self.remove_failure(held)  # a copy succeeded: what failed does not do so each time
        start = position = 0
        for left_out in dropped:
            if n := left_out.position - position:
                own = indices[position : position + n]
                self._queue(own[0], _Arrived(report, start, own, lengths[start : start + n]))
                start += n
            position = left_out.position + 1
            index = indices[left_out.position]
            self._queue(index, LeftOut(worker, index, left_out, 0))
        if own := indices[position:]:
            self._queue(own[0], _Arrived(report, start, own, lengths[start:]))

    def _queue(self, first: int, entry: _Arrived | LeftOut) -> None:
        self._pending[first] = entry
        if self._in_order:
            while self._is_open and (following := self._pending.pop(self.next, None)) is not None:
                self._accept(following)
        elif self._is_open:
            self._accept(self._pending.pop(first))

    def hold_failure(self, held: HeldFailure) -> None:
        """Hold back a failure until its turn comes."""
        self._held[held.turn] = held
        if held.final:
            self.end = min(self.end, held.turn)

    def remove_failure(self, held: HeldFailure) -> None:
        """Forget a failure, after the caller's decision."""
        del self._held[held.turn]
        if held.final:
            self.end = min((other.turn for other in self._held.values() if other.final), default=_NEVER)

    def _accept(self, entry: _Arrived | LeftOut) -> None:
        """Add as much of `entry` to the result as is in order and needed; the rest stays pending."""
        plan = self._plan
        if isinstance(entry, LeftOut):
            self._leave_out(entry)
        else:
            self._record(entry)
        if plan.timesteps is not None:
            self.complete = self.n_timesteps >= plan.timesteps
        else:
            self.complete = (self._passed if plan.fixed else self.n_trajectories) == plan.limit
        self._is_open = self.one_too_many is None and not self.complete
        if self._make_ups is not None and self._is_open:
            self._skipped += self._make_ups.turn_after(self.next) - self.next

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

    def _leave_out(self, entry: LeftOut) -> None:
        self._passed += 1
        self._left_out.append(entry._replace(n_before=self.n_trajectories))
        plan = self._plan
        too_many = too_many_dropped(self.n_dropped, self.n_trajectories + plan.kept_before)
        if self._make_ups is not None:
            too_many = too_many_dropped(*self._make_ups.leave_out(entry.trajectory))
        if plan.sections:
            too_many = too_many_dropped(*self.counts_of_section(entry.trajectory))
        elif plan.fixed and not plan.kept_before:
            too_many = too_many or self.n_dropped == plan.limit
        if too_many:
            self.one_too_many = self._left_out[-1]

    def counts_of_section(self, index: int) -> tuple[int, int]:
        """Return how many trajectories were left out of, and kept from, the section of the index passed last."""
        number = self._plan.sections.number_of(index)
        if number != self._section:
            self._section, self._n_dropped_before = number, self.n_dropped - 1
        n_dropped = self.n_dropped - self._n_dropped_before
        return n_dropped, index + 1 - self._plan.sections[number].start - n_dropped

    def pop_made_up(self) -> list[range]:
        """Return, once, further indices that take the places of those left out; none where the plan says nothing."""
        return [] if self._make_ups is None else self._make_ups.pop_new()

    def _needed_of(self, lengths: Sequence[int]) -> tuple[int, int]:
        """Return how many of the next trajectories the result needs, and their timesteps."""
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
        """The index whose turn it is, in index order."""
        return self._first + self._passed + self._skipped

    @property
    def due(self) -> HeldFailure | None:
        """The failure whose turn it is: the call ends, or what failed is run again. None if there is none."""
        if not self._held or not self._is_open:
            return None
        return self._held.get(self.next) if self._in_order else next(iter(self._held.values()))

    def held_failures(self) -> list[HeldFailure]:
        """Return the failures that are held back."""
        return list(self._held.values())

    @property
    def n_dropped(self) -> int:
        """How many trajectories were left out."""
        return self._passed - self.n_trajectories

    @property
    def has_spans(self) -> bool:
        """Whether there are spans that `pop_spans` has not returned."""
        return bool(self._spans)

    def spans(self, first: int = 0) -> list[Span]:
        """Return the result so far, in order, from span number `first` on, without those that were forgotten."""
        return list(filter(None, self._spans[first:]))

    def forget_spans(self, first: int, stop: int) -> None:
        """Forget spans number `first` to `stop` - 1: the caller has all that is needed of them."""
        self._spans[first:stop] = [None] * (stop - first)

    def pop_spans(self) -> list[Span]:
        """Return the result so far and forget it: for the consumer of a stream."""
        spans, self._spans = self.spans(), []
        self.n_popped = self._passed
        return spans

    def pop_left_out(self, n_before: int | None = None) -> list[LeftOut]:
        """Return and forget the trajectories that were left out: those that fewer than `n_before` precede, or all."""
        if not self._left_out:
            return []
        left_out = [it for it in self._left_out if n_before is None or it.n_before < n_before]
        del self._left_out[: len(left_out)]
        return left_out

    def pending(self) -> tuple[int, int]:
        """Return how many trajectories and timesteps arrived and are not in the result."""
        if not self._pending:
            return 0, 0
        lengths = [entry.lengths for entry in self._pending.values() if isinstance(entry, _Arrived)]
        return sum(map(len, lengths)), sum(map(sum, lengths))
