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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, Literal, TypeVar

from streamsampler.scheduling.plans import GatherPlan

__all__ = ["Held", "Hopeless", "Order", "Result", "Run", "too_many_dropped"]

Order = Literal["index", "arrival"]
Part = TypeVar("Part")

_NEVER = 2**62
_MANY_DROPPED = 100
_DROPPED_FOR_EACH = 10  # kept


def too_many_dropped(n_dropped: int, n_kept: int) -> bool:
    """Whether so many were left out that the call is not to go on: (nearly) everything fails."""
    return n_dropped >= _MANY_DROPPED and n_dropped > _DROPPED_FOR_EACH * n_kept


@dataclass(frozen=True, slots=True)
class Run(Generic[Part]):
    """Trajectories `start` to `stop - 1` of one part, which stand together in the result.

    Attributes:
        part: What they came in.
        indices: Their indices.
        start: Position of the first one in its ticket.
        stop: One more than the position of the last one.
        lengths: Their timesteps; 0 for those that were left out.
    """

    part: Part
    indices: range
    start: int
    stop: int
    lengths: tuple[int, ...]

    @property
    def n_kept(self) -> int:
        """How many of them were not left out."""
        return len(self.lengths) - self.lengths.count(0)


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


@dataclass(frozen=True, slots=True)
class Hopeless(Generic[Part]):
    """The trajectory whose being left out was one too many.

    Attributes:
        part: What it came in.
        position: Its position in its ticket.
        index: Its index.
        n_dropped: How many were left out, this one included.
        n_kept: How many were not.
    """

    part: Part
    position: int
    index: int
    n_dropped: int
    n_kept: int


@dataclass(slots=True)
class _Arrived(Generic[Part]):
    part: Part
    indices: range
    lengths: Sequence[int]
    position: int  # of the first trajectory that is not in the result yet


class Result(Generic[Part]):
    """The result of one call.

    Args:
        plan: What is wanted.
        order: "index", or "arrival" for whatever finishes first.
        first: The index that it begins with, in index order.

    Attributes:
        n_trajectories: Trajectories in the result, without those that were left out.
        n_timesteps: Their timesteps.
        n_popped: Trajectories that were handed over, those that were left out included.
        end: Nothing from this index on is of use any more: it failed for good. A very large number if there is none.
        hopeless: The trajectory with which too many were left out; None if that has not happened. Then nothing more is
            taken into the result.
    """

    def __init__(self, plan: GatherPlan, order: Order, first: int) -> None:
        self._plan = plan
        self._in_order = order == "index"
        self._first = first
        self._waiting: dict[int, _Arrived[Part]] = {}
        self._held: dict[int, Held] = {}
        self._runs: list[Run[Part]] = []
        self._passed = 0  # indices that are in the result, or left out of it
        self.n_trajectories = 0
        self.n_timesteps = 0
        self.n_popped = 0
        self.end = _NEVER
        self.hopeless: Hopeless[Part] | None = None

    # ------------------------------------------------------------------ taking in

    def add(self, part: Part, indices: range, lengths: Sequence[int], position: int) -> None:
        """Take in trajectories.

        Args:
            part: What they came in.
            indices: Their indices.
            lengths: Their timesteps; 0 for those that were left out.
            position: The position of the first one that is new.
        """
        entry = _Arrived(part, indices, lengths, position)
        first = indices[position]
        self._waiting[first] = entry
        if self._in_order:
            while self._open and (following := self._waiting.pop(self.next, None)) is not None:
                self._accept(following)
        elif self._open:
            self._accept(self._waiting.pop(first))

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

    def _accept(self, entry: _Arrived[Part]) -> None:
        """Move as much of `entry` into the result as is in order and wanted; what is left waits on."""
        contiguous = entry.indices.step == 1 or not self._in_order
        stop = len(entry.indices) if contiguous else entry.position + 1
        lengths = tuple(entry.lengths[entry.position : stop])
        lengths = lengths[: self._n_wanted(lengths)]
        if 0 in lengths:
            lengths = lengths[: self._n_bearable(entry, lengths)]
        stop = entry.position + len(lengths)
        self._runs.append(Run(entry.part, entry.indices[entry.position : stop], entry.position, stop, lengths))
        self._passed += len(lengths)
        self.n_trajectories += len(lengths) - lengths.count(0)
        self.n_timesteps += sum(lengths)
        entry.position = stop
        if stop < len(entry.indices):
            self._waiting[entry.indices[stop]] = entry

    def _n_wanted(self, lengths: tuple[int, ...]) -> int:
        """How many of the next trajectories, which have these lengths, the result needs."""
        plan = self._plan
        if plan.timesteps is not None:
            missing = plan.timesteps - self.n_timesteps
            if sum(lengths) - lengths[-1] >= missing:
                return 1 + sum(1 for total in accumulate(lengths[:-1]) if total < missing)
        elif plan.limit is not None:
            missing = plan.limit - self.n_trajectories
            if len(lengths) > missing:
                return 1 + sum(1 for total in accumulate(map(bool, lengths[:-1])) if total < missing)
        return len(lengths)

    def _n_bearable(self, entry: _Arrived[Part], lengths: tuple[int, ...]) -> int:
        """How many of them there are up to the one with which too many are left out, if there is such a one."""
        n_kept, n_dropped = self.n_trajectories, self._passed - self.n_trajectories
        for number, length in enumerate(lengths):
            n_kept += bool(length)
            n_dropped += not length
            all_dropped = self._plan.fixed and n_dropped == self._plan.limit
            if not length and (all_dropped or too_many_dropped(n_dropped, n_kept)):
                position = entry.position + number
                self.hopeless = Hopeless(entry.part, position, entry.indices[position], n_dropped, n_kept)
                return number + 1
        return len(lengths)

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
        return self.hopeless is None and not self.complete

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
    def unseen(self) -> bool:
        """Whether there is anything that was not handed over by `pop_runs`."""
        return bool(self._runs)

    def runs(self, first: int = 0) -> list[Run[Part]]:
        """The result so far, in order, from its run number `first` on: a finished prefix, and in the end all of it."""
        return self._runs[first:]

    def pop_runs(self) -> list[Run[Part]]:
        """Hand over the result so far and forget it: for consumers of an endless plan."""
        runs, self._runs = self._runs, []
        self.n_popped += sum(run.stop - run.start for run in runs)
        return runs

    def waiting(self) -> Iterator[tuple[Part, int, int]]:
        """What has arrived and is not part of the result: parts with their trajectories and timesteps."""
        for entry in self._waiting.values():
            lengths = entry.lengths[entry.position :]
            yield entry.part, len(lengths) - lengths.count(0), sum(lengths)
