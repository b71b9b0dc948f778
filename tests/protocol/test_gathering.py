"""Gathering: the same batch whatever the order of arrival, the ticket sizes, and what is lost on the way."""

from __future__ import annotations

import random
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.errors import ProtocolError
from streamsampler.protocol.gathering import ADVANCE_BYTES, AdvanceTicket, Gathering
from streamsampler.protocol.index_queue import block_at
from streamsampler.protocol.messages import Dropped
from streamsampler.protocol.plans import AtLeast, Exactly, ExactlyPerWorker, GatherPlan, Layout, Streamed
from streamsampler.protocol.result import Result
from streamsampler.protocol.throughput import Throughput
from streamsampler.protocol.tickets import TICKET_SECONDS
from tests.protocol.simulation import asked, take, taken_by

LONGER = Layout(2, 2, lengthens=True)
LENGTHS = [2, 50, 1, 7, 3, 3, 20, 1, 1, 9, 4, 30]
N_WORKERS = 3


def length_of(index: int) -> int:
    return LENGTHS[index * 7 % len(LENGTHS)]


def known(*seconds: float | None, length: int = 10, n_bytes: int = 0) -> Throughput:
    """Return what is known of workers that take so many seconds for a trajectory; None is unknown."""
    throughput = Throughput()
    for worker, each in enumerate(seconds):
        if each is not None:
            throughput.measure([length] * 10, 10 * each, worker, 10 * n_bytes)
    return throughput


def indices_of(gathering: Gathering) -> list[int]:
    return [index for span in gathering.result.spans() for index in span.indices]


def sequential(plan: GatherPlan) -> list[int]:
    """Return what one process sampling alone would have returned."""
    indices: list[int] = []
    total = 0
    while total < plan.timesteps if plan.timesteps is not None else len(indices) < (plan.limit or 0):
        indices.append(len(indices))
        total += length_of(indices[-1])
    return indices


def some_plan(draw: random.Random) -> GatherPlan:
    each = ExactlyPerWorker(draw.randint(1, 5), N_WORKERS)
    return draw.choice([AtLeast(draw.randint(1, 500)), Exactly(draw.randint(1, 60))] * 2 + [each])


