"""Say how much a call needs, and which worker may run which index. Values; pure."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self, TypeAlias

from streamsampler.core.errors import UsageError

__all__ = [
    "AtLeast", "Exactly", "ExactlyPerWorker", "Fragments", "GatherPlan", "IndexQueue", "Layout", "Part",
    "PartArgument", "Portion", "Streamed", "Target", "block_at", "checked_part", "endless", "expected_rows", "in_order",
    "part_of", "part_of_facts",
]  # fmt: skip

# ----------------------------------------------------------------------
# Say which trajectories workers run side by side, and hand out tickets of whole blocks of indices. Pure.


@dataclass(frozen=True, slots=True)
class Layout:
    """How a worker runs the trajectories of consecutive indices.

    Attributes:
        rows: How many trajectories a worker runs side by side.
        block: How many consecutive trajectories may influence each other; 1 where each is a function of itself alone.
        lengthens: Whether blocks get longer within a call (see `block_at`), if its workers run such blocks
            (`Worker.runs_longer_blocks`): that is known when they answer.

    Raises:
        UsageError: One of the two numbers is not positive.
    """

    rows: int = 1
    block: int = 1
    lengthens: bool = False

    def __post_init__(self) -> None:
        if self.rows < 1 or self.block < 1:
            raise UsageError(f"rows and blocks are at least 1, got {self.rows} rows and blocks of {self.block}")


_FEWEST_FIRST, _FIRST_TRAJECTORIES = 6, 1536
_MOST_DOUBLED = 4


def block_at(position: int, block: int) -> range:
    """Return the positions of the block that a position of a queue is in, where blocks get longer within the queue.

    The first 6 blocks, or as many as have 1,536 trajectories, have `block` trajectories each. Where that makes n
    blocks, n / 2 have twice as many, n / 2 four times, n / 2 eight times, and all others 16 times. So blocks are as
    long as a batch allows: a block has at most a third of as many as come before it, so that there are several to
    share, and little is run in vain where a batch ends in the middle of its last one; and there are few ends, at which
    environments wait for the longest trajectory. The position alone decides, because a trajectory must not depend on
    the number of workers, and how many a batch needs is known when it is there.

    Args:
        position: How many indices of the queue come before.
        block: How many trajectories the first blocks have.
    """
    size = block << _doublings(position, block)
    start = position // size * size
    return range(start, start + size)


def _doublings(position: int, block: int) -> int:
    return min(_MOST_DOUBLED, (position // _n_first(block)).bit_length())


def _n_first(block: int) -> int:
    """Return how many trajectories the first blocks have together: an even number of blocks."""
    return max(_FEWEST_FIRST, _FIRST_TRAJECTORIES // (2 * block) * 2) * block


def _latest_first(indices: range) -> int:
    return -indices[0]


class IndexQueue:
    """Hand out indices in order, in tickets of whole blocks. Blocks are cut from the start of the queue.

    The blocks of a ticket are all of one size.

    Args:
        own: The indices.
        block: How many indices a block has; only the last one may have fewer.
        lengthens: Whether blocks get longer, if workers run such blocks: `block` is what the first ones have. See
            `block_at`.

    Attributes:
        is_certain: Whether it is known how workers run blocks. Until then no indices are handed out but those of the
            first blocks, which are the same either way.
    """

    def __init__(self, own: range, block: int = 1, *, lengthens: bool = False) -> None:
        self.own = own
        self.block = block
        self.lengthens = lengthens
        self.is_certain = not lengthens
        self._cursor = 0
        self._returned: list[range] = []

    def block_of(self, indices: range) -> int:
        """Return how many indices each block of a ticket has."""
        return len(self.block_at((indices[0] - self.own.start) // self.own.step))

    @property
    def next_block(self) -> int:
        """How many indices the next new block has."""
        return len(self.block_at(self._cursor))

    def block_at(self, position: int) -> range:
        """Return the positions of the block that a position of the queue is in, all of which the queue may not have."""
        if self.lengthens:
            return block_at(position, self.block)
        start = position // self.block * self.block
        return range(start, start + self.block)

    def blocks_of(self, indices: range) -> list[range]:
        """Return the blocks of a ticket."""
        block = self.block_of(indices)
        return [indices[start : start + block] for start in range(0, len(indices), block)]

    def take_new(self, size: int, horizon: int) -> range:
        """Hand out about `size` new indices below `horizon`, in whole blocks."""
        own, cursor = self.own, self._cursor
        in_sight = len(range(own.start, min(own.stop, horizon), own.step)) - cursor
        if in_sight <= 0:
            return range(0)
        block = self.next_block
        if block > self.block and not self.is_certain:
            return range(0)
        stop = cursor + _whole(math.ceil(min(size, in_sight) / block), block)
        if self.lengthens and (doublings := _doublings(cursor, self.block)) < _MOST_DOUBLED:
            stop = min(stop, _n_first(self.block) << doublings)  # where longer ones begin
        taken = own[cursor:stop]
        self._cursor += len(taken)
        return taken

    def has_at(self, position: int, indices: range, *, may_extend: bool) -> bool:
        """Return whether a ticket could be cut at a position of the queue.

        Args:
            position: How many indices come before it.
            indices: The ticket.
            may_extend: Whether the queue may become longer for it.
        """
        extended = may_extend and self.block == 1
        own = self._extended(indices) if extended else self.own
        stop = position + len(indices)
        if own[position:stop] != indices:
            return False
        first, last = self.block_at(position), self.block_at(stop - 1)
        return first.start == position and len(first) == len(last) and stop in (len(own), last.stop)

    def skip(self, indices: range) -> None:
        """Note that the next indices were handed out, which `has_at` has; the queue becomes longer if it must."""
        self.own = self._extended(indices)
        self._cursor += len(indices)

    def _extended(self, indices: range) -> range:
        return range(self.own.start, max(self.own.stop, indices[-1] + 1), self.own.step)

    def first_returned(self) -> range | None:
        """Return the first ticket that was put back; None if there is none."""
        return self._returned[-1] if self._returned else None

    def take_returned(self, size: int) -> range:
        """Hand out about `size` indices that were put back."""
        indices = self._returned.pop()
        block = self.block_of(indices)
        size = _whole(size // block, block)
        if len(indices) > size:
            self._returned.append(indices[size:])
        return indices[:size]

    def put_back(self, indices: range) -> None:
        """Put back a ticket, to be handed out before new indices."""
        insort(self._returned, indices, key=_latest_first)


def _whole(n_blocks: int, block: int) -> int:
    return max(1, n_blocks) * block


# ----------------------------------------------------------------------
# Cut the indices of an evaluation into contiguous ranges, which several runs sample and `streamsampler merge` joins.
# Pure.


PartArgument: TypeAlias = tuple[int, int]
"""The number of a part, from 1 on, and how many parts there are."""

_EXAMPLE = "a part is two integers, its number from 1 on and how many parts there are, such as (2, 7)"
_MOST = 2**62


@dataclass(frozen=True)
class Part:
    """One of several contiguous ranges of trajectory indices, which together are those of one run.

    Attributes:
        number: Which one, from 1 on.
        of: How many there are.
        first_trajectory: Its first index.
        trajectories: How many indices it has, at least 1.
        of_trajectories: How many all parts have together.
    """

    number: int
    of: int
    first_trajectory: int
    trajectories: int
    of_trajectories: int

    def __str__(self) -> str:
        return f"part {self.number} of {self.of}"

    @property
    def stop(self) -> int:
        """The index after its last one."""
        return self.first_trajectory + self.trajectories

    def facts(self) -> dict[str, int]:
        """Return this part as JSON has it."""
        return asdict(self)


def checked_part(part: Any) -> PartArgument:
    """Return what was given for a part as two integers.

    Raises:
        UsageError: It is something else, or there is no part of that number.
    """
    if isinstance(part, str) or not isinstance(part, Sequence) or len(part) != 2 or {*map(type, part)} != {int}:
        raise UsageError(f"{_EXAMPLE}; got {part!r:.60}")
    number, of = part
    if not 1 <= number <= of:
        raise UsageError(f"there is no part {number} of {of}: {_EXAMPLE}")
    return number, of


def part_of(part: Any, n_trajectories: int, block: int = 1) -> Part:
    """Return a part of trajectories 0 to `n_trajectories - 1`; the sizes of two parts differ by one block at most.

    Args:
        part: Its number from 1 on, and how many parts there are.
        n_trajectories: How many trajectories all parts have together.
        block: How many consecutive trajectories are run together, and are not cut.

    Raises:
        UsageError: There is no such part, or nothing is left for some of them.
    """
    number, of = checked_part(part)
    n_blocks = -(-n_trajectories // block)
    if of > n_blocks:
        blocks = f" in blocks of {block}, which are run together," if block > 1 else ""
        raise UsageError(
            f"{n_trajectories} trajectories{blocks} cannot be cut into {of} parts: there are {n_blocks} at most"
        )
    first, stop = ((number - 1) * n_blocks // of * block, min(number * n_blocks // of * block, n_trajectories))
    return Part(number, of, first, stop - first, n_trajectories)


def part_of_facts(facts: Any) -> Part | None:
    """Return the part that a file says it is; None for a file that holds everything.

    Raises:
        ValueError: The file says something that `Part.facts` does not return.
    """
    if facts is None:
        return None
    names = Part.__dataclass_fields__.keys()
    if not isinstance(facts, Mapping) or facts.keys() != names or {*map(type, facts.values())} != {int}:
        raise ValueError(f"the part is {facts!r:.80}")
    part = Part(**facts)
    fits = 1 <= part.number <= part.of and 0 <= part.first_trajectory < part.stop <= part.of_trajectories < _MOST
    if not fits or (part.number == 1) != (part.first_trajectory == 0):
        raise ValueError(f"there is no part {facts!r:.200}")
    return part


def in_order(parts: Mapping[str, Part | None]) -> list[str]:
    """Return the names of parts in the order of their indices.

    Args:
        parts: Each part by its name.

    Raises:
        UsageError: They are not all parts of one run, each once; names those that are missing or doubled.
    """
    if not parts:
        raise UsageError("there is nothing to merge")
    known = {name: part for name, part in parts.items() if part is not None}
    if whole := [name for name in parts if name not in known]:
        raise UsageError(f"{whole[0]} is no part: it holds what a whole run sampled")
    by_number: dict[int, str] = {}
    first, one = next(iter(known.items()))
    for name, part in known.items():
        if (part.of, part.of_trajectories) != (one.of, one.of_trajectories):
            raise UsageError(
                f"{first} is {one} of {one.of_trajectories} trajectories, and {name} is {part} of "
                f"{part.of_trajectories}: parts of one run agree in both numbers"
            )
        if (other := by_number.setdefault(part.number, name)) != name:
            raise UsageError(f"{part} is there twice: {other} and {name}")
    if missing := [number for number in range(1, one.of + 1) if number not in by_number]:
        shown = ", ".join(map(str, missing[:20])) + (", …" if len(missing) > 20 else "")
        part_is = ("part", "is") if len(missing) == 1 else ("parts", "are")
        raise UsageError(f"{part_is[0]} {shown} of {one.of} {part_is[1]} missing")
    names = [by_number[number] for number in sorted(by_number)]
    _check_contiguous(names, known)
    return names


def _check_contiguous(names: Sequence[str], parts: Mapping[str, Part]) -> None:
    """Check that each part begins where the one before it ends: parts may have been cut at other blocks."""
    following = 0
    for name in names:
        part = parts[name]
        if part.first_trajectory != following:
            raise UsageError(
                f"{name} begins with trajectory {part.first_trajectory}, and the parts before it end before "
                f"{following}: were they run with another number of environments side by side?"
            )
        following = part.stop
    if following != part.of_trajectories:
        raise UsageError(f"{name} ends before trajectory {following} of {part.of_trajectories}")


# ----------------------------------------------------------------------


_FOREVER = 2**62


class GatherPlan:
    """How much a call needs, and which worker may run which index.

    Attributes:
        first: The index of the first trajectory.
        limit: How many trajectories the batch has; None if lengths decide.
        timesteps: How many timesteps suffice; None if only trajectories count.
        fixed: Whether no other trajectory may take the place of one that is left out.
        n_of_task: How many consecutive trajectories have one task, if only further ones of that task may take the
            places of those left out (see `make_ups`); None if any may.
        counts_agents: Whether timesteps are those of each of several agents, and not steps of the environment.
    """

    first: int = 0
    limit: int | None = None
    timesteps: int | None = None
    fixed: bool = False
    n_of_task: int | None = None
    counts_agents: bool = False

    def starting_at(self, first: int) -> Self:
        """Return a plan for as much, from another first trajectory on."""
        return replace(self, first=first)  # type: ignore[type-var]

    @property
    def goal(self) -> tuple[int, str]:
        """What progress counts up to, and in which unit."""
        return (self.limit or 0, "trajectories") if self.timesteps is None else (self.timesteps, "timesteps")

    def queue(self, number: int, n_queues: int) -> range:
        """Return the indices that worker `number` runs if each worker has its own agent or environment.

        Unless the plan says otherwise, these are every `n_queues`-th index.
        """
        stop = _FOREVER if self.limit is None else self.first + self.limit
        return range(self.first + (number - self.first) % n_queues, stop, n_queues)


@dataclass(frozen=True)
class AtLeast(GatherPlan):
    """The shortest prefix of trajectories `first`, `first + 1`, … with at least `timesteps` timesteps."""

    timesteps: int = field()
    first: int = 0
    counts_agents: bool = False


@dataclass(frozen=True)
class Exactly(GatherPlan):
    """Trajectories `first` to `first + limit - 1`.

    With `fixed` each has its place, because it has a seed or options of its own: no other one replaces it.
    See `GatherPlan` for `n_of_task`.
    """

    limit: int = field()
    fixed: bool = False
    first: int = 0
    n_of_task: int | None = None


@dataclass(frozen=True)
class ExactlyPerWorker(GatherPlan):
    """`n_traj_per_worker` trajectories of each worker, in worker order.

    Worker w's k-th has index `first + w * n_traj_per_worker + k`. Any worker may run it, unless workers differ.
    """

    n_traj_per_worker: int
    n_workers: int
    first: int = 0

    @property
    def limit(self) -> int:  # type: ignore[override]
        """All workers' trajectories."""
        return self.n_traj_per_worker * self.n_workers

    def queue(self, number: int, n_queues: int) -> range:
        """One block of indices for each worker; all of them for the only queue."""
        if n_queues == 1:
            return range(self.first, self.first + self.limit)
        start = self.first + number * self.n_traj_per_worker
        return range(start, start + self.n_traj_per_worker)


