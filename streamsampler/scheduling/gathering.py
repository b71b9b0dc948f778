"""Which trajectories a call wants, which to hand out next, and when it has them: pure.

A gather plan is a value: how much is wanted, and which worker may run which index. `Gathering` holds one call's
progress through a plan: what is handed out is decided here, what becomes of what comes in by `result.Result`. It
knows no process, no clock and no array: a part is whatever its caller hands in.

Results never depend on timing. In index order the batch is a prefix of trajectories 0, 1, 2, …; when and in what
portions they arrive, and whether some were lost and run again, changes only how long it takes.

Nor does it depend on timing whether a call fails. A ticket that fails because of one trajectory is taken apart: those
before it and those after it are handed out again, and the one that failed is held back until its turn comes (see
`result`). Then either the call ends with its failure, or it alone is handed out again. What comes after a failure
that ends the call, if it is needed at all, is of no use, and is not handed out any more. Where nobody knows which
trajectory of a ticket failed, each is handed out again by itself. Where another worker holds a copy of the ticket, a
failure for good counts at once, and the copy is not looked at any more; a loss does not count, since the ticket is
being run again already.

Where a worker runs trajectories side by side, what is run together may show in the numbers. So a *block* of indices is
the unit of such work: every queue is cut into blocks from its start, the last one as long as the plan leaves it, and a
ticket is whole blocks. Which trajectories share a block is then fixed by the plan and the queues alone, never by sizes,
timing or losses.

Where timesteps count, the first trajectories of a block may be enough. What became of them does not depend on how far
the others got; so a ticket says how many timesteps suffice, and a worker may end it when those of a finished prefix are
that many. The block that was cut short counts as not handed out, and is run again, whole, if it turns out to be needed.
A block that fails tells how many timesteps its finished prefix had: if no more are missing when its turn comes it is
run again, and ends before it can fail.

In order of arrival any trajectory will do, so no worker is idle while the result is incomplete, however few
trajectories are expected to be missing: those that were begun may turn out to be long. Lanes do not end, and a worker
that is slow contributes less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from streamsampler.errors import ProtocolError
from streamsampler.protocol.messages import Dropped
from streamsampler.scheduling.blocks import Blocks, IndexQueue
from streamsampler.scheduling.early_stop import Cuts
from streamsampler.scheduling.in_flight import Holdings
from streamsampler.scheduling.plans import Exactly, GatherPlan, endless
from streamsampler.scheduling.result import Held, LeftOut, Order, Result, Segment, too_many_dropped
from streamsampler.scheduling.throughput import TICKET_SECONDS, Pace, needed_for

__all__ = ["Assignment", "Gathering"]

_FOREVER = 2**62

NOTABLY_SLOWER = 1.5
"""How many times as long as the average a worker must take for it to be spared near the end."""

PRUDENCE = 0.5
"""How many standard deviations trajectories are taken to fall short of their mean, together, when it is decided whether
another one is begun: one that is begun late makes everybody wait, one that is begun in vain wastes a core. With two
workers, batches of 2,000 and 4,000 timesteps and lengths of 200 to 1,000, equally likely, the simulation in
`tests/test_schedules.py` finds a wall time 1 % shorter than with 0 and 6 and 3 % of work in vain; 2 gains another 0.7 %
at most and wastes 14 and 7 %."""


class Assignment(NamedTuple):
    """What a worker runs next; see `messages.Ticket`.

    Attributes:
        indices: The trajectory indices.
        block: How many of them are run together.
        enough: How many timesteps of the first trajectories suffice; 0 where all are needed.
    """

    indices: range
    block: int = 1
    enough: int = 0


class Gathering:
    """One call's progress through its plan.

    Args:
        plan: What is wanted.
        n_workers: How many workers share the work.
        order: "index", or "arrival" for whatever finishes first.
        pace: Average lengths seen so far; this call's are added to it.
        own_queues: Whether each worker may run only its own indices.
        blocks: Which consecutive indices of a queue are to be run together. Every ticket is whole blocks.
        concurrent: Whether workers run at the same time. Where they take turns none can do another's work earlier.
        dropping: Whether trajectories may be left out, and others are to make up for them.

    Attributes:
        result: What is in the result, and what waits for its turn.
        arrived_trajectories: Trajectories that arrived, without those that were left out.
        arrived_timesteps: Their timesteps.
        arrived_dropped: Trajectories that were left out.
        repeated_trajectories: Trajectories that arrived a second time, because the rest of their block was needed.
        repeated_timesteps: Their timesteps.

    Raises:
        UsageError: What is left out of one worker's indices cannot be made up for.
    """

    def __init__(
        self, plan: GatherPlan, *, n_workers: int, order: Order = "index", pace: Pace | None = None,
        own_queues: bool = False, blocks: Blocks | None = None, concurrent: bool = True, dropping: bool = False,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.pace = pace if pace is not None else Pace()
        order, dropping = ("index", False) if plan.fixed else (order, dropping)
        # Where workers take turns nobody is idle.
        self._never_idle = order == "arrival" and concurrent
        self._n_workers = n_workers
        blocks = Blocks() if blocks is None else blocks
        self._may_help = concurrent and not own_queues
        n_queues = n_workers if own_queues else 1
        own = [plan.queue(number, n_queues) for number in range(n_queues)]
        if plan.limit is not None and (dropping or (order == "arrival" and isinstance(plan, Exactly))):
            own = [endless(queue, n_queues) for queue in own]
        self._queues = [IndexQueue(queue, blocks) for queue in own]
        self._first = min(queue.own.start for queue in self._queues)
        self.result = Result(plan, order, self._first)
        # Who takes turns with others' indices cannot tell how many timesteps of its own suffice.
        self._cuts = Cuts(None if own_queues or blocks == Blocks() else plan.timesteps)
        self.repeated_trajectories = self.repeated_timesteps = 0
        self._retried: set[range] = set()  # blocks that failed, and were run again with what is missing exactly
        self._holdings = Holdings(n_workers, self.pace)
        self._considered: set[int] = set()  # workers that were given something, or left because they are slow
        self.arrived_trajectories = 0
        self.arrived_timesteps = 0
        self.arrived_dropped = 0

    # ------------------------------------------------------------------ handing out

    def take(self, worker: int, *, ahead: bool = False, now: float = 0.0) -> Assignment | None:
        """Return what `worker` should run next, or None if there is nothing for it at present.

        A worker that would be idle otherwise may get a copy of what another one holds (see `in_flight`); one that is so
        slow that the others would be done with everything before it gets nothing.

        Args:
            worker: The worker that asks.
            ahead: Whether it has work in hand and asks for its next ticket. It gets one only while there is more
                than enough for all: near the end a ticket that queues behind another is late, and may be surplus.
            now: The time in seconds, from any one clock.
        """
        if ahead and not self.has_plenty:
            return None
        queue = self._queues[worker % len(self._queues)]
        horizon = self._horizon(PRUDENCE)
        spare = max(0, horizon - self._handed_out)
        slowness = self._slowness(worker)
        size = self._ticket_size(slowness, spare, queue.next_size)
        # Without a spare one there may still be a lost one, without which the prefix has a gap.
        if spare and slowness > 1 and self._is_better_left(worker, size, spare, now):
            indices = self._left(worker)
        else:
            indices = self._lost(queue, size) or self._fresh(queue, size, horizon, spare)
        if not indices and not ahead:
            indices = self._copy(worker, now)
        if not indices:
            return None
        self._holdings.hold(worker, indices, now)
        self._considered.add(worker)
        return Assignment(indices, self._queue_of(indices).size_of(indices), self._cuts.enough(indices))

    def give_back(self, worker: int, indices: range, now: float = 0.0) -> None:
        """Take back a ticket whose worker was lost: it is handed out again, before anything new, if nobody has it."""
        if self._holdings.lose(worker, indices, now):
            self._cuts.forget(indices)
            self._queue_of(indices).give_back(indices)

    def _queue_of(self, indices: range) -> IndexQueue:
        return next(queue for queue in self._queues if indices[0] in queue.own)

    @property
    def _under_way(self) -> int:
        """How many trajectories are expected of tickets under way, and of what failed and waits for its turn."""
        held = sum(len(held.indices) - self._cuts.there(held.indices[0])[0] for held in self.result.held())
        return self._cuts.n_expected + held

    @property
    def _handed_out(self) -> int:
        return self.arrived_trajectories + self.arrived_dropped + self._under_way

    @property
    def has_plenty(self) -> bool:
        """Whether there is more than enough for all, even if trajectories turn out rather long."""
        return self._horizon(-PRUDENCE) - self._handed_out > self._n_workers * self._queues[0].next_size

    def _slowness(self, worker: int) -> float:
        """How many times as long as the average `worker` takes; 1 where it does not matter."""
        if not self._may_help:
            return 1.0
        slowness = self.pace.slowness(worker)
        return slowness if slowness > NOTABLY_SLOWER else 1.0

    def _lost(self, queue: IndexQueue, size: int) -> range:
        first = queue.first_lost()
        # A copy of what was cut short may be under way still, and the same ticket twice could not be told apart.
        if first is None or first[0] > self.result.end or self._holdings.holds(first):
            return range(0)
        indices = queue.lost(size)
        enough = self._cuts.enough_alone(indices, self.n_timesteps)
        self._cuts.hand(indices, enough, len(indices))
        return indices

    def _fresh(self, queue: IndexQueue, size: int, horizon: int, spare: int) -> range:
        if self._never_idle:
            most = spare or (0 if self._is_endless else math.ceil(horizon / (2 * self._n_workers)))
            indices = queue.fresh(min(size, most), _FOREVER) if most else range(0)
            if indices:
                enough = self._cuts.enough_alone(indices, self.n_timesteps)
                self._cuts.hand(indices, enough, len(indices))
            return indices
        if too_many_dropped(self.arrived_dropped, self.arrived_trajectories):
            return range(0)  # the call is about to end, unless there is better news of those before
        if not self._cuts.allowed:
            indices = queue.fresh(size, min(self._first + horizon, self.result.end))
            if indices:
                self._cuts.hand(indices, 0, len(indices))
            return indices
        # What comes behind a ticket that is to be cut short is of no use without the rest of that one.
        if not spare or self._cuts.open is not None or queue.first_lost() is not None or self.result.end < _FOREVER:
            return range(0)
        there = self._cuts.there(queue.position)[0]
        indices = queue.fresh(size, queue.position + there + spare)
        if self._holdings.holds(indices):  # as in `_lost`
            queue.give_back_rest(indices, 0)
            return range(0)
        enough = self._cuts.enough_after(indices, self.arrived_timesteps, self._under_way, self.pace)
        self._cuts.hand(indices, enough, spare)
        return indices

    def _copy(self, worker: int, now: float) -> range:
        # What the consumer of a stream has not taken yet makes nobody wait.
        if not self._may_help or (self._is_endless and self.result.has_segments):
            return range(0)
        indices = self._holdings.copy_for(worker, now)
        if indices is None or indices[0] > self.result.end:
            return range(0)
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
        if self._is_endless or self._never_idle or each is None:
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
            return self.result.n_popped + self._window()
        mean = self.pace.timesteps
        if mean is None and self.arrived_trajectories:
            mean = self.arrived_timesteps / self.arrived_trajectories
        if mean is None:
            # Nothing is known: one block for each worker shows how long they are; each has at least one timestep,
            # but for those that were left out, which showed nothing.
            return self.arrived_dropped + min(self._n_workers * self._queues[0].next_size, self.plan.timesteps)
        missing = self.plan.timesteps - self.arrived_timesteps
        return self._handed_out + max(0, needed_for(missing, mean, prudence * self.pace.spread) - self._under_way)

    def _window(self) -> int:
        # What workers may be ahead of a consumer: enough to keep them busy while it takes one, few enough to bound
        # memory.
        return 4 * self._n_workers * max(self._queues[0].next_size, self.pace.trajectories_in(TICKET_SECONDS))

    # ------------------------------------------------------------------ taking in

    def add(
        self, worker: int, indices: range, lengths: Sequence[int], delivery: Any, now: float = 0.0,
        dropped: Sequence[Dropped] = (),
    ) -> bool:  # fmt: skip
        """Take in the trajectories of one ticket, or its first ones, if they have the timesteps that suffice.

        Args:
            worker: The worker that ran them.
            indices: The ticket's indices.
            lengths: The timesteps of the trajectories that the report brought.
            delivery: What it brought: `Segment.delivery`.
            now: The time in seconds.
            dropped: Those of the ticket that were left out, in order.

        Returns:
            Whether there are new ones; otherwise a copy of theirs came in before, and they are not kept.

        Raises:
            ProtocolError: They are in already, or were never handed out, or are not as many as asked for.
        """
        n, n_timesteps = len(lengths) + len(dropped), sum(lengths)
        if n != len(indices) and (dropped or not (self._cuts.allowed and 0 < n < len(indices))):
            raise ProtocolError(f"trajectories {indices} came with {n} lengths")
        if not self._holdings.settle(worker, indices, now):
            return False
        there, timesteps_there = self._cuts.made_up(indices[0])
        if n <= there:
            raise ProtocolError(f"trajectories {indices} came with {n} lengths, and {there} of them were there before")
        self._cuts.forget(indices)
        self.arrived_dropped += len(dropped)
        self.arrived_trajectories += len(lengths) - there
        self.arrived_timesteps += n_timesteps - timesteps_there
        self.repeated_trajectories += there
        self.repeated_timesteps += timesteps_there
        if n < len(indices):
            begun = self._queues[0].give_back_rest(indices, n)
            self._cuts.cut_short(indices[n - begun], begun, sum(lengths[n - begun :]))
        self._add_to_result(worker, indices[:n], lengths, delivery, there, dropped)
        return True

    def _add_to_result(
        self, worker: int, indices: range, lengths: Sequence[int], delivery: Any, there: int,
        dropped: Sequence[Dropped],
    ) -> None:  # fmt: skip
        """Hand to the result what stands between the trajectories that were left out, and those."""
        start = position = there
        for left_out in dropped:
            if n := left_out.position - position:
                self.result.add(delivery, start, indices[position : position + n], lengths[start : start + n])
                start += n
            self.result.leave_out(worker, indices[left_out.position], left_out)
            position = left_out.position + 1
        if position < len(indices):
            self.result.add(delivery, start, indices[position:], lengths[start:])

    def fail(
        self, worker: int, indices: range, trajectory: int | None, reason: Any, *, final: bool, done: int = 0,
        now: float = 0.0,
    ) -> None:  # fmt: skip
        """Take in the failure of a ticket: what failed is held back until its turn comes, see `due`.

        Args:
            worker: The worker that failed.
            indices: The ticket's indices.
            trajectory: Which of them failed; None if nobody knows.
            reason: What happened, for whoever decides about it.
            final: Whether it is not to be run again.
            done: Timesteps of the finished prefix of its block; see `messages.Failure`.
            now: The time in seconds.
        """
        # A loss is none where somebody else runs the same; a failure is one, and whoever runs the same does in vain.
        counts = self._holdings.settle if final else self._holdings.lose
        if not counts(worker, indices, now):
            return
        self._cuts.forget(indices)
        queue = self._queue_of(indices)
        blocks = queue.blocks_of(indices)
        if trajectory is None and len(blocks) > 1:
            for block in blocks:
                queue.give_back(block)
            return
        failed = blocks[0] if trajectory is None else next(block for block in blocks if trajectory in block)
        position = indices.index(failed[0])
        for others in (indices[:position], indices[position + len(failed) :]):
            if others:
                queue.give_back(others)
        there = self._cuts.there(failed[0])[0]
        self.result.hold(Held(failed, failed[there], reason, final, done))

    def due(self) -> Held | None:
        """Return what failed and is to be decided about now: the call ends, or `retry`. None if there is none."""
        held = self.result.due
        if held is None or self._never_idle or not held.final or not self._cuts.allowed:
            return held
        if held.indices in self._retried or self._cuts.enough_alone(held.indices, self.n_timesteps) > held.done:
            return held
        self._retried.add(held.indices)
        self.retry(held)
        return None

    def retry(self, held: Held) -> None:
        """Let what failed be run again."""
        self._queue_of(held.indices).give_back(held.indices)
        self.result.settle(held)

    # ------------------------------------------------------------------ the result

    @property
    def n_trajectories(self) -> int:
        """Trajectories in the result, without those that were left out."""
        return self.result.n_trajectories

    @property
    def n_timesteps(self) -> int:
        """Timesteps in the result."""
        return self.result.n_timesteps

    @property
    def complete(self) -> bool:
        """Whether the result is there."""
        return self.result.complete

    def segments(self, first: int = 0) -> list[Segment]:
        """The result so far, in order, from its segment number `first` on: a finished prefix, in the end all of it."""
        return self.result.segments(first)

    def pop_segments(self) -> list[Segment]:
        """Hand over the result so far and forget it: for consumers of an endless plan."""
        return self.result.pop_segments()

    def pop_left_out(self, n_before: int | None = None) -> list[LeftOut]:
        """Hand over, and forget, what was left out; see `Result.pop_left_out`."""
        return self.result.pop_left_out(n_before)

    def surplus(self) -> tuple[int, int]:
        """Trajectories and timesteps that have arrived and are not part of the result."""
        n_trajectories, n_timesteps = self.result.pending()
        return n_trajectories + self.repeated_trajectories, n_timesteps + self.repeated_timesteps