class Course:
    """Random choices: which worker asks, whose ticket comes in, is lost or fails, when, and what was known before.

    Args:
        doomed: Trajectories that always fail, for good.
        order: The order of the result.

    Attributes:
        n_cut: How many tickets were cut, by copies of parts of them.
    """

    def __init__(self, draw: random.Random, plan: GatherPlan, layout: Layout, doomed: Any = (), order: Any = "index"):
        self.draw, self.plan, self.layout, self.doomed = draw, plan, layout, doomed
        own_queues = draw.random() < 0.1 and order == "index" and not (doomed and layout.block > 1)
        self.n_queues = N_WORKERS if own_queues else 1
        alike: list[float | None] = [0.005] * 3  # mostly, so that tickets are cut often
        speeds: list[list[float | None]] = [
            *[alike] * 4,
            [None] * 3,
            [draw.choice([None, 0.0, 0.001, 0.1, 1.0]) for _ in range(3)],
        ]
        shown = [draw.randrange(20) for _ in range(N_WORKERS)]
        self.gathering = Gathering(
            plan, n_workers=N_WORKERS, throughput=known(*draw.choice(speeds), length=7), layout=layout, order=order,
            own_queues=own_queues, steps_of=draw.choice([None, *[shown.__getitem__] * 3]),
        )  # fmt: skip
        # In order of arrival others may take the place of those that take long.
        self.in_any_order = order == "arrival"
        self.queues = AtLeast(1) if self.in_any_order and isinstance(plan, Exactly) else plan
        self.outstanding: list[tuple[int, range]] = []
        self.in_lanes: set[int] = set()
        self.runs_longer = layout.lengthens and draw.random() < 0.8
        self.is_known: set[int] = set()  # by queue, how its workers run blocks
        self.n_cut = self.n_brought = 0
        self.reports: list[range] = []
        self.now, self.setbacks = 0.0, 6

    def ended(self) -> Any:
        """Run to the end; return the failure that it ended with, or None."""
        while not self.gathering.result.complete:
            while (held := self.gathering.result.due) is not None:
                assert self.in_any_order or held.turn == len(indices_of(self.gathering)), "all before it are in"
                if held.final:
                    return held
                self.gathering.retry(held)
            for worker in self.draw.sample(range(N_WORKERS), N_WORKERS):
                if not (self.doomed or self.layout.lengthens) and self.draw.random() < 0.1:
                    self.gathering.run_lanes(worker)
                    self.in_lanes.add(worker % self.n_queues)
                self.feed(worker)
            self.answer()
        return None

    def feed(self, worker: int) -> None:
        ahead = any(owner == worker for owner, _ in self.outstanding)
        assignment = asked(self.gathering, worker, ahead=ahead, now=self.now)
        if assignment is None:
            return
        indices, block = assignment
        own = self.queues.queue(worker % self.n_queues, self.n_queues)
        first, last = self.block_at(own.index(indices[0])), self.block_at(own.index(indices[-1]))
        assert block == (1 if worker % self.n_queues in self.in_lanes else len(first) == len(last) and len(first))
        assert block == self.layout.block or block == 1 or worker % self.n_queues in self.is_known
        assert own.index(indices[0]) % block == 0, "queues are cut into blocks from their start"
        assert (own.index(indices[-1]) + 1) % block == 0 or indices[-1] == own[-1], "only the last one may be shorter"
        held = [ticket for _, ticket in self.outstanding if not set(indices).isdisjoint(ticket)]
        assert all(sum(index in ticket for ticket in held) < 2 for index in indices), "one copy at most"
        assert not (held and self.n_queues > 1)
        self.n_cut += any(len(ticket) > len(indices) for ticket in held)
        self.outstanding.append((worker, indices))

    def block_at(self, position: int) -> range:
        if self.layout.lengthens and self.runs_longer:
            return block_at(position, self.layout.block)
        start = position // self.layout.block * self.layout.block
        return range(start, start + self.layout.block)

    def answer(self) -> None:
        draw, gathering, outstanding = self.draw, self.gathering, self.outstanding
        assert outstanding, "some worker always has something to do"
        self.now += draw.choice([0.0, 0.01, 0.3])
        number = draw.randrange(len(outstanding))
        if outstanding[number][0] == 0 and draw.random() < 0.7:  # this worker is late
            number = draw.randrange(len(outstanding))
        worker, indices = outstanding.pop(number)
        if self.layout.lengthens:
            gathering.run_blocks(worker, longer=self.runs_longer)
            self.is_known.add(worker % self.n_queues)
        doomed = [index for index in indices if index in self.doomed]
        if self.setbacks and draw.random() < 0.2:
            self.setbacks -= 1
            if draw.random() < 0.5:
                gathering.put_back(worker, indices, self.now)
            else:
                failed = draw.choice([None, *indices])
                gathering.add_failure(worker, indices, failed, "reason", final=False, now=self.now)
        elif doomed:
            shown = None if len(indices) > len(self.block_at(indices[0])) and draw.random() < 0.3 else doomed[0]
            gathering.add_failure(worker, indices, shown, "doomed", final=True, now=self.now)
        else:
            self.reports.append(indices)
            lengths = [length_of(index) for index in indices]
            if gathering.receive(worker, indices, lengths, len(self.reports) - 1, self.now):
                self.n_brought += len(indices)
            gathering.measure_late(self.now)


@pytest.mark.parametrize("layout", [Layout(), Layout(3, 3), Layout(2, 6), LONGER])
def test_any_arrival_any_sizes_any_loss_give_the_sequential_batch(layout: Layout) -> None:
    n_cut = 0
    for seed in range(300):
        draw = random.Random(seed)
        plan = some_plan(draw)
        course = Course(draw, plan, layout)
        assert course.ended() is None
        n_cut += course.n_cut
        expected, result = sequential(plan), course.gathering.result
        assert indices_of(course.gathering) == expected
        for number, start, stop, own in result.spans():
            assert list(own) == list(course.reports[number][start:stop]), "the report's own trajectories"
        assert (result.n_trajectories, result.n_timesteps) == (len(expected), sum(map(length_of, expected)))
        assert course.n_brought == result.n_trajectories + result.pending()[0]
    assert n_cut > (20 if layout.lengthens else 40)


