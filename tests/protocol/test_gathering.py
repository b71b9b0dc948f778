"""Gathering: the same batch whatever the order of arrival, the ticket sizes, and what is lost on the way."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.errors import ProtocolError
from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.plans import AtLeast, Exactly, ExactlyPerWorker, Layout, Streamed
from streamsampler.protocol.result import Result
from streamsampler.protocol.throughput import Throughput
from tests.protocol.simulation import take

LENGTHS = [2, 50, 1, 7, 3, 3, 20, 1, 1, 9, 4, 30]


def length_of(index):
    return LENGTHS[index * 7 % len(LENGTHS)]


def sequential(plan):
    """What one process sampling alone would have returned."""
    indices, total = [], 0
    while total < plan.timesteps if plan.timesteps is not None else len(indices) < plan.limit:
        indices.append(len(indices))
        total += length_of(indices[-1])
    return indices


def indices_of(gathering):
    indices = []
    for delivery, start, stop, own in gathering.result.segments():
        assert list(own) == list(delivery[start:stop]), "the delivery's own trajectories"
        indices += own
    return indices


plans = st.one_of(
    st.builds(AtLeast, st.integers(1, 200)),
    st.builds(Exactly, st.integers(1, 30)),
    st.builds(ExactlyPerWorker, st.integers(1, 5), st.just(3)),
)

layouts = st.sampled_from([Layout(), Layout(2, 2), Layout(7, 7), Layout(2, 6)])


def is_whole_blocks(indices, plan, queue, n_queues, block):
    """Queues are cut into blocks from their start; only the last one may be shorter."""
    own = plan.queue(queue, n_queues)
    first, last = own.index(indices[0]), own.index(indices[-1])
    return first % block == 0 and ((last + 1) % block == 0 or indices[-1] == own[-1])


def some_throughput(data):
    """What may be known of lengths and of each worker's speed."""
    throughput = Throughput()
    for worker in data.draw(st.sets(st.integers(0, 2))):
        length, seconds = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([0.0, 0.001, 0.1, 1.0]))
        throughput.add([length] * 5 + [1] * 5, seconds, worker)
    return throughput


def gather(data, plan, *, order="index", own_queues=False, known=True, layout=Layout(), lanes=False, brought=None):
    """Drive a gathering with random choices: who asks, whose ticket comes in, whose is lost, when."""
    throughput = some_throughput(data) if known else Throughput()
    gathering = Gathering(plan, n_workers=3, order=order, throughput=throughput, own_queues=own_queues, layout=layout)
    n_queues = 3 if own_queues else 1
    # In order of arrival others may take the place of those that take long.
    queues = AtLeast(1) if order == "arrival" and isinstance(plan, Exactly) else plan
    outstanding, in_lanes = [], set()
    losses, now = 5, 0.0
    while not gathering.result.complete:
        workers = data.draw(st.permutations(range(3)))
        if lanes and data.draw(st.booleans()):
            in_lanes.add(workers[0] % n_queues)
            gathering.run_lanes(workers[0])
        for worker in workers:
            ahead = any(owner == worker for owner, _ in outstanding)
            assignment = gathering.take(worker, ahead=ahead, now=now)
            if assignment is not None:
                indices, block = assignment
                assert block == 1 if worker % n_queues in in_lanes else block == layout.block
                assert is_whole_blocks(indices, queues, worker % n_queues, n_queues, block)
                assert (worker, indices) not in outstanding, "no worker gets a copy of its own"
                assert not (own_queues and indices in [ticket for _, ticket in outstanding])
                outstanding.append((worker, indices))
        assert outstanding, "somebody always has something to do"
        tickets = [indices for _, indices in outstanding]
        assert all(tickets.count(indices) <= 2 for indices in tickets)
        worker, indices = outstanding.pop(data.draw(st.integers(0, len(outstanding) - 1)))
        now += data.draw(st.sampled_from([0.0, 0.01, 1.0]))
        if losses and data.draw(st.integers(0, 4)) == 0:
            losses -= 1
            gathering.put_back(worker, indices, now)
        else:
            lengths = [length_of(index) for index in indices]
            if gathering.add(worker, indices, lengths, indices, now) and brought is not None:
                brought.append(len(lengths))
    return gathering


