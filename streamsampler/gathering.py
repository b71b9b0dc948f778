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

__all__ = ["AtLeast", "Endless", "Exactly", "ExactlyPerWorker", "GatherPlan", "Gathering", "Order", "Pace", "Run"]

Order = Literal["index", "arrival"]
Part = TypeVar("Part")

TICKET_SECONDS = 0.05
"""What a ticket should take: long beside the cost of a report (some 0.5 ms of both sides, with caches that have gone
cold since the last one), short beside a human's patience."""

SHORTEST_TICKET_SECONDS = 0.003
"""Below this the last tickets of a call cost more than what workers lose that end at different times."""


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
    """Trajectories 0, 1, 2, … without end, for a consumer that takes them in order."""

    limit: None = None
    timesteps: None = None

    def lane(self, number: int, n_lanes: int) -> range:
        """Every `n_lanes`-th index."""
        return range(number, _FOREVER, n_lanes)


class Pace:
    """How long trajectories are, in timesteps and in seconds: an average that forgets.

    It decides how much work is handed out at once, never what is returned.
    """

    _MEMORY = 200.0  # trajectories: enough to be steady, few enough to follow a policy that learns

    def __init__(self) -> None:
        self._weight = 0.0
        self._timesteps = 0.0
        self._seconds = 0.0

    def add(self, n_trajectories: int, n_timesteps: int, seconds: float) -> None:
        """Take note of trajectories that one worker ran in a row."""
        if n_trajectories == 0:
            return
        keep = min(1.0, self._MEMORY / (self._weight + n_trajectories))
        self._weight = (self._weight + n_trajectories) * keep
        self._timesteps = (self._timesteps + n_timesteps) * keep
        self._seconds = (self._seconds + seconds) * keep

    @property
    def timesteps(self) -> float | None:
        """Timesteps of a trajectory, at least 1; None before the first one."""
        return max(1.0, self._timesteps / self._weight) if self._weight else None

    @property
    def seconds(self) -> float | None:
        """Seconds of a trajectory; None before the first one."""
        return self._seconds / self._weight if self._weight else None

    def trajectories_in(self, seconds: float) -> int:
        """How many trajectories one worker runs in so many seconds, at least 1; 1 while nothing is known."""
        if not self._weight:
            return 1
        return max(1, int(seconds * self._weight / max(self._seconds, 1e-9)))

    def trajectories_per_ticket(self) -> int:
        """How many trajectories fill `TICKET_SECONDS`."""
        return self.trajectories_in(TICKET_SECONDS)


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
    """

    def __init__(
        self, plan: GatherPlan, *, n_workers: int, order: Order = "index", pace: Pace | None = None,
        own_lanes: bool = False, block: int = 1,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.pace = pace if pace is not None else Pace()
        self._order = order
        self._n_workers = n_workers
        self._block = block
        n_lanes = n_workers if own_lanes else 1
        self._lanes = [plan.lane(number, n_lanes) for number in range(n_lanes)]
        self._cursors = [0] * n_lanes
        self._returned: list[list[range]] = [[] for _ in range(n_lanes)]
        self._waiting: dict[int, _Arrived[Part]] = {}
        self._runs: list[Run[Part]] = []
        self.arrived_trajectories = 0
        self.arrived_timesteps = 0
        self._handed_out = 0
        self.n_trajectories = 0
        self.n_timesteps = 0
        self.n_popped = 0

    # ------------------------------------------------------------------ handing out

    def take(self, worker: int, *, ahead: bool = False) -> range | None:
        """Return the indices that `worker` should run next, or None if there is nothing for it at present.

        Args:
            worker: The worker that asks.
            ahead: Whether it has work in hand and asks for its next ticket. It gets one only while there is more
                than enough for all: near the end a ticket that queues behind another is late, and may be surplus.
        """
        if ahead and self.spare() <= self._n_workers * self._block:
            return None
        lane = worker % len(self._lanes)
        size = self._ticket_size()
        if self._returned[lane]:
            indices = self._returned[lane].pop()
            if len(indices) > size:
                self._returned[lane].append(indices[size:])
                indices = indices[:size]
        else:
            indices = self._fresh(lane, size)
        self._handed_out += len(indices)
        return indices if len(indices) else None

    def give_back(self, indices: range) -> None:
        """Take back a ticket whose worker was lost: it is handed out again, before anything new."""
        lane = next(n for n, own in enumerate(self._lanes) if indices[0] in own)
        self._handed_out -= len(indices)
        self._returned[lane].append(indices)
        self._returned[lane].sort(key=lambda lost: -lost[0])

    def spare(self) -> int:
        """How many trajectories are still expected to be needed beyond those handed out."""
        return max(0, self._horizon() - self._handed_out)

    def _fresh(self, lane: int, size: int) -> range:
        own, cursor = self._lanes[lane], self._cursors[lane]
        in_sight = len(range(own.start, min(own.stop, self._horizon()), own.step))
        in_sight = math.ceil(in_sight / self._block) * self._block
        taken = own[cursor : max(cursor, min(cursor + size, in_sight))]
        self._cursors[lane] += len(taken)
        return taken

    def _ticket_size(self) -> int:
        # Guided self-scheduling (Polychronopoulos and Kuck, 1987): a share of what is left, so that the last tickets
        # are small and all workers finish together.
        share = math.ceil(self.spare() / (2 * self._n_workers))
        share = max(share, self.pace.trajectories_in(SHORTEST_TICKET_SECONDS))
        return max(1, min(self.pace.trajectories_per_ticket(), share) // self._block) * self._block

    def _horizon(self) -> int:
        """How many trajectories will be needed in all, as far as one can tell."""
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
        missing = self.plan.timesteps - self.arrived_timesteps - outstanding * mean
        return self._handed_out + max(0, math.ceil(missing / mean))

    def _window(self) -> int:
        # What workers may be ahead of a consumer: enough to keep them busy while it takes one, few enough to bound
        # memory.
        return 4 * self._n_workers * max(self._block, self.pace.trajectories_per_ticket())

    # ------------------------------------------------------------------ taking in

    def add(self, indices: range, lengths: Sequence[int], part: Part) -> None:
        """Take in the trajectories of one ticket.

        Raises:
            ProtocolError: They are in already, or were never handed out.
        """
        in_already = indices[0] in self._waiting or (self._order == "index" and indices[0] < self.n_trajectories)
        if in_already or len(lengths) != len(indices):
            raise ProtocolError(f"trajectories {indices} came twice, or with {len(lengths)} lengths")
        self.arrived_trajectories += len(indices)
        self.arrived_timesteps += sum(lengths)
        self._waiting[indices[0]] = _Arrived(part, indices, lengths)
        if self._order == "index":
            while not self.complete and (entry := self._waiting.pop(self.n_trajectories, None)) is not None:
                self._accept(entry)
        elif not self.complete:
            self._accept(self._waiting.pop(indices[0]))

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
