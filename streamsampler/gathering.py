"""Which trajectories a call wants, which to hand out next, and when it has them: pure.

A gather plan is a value: how much is wanted, and which worker may run which index. `Gathering` holds one call's
progress through a plan. It knows no process, no clock and no array: a part is whatever its caller hands in.

Results never depend on timing. In index order the batch is a prefix of trajectories 0, 1, 2, …; when and in what
portions they arrive, and whether some were lost and run again, changes only how long it takes.

Where a worker runs trajectories side by side, what is run together may show in the numbers. So a *block* of indices is
the unit of such work: every lane is cut into blocks from its start, the last one as long as the plan leaves it, and a
ticket is whole blocks. Which trajectories share a block is then fixed by the plan and the lanes alone, never by sizes,
timing or losses.

Where timesteps count, the first trajectories of a block may be enough. What became of them does not depend on how far
the others got; so a ticket says how many timesteps suffice, and a worker may end it when those of a finished prefix are
that many. The block that was cut short counts as not handed out, and is run again, whole, if it turns out to be needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, Literal, TypeVar

from streamsampler.blocks import Blocks, Lane
from streamsampler.cutting import Cuts
from streamsampler.errors import ProtocolError, UsageError
from streamsampler.holdings import Holdings
from streamsampler.pacing import TICKET_SECONDS, Pace, needed_for
from streamsampler.plans import AtLeast, Endless, Exactly, ExactlyPerWorker, GatherPlan

__all__ = ["AtLeast", "Endless", "Exactly", "ExactlyPerWorker", "GatherPlan", "Gathering", "Order", "Run"]

Order = Literal["index", "arrival"]
Part = TypeVar("Part")
_FOREVER = 2**62

NOTABLY_SLOWER = 1.5
"""How many times as long as the average a worker must take for it to be spared near the end."""

PRUDENCE = 0.5
"""How many standard deviations trajectories are taken to fall short of their mean, together, when it is decided whether
another one is begun: one that is begun late makes everybody wait, one that is begun in vain wastes a core. With two
workers, batches of 2,000 and 4,000 timesteps and lengths of 200 to 1,000, equally likely, the simulation in
`tests/test_schedules.py` finds a wall time 1 % shorter than with 0 and 6 and 3 % of work in vain; 2 gains another 0.7 %
at most and wastes 14 and 7 %."""


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


@dataclass(slots=True)
class _Arrived(Generic[Part]):
    part: Part
    indices: range
    lengths: Sequence[int]
    position: int = 0  # the first trajectory that is not in the result yet


class Gathering(Generic[Part]):
    """One call's progress through its plan.

    Args:
        plan: What is wanted.
        n_workers: How many workers share the work.
        order: "index", or "arrival" for whatever finishes first.
        pace: Average lengths seen so far; this call's are added to it.
        own_lanes: Whether each worker may run only its own indices.
        blocks: Which consecutive indices of a lane are to be run together. Every ticket is whole blocks.
        concurrent: Whether workers run at the same time. Where they take turns none can do another's work earlier.
        dropping: Whether trajectories may be left out, and others are to make up for them.

    Attributes:
        n_trajectories: Trajectories in the result, without those that were left out.
        n_timesteps: Their timesteps.
        arrived_trajectories: Trajectories that arrived, without those that were left out.
        arrived_timesteps: Their timesteps.
        arrived_dropped: Trajectories that were left out.

    Raises:
        UsageError: What is left out of one worker's indices cannot be made up for.
    """

    def __init__(
        self, plan: GatherPlan, *, n_workers: int, order: Order = "index", pace: Pace | None = None,
        own_lanes: bool = False, blocks: Blocks | None = None, concurrent: bool = True, dropping: bool = False,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.pace = pace if pace is not None else Pace()
        self._order = order
        self._n_workers = n_workers
        blocks = Blocks() if blocks is None else blocks
        self._may_help = concurrent and not own_lanes
        n_lanes = n_workers if own_lanes else 1
        own = [plan.lane(number, n_lanes) for number in range(n_lanes)]
        if dropping and plan.limit is not None:
            own = [_endless(lane, n_lanes) for lane in own]
        self._lanes = [Lane(lane, blocks) for lane in own]
        self._first = min(lane.own.start for lane in self._lanes)
        # Who takes turns with others' indices cannot tell how many timesteps of its own suffice.
        self._cuts = Cuts(None if own_lanes or blocks == Blocks() else plan.timesteps)
        self._repeated: list[tuple[Part, int, int]] = []
        self._holdings = Holdings(n_workers, self.pace)
        self._considered: set[int] = set()  # workers that were given something, or left because they are slow
        self._waiting: dict[int, _Arrived[Part]] = {}
        self._runs: list[Run[Part]] = []
        self.arrived_trajectories = 0
        self.arrived_timesteps = 0
        self.arrived_dropped = 0
        self._handed_out = 0
        self._passed = 0  # indices that are in the result, or left out of it
        self.n_trajectories = 0
        self.n_timesteps = 0
        self.n_popped = 0

    # ------------------------------------------------------------------ handing out

    def take(self, worker: int, *, ahead: bool = False, now: float = 0.0) -> range | None:
        """Return the indices that `worker` should run next, or None if there is nothing for it at present.

        A worker that would be idle otherwise may get a copy of what another one holds (see `holdings`); one that is so
        slow that the others would be done with everything before it gets nothing.

        Args:
            worker: The worker that asks.
            ahead: Whether it has work in hand and asks for its next ticket. It gets one only while there is more
                than enough for all: near the end a ticket that queues behind another is late, and may be surplus.
            now: The time in seconds, from any one clock.
        """
        if ahead and not self.has_plenty:
            return None
        lane = self._lanes[worker % len(self._lanes)]
        horizon = self._horizon(PRUDENCE)
        spare = max(0, horizon - self._handed_out)
        slowness = self._slowness(worker)
        size = self._ticket_size(slowness, spare, lane.next_size)
        # Without a spare one there may still be a lost one, without which the prefix has a gap.
        if spare and slowness > 1 and self._is_better_left(worker, size, spare, now):
            indices = self._left(worker)
        else:
            indices = self._lost(lane, size) or self._fresh(lane, size, horizon, spare)
        if not indices and not ahead:
            indices = self._copy(worker, now)
        if not indices:
            return None
        self._holdings.hold(worker, indices, now)
        self._considered.add(worker)
        return indices

    def terms(self, indices: range) -> tuple[int, int]:
        """Of a ticket under way: the size of its blocks, and how many timesteps of its first trajectories suffice.

        The latter is 0 where all are wanted.
        """
        return self._lane_of(indices).size_of(indices), self._cuts.enough(indices)

    def give_back(self, worker: int, indices: range, now: float = 0.0) -> None:
        """Take back a ticket whose worker was lost: it is handed out again, before anything new, if nobody has it."""
        if self._holdings.lose(worker, indices, now):
            self._handed_out -= self._cuts.forget(indices)
            self._lane_of(indices).give_back(indices)

    def _lane_of(self, indices: range) -> Lane:
        return next(lane for lane in self._lanes if indices[0] in lane.own)

    @property
    def has_plenty(self) -> bool:
        """Whether there is more than enough for all, even if trajectories turn out rather long."""
        return self._horizon(-PRUDENCE) - self._handed_out > self._n_workers * self._lanes[0].next_size

    def _slowness(self, worker: int) -> float:
        """How many times as long as the average `worker` takes; 1 where it does not matter."""
        if not self._may_help:
            return 1.0
        slowness = self.pace.slowness(worker)
        return slowness if slowness > NOTABLY_SLOWER else 1.0

    def _lost(self, lane: Lane, size: int) -> range:
        first = lane.first_lost()
        # A copy of what was cut short may be under way still, and the same ticket twice could not be told apart.
        if first is None or self._holdings.holds(first):
            return range(0)
        indices = lane.lost(size)
        enough = self._cuts.enough_alone(indices, self.n_timesteps)
        self._handed_out += self._cuts.hand(indices, enough, len(indices))
        return indices

    def _fresh(self, lane: Lane, size: int, horizon: int, spare: int) -> range:
        if not self._cuts.allowed:
            indices = lane.fresh(size, self._first + horizon)
            if indices:
                self._handed_out += self._cuts.hand(indices, 0, len(indices))
            return indices
        # What comes behind a ticket that is to be cut short is of no use without the rest of that one.
        if not spare or self._cuts.open is not None or lane.first_lost() is not None:
            return range(0)
        there = self._cuts.there(lane.position)[0]
        indices = lane.fresh(size, lane.position + there + spare)
        if self._holdings.holds(indices):  # as in `_lost`
            lane.give_back_rest(indices, 0)
            return range(0)
        n_others = self._handed_out - self.arrived_trajectories - self.arrived_dropped
        enough = self._cuts.enough_after(indices, self.arrived_timesteps, n_others, self.pace)
        self._handed_out += self._cuts.hand(indices, enough, spare)
        return indices

    def _copy(self, worker: int, now: float) -> range:
        # What the consumer of a stream has not taken yet makes nobody wait.
        if not self._may_help or (self._is_endless and self._runs):
            return range(0)
        indices = self._holdings.copy_for(worker, now) or range(0)
        if indices:
            self._cuts.copy(indices, self.n_timesteps)
        return indices

    def _left(self, worker: int) -> range:
        # Once a call: by and by it is tried again.
        if worker not in self._considered:
            self._considered.add(worker)
            self.pace.relent(worker)
        return range(0)

    def _is_better_left(self, worker: int, size: int, spare: int, now: float) -> bool:
        """Whether the others would be done with everything before `worker` with `size` more trajectories."""
        each = self.pace.seconds_with(worker)
        if self._is_endless or each is None:
            return False
        others = self._holdings.others_end(worker, spare, now)
        return others is not None and self._holdings.end_of(worker, now) + each * size > others

    @property
    def _is_endless(self) -> bool:
        return self.plan.limit is None and self.plan.timesteps is None

    def _ticket_size(self, slowness: float, spare: int, block: int) -> int:
        # Guided self-scheduling (Polychronopoulos and Kuck, 1987): a share of what is left, so that the last tickets
        # are small and all workers finish together. A slow worker's share is smaller, as in weighted factoring (Hummel,
        # Schmidt, Uma and Wein, 1996).
        share = math.ceil(spare / (2 * self._n_workers * slowness))
        return max(1, self.pace.ticket_size(share, slowness) // block) * block

    def _horizon(self, prudence: float) -> int:
        """How many trajectories will be needed in all, as far as one can tell.

        Args:
            prudence: By how many standard deviations they may turn out too short; too long where it is negative.
        """
        if self.plan.limit is not None:
            return self.plan.limit + self.arrived_dropped
        if self.plan.timesteps is None:
            return self.n_popped + self._window()
        outstanding = self._handed_out - self.arrived_trajectories - self.arrived_dropped
        mean = self.pace.timesteps
        if mean is None and self.arrived_trajectories:
            mean = self.arrived_timesteps / self.arrived_trajectories
        if mean is None:
            # Nothing is known: one block for each worker shows how long they are; each has at least one timestep,
            # but for those that were left out, which showed nothing.
            return self.arrived_dropped + min(self._n_workers * self._lanes[0].next_size, self.plan.timesteps)
        missing = self.plan.timesteps - self.arrived_timesteps
        return self._handed_out + max(0, needed_for(missing, mean, prudence * self.pace.spread) - outstanding)

    def _window(self) -> int:
        # What workers may be ahead of a consumer: enough to keep them busy while it takes one, few enough to bound
        # memory.
        return 4 * self._n_workers * max(self._lanes[0].next_size, self.pace.trajectories_in(TICKET_SECONDS))

    # ------------------------------------------------------------------ taking in

    def add(self, worker: int, indices: range, lengths: Sequence[int], part: Part, now: float = 0.0) -> bool:
        """Take in the trajectories of one ticket, or its first ones, if they have the timesteps that suffice.

        Args:
            worker: The worker that ran them.
            indices: The ticket's indices.
            lengths: Their timesteps; 0 for those that were left out.
            part: What they came in.
            now: The time in seconds.

        Returns:
            Whether there are new ones; otherwise a copy of theirs came in before, and the part is not kept.

        Raises:
            ProtocolError: They are in already, or were never handed out, or are not as many as asked for.
        """
        n, n_timesteps = len(lengths), sum(lengths)
        if n != len(indices) and not (self._cuts.allowed and 0 < n < len(indices)):
            raise ProtocolError(f"trajectories {indices} came with {n} lengths")
        if not self._holdings.settle(worker, indices, now):
            return False
        there, timesteps_there = self._cuts.made_up(indices[0])
        if n <= there:
            raise ProtocolError(f"trajectories {indices} came with {n} lengths, and {there} of them were there before")
        self._handed_out += n - there - self._cuts.forget(indices)
        n_dropped = lengths[there:].count(0)
        self.arrived_dropped += n_dropped
        self.arrived_trajectories += n - there - n_dropped
        self.arrived_timesteps += n_timesteps - timesteps_there
        if there:
            self._repeated.append((part, there, timesteps_there))
        if n < len(indices):
            begun = self._lanes[0].give_back_rest(indices, n)
            self._cuts.cut_short(indices[n - begun], begun, sum(lengths[n - begun :]))
        self._take_in(_Arrived(part, indices[:n], lengths, there))
        return True

    def _take_in(self, entry: _Arrived[Part]) -> None:
        first = entry.indices[entry.position]
        self._waiting[first] = entry
        if self._order == "index":
            while not self.complete and (following := self._waiting.pop(self._next, None)) is not None:
                self._accept(following)
        elif not self.complete:
            self._accept(self._waiting.pop(first))

    def _accept(self, entry: _Arrived[Part]) -> None:
        """Move as much of `entry` into the result as is in order and wanted; what is left waits on."""
        contiguous = entry.indices.step == 1 or self._order == "arrival"
        stop = len(entry.indices) if contiguous else entry.position + 1
        lengths = tuple(entry.lengths[entry.position : stop])
        if self.plan.timesteps is not None:
            missing = self.plan.timesteps - self.n_timesteps
            if sum(lengths) - lengths[-1] >= missing:
                lengths = lengths[: 1 + sum(1 for total in accumulate(lengths[:-1]) if total < missing)]
        elif self.plan.limit is not None:
            missing = self.plan.limit - self.n_trajectories
            if len(lengths) > missing:
                kept = accumulate(map(bool, lengths[:-1]))
                lengths = lengths[: 1 + sum(1 for total in kept if total < missing)]
        stop = entry.position + len(lengths)
        self._runs.append(Run(entry.part, entry.indices[entry.position : stop], entry.position, stop, lengths))
        self._passed += len(lengths)
        self.n_trajectories += len(lengths) - lengths.count(0)
        self.n_timesteps += sum(lengths)
        entry.position = stop
        if stop < len(entry.indices):
            self._waiting[entry.indices[stop]] = entry

    @property
    def _next(self) -> int:
        """The index that comes next in the result, in index order."""
        return self._first + self._passed

    @property
    def complete(self) -> bool:
        """Whether the result is there."""
        if self.plan.timesteps is not None:
            return self.n_timesteps >= self.plan.timesteps
        return self.n_trajectories == self.plan.limit

    def runs(self, first: int = 0) -> list[Run[Part]]:
        """The result so far, in order, from its run number `first` on: a finished prefix, and in the end all of it."""
        return self._runs[first:]

    def pop_runs(self) -> list[Run[Part]]:
        """Hand over the result so far and forget it: for consumers of an endless plan."""
        runs, self._runs = self._runs, []
        self.n_popped += sum(run.stop - run.start for run in runs)
        return runs

    def surplus(self) -> Iterator[tuple[Part, int, int]]:
        """What has arrived and is not part of the result: parts with their trajectories and timesteps."""
        yield from self._repeated
        for entry in self._waiting.values():
            lengths = entry.lengths[entry.position :]
            yield entry.part, len(lengths) - lengths.count(0), sum(lengths)


def _endless(lane: range, n_lanes: int) -> range:
    """Return a lane that does not end where the plan does."""
    if n_lanes > 1 and lane.step == 1:
        raise UsageError(
            'on_failure="drop" cannot make up for trajectories of one worker in obtain_exact_trajectories, '
            "where workers have agents or environments of their own"
        )
    return range(lane.start, _FOREVER, lane.step)