@given(data=st.data(), plan=plans, own_queues=st.booleans(), known=st.booleans(), layout=layouts, lanes=st.booleans())
def test_any_arrival_any_sizes_any_loss_give_the_sequential_batch(data, plan, own_queues, known, layout, lanes):
    gathering = gather(data, plan, own_queues=own_queues, known=known, layout=layout, lanes=lanes)
    expected = sequential(plan)
    assert indices_of(gathering) == expected
    assert gathering.result.n_trajectories == len(expected)
    assert gathering.result.n_timesteps == sum(map(length_of, expected))


@given(data=st.data(), plan=plans, layout=layouts, lanes=st.booleans())
def test_arrival_order_returns_as_much_without_repeating_anything(data, plan, layout, lanes):
    gathering = gather(data, plan, order="arrival", layout=layout, lanes=lanes)
    indices = indices_of(gathering)
    assert len(set(indices)) == len(indices)
    if isinstance(plan, ExactlyPerWorker):
        assert sorted(indices) == list(range(plan.limit))
    elif plan.timesteps is None:
        assert len(indices) == plan.limit
    else:
        total = sum(map(length_of, indices))
        assert total >= plan.timesteps > total - length_of(indices[-1])


@given(data=st.data(), plan=plans, layout=layouts)
def test_what_was_not_needed_is_accounted_for(data, plan, layout):
    brought = []
    gathering = gather(data, plan, layout=layout, brought=brought)
    assert sum(brought) == gathering.result.n_trajectories + gathering.result.pending()[0]


@given(data=st.data())
def test_own_lanes_run_only_their_own_indices(data):
    n_workers = 3
    for plan in (Exactly(20), AtLeast(100)):
        gathering = Gathering(plan, n_workers=n_workers, own_queues=True)
        for worker in data.draw(st.lists(st.integers(0, 2), max_size=20)):
            indices = take(gathering, worker)
            assert indices is None or all(index % n_workers == worker for index in indices)


def test_each_worker_begins_with_one_block_and_the_last_block_is_what_is_left():
    gathering = Gathering(AtLeast(1000), n_workers=2, layout=Layout(8, 8))
    assert [take(gathering, worker) for worker in (0, 1, 0)] == [range(8), range(8, 16), None]
    gathering = Gathering(Exactly(19), n_workers=2, layout=Layout(8, 8))
    taken = [take(gathering, 0) for _ in range(4)]
    assert taken == [range(8), range(8, 16), range(16, 19), None]


def test_few_timesteps_take_one_block():
    gathering = Gathering(AtLeast(5), n_workers=4, layout=Layout(8, 8))
    assert [take(gathering, worker) for worker in range(2)] == [range(8), None]


def test_a_lost_ticket_is_cut_between_blocks_only():
    throughput = Throughput()
    throughput.add([1] * 1000, 0.1)
    gathering = Gathering(Exactly(100), n_workers=1, throughput=throughput, layout=Layout(8, 8))
    first = take(gathering, 0)
    assert len(first) == 48
    while take(gathering, 0) is not None:
        pass
    gathering.put_back(0, first)
    again = []
    while (indices := take(gathering, 0)) is not None:
        assert indices[0] % 8 == 0
        again += indices
    assert again == list(first)


def test_exactly_per_worker_gives_each_lane_its_block():
    gathering = Gathering(ExactlyPerWorker(4, 3), n_workers=3, own_queues=True)
    taken = {worker: [] for worker in range(3)}
    for worker in (2, 0, 1):
        while (indices := take(gathering, worker)) is not None:
            taken[worker] += indices
    assert taken == {0: [0, 1, 2, 3], 1: [4, 5, 6, 7], 2: [8, 9, 10, 11]}


def test_no_more_is_handed_out_than_is_expected_to_be_needed():
    throughput = Throughput()
    throughput.add([10] * 100, 10.0)  # ten timesteps, a tenth of a second each: a ticket is one trajectory
    gathering = Gathering(AtLeast(100), n_workers=4, throughput=throughput)
    taken = []
    while (indices := take(gathering, 0)) is not None:
        taken += indices
    assert taken == list(range(10))


def test_the_first_call_starts_with_one_trajectory_for_each_worker():
    gathering = Gathering(AtLeast(10_000), n_workers=4)
    assert [take(gathering, worker) for worker in range(4)] == [range(n, n + 1) for n in range(4)]
    assert take(gathering, 0) is None


def test_tickets_shrink_towards_the_end():
    throughput = Throughput()
    throughput.add([1] * 1000, 0.1)
    gathering = Gathering(Exactly(1000), n_workers=2, throughput=throughput)
    sizes = []
    while (indices := take(gathering, 0)) is not None:
        sizes.append(len(indices))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 100
    # 3 ms are 30 of them: shorter tickets cost more than they save.
    assert set(sizes[-3:-1]) <= {29, 30}
    assert sizes[-1] <= 30
    assert sum(sizes) == 1000


