"""Copies: what is worth running twice, by whom, and when to look again."""

import math

import pytest

from streamsampler.protocol.in_flight import Copies, InFlight
from tests.protocol.test_in_flight import throughput_of

NEVER = 2**62


class World:
    """Workers that take so many seconds for a trajectory, and hold these tickets since 0."""

    def __init__(self, seconds, tickets, steps=None, is_awaited=None):
        self.throughput = throughput_of(*seconds)
        self.in_flight = InFlight(len(seconds), self.throughput)
        for worker, indices in tickets:
            self.in_flight.add(worker, indices, 0.0)
        self.copies = Copies(len(seconds), self.in_flight, self.throughput, steps and steps.get, is_awaited=is_awaited)

    def take(self, worker, now, block=1, end=NEVER):
        return self.copies.take(worker, now, block, end)


@pytest.mark.parametrize(("now", "worth_it"), [(0.0, True), (2.4, True), (2.6, False), (4.0, False)])
def test_a_copy_must_be_expected_to_end_notably_earlier(now, worth_it):
    world = World((4.0, 1.0), [(0, range(1))])
    assert (world.take(1, now) is not None) == worth_it


def test_tickets_of_a_worker_that_must_answer_are_not_copied():
    awaited = {0}
    world = World((4.0, 8.0, 1.0, 1.0), [(0, range(1)), (1, range(1, 2))], is_awaited=awaited.__contains__)
    assert world.take(2, 0.0) == range(1, 2)
    assert world.take(3, 0.0) is None
    assert not world.copies.pay(0.0)


def test_workers_of_about_the_same_speed_copy_nothing():
    world = World((1.4, 1.0), [(0, range(1))])
    assert world.take(1, 0.0) is None
    assert not world.copies.pay(0.0)


def test_a_ticket_behind_another_one_is_copied_whatever_the_speed():
    world = World((1.0, 1.0), [(0, range(1)), (0, range(1, 2))])
    assert world.take(1, 0.1) == range(1, 2)


def test_the_ticket_that_ends_last_is_copied_and_only_once():
    world = World((4.0, 8.0, 1.0, 1.0), [(0, range(1)), (1, range(1, 2))])
    assert world.copies.take(2, 0.0, 1, NEVER) == range(1, 2)
    assert world.take(3, 0.0) == range(1)
    assert world.in_flight.arrive(2, range(1, 2), 1.0).counts
    assert world.take(2, 1.0) is None, "the other copies are under way, or have come in"


def test_a_worker_of_unknown_speed_copies_nothing():
    assert World((4.0, None), [(0, range(1))]).take(1, 0.0) is None


def test_a_worker_of_unknown_speed_is_taken_for_an_average_one_until_it_is_late():
    world = World((None, 1.0), [(0, range(1))])
    assert world.take(1, 0.0) is None
    assert world.take(1, 2.4) is None
    assert world.take(1, 2.6) == range(1), "as long again as it is overdue"


@pytest.mark.parametrize(
    ("steps", "copied"), [(0, True), (10, True), (60, True), (70, False), (95, False), (200, False)]
)
def test_a_ticket_that_is_overdue_is_copied_if_its_worker_shows_that_it_is_slow(steps, copied):
    """It should have ended long ago: ten trajectories of ten steps, a second each."""
    world = World((1.0, 1.0), [(0, range(10))], {0: steps})
    assert (world.take(1, 30.0) is not None) == copied


def test_the_idle_share_a_ticket_by_their_speeds_and_take_whole_blocks():
    world = World((50.0, 1.0, 2.0, 1.0), [(0, range(20))])
    assert world.take(1, 0.0) == range(8), "one of 2.5 workers takes 20 / 2.5"
    assert world.take(2, 0.0) == range(8, 12)
    assert world.take(3, 0.0) == range(12, 20)
    assert world.take(1, 0.0) is None
    world = World((50.0, 1.0, 1.0, 1.0), [(0, range(20))])
    assert [world.take(worker, 0.0, block=8) for worker in (1, 2, 3)] == [range(8), range(8, 16), range(16, 20)]


def test_workers_that_are_about_to_be_idle_are_left_a_share():
    world = World((50.0, 1.0, 1.0), [(0, range(20)), (2, range(20, 21))])
    assert world.take(1, 0.0) == range(10)
    assert world.in_flight.arrive(2, range(20, 21), 1.0).counts
    assert world.take(2, 1.0) == range(10, 15), "worker 1 is not done yet, but helps again"


def test_nothing_is_cut_into_parts_shorter_than_a_report_is_worth():
    world = World((0.01, *[0.0005] * 8), [(0, range(20))])
    assert world.take(1, 0.0) == range(6)


def test_what_is_of_no_use_is_not_copied():
    world = World((4.0, 1.0), [(0, range(3, 5))])
    assert world.take(1, 0.0, end=2) is None
    assert world.take(1, 0.0, end=3) is None, "it would fail again and again while another worker runs it"
    assert world.take(1, 0.0, end=4) == range(3, 5)


def test_idle_workers_look_again_when_a_ticket_must_be_late():
    world = World((1.0, 1.0), [(0, range(2))], {0: 0})
    assert world.copies.next_look() == math.inf, "nobody is idle"
    assert world.take(1, 1.0) is None
    look = world.copies.next_look()
    assert look == pytest.approx(2.0 + 1.5 * 2.001)
    assert world.take(1, look - 0.1) is None
    assert world.take(1, look + 0.1) == range(2)


def test_looks_at_a_long_trajectory_become_rarer():
    world = World((1.0, 1.0), [(0, range(1))], {0: 10_000})
    now, looks = 1.0, 0
    while now < 1000:
        assert world.take(1, now) is None
        assert world.copies.next_look() > now
        now, looks = world.copies.next_look(), looks + 1
    assert looks < 40


def test_what_a_late_worker_shows_is_remembered():
    world = World((1.0, 1.0), [(0, range(4))], {0: 10})
    assert world.take(1, 10.0) == range(4)
    world.copies.note_late(0, 14.0)
    assert world.throughput.seconds_with(0) == pytest.approx(14.0)
    world.copies.note_late(1, 10.5)
    assert world.throughput.seconds_with(1) == pytest.approx(1.0), "not overdue"


@pytest.mark.parametrize("n_workers", [2, 3, 6])
def test_what_fails_again_and_again_is_copied_twice_at_most(n_workers):
    """While the first worker runs it, failures of copies use up no quota: without a bound there were ever more."""
    world = World((50.0, *[1.0] * (n_workers - 1)), [(0, range(20))])
    copied = dict.fromkeys(range(20), 0)
    for _ in range(100):
        running = [(worker, part) for worker in range(1, n_workers) if (part := world.take(worker, 0.0)) is not None]
        for worker, part in running:
            for index in part:
                copied[index] += 1
            assert world.in_flight.remove(worker, part, 0.0) == [], "worker 0 still runs it"
    assert set(copied.values()) == {2}
    assert not world.copies.pay(0.0)
    assert world.in_flight.arrive(0, range(20), 100.0) == (True, [], [])


def test_what_is_assigned_again_may_be_copied_again():
    world = World((4.0, 1.0), [(0, range(1))])
    for _ in range(2):
        assert world.take(1, 0.0) == range(1)
        world.in_flight.remove(1, range(1), 0.0)
    assert world.in_flight.remove(0, range(1), 0.0) == [range(1)]
    world.in_flight.add(0, range(1), 0.0)
    assert world.take(1, 0.0) == range(1)
