"""The result of a call, in its order: what arrived, what is next, and what is to be decided now. Pure.

Trajectories arrive in any order, and some of them fail. In index order none of that may show: the result is a prefix of
trajectories 0, 1, 2, …, and a failure counts only when its turn comes, that is, when all trajectories before it are in
the result and the result is not complete. Then the caller decides: it raises, or has the trajectory run again. If the
result is complete before, the failure was surplus. So whether a call fails, and because of which trajectory, is decided
by the seed alone, as the batch is.

A failure concerns one *unit*: the trajectories that are run together, which is one where workers run them one after the
other, else one block. Its turn is that of its first trajectory that is not in the result yet.

In order of arrival it is every failure's turn at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from streamsampler.protocol.messages import Dropped
from streamsampler.scheduling.plans import GatherPlan

__all__ = ["Held", "LeftOut", "Order", "Result", "Segment", "too_many_dropped"]

Order = Literal["index", "arrival"]

_NEVER = 2**62
_MANY_DROPPED = 100
_DROPPED_FOR_EACH = 10  # kept


def too_many_dropped(n_dropped: int, n_kept: int) -> bool:
    """Whether so many were left out that the call is not to go on: (nearly) everything fails."""
    return n_dropped >= _MANY_DROPPED and n_dropped > _DROPPED_FOR_EACH * n_kept


class Segment(NamedTuple):
    """Consecutive trajectories of one report, which stand together in the result.

    Attributes:
        delivery: What the report brought, as it was handed in.
        start: Position of the first one among the trajectories that the report brought.
        stop: One more than the position of the last one.
        indices: Their indices.
    """

    delivery: Any
    start: int
    stop: int
    indices: range


class LeftOut(NamedTuple):
    """A trajectory that the result passed by, because it raised.

    Attributes:
        worker: The worker that ran it.
        trajectory: Its index.
        dropped: What the worker reported of it.
        n_before: How many trajectories of the result come before it.
    """

    worker: int
    trajectory: int
    dropped: Dropped
    n_before: int


@dataclass(frozen=True, slots=True)
class Held:
    """A unit that could not be run.

    Attributes:
        indices: Its trajectories.
        turn: The index whose turn it waits for.
        reason: What happened, as the caller knows it.
        final: Whether it is never to be run again where it is wanted.
        done: How many timesteps its first trajectories had, which had all ended before it failed: a result that needs
            no more of it does not need what failed.
    """

    indices: range
    turn: int
    reason: Any
    final: bool
    done: int


@dataclass(slots=True)
class _Arrived:
    """Trajectories that arrived and are not in the result yet; `start` is the position of the first in its report."""

    delivery: Any
    start: int
    indices: range
    lengths: Sequence[int]


class Result:
    """The result of one call.

    Args:
        plan: What is wanted.
        order: "index", or "arrival" for whatever finishes first.
        first: The index that it begins with, in index order.

    Attributes:
        n_trajectories: Trajectories in the result.
        n_timesteps: Their timesteps.
        n_popped: Indices that were handed over or passed by when `pop_segments` was called last.
        end: Nothing from this index on is of use any more: it failed for good. A very large number if there is none.
        one_too_many: The trajectory with which too many were left out; None if that has not happened. Then nothing
            more is taken into the result.
    """

    def __init__(self, plan: GatherPlan, order: Order, first: int) -> None:
        self._plan = plan
        self._in_order = order == "index"
        self._first = first
        self._pending: dict[int, _Arrived | LeftOut] = {}  # by their first index
        self._held: dict[int, Held] = {}
        self._segments: list[Segment] = []
        self._left_out: list[LeftOut] = []
        self._passed = 0  # indices that are in the result, or left out of it
        self.n_trajectories = 0
        self.n_timesteps = 0
        self.n_popped = 0
        self.end = _NEVER
        self.one_too_many: LeftOut | None = None

    # ------------------------------------------------------------------ taking in

    def add(self, delivery: Any, start: int, indices: range, lengths: Sequence[int]) -> None:
        """Take in trajectories.

        Args:
            delivery: What the report brought.
            start: Position of the first one among the trajectories that the report brought.
            indices: Their indices.
            lengths: Their timesteps.
        """
        self._take_in(indices[0], _Arrived(delivery, start, indices, lengths))

    def leave_out(self, worker: int, index: int, dropped: Dropped) -> None:
        """Pass by a trajectory when its turn comes."""
        self._take_in(index, LeftOut(worker, index, dropped, 0))

    def _take_in(self, first: int, entry: _Arrived | LeftOut) -> None:
        self._pending[first] = entry
        if self._in_order:
            while self._open and (following := self._pending.pop(self.next, None)) is not None:
                self._accept(following)
        elif self._open:
            self._accept(self._pending.pop(first))

    def hold(self, held: Held) -> None:
        """Take in a failure."""
        self._held[held.turn] = held
        self._find_end()

    def settle(self, held: Held) -> None:
        """Forget a failure: it was decided about."""
        del self._held[held.turn]
        self._find_end()

    def _find_end(self) -> None:
        self.end = min((held.turn for held in self._held.values() if held.final), default=_NEVER)

    def _accept(self, entry: _Arrived | LeftOut) -> None:
        """Take as much of `entry` into the result as is in order and needed; the rest of it stays pending."""
        if isinstance(entry, LeftOut):
            self._passed += 1
            self._left_out.append(entry._replace(n_before=self.n_trajectories))
            all_dropped = self._plan.fixed and self.n_dropped == self._plan.limit
            if all_dropped or too_many_dropped(self.n_dropped, self.n_trajectories):
                self.one_too_many = self._left_out[-1]
            return
        contiguous = entry.indices.step == 1 or not self._in_order
        lengths = entry.lengths if contiguous else entry.lengths[:1]
        n, n_timesteps = self._needed_of(lengths)
        self._segments.append(Segment(entry.delivery, entry.start, entry.start + n, entry.indices[:n]))
        self._passed += n
        self.n_trajectories += n
        self.n_timesteps += n_timesteps
        if n < len(entry.indices):
            rest = _Arrived(entry.delivery, entry.start + n, entry.indices[n:], entry.lengths[n:])
            self._pending[rest.indices[0]] = rest

    def _needed_of(self, lengths: Sequence[int]) -> tuple[int, int]:
        """How many of the next trajectories, which have these lengths, the result needs, and their timesteps."""
        plan, n, n_timesteps = self._plan, len(lengths), sum(lengths)
        if plan.timesteps is not None:
            missing = plan.timesteps - self.n_timesteps
            if n_timesteps - lengths[-1] >= missing:
                n = 1 + sum(1 for total in accumulate(lengths[:-1]) if total < missing)
        elif plan.limit is not None:
            n = min(n, plan.limit - self.n_trajectories)
        return n, n_timesteps if n == len(lengths) else sum(lengths[:n])

    # ------------------------------------------------------------------ looking at

    @property
    def next(self) -> int:
        """The index that comes next, in index order."""
        return self._first + self._passed

    @property
    def complete(self) -> bool:
        """Whether the result is there."""
        plan = self._plan
        if plan.timesteps is not None:
            return self.n_timesteps >= plan.timesteps
        return (self._passed if plan.fixed else self.n_trajectories) == plan.limit

    @property
    def _open(self) -> bool:
        return self.one_too_many is None and not self.complete

    @property
    def due(self) -> Held | None:
        """The failure that is to be decided about now; None if there is none."""
        if not self._held or not self._open:
            return None
        return self._held.get(self.next) if self._in_order else next(iter(self._held.values()))

    @property
    def n_held(self) -> int:
        """How many failures there are about which nothing was decided."""
        return len(self._held)

    def held(self) -> list[Held]:
        """The failures about which nothing was decided."""
        return list(self._held.values())

    @property
    def n_dropped(self) -> int:
        """How many trajectories were left out."""
        return self._passed - self.n_trajectories

    @property
    def has_segments(self) -> bool:
        """Whether there is anything that `pop_segments` has not handed over."""
        return bool(self._segments)

    def segments(self, first: int = 0) -> list[Segment]:
        """The result so far, in order, from its segment number `first` on: a finished prefix, in the end all of it."""
        return self._segments[first:]

    def pop_segments(self) -> list[Segment]:
        """Hand over the result so far and forget it: for consumers of an endless plan."""
        segments, self._segments = self._segments, []
        self.n_popped = self._passed
        return segments

    def pop_left_out(self, n_before: int | None = None) -> list[LeftOut]:
        """Hand over, and forget, what was left out.

        Args:
            n_before: Only what has fewer trajectories of the result before it; None for all.
        """
        left_out = [it for it in self._left_out if n_before is None or it.n_before < n_before]
        del self._left_out[: len(left_out)]
        return left_out

    def pending(self) -> tuple[int, int]:
        """Trajectories and timesteps that have arrived and are not in the result."""
        lengths = [entry.lengths for entry in self._pending.values() if isinstance(entry, _Arrived)]
        return sum(map(len, lengths)), sum(map(sum, lengths))