def test_nothing_is_handed_out_ahead_when_little_is_left():
    gathering = Gathering(Exactly(6), n_workers=4)
    for worker in range(4):
        assert take(gathering, worker) is not None
    assert take(gathering, 0, ahead=True) is None
    assert take(gathering, 0) is not None


def test_lanes_get_tickets_for_all_rows_and_then_equal_shares_at_once():
    """Also ahead: they begin in rows that have nothing left."""
    throughput = Throughput()
    throughput.add([10] * 100, 100.0)  # longer than a ticket should take
    gathering = Gathering(Exactly(53), n_workers=2, throughput=throughput, layout=Layout(8, 8))
    gathering.run_lanes(0)
    taken = {0: [], 1: []}
    for ahead in (False, True, True):
        for worker in (0, 1):
            taken[worker].append(gathering.take(worker, ahead=ahead))
    assert taken[0] == [(range(8), 1), (range(16, 24), 1), (range(32, 40), 1)]
    assert taken[1] == [(range(8, 16), 1), (range(24, 32), 1), (range(40, 51), 1)], "27 in all"
    assert take(gathering, 0, ahead=True) == range(51, 53)


def test_an_idle_worker_that_runs_lanes_is_never_refused_what_was_lost():
    """Whatever was known of lengths when shares were reckoned: others may wait for what nobody runs."""
    throughput = Throughput()
    throughput.add([10] * 10, 1.0)
    gathering = Gathering(AtLeast(100), n_workers=2, throughput=throughput, layout=Layout(8, 8), concurrent=False)
    gathering.run_lanes(0)
    first, second = take(gathering, 0), take(gathering, 1)
    gathering.add(0, first, [9] * len(first), first)
    throughput.add([9] * len(first), 0.1, 0)
    throughput.add([10], 0.1, 1)
    third = take(gathering, 0, now=1e6)
    assert third == range(10, 11), "the second worker should be ready by now"
    throughput.add([40] * 200, 20.0)  # trajectories that came late, of the version before
    gathering.put_back(0, third, 1e6)
    gathering.put_back(1, second, 1e6)
    assert take(gathering, 0, now=1e6) is not None or take(gathering, 1, now=1e6) is not None


def test_an_endless_plan_is_bounded_by_its_consumer():
    gathering = Gathering(Streamed(), n_workers=2)
    taken = []
    while (indices := take(gathering, 0)) is not None:
        taken += indices
    bound = len(taken)
    assert 0 < bound <= 8
    for index in taken:
        gathering.add(0, range(index, index + 1), [1], None)
    assert [index for segment in gathering.result.pop_segments() for index in segment.indices] == taken
    assert gathering.result.pop_segments() == []
    assert take(gathering, 0) is not None


@given(data=st.data(), first=st.integers(0, 20), wanted=st.integers(1, 40), own_queues=st.booleans())
def test_an_endless_plan_begins_where_it_is_told(data, first, wanted, own_queues):
    gathering = Gathering(Streamed(first), n_workers=3, own_queues=own_queues)
    popped, outstanding, losses = [], [], 3
    while len(popped) < wanted:
        for worker in range(3):
            if (indices := take(gathering, worker)) is not None:
                assert not own_queues or all(index % 3 == worker for index in indices)
                outstanding.append((worker, indices))
        worker, indices = outstanding.pop(data.draw(st.integers(0, len(outstanding) - 1)))
        if losses and data.draw(st.integers(0, 4)) == 0:
            losses -= 1
            gathering.put_back(worker, indices)
        else:
            gathering.add(worker, indices, [length_of(index) for index in indices], indices)
        popped += [index for segment in gathering.result.pop_segments() for index in segment.indices]
    assert popped == list(range(first, first + len(popped)))


def test_what_comes_twice_is_refused():
    gathering = Gathering(Exactly(5), n_workers=1)
    indices = take(gathering, 0)
    gathering.add(0, indices, [1] * len(indices), None)
    with pytest.raises(ProtocolError, match="twice"):
        gathering.add(0, indices, [1] * len(indices), None)


@pytest.mark.parametrize("plan", [Exactly(6), AtLeast(50)])
def test_a_report_that_lacks_trajectories_is_refused(plan):
    gathering = Gathering(plan, n_workers=1, layout=Layout(4, 4))
    indices = take(gathering, 0)
    with pytest.raises(ProtocolError, match="came with 3 lengths"):
        gathering.add(0, indices, [10] * 3, None)