@pytest.mark.parametrize("layout", [Layout(), Layout(3, 3), LONGER])
def test_what_fails_for_good_ends_the_call_at_its_turn(layout: Layout) -> None:
    """Also in tickets that are cut; and what is decided about, and when, depends on no loss and no timing."""
    n_cut = n_failed = 0
    for seed in range(400):
        draw = random.Random(seed)
        plan = some_plan(draw)
        doomed = {draw.randrange(60), draw.randrange(60)}
        course = Course(draw, plan, layout, doomed)
        held = course.ended()
        n_cut += course.n_cut
        expected, first = sequential(plan), min(doomed)
        if held is None:
            assert first > expected[-1] or first not in course.block_at(expected[-1])
            assert indices_of(course.gathering) == expected
        else:
            n_failed += 1
            assert first in held.indices
            assert indices_of(course.gathering) == list(range(held.turn))
    assert n_cut > 20
    assert n_failed > 100


@given(draw=st.integers(0, 10**6).map(random.Random))
def test_arrival_order_returns_as_much_without_repeating_anything(draw: random.Random) -> None:
    plan = some_plan(draw)
    course = Course(draw, plan, draw.choice([Layout(), Layout(7, 7)]), order="arrival")
    assert course.ended() is None
    indices = indices_of(course.gathering)
    assert len(set(indices)) == len(indices)
    if isinstance(plan, ExactlyPerWorker):
        assert sorted(indices) == list(range(plan.limit))
    elif plan.timesteps is None:
        assert len(indices) == plan.limit
    else:
        total = sum(map(length_of, indices))
        assert total >= plan.timesteps > total - length_of(indices[-1])


