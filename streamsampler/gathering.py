"""Which trajectories a call wants, which to hand out next, and when it has them: pure.

A gather plan is a value: how much is wanted, and which worker may run which index. `Gathering` holds one call's
progress through a plan. It knows no process, no clock and no array: a part is whatever its caller hands in.

Results never depend on timing. In index order the batch is a prefix of trajectories 0, 1, 2, …; when and in what
portions they arrive, and whether some were lost and run again, changes only how long it takes.

Where a worker runs trajectories side by side, what is run together may show in the numbers. So a *block* of indices is
the unit of such work: every lane is cut into blocks from its start, the last one as long as the plan leaves it, and a
ticket is whole blocks. Which trajectories share a block is then fixed by the plan and the lanes alone, never by sizes,
timing or losses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, Literal, Protocol, TypeVar

from streamsampler.errors import ProtocolError
from streamsampler.holdings import Holdings
from streamsampler.pacing import SHORTEST_TICKET_SECONDS, TICKET_SECONDS, Pace

__all__ = ["AtLeast", "Endless", "Exactly", "ExactlyPerWorker", "GatherPlan", "Gathering", "Order", "Run"]

Order = Literal["index", "arrival"]
Part = TypeVar("Part")

NOTABLY_SLOWER = 1.5
"""How many times as long as the average a worker must take for it to be spared near the end."""

PRUDENCE = 0.5
"""How many standard deviations trajectories are taken to fall short of their mean, together, when it is decided whether
another one is begun: one that is begun late makes everybody wait, one that is begun in vain wastes a core. With two
workers, batches of 2,000 and 4,000 timesteps and lengths of 200 to 1,000, equally likely, the simulation in
`tests/test_schedules.py` finds a wall time 1 % shorter than with 0 and 6 and 3 % of work in vain; 2 gains another 0.7 %
at most and wastes 14 and 7 %."""


class GatherPlan(Protocol):
    """How much is wanted, and who may run what."""

    @property
    def limit(self) -> int | None:
        """How many trajectories there are in all; None if that is not known before."""

    @property
    def timesteps(self) -> int | None:
        """How many timesteps suffice; None if only trajectories count."""

    def lane(self, number: int, n_lanes: int) -> range:
        """The indices that worker `number` runs where each worker has its own agent or environment."""


_FOREVER = 2**62


@dataclass(frozen=True)
class AtLeast:
    """The shortest prefix of trajectories 0, 1, 2, … with at least `timesteps` timesteps."""

    timesteps: int
    limit: None = None

    def lane(self, number: int, n_lanes: int) -> range:
        """Every `n_lanes`-th index."""
        return range(number, _FOREVER, n_lanes)


@dataclass(frozen=True)
class Exactly:
    """Trajectories 0 to `limit - 1`."""

    limit: int
    timesteps: None = None

    def lane(self, number: int, n_lanes: int) -> range:
        """Every `n_lanes`-th index."""
        return range(number, self.limit, n_lanes)


@dataclass(frozen=True)
class ExactlyPerWorker:
    """`n_traj_per_worker` trajectories of each worker, in worker order.

    Worker w's k-th has index `w * n_traj_per_worker + k`. Only where workers differ does it matter who runs it.
    """

    n_traj_per_worker: int
    n_workers: int
    timesteps: None = None

    @property
    def limit(self) -> int:
        """All workers' trajectories."""
        return self.n_traj_per_worker * self.n_workers

    def lane(self, number: int, n_lanes: int) -> range:
        """One block of indices for each worker; all of them for the only lane."""
        if n_lanes == 1:
            return range(self.limit)
        return range(number * self.n_traj_per_worker, (number + 1) * self.n_traj_per_worker)


@dataclass(frozen=True)
class Endless:
    """Trajectories `first`, `first + 1`, … without end, for a consumer that takes them in order."""

    first: int = 0
    limit: None = None
    timesteps: None = None

    def lane(self, number: int, n_lanes: int) -> range:
        """Every `n_lanes`-th index."""
        return range(self.first + (number - self.first) % n_lanes, _FOREVER, n_lanes)