@pytest.mark.parametrize("which", [9, None])
def test_a_block_fails_as_a_whole_and_the_others_of_its_ticket_are_run_again(which):
    throughput = Throughput()
    throughput.add([1] * 1000, 0.1)
    gathering = Gathering(Exactly(100), n_workers=1, throughput=throughput, layout=Layout(8, 8))
    ticket = take(gathering, 0)
    gathering.add_failure(0, ticket, which, "failed", final=True)
    held = [failure.indices for failure in gathering.result.held_failures()]
    assert held == ([] if which is None else [range(8, 16)])
    assert gathering.result.due is None
    again = [take(gathering, 0) for _ in ticket[::8]] if which is None else [take(gathering, 0)]
    assert again == ([ticket[n : n + 8] for n in range(0, len(ticket), 8)] if which is None else [range(8)])


def test_in_order_of_arrival_nobody_is_idle_while_the_batch_is_incomplete():
    """One trajectory is expected to suffice, and may be a long one."""
    throughput = Throughput()
    throughput.add([100] * 10, 1.0)
    for plan in (AtLeast(50), Exactly(1)):
        gathering = Gathering(plan, n_workers=4, order="arrival", throughput=throughput)
        assert all(take(gathering, worker) is not None for worker in range(4))
        lost = take(gathering, 1)
        assert lost is not None
        gathering.put_back(1, lost)
        assert take(gathering, 2) == lost, "what was lost comes first"
        gathering.add(2, lost, [length_of(index) for index in lost], lost)
        assert take(gathering, 3) is not None or gathering.result.complete


def test_a_stream_in_order_of_arrival_is_bounded_by_its_consumer():
    gathering = Gathering(Streamed(), n_workers=2, order="arrival")
    taken = sum(take(gathering, 0) is not None for _ in range(100))
    assert 0 < taken <= 8


@pytest.mark.parametrize("plan", [Exactly(10), AtLeast(30)])
def test_in_order_of_arrival_a_slow_worker_with_indices_of_its_own_makes_nobody_wait(plan):
    gathering = Gathering(plan, n_workers=2, order="arrival", own_queues=True)
    slow = take(gathering, 1)
    while not gathering.result.complete:
        indices = take(gathering, 0)
        gathering.add(0, indices, [3] * len(indices), indices)
    found = [index for segment in gathering.result.segments() for index in segment.indices]
    assert found == list(range(0, 20, 2))
    assert slow == range(1, 2) or set(slow).isdisjoint(found)


# ---------------------------------------------------------------------- failures


def sound_prefix(plan, lengths, failing):
    """What one process sampling alone would come to: its trajectories, and the one that fails."""
    indices, total = [], 0
    while total < plan.timesteps if plan.timesteps is not None else len(indices) < plan.limit:
        if len(indices) in failing:
            return indices, len(indices)
        total += lengths(len(indices))
        indices.append(len(indices))
    return indices, None


def end_of_ticket(data, gathering, worker, indices, what, failing, now):
    wrong = next((index for index in indices if index in failing), None)
    if what == "lost":
        gathering.put_back(worker, indices, now)
    elif what == "died":
        gathering.add_failure(worker, indices, data.draw(st.sampled_from(indices)), "lost", final=False, now=now)
    elif wrong is not None:
        known_which = data.draw(st.booleans()) or len(indices) == 1
        gathering.add_failure(worker, indices, wrong if known_which else None, wrong, final=True, now=now)
    else:
        gathering.add(worker, indices, [length_of(index) for index in indices], indices, now)