@dataclass(frozen=True)
class Streamed(GatherPlan):
    """Trajectories `first`, `first + 1`, … as a consumer takes them: `limit` of them, or without end.

    See `Exactly` for `fixed`, and `GatherPlan` for `n_of_task`.
    """

    first: int = 0
    limit: int | None = None
    fixed: bool = False
    n_of_task: int | None = None


@dataclass(frozen=True)
class Fragments(GatherPlan):
    """`n_timesteps` timesteps of each of `n_envs` environments, of episodes that go on from call to call.

    Indices are the numbers of groups of `n_rows` environments that a worker runs side by side: group g belongs to
    worker g modulo the number of workers, because its episodes run there. A ticket has one group where workers run
    environments `side_by_side`, and all environments of a worker otherwise.

    Of episodes that have more than `restore_limit` timesteps nothing is kept to restore them from after a loss.
    """

    n_timesteps: int
    n_envs: int
    n_workers: int
    n_rows: int = 1
    side_by_side: bool = False
    fixed: bool = True
    restore_limit: int = 100_000

    @property
    def limit(self) -> int:  # type: ignore[override]
        """How many groups there are."""
        return math.ceil(self.n_envs / self.n_rows)

    @property
    def goal(self) -> tuple[int, str]:
        """All timesteps."""
        return self.n_timesteps * self.n_envs, "timesteps"

    def envs_of(self, worker: int) -> list[int]:
        """Return the numbers of a worker's environments."""
        groups, n_rows = self.queue(worker, self.n_workers), self.n_rows
        return [row for group in groups for row in range(group * n_rows, min((group + 1) * n_rows, self.n_envs))]

    @property
    def layout(self) -> Layout:
        """How many groups a ticket has."""
        share = 1 if self.side_by_side else math.ceil(self.limit / self.n_workers)
        return Layout(share, share)