@dataclass(frozen=True, slots=True)
class Run(Generic[Part]):
    """Trajectories `start` to `stop - 1` of one part, which stand together in the result."""

    part: Part
    indices: range
    start: int
    stop: int
    lengths: tuple[int, ...]


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
        block: How many consecutive indices of a lane are to be run together. Every ticket is whole blocks.
        concurrent: Whether workers run at the same time. Where they take turns none can do another's work earlier.
    """

    def __init__(
        self, plan: GatherPlan, *, n_workers: int, order: Order = "index", pace: Pace | None = None,
        own_lanes: bool = False, block: int = 1, concurrent: bool = True,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.pace = pace if pace is not None else Pace()
        self._order = order
        self._n_workers = n_workers
        self._block = block
        self._may_help = concurrent and not own_lanes
        n_lanes = n_workers if own_lanes else 1
        self._lanes = [plan.lane(number, n_lanes) for number in range(n_lanes)]
        self._first = min(lane.start for lane in self._lanes)
        self._cursors = [0] * n_lanes
        self._returned: list[list[range]] = [[] for _ in range(n_lanes)]
        self._holdings = Holdings(n_workers, self.pace)
        self._waiting: dict[int, _Arrived[Part]] = {}
        self._runs: list[Run[Part]] = []
        self.arrived_trajectories = 0
        self.arrived_timesteps = 0
        self._handed_out = 0
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
        lane = worker % len(self._lanes)
        horizon = self._horizon(PRUDENCE)
        spare = max(0, horizon - self._handed_out)
        slowness = self._slowness(worker)
        size = self._ticket_size(slowness, spare)
        # Without a spare one there may still be a lost one, without which the prefix has a gap.
        if spare and slowness > 1 and self._is_better_left(worker, size, spare, now):
            indices = range(0)
        else:
            indices = self._lost(lane, size) or self._fresh(lane, size, horizon)
        self._handed_out += len(indices)
        if not indices and not ahead:
            indices = self._copy(worker, now)
        if not indices:
            return None
        self._holdings.hold(worker, indices, now)
        return indices

    def give_back(self, worker: int, indices: range, now: float = 0.0) -> None:
        """Take back a ticket whose worker was lost: it is handed out again, before anything new, if nobody has it."""
        if not self._holdings.lose(worker, indices, now):
            return
        lane = next(n for n, own in enumerate(self._lanes) if indices[0] in own)
        self._handed_out -= len(indices)
        self._returned[lane].append(indices)
        self._returned[lane].sort(key=lambda lost: -lost[0])

    @property
    def has_plenty(self) -> bool:
        """Whether there is more than enough for all, even if trajectories turn out rather long."""
        return self._horizon(-PRUDENCE) - self._handed_out > self._n_workers * self._block

    def _slowness(self, worker: int) -> float:
        """How many times as long as the average `worker` takes; 1 where it does not matter."""
        if not self._may_help:
            return 1.0
        slowness = self.pace.slowness(worker)
        return slowness if slowness > NOTABLY_SLOWER else 1.0

    def _lost(self, lane: int, size: int) -> range:
        if not self._returned[lane]:
            return range(0)
        indices = self._returned[lane].pop()
        if len(indices) > size:
            self._returned[lane].append(indices[size:])
        return indices[:size]

    def _copy(self, worker: int, now: float) -> range:
        # What the consumer of a stream has not taken yet makes nobody wait.
        if not self._may_help or (self._is_endless and self._runs):
            return range(0)
        return self._holdings.copy_for(worker, now) or range(0)

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

    def _fresh(self, lane: int, size: int, horizon: int) -> range:
        own, cursor = self._lanes[lane], self._cursors[lane]
        in_sight = len(range(own.start, min(own.stop, self._first + horizon), own.step))
        in_sight = math.ceil(in_sight / self._block) * self._block
        taken = own[cursor : max(cursor, min(cursor + size, in_sight))]
        self._cursors[lane] += len(taken)
        return taken

    def _ticket_size(self, slowness: float, spare: int) -> int:
        # Guided self-scheduling (Polychronopoulos and Kuck, 1987): a share of what is left, so that the last tickets
        # are small and all workers finish together. A slow worker's share is smaller, as in weighted factoring (Hummel,
        # Schmidt, Uma and Wein, 1996).
        share = math.ceil(spare / (2 * self._n_workers * slowness))
        share = max(share, self.pace.trajectories_in(SHORTEST_TICKET_SECONDS / slowness))
        return max(1, min(self.pace.trajectories_in(TICKET_SECONDS / slowness), share) // self._block) * self._block

    def _horizon(self, prudence: float) -> int:
        """How many trajectories will be needed in all, as far as one can tell.

        Args:
            prudence: By how many standard deviations they may turn out too short; too long where it is negative.
        """
        if self.plan.limit is not None:
            return self.plan.limit
        if self.plan.timesteps is None:
            return self.n_popped + self._window()
        outstanding = self._handed_out - self.arrived_trajectories
        mean = self.pace.timesteps
        if mean is None and self.arrived_trajectories:
            mean = self.arrived_timesteps / self.arrived_trajectories
        if mean is None:
            # Nothing is known: one block for each worker shows how long they are; each has at least one timestep.
            return min(self._n_workers * self._block, self.plan.timesteps)
        missing = self.plan.timesteps - self.arrived_timesteps
        return self._handed_out + max(0, self._needed_for(missing, mean, prudence) - outstanding)

    def _needed_for(self, timesteps: int, mean: float, prudence: float) -> int:
        # The least n with n * mean - prudence * spread * sqrt(n) >= timesteps: a quadratic equation for sqrt(n).
        if timesteps <= 0:
            return 0
        margin = prudence * self.pace.spread
        root = (margin + math.sqrt(margin * margin + 4 * mean * timesteps)) / (2 * mean)
        return math.ceil(root * root - 1e-6)

    def _window(self) -> int:
        # What workers may be ahead of a consumer: enough to keep them busy while it takes one, few enough to bound
        # memory.
        return 4 * self._n_workers * max(self._block, self.pace.trajectories_in(TICKET_SECONDS))

    # ------------------------------------------------------------------ taking in

    def add(self, worker: int, indices: range, lengths: Sequence[int], part: Part, now: float = 0.0) -> bool:
        """Take in the trajectories of one ticket.

        Returns:
            Whether they are new; otherwise a copy of theirs came in before, and the part is not kept.

        Raises:
            ProtocolError: They are in already, or were never handed out.
        """
        if len(lengths) != len(indices):
            raise ProtocolError(f"trajectories {indices} came with {len(lengths)} lengths")
        if not self._holdings.settle(worker, indices, now):
            return False
        self.arrived_trajectories += len(indices)
        self.arrived_timesteps += sum(lengths)
        self._waiting[indices[0]] = _Arrived(part, indices, lengths)
        if self._order == "index":
            while not self.complete and (entry := self._waiting.pop(self._next, None)) is not None:
                self._accept(entry)
        elif not self.complete:
            self._accept(self._waiting.pop(indices[0]))
        return True

    def _accept(self, entry: _Arrived[Part]) -> None:
        """Move as much of `entry` into the result as is in order and wanted; what is left waits on."""
        contiguous = entry.indices.step == 1 or self._order == "arrival"
        stop = len(entry.indices) if contiguous else entry.position + 1
        lengths = tuple(entry.lengths[entry.position : stop])
        if self.plan.timesteps is not None:
            missing = self.plan.timesteps - self.n_timesteps
            lengths = lengths[: 1 + sum(1 for total in accumulate(lengths[:-1]) if total < missing)]
        stop = entry.position + len(lengths)
        self._runs.append(Run(entry.part, entry.indices[entry.position : stop], entry.position, stop, lengths))
        self.n_trajectories += len(lengths)
        self.n_timesteps += sum(lengths)
        entry.position = stop
        if stop < len(entry.indices):
            self._waiting[entry.indices[stop]] = entry

    @property
    def _next(self) -> int:
        """The index that comes next in the result, in index order."""
        return self._first + self.n_trajectories

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
        for entry in self._waiting.values():
            lengths = entry.lengths[entry.position :]
            yield entry.part, len(lengths), sum(lengths)