@given(
    data=st.data(),
    plan=plans,
    own_queues=st.booleans(),
    failing=st.sets(st.integers(0, 40), max_size=5),
    known=st.booleans(),
)
def test_whatever_fails_whenever_the_first_that_is_needed_ends_the_call(data, plan, own_queues, failing, known):
    """Failures for good, losses and lost tickets at random: what is decided about, and when, never depends on them."""
    throughput = some_throughput(data) if known else Throughput()
    gathering = Gathering(plan, n_workers=3, throughput=throughput, own_queues=own_queues)
    outstanding, losses, now, decided = [], 5, 0.0, None
    while not gathering.result.complete:
        if (held := gathering.result.due) is not None:
            assert held.turn == sum(segment.stop - segment.start for segment in gathering.result.segments()), (
                "all before it are in"
            )
            if held.final:
                decided = held.reason
                break
            gathering.retry(held)
        for worker in data.draw(st.permutations(range(3))):
            ahead = any(owner == worker for owner, _ in outstanding)
            if (indices := take(gathering, worker, ahead=ahead, now=now)) is not None:
                outstanding.append((worker, indices))
        assert outstanding, "somebody always has something to do"
        worker, indices = outstanding.pop(data.draw(st.integers(0, len(outstanding) - 1)))
        now += data.draw(st.sampled_from([0.0, 1.0]))
        what = data.draw(st.sampled_from(["lost", "died", "", "", "", ""])) if losses else ""
        losses -= bool(what)
        end_of_ticket(data, gathering, worker, indices, what, failing, now)
    expected, fails = sound_prefix(plan, length_of, failing)
    assert indices_of(gathering) == expected
    assert decided == fails


def test_what_comes_after_a_failure_for_good_is_not_handed_out():
    gathering = Gathering(Exactly(20), n_workers=2)
    first, second = take(gathering, 0), take(gathering, 1)
    gathering.add_failure(1, second, second[0], "failed", final=True)
    while (indices := take(gathering, 1)) is not None:
        assert indices[0] < second[0]
    gathering.add(0, first, [1] * len(first), first)
    assert gathering.result.due.reason == "failed"


@pytest.mark.parametrize("final", [True, False])
def test_a_failure_for_good_does_not_wait_for_a_copy_and_a_loss_is_left_to_it(final):
    throughput = Throughput()
    throughput.add([10] * 10, 40.0, 0)
    throughput.add([10] * 10, 0.1, 1)
    gathering = Gathering(Exactly(1), n_workers=2, throughput=throughput)
    assert take(gathering, 0) == take(gathering, 1) == range(1), "the second is a copy for the faster worker"
    gathering.add_failure(1, range(1), 0, "failed", final=final)
    assert (gathering.result.due is not None) == final
    assert gathering.add(0, range(1), [10], "late")
    assert gathering.result.complete


@pytest.mark.parametrize(("timesteps", "n_trajectories"), [(9, 2), (10, 2), (11, 3), (20, 4)])
def test_of_one_report_the_result_takes_what_it_needs(timesteps, n_trajectories):
    result = Result(AtLeast(timesteps), "index", 0)
    result.add(0, range(6), [5] * 6, "delivery", ())
    assert result.complete
    assert (result.n_trajectories, result.n_timesteps) == (n_trajectories, 5 * n_trajectories)


def test_what_is_held_back_counts_as_under_way():
    throughput = Throughput()
    throughput.add([10] * 100, 10.0)
    gathering = Gathering(AtLeast(100), n_workers=4, throughput=throughput)
    taken = []
    while (indices := take(gathering, 0)) is not None:
        taken.append(indices)
    gathering.add_failure(0, taken[5], taken[5][0], "died", final=False)
    assert take(gathering, 1) is None


def throughput_with(*seconds):
    throughput = Throughput()
    for worker, each in enumerate(seconds):
        throughput.add([10] * 10, 10 * each, worker)
    return throughput


class LateWorker:
    """Drives a gathering whose worker 0 is late, with losses and failures at random.

    Trajectories of `doomed` always fail, for good. `n_cut` says how many tickets were cut.
    """

    def __init__(self, draw, plan, layout, doomed=()):
        throughput = Throughput()
        for worker in range(4):
            throughput.add([7] * 10, 0.05, worker)
        shown = [draw.randrange(20) for _ in range(4)]
        self.gathering = Gathering(plan, n_workers=4, throughput=throughput, layout=layout, steps_of=shown.__getitem__)
        self.draw, self.plan, self.block, self.doomed = draw, plan, layout.block, doomed
        self.outstanding, self.n_cut, self.now, self.setbacks = [], 0, 0.0, 6

    def ended(self):
        """Run to the end; return the failure that it ended with, or None."""
        while not self.gathering.result.complete:
            while (held := self.gathering.result.due) is not None:
                if held.final:
                    return held
                self.gathering.retry(held)
            for worker in range(4):
                self.feed(worker)
            self.answer()
        return None

    def feed(self, worker):
        ahead = any(owner == worker for owner, _ in self.outstanding)
        assignment = self.gathering.take(worker, ahead=ahead, now=self.now)
        if assignment is None:
            return
        indices = assignment.indices
        assert is_whole_blocks(indices, self.plan, 0, 1, self.block)
        held = [ticket for _, ticket in self.outstanding if not set(indices).isdisjoint(ticket)]
        self.n_cut += any(len(ticket) > len(indices) for ticket in held)
        assert all(sum(index in ticket for ticket in held) < 2 for index in indices), "one copy at most"
        self.outstanding.append((worker, indices))

    def answer(self):
        draw, gathering, outstanding = self.draw, self.gathering, self.outstanding
        assert outstanding, "somebody always has something to do"
        self.now += draw.choice([0.0, 0.01, 0.3])
        number = draw.randrange(len(outstanding))
        if outstanding[number][0] == 0 and draw.random() < 0.7:
            number = draw.randrange(len(outstanding))
        worker, indices = outstanding.pop(number)
        doomed = [index for index in indices if index in self.doomed]
        if self.setbacks and draw.random() < 0.2:
            self.setbacks -= 1
            if draw.random() < 0.5:
                gathering.put_back(worker, indices, self.now)
            else:
                failed = draw.choice([None, *indices])
                gathering.add_failure(worker, indices, failed, "reason", final=False, now=self.now)
        elif doomed:
            shown = None if len(indices) > self.block and draw.random() < 0.3 else doomed[0]
            gathering.add_failure(worker, indices, shown, "doomed", final=True, now=self.now)
        else:
            gathering.add(worker, indices, [length_of(index) for index in indices], indices, self.now)