def endless(queue: range, n_queues: int) -> range:
    """Return a plan's queue without its end.

    Args:
        queue: The queue.
        n_queues: How many queues the plan has.

    Raises:
        UsageError: Another queue begins where this one ends.
    """
    if n_queues > 1 and queue.step == 1:
        raise UsageError(
            'with on_failure="drop" or drop_if, obtain_exact_trajectories cannot replace trajectories of workers that '
            "have agents or environments of their own"
        )
    return range(queue.start, _FOREVER, queue.step)


def expected_rows(plan: GatherPlan, mean: float | None) -> tuple[int, int]:
    """Estimate how many timesteps and trajectories a plan's result will have.

    Args:
        plan: The plan.
        mean: Timesteps of a trajectory; None if unknown.
    """
    mean = mean or 1.0
    if plan.timesteps is None:
        return math.ceil((plan.limit or 0) * mean * 1.1), plan.limit or 0
    return plan.timesteps + math.ceil(mean), math.ceil(plan.timesteps / mean * 1.1)


# --- Portions of a stream


class Portion:
    """How much a portion of a stream still lacks: timesteps, or trajectories, whichever suffices first.

    Args:
        timesteps: Timesteps that suffice; None if only trajectories count.
        trajectories: Trajectories that suffice; None if only timesteps count.
    """

    def __init__(self, timesteps: int | None, trajectories: int | None) -> None:
        self._timesteps = timesteps
        self._trajectories = trajectories

    @property
    def met(self) -> bool:
        """Whether the portion is complete."""
        enough_timesteps = self._timesteps is not None and self._timesteps <= 0
        return enough_timesteps or (self._trajectories is not None and self._trajectories <= 0)

    def fill(self, lengths: Iterable[int]) -> int:
        """Take trajectories with these lengths, from the first on, until they suffice; return how many."""
        taken = 0
        for length in lengths:
            if self.met:
                break
            taken += 1
            if self._timesteps is not None:
                self._timesteps -= length
            if self._trajectories is not None:
                self._trajectories -= 1
        return taken


@dataclass(frozen=True)
class Target:
    """How much all portions together must have.

    Attributes:
        unit: "timesteps" or "trajectories".
        number: How many.
    """

    unit: str
    number: int

    def missing(self, n_trajectories: int, n_timesteps: int) -> int:
        """Return how many are missing if there are so many; at least 0."""
        return max(0, self.number - (n_timesteps if self.unit == "timesteps" else n_trajectories))

    def next_portion(self, size: int, n_trajectories: int, n_timesteps: int) -> Portion:
        """Return what the next portion must have: `size` timesteps, or less for the last one.

        It depends only on the portions so far: they are the same wherever sampling was interrupted.
        """
        missing = self.missing(n_trajectories, n_timesteps)
        return Portion(min(size, missing), None) if self.unit == "timesteps" else Portion(size, missing)