def made_up(left_out: set[int], first: int, n_of_task: int, n_tasks: int) -> list[int]:
    """Return the first trajectories of each task that are not left out."""
    found: list[list[int]] = [[] for _ in range(n_tasks)]
    index = first
    while any(len(one) < n_of_task for one in found):
        of_task = found[(index - first) // n_of_task % n_tasks]
        if len(of_task) < n_of_task and index not in left_out:
            of_task.append(index)
        index += 1
    return sorted(chain(*found))


@given(
    left_out=st.sets(st.integers(0, 60)),
    first=st.integers(0, 5),
    tasks=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    options=st.fixed_dictionaries({"n_workers": st.integers(1, 3), "own_queues": st.booleans()}),
    stream=st.booleans(),
    draw=st.integers(0, 10**6).map(random.Random),
)
def test_any_course_of_events_gives_as_many_of_each_task(
    left_out: set[int], first: int, tasks: tuple[int, int], options: Any, stream: bool, draw: random.Random
) -> None:
    """In calls, and in streams, which begin where they are told."""
    n_of_task, n_tasks = tasks
    n = n_of_task * n_tasks
    plan = Streamed(first, n, n_of_task=n_of_task) if stream else Exactly(n, first=first, n_of_task=n_of_task)
    gathering = Gathering(plan, dropping=True, **options)
    held: dict[int, range] = {}
    found: list[int] = []
    while not gathering.result.complete:
        for worker in range(options["n_workers"]):
            if worker not in held and (indices := take(gathering, worker)):
                held[worker] = indices
        worker = draw.choice(sorted(held))
        indices = held.pop(worker)
        if draw.random() < 0.1:
            gathering.put_back(worker, indices)
        else:
            dropped = [Dropped(at, "", "") for at, index in enumerate(indices) if index in left_out]
            lengths = [2 for index in indices if index not in left_out]
            gathering.receive(worker, indices, lengths, worker, dropped=dropped)
        if stream:
            found += [index for span in gathering.result.pop_spans() for index in span.indices]
    assert found + indices_of(gathering) == made_up(left_out, first, n_of_task, n_tasks)


@pytest.mark.parametrize("longer", [True, False])
@pytest.mark.usefixtures("few_first_blocks")
def test_blocks_get_longer_once_it_is_known_that_workers_run_such(longer: bool) -> None:
    layout = Layout(4, 4, lengthens=True)
    gathering = Gathering(Exactly(200), n_workers=2, layout=layout, throughput=known(1.0, 1.0), concurrent=False)
    tickets = taken_by(gathering, 0)
    assert tickets == [range(n, n + 4) for n in range(0, 24, 4)], "the first ones are the same either way"
    assert (take(gathering, 1), gathering.refuses_all) == (None, True)
    gathering.run_blocks(0, longer=longer)
    for indices in tickets:
        gathering.receive(0, indices, [10] * 4, 0)
    if not longer:
        assert taken_by(gathering, 1) == [range(n, n + 4) for n in range(24, 200, 4)]
        return
    starts = [24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 200]
    assert taken_by(gathering, 1) == [range(*each) for each in pairwise(starts)]
    assert gathering.block_of(1, range(192, 200)) == 64


def test_each_worker_begins_with_one_block_and_the_last_block_is_what_is_left() -> None:
    blocks: dict[str, Any] = {"n_workers": 2, "layout": Layout(8, 8)}
    gathering = Gathering(AtLeast(1000), **blocks)
    assert [take(gathering, worker) for worker in (0, 1, 0)] == [range(8), range(8, 16), None]
    assert taken_by(Gathering(Exactly(19), **blocks), 0) == [range(8), range(8, 16), range(16, 19)]
    gathering = Gathering(AtLeast(5), **blocks)
    assert [take(gathering, worker) for worker in (0, 1)] == [range(8), None], "few timesteps take one block"


def test_no_more_is_handed_out_than_is_expected_to_be_needed() -> None:
    gathering = Gathering(AtLeast(100), n_workers=4, throughput=known(0.1))  # a ticket is one trajectory
    taken = taken_by(gathering, 0)
    assert taken == [range(n, n + 1) for n in range(10)]
    gathering.add_failure(0, taken[5], taken[5][0], "died", final=False)
    assert take(gathering, 1) is None, "what is held back counts as under way"
    gathering = Gathering(Exactly(6), n_workers=4)
    assert all(take(gathering, worker) is not None for worker in range(4))
    assert take(gathering, 0, ahead=True) is None, "nothing ahead when little is left"
    assert take(gathering, 0) is not None


def test_tickets_shrink_towards_the_end() -> None:
    gathering = Gathering(Exactly(1000), n_workers=2, throughput=known(0.0001, length=1))
    sizes = [len(indices) for indices in taken_by(gathering, 0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 100
    # 3 ms are 30 of them: shorter tickets cost more than they save.
    assert set(sizes[-3:-1]) <= {29, 30}
    assert sizes[-1] <= 30
    assert sum(sizes) == 1000


def test_a_slow_workers_tickets_take_no_longer_than_others() -> None:
    gathering = Gathering(Exactly(10_000), n_workers=3, throughput=known(0.004, 0.001, 0.001))
    slow, fast = len(take(gathering, 0)), len(take(gathering, 1))
    assert 0.8 * TICKET_SECONDS < 0.004 * slow <= TICKET_SECONDS
    assert fast > 1.9 * slow


def test_lanes_get_tickets_for_all_rows_and_then_equal_shares_at_once() -> None:
    """Also ahead: they begin in rows that have nothing left."""
    gathering = Gathering(Exactly(53), n_workers=2, throughput=known(1.0), layout=Layout(8, 8))
    gathering.run_lanes(0)
    taken: list[list[Any]] = [[], []]
    for ahead in (False, True, True):
        for worker in (0, 1):
            taken[worker].append(gathering.assign(worker, ahead=ahead))
    assert taken[0] == [(range(8), 1), (range(16, 24), 1), (range(32, 40), 1)]
    assert taken[1] == [(range(8, 16), 1), (range(24, 32), 1), (range(40, 51), 1)], "27 in all"
    assert take(gathering, 0, ahead=True) == range(51, 53)


@pytest.mark.parametrize(("length", "expected"), [(10, 8), (None, 9)])
def test_lanes_of_one_length_get_whole_rows_at_the_end(length, expected) -> None:
    """A ninth trajectory in eight rows would take as long as eight more."""
    throughput = known(1.0, 1.0)
    if length is None:
        throughput.measure([1, 19] * 50, 100.0)
    gathering = Gathering(Exactly(32), n_workers=2, throughput=throughput, layout=Layout(8, 8))
    gathering.run_lanes(0)
    assert (len(take(gathering, 0, now=0.0)), len(take(gathering, 1, now=0.5))) == (8, 8)
    assert len(take(gathering, 0, ahead=True, now=0.5)) == expected
    assert len(take(gathering, 1, ahead=True, now=0.5)) == 16 - expected


def test_an_idle_worker_that_runs_lanes_is_never_refused_what_was_lost() -> None:
    """Whatever was known of lengths when shares were reckoned: others may wait for what no worker runs."""
    throughput = known(0.1)
    gathering = Gathering(AtLeast(100), n_workers=2, throughput=throughput, layout=Layout(8, 8), concurrent=False)
    gathering.run_lanes(0)
    first, second = take(gathering, 0), take(gathering, 1)
    gathering.receive(0, first, [9] * len(first), 0)
    throughput.measure([9] * len(first), 0.1, 0)
    throughput.measure([10], 0.1, 1)
    third = take(gathering, 0, now=1e6)
    assert third == range(10, 11), "the second worker should be ready by now"
    throughput.measure([40] * 200, 20.0)  # trajectories that came late, of the version before
    gathering.put_back(0, third, 1e6)
    gathering.put_back(1, second, 1e6)
    assert take(gathering, 0, now=1e6) is not None or take(gathering, 1, now=1e6) is not None


@pytest.mark.parametrize("order", ["index", "arrival"])
def test_an_endless_plan_is_bounded_by_its_consumer(order: Any) -> None:
    gathering = Gathering(Streamed(), n_workers=2, order=order)
    taken = list(chain(*taken_by(gathering, 0)))
    assert 0 < len(taken) <= 8
    for index in taken:
        gathering.receive(0, range(index, index + 1), [1], 0)
    assert [index for span in gathering.result.pop_spans() for index in span.indices] == taken
    assert gathering.result.pop_spans() == []
    assert take(gathering, 0) is not None


def test_what_a_streams_consumer_has_not_taken_makes_no_worker_wait() -> None:
    gathering = Gathering(Streamed(), n_workers=2, throughput=known(4.0, 1.0))
    gathering.receive(1, take(gathering, 1), [10], 0)
    slow = take(gathering, 0)

    def run_all() -> Any:
        while (indices := take(gathering, 1)) not in (None, slow):
            gathering.receive(1, indices, [10], 0)
        return indices

    assert run_all() is None, "the consumer has something to take"
    assert len(gathering.result.pop_spans()) == 1
    assert run_all() == slow, "now it waits for what the slow worker holds"


@pytest.mark.parametrize("plan", [Exactly(10), AtLeast(30)])
def test_in_order_of_arrival_a_slow_worker_with_indices_of_its_own_makes_no_worker_wait(plan: GatherPlan) -> None:
    gathering = Gathering(plan, n_workers=2, order="arrival", own_queues=True)
    slow = take(gathering, 1)
    while not gathering.result.complete:
        indices = take(gathering, 0)
        gathering.receive(0, indices, [3] * len(indices), 0)
    assert indices_of(gathering) == list(range(0, 20, 2))
    assert set(slow).isdisjoint(indices_of(gathering))


@pytest.mark.parametrize("plan", [AtLeast(5), Exactly(1)])
def test_in_order_of_arrival_no_worker_is_idle_while_the_batch_is_incomplete(plan: GatherPlan) -> None:
    """One trajectory is expected to suffice, and may be a long one."""
    gathering = Gathering(plan, n_workers=4, order="arrival", throughput=known(0.1))
    assert all(take(gathering, worker) is not None for worker in range(4))
    lost = take(gathering, 1)
    gathering.put_back(1, lost)
    assert take(gathering, 2) == lost, "what was lost comes first"
    assert take(gathering, 3) is not None


def test_what_comes_after_a_failure_for_good_is_not_handed_out() -> None:
    gathering = Gathering(Exactly(20), n_workers=2)
    first, second = take(gathering, 0), take(gathering, 1)
    gathering.add_failure(1, second, second[0], "failed", final=True)
    assert all(indices[0] < second[0] for indices in taken_by(gathering, 1))
    gathering.receive(0, first, [1] * len(first), 0)
    assert gathering.result.due is not None
    assert gathering.result.due.reason == "failed"


@pytest.mark.parametrize("final", [True, False])
def test_a_failure_for_good_does_not_wait_for_a_copy_and_a_loss_is_left_to_it(final: bool) -> None:
    gathering = Gathering(Exactly(1), n_workers=2, throughput=known(4.0, 0.01))
    assert take(gathering, 0) == take(gathering, 1) == range(1), "the second is a copy for the faster worker"
    gathering.add_failure(1, range(1), 0, "failed", final=final)
    assert (gathering.result.due is not None) == final
    assert gathering.receive(0, range(1), [10], 0)
    assert gathering.result.complete


def test_what_fails_for_good_in_one_worker_and_not_in_another_does_not_hide_what_follows() -> None:
    gathering = Gathering(Exactly(3), n_workers=3, throughput=known(0.1, 40.0, 0.1))
    assert take(gathering, 0) == range(1)
    gathering.put_back(0, range(1))
    assert [take(gathering, worker) for worker in (1, 0, 2)] == [range(1), range(1, 2), range(2, 3)]
    assert gathering.receive(2, range(2, 3), [10], 1)
    assert take(gathering, 2) == range(1), "a copy"
    gathering.add_failure(1, range(1), 0, "failed", final=True)
    assert gathering.result.end == 0
    assert gathering.receive(2, range(1), [10], 2)
    assert gathering.result.end > 3
    assert gathering.receive(0, range(1, 2), [10], 3)
    assert gathering.result.complete


def test_answers_that_lack_trajectories_or_come_twice_are_refused() -> None:
    gathering = Gathering(Exactly(6), n_workers=1, layout=Layout(4, 4))
    indices = take(gathering, 0)
    with pytest.raises(ProtocolError, match="came with 3 lengths"):
        gathering.receive(0, indices, [10] * 3, 0)
    gathering.receive(0, indices, [10] * 4, 0)
    with pytest.raises(ProtocolError, match="does not hold trajectories"):
        gathering.receive(0, indices, [10] * 4, 0)


@pytest.mark.parametrize("arguments", [{"own_queues": True}, {"concurrent": False}])
def test_no_copies_where_workers_cannot_help_each_other(arguments: Any) -> None:
    alone = Gathering(Exactly(1), n_workers=2, throughput=known(4.0, 1.0), **arguments)
    assert [take(alone, worker) for worker in range(2)] == [range(1), None]


def test_a_complete_result_has_no_ticket_for_any_worker() -> None:
    """Not even a copy of a surplus trajectory that takes long."""
    throughput = Throughput()
    gathering = Gathering(AtLeast(4), n_workers=2, throughput=throughput)
    assert [take(gathering, worker) for worker in (0, 1)] == [range(1), range(1, 2)]
    throughput.measure([4], 0.04, 0)
    gathering.receive(0, range(1), [4], 0, 1.0)
    assert take(gathering, 0, now=1.0) is None
    gathering.put_back(1, range(1, 2), 1.0)
    assert take(gathering, 0, now=1.0) is None


def test_forgotten_spans_keep_the_numbers_of_the_others() -> None:
    result = Result(AtLeast(100), "index", 0)
    for index in range(4):
        result.receive(0, range(index, index + 1), (1,), index, ())
    for _ in range(2):  # again, as after an interrupt
        result.forget_spans(0, 2)
    assert [span.report for span in result.spans()] == [2, 3]
    assert [span.report for span in result.spans(3)] == [3]
    assert result.n_trajectories == 4


def advanced(plan: GatherPlan, n_workers: int = 2, throughput: Throughput | None = None, **options: Any) -> Gathering:
    throughput = throughput or known(*[1.0] * n_workers)
    gathering = Gathering(plan, n_workers=n_workers, throughput=throughput, **options)
    gathering.run_blocks(0, longer=True)
    return gathering


def in_advance(gathering: Gathering, n_workers: int = 2) -> list[AdvanceTicket]:
    sizes = gathering.sizes_in_advance(range(n_workers), 2)
    each = [(worker, gathering.assign_in_advance(worker, sizes[worker])) for worker in [*range(n_workers)] * 2]
    return [AdvanceTicket(worker, assignment.indices, 0.0) for worker, assignment in each if assignment is not None]


@pytest.mark.parametrize("n_workers", [1, 2, 7])
@pytest.mark.parametrize("plan", [Exactly(53), AtLeast(530), Exactly(53, first=9), AtLeast(530, first=9), Exactly(1)])
def test_all_that_is_needed_is_assigned_in_advance(plan: GatherPlan, n_workers: int) -> None:
    given = in_advance(advanced(plan, n_workers), n_workers)
    n = plan.limit or 53
    assert list(chain(*(ticket.indices for ticket in given))) == list(range(plan.first, plan.first + n))
    assert max(len(ticket.indices) for ticket in given) <= -(-n // (2 * n_workers))


def test_a_slow_worker_gets_less_and_large_observations_are_not_all_in_one_ticket() -> None:
    sizes = advanced(Exactly(90), 3, known(1.0, 1.0, 4.0)).sizes_in_advance(range(3), 2)
    assert sizes[0] == sizes[1] > 3 * sizes[2]
    own = advanced(Exactly(90), 3, known(1.0, 1.0, 4.0), own_queues=True)
    assert set(own.sizes_in_advance(range(3), 2).values()) == {15}, "no other worker may run what is its own"
    large = advanced(Exactly(90), throughput=known(1.0, 1.0, n_bytes=ADVANCE_BYTES // 5))
    assert {len(ticket.indices) for ticket in in_advance(large)} == {5}


BLOCKS, OWN = {"layout": Layout(4, 4)}, {"own_queues": True}
LONGER_BLOCKS = {"layout": LONGER}


@pytest.mark.parametrize(
    ("guess", "plan", "options", "fits"),
    [
        (Exactly(12), Exactly(12), {}, True),
        (Exactly(12), Exactly(5), {}, True),  # what is left over is surplus
        (Exactly(12), AtLeast(70), {}, True),
        (AtLeast(120), ExactlyPerWorker(9, 2), {}, True),
        (Exactly(12), Exactly(12, first=4), {}, False),
        (Exactly(10), Exactly(10), BLOCKS, True),
        (Exactly(10), AtLeast(10), BLOCKS, False),  # whose last block would have four
        (Exactly(12), Exactly(10), BLOCKS, False),
        (Exactly(12), Exactly(20), BLOCKS, True),
        (Exactly(10), Exactly(20), BLOCKS, False),
        (Exactly(36), Exactly(36), LONGER_BLOCKS, True),
        (Exactly(36), Exactly(50), LONGER_BLOCKS, False),  # whose block of 8 would have been cut
        (Exactly(40), Exactly(50), LONGER_BLOCKS, True),
        (Exactly(40), Exactly(38), LONGER_BLOCKS, False),
        (ExactlyPerWorker(5, 2), ExactlyPerWorker(5, 2), OWN, True),
        (ExactlyPerWorker(5, 2), ExactlyPerWorker(4, 2), OWN, False),
        (ExactlyPerWorker(5, 2), Exactly(10), OWN, False),
        (Exactly(10), AtLeast(120), OWN, True),
        (Exactly(10), Exactly(8), OWN, False),
    ],
)
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.usefixtures("few_first_blocks")
def test_tickets_are_used_where_the_plan_would_cut_them(
    guess: GatherPlan, plan: GatherPlan, options: Any, fits: bool, lost: bool
) -> None:
    """Those that are lost are run again."""
    given = in_advance(advanced(guess, **options))
    gathering = advanced(plan, **options)
    assert gathering.adopt(given) is fits
    handed_out: list[int] = []

    def add(worker: int, indices: range) -> None:
        handed_out.extend(indices)
        gathering.receive(worker, indices, [10] * len(indices), 0)

    for ticket in given if fits else []:
        gathering.put_back(ticket.worker, ticket.indices) if lost else add(ticket.worker, ticket.indices)
    while not gathering.result.complete:
        for worker in range(2):
            if (indices := take(gathering, worker)) is not None:
                add(worker, indices)
    assert len(handed_out) == len(set(handed_out)), "nothing is run twice"
    kept = indices_of(gathering)
    assert kept == list(range(plan.first, plan.first + len(kept)))
    assert len(kept) == (plan.limit or -(-(plan.timesteps or 0) // 10))