@pytest.mark.parametrize("layout", [Layout(), Layout(3, 3)])
def test_tickets_that_are_cut_lost_and_failed_give_the_sequential_batch(layout):
    n_cut = 0
    for seed in range(400):
        draw = random.Random(seed)
        plan = draw.choice([Exactly(draw.randint(1, 60)), AtLeast(draw.randint(1, 500))])
        late = LateWorker(draw, plan, layout)
        assert late.ended() is None
        n_cut += late.n_cut
        expected = sequential(plan)
        assert indices_of(late.gathering) == expected
        assert late.gathering.result.n_timesteps == sum(map(length_of, expected))
    assert n_cut > 30


def test_what_fails_for_good_in_one_worker_and_not_in_another_does_not_hide_what_follows():
    throughput = throughput_with(0.1, 40.0, 0.1)
    gathering = Gathering(Exactly(3), n_workers=3, throughput=throughput)
    assert take(gathering, 0) == range(1)
    gathering.put_back(0, range(1))
    assert [take(gathering, worker) for worker in (1, 0, 2)] == [range(1), range(1, 2), range(2, 3)]
    assert gathering.add(2, range(2, 3), [10], "third")
    assert take(gathering, 2) == range(1), "a copy"
    gathering.add_failure(1, range(1), 0, "failed", final=True)
    assert gathering.result.end == 0
    assert gathering.add(2, range(1), [10], "first")
    assert gathering.result.end > 3
    assert gathering.add(0, range(1, 2), [10], "second")
    assert gathering.result.complete


@pytest.mark.parametrize("layout", [Layout(), Layout(3, 3)])
def test_what_fails_for_good_ends_the_call_at_its_turn_also_in_tickets_that_are_cut(layout):
    n_cut = n_failed = 0
    for seed in range(400):
        draw = random.Random(seed)
        plan = draw.choice([Exactly(draw.randint(1, 60)), AtLeast(draw.randint(1, 500))])
        doomed = {draw.randrange(60), draw.randrange(60)}
        late = LateWorker(draw, plan, layout, doomed)
        held = late.ended()
        n_cut += late.n_cut
        expected = sequential(plan)
        first = min(doomed, default=0)
        if held is None:
            assert first // layout.block > expected[-1] // layout.block or first > expected[-1]
            assert indices_of(late.gathering) == expected
        else:
            n_failed += 1
            assert first in held.indices
            assert indices_of(late.gathering) == list(range(held.turn))
    assert n_cut > 30
    assert n_failed > 100


def test_a_complete_result_has_no_ticket_for_anybody():
    """Not even a copy of a surplus trajectory that takes long."""
    throughput = Throughput()
    gathering = Gathering(AtLeast(4), n_workers=2, throughput=throughput)
    assert take(gathering, 0) == range(1)
    assert take(gathering, 1) == range(1, 2)
    throughput.add([4], 0.04, 0)
    gathering.add(0, range(1), [4], "first", 1.0)
    assert gathering.result.complete
    assert take(gathering, 0, now=1.0) is None
    gathering.put_back(1, range(1, 2), 1.0)
    assert take(gathering, 0, now=1.0) is None
