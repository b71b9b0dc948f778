"""What is worth running twice: by which worker, and when to look again.

What becomes of tickets and their copies is part of any course of events in `test_gathering` and `test_exploration`.
"""

import math

import pytest

from streamsampler.protocol.copies import SLOW_AT_FIRST, Copies
from streamsampler.protocol.in_flight import InFlight
from streamsampler.protocol.throughput import Throughput

NEVER = 2**62


class World:
    """Workers that take so many seconds for a trajectory of ten timesteps, and hold these tickets since 0."""

    def __init__(self, seconds, tickets, steps=None, is_awaited=None):
        self.throughput = Throughput()
        for worker, each in enumerate(seconds):
            if each is not None:
                self.throughput.measure([10] * 10, 10 * each, worker)
        self.in_flight = InFlight(len(seconds), self.throughput)
        for worker, indices in tickets:
            self.in_flight.track(worker, indices, 0.0)
        self.copies = Copies(len(seconds), self.in_flight, self.throughput, steps and steps.get, is_awaited=is_awaited)

    def take(self, worker, now, block=1, end=NEVER):
        return self.copies.assign(worker, now, lambda _: block, end)


TWO_OF_DIFFERENT_SPEED = [(0, range(1)), (1, range(1, 2))]
# Seconds of each worker, what workers hold, the timesteps that they show, and what an idle worker copies in turn.
CASES = {
    "a copy must end notably earlier": ((4.0, 1.0), [(0, range(1))], None, [(1, 2.6, None), (1, 2.4, range(1))]),
    "workers of the same speed": ((1.4, 1.0), [(0, range(1))], None, [(1, 0.0, None)]),
    "a ticket after another one": ((1.0, 1.0), [(0, range(1)), (0, range(1, 2))], None, [(1, 0.1, range(1, 2))]),
    "what ends last first, and each once": (
        (4.0, 8.0, 1.0, 1.0), TWO_OF_DIFFERENT_SPEED, None, [(2, 0.0, range(1, 2)), (3, 0.0, range(1)), (2, 0.0, None)]
    ),
    "a worker of unknown speed copies nothing": ((4.0, None), [(0, range(1))], None, [(1, 0.0, None)]),
    "of unknown speed, and as long again as it is overdue": (
        (None, 1.0), [(0, range(1))], None, [(1, 0.0, None), (1, 2.4, None), (1, 2.6, range(1))]
    ),
    # It should have ended long ago: ten trajectories of ten steps, a second each.
    "overdue, and shows that it is slow": ((1.0, 1.0), [(0, range(10))], {0: 60}, [(1, 30.0, range(10))]),
    "overdue, and shows that it is fast": ((1.0, 1.0), [(0, range(10))], {0: 70}, [(1, 30.0, None)]),
    "shares by speed: one of 2.5 workers takes 20 / 2.5": (
        (50.0, 1.0, 2.0, 1.0), [(0, range(20))], None,
        [(1, 0.0, range(8)), (2, 0.0, range(8, 12)), (3, 0.0, range(12, 20)), (1, 0.0, None)],
    ),
    "no parts shorter than a report is worth": ((0.01, *[0.0005] * 8), [(0, range(20))], None, [(1, 0.0, range(6))]),
}  # fmt: skip


@pytest.mark.parametrize(("seconds", "tickets", "steps", "takes"), CASES.values(), ids=CASES)
def test_what_an_idle_worker_copies(seconds, tickets, steps, takes):
    world = World(seconds, tickets, steps)
    assert [(worker, now, world.take(worker, now)) for worker, now, _ in takes] == takes


def test_tickets_of_a_worker_that_must_answer_are_not_copied():
    world = World((4.0, 8.0, 1.0, 1.0), TWO_OF_DIFFERENT_SPEED, is_awaited={0}.__contains__)
    assert [world.take(worker, 0.0) for worker in (2, 3)] == [range(1, 2), None]
    assert not world.copies.pay(0.0)


def test_copies_are_whole_blocks():
    world = World((50.0, 1.0, 1.0, 1.0), [(0, range(20))])
    assert [world.take(worker, 0.0, block=8) for worker in (1, 2, 3)] == [range(8), range(8, 16), range(16, 20)]


def test_a_worker_that_helped_helps_again_when_another_one_is_idle():
    world = World((50.0, 1.0, 1.0), [(0, range(20)), (2, range(20, 21))])
    assert world.take(1, 0.0) == range(10)
    assert world.in_flight.arrive(2, range(20, 21), 1.0) == (True, [], [])
    assert world.take(2, 1.0) == range(10, 15), "worker 1 is not done yet, but helps again"


def test_what_is_of_no_use_is_not_copied():
    world = World((4.0, 1.0), [(0, range(3, 5))])
    assert world.take(1, 0.0, end=3) is None, "it would fail again and again while another worker runs it"
    assert world.take(1, 0.0, end=4) == range(3, 5)


def test_idle_workers_look_again_when_a_ticket_must_be_late():
    world = World((1.0, 1.0), [(0, range(2))], {0: 0})
    assert world.copies.ask_again_at == math.inf, "no worker is idle"
    assert world.take(1, 1.0) is None
    look = world.copies.ask_again_at
    assert look == pytest.approx(2.0 + 1.5 * 2.001)
    assert world.take(1, look - 0.1) is None
    assert world.take(1, look + 0.1) == range(2)


def test_looks_at_a_long_trajectory_become_rarer():
    world = World((1.0, 1.0), [(0, range(1))], {0: 10_000})
    now, looks = 1.0, 0
    while now < 1000:
        assert world.take(1, now) is None
        assert world.copies.ask_again_at > now
        now, looks = world.copies.ask_again_at, looks + 1
    assert looks < 40


def test_what_a_late_worker_shows_is_remembered():
    world = World((1.0, 1.0), [(0, range(4))], {0: 10})
    assert world.take(1, 10.0) == range(4)
    world.copies.learn_from_late(0, 14.0)
    assert world.throughput.seconds_with(0) == pytest.approx(14.0)
    world.copies.learn_from_late(1, 10.5)
    assert world.throughput.seconds_with(1) == pytest.approx(1.0), "not overdue"


@pytest.mark.parametrize(("after", "each"), [(5.0, 1.25), (100.0, SLOW_AT_FIRST)])
def test_a_worker_that_has_not_answered_yet_is_not_taken_for_very_slow(after, each):
    """It may import torch for two seconds, while another one runs its ticket in a tenth."""
    world = World((1.0, 1.0), [(0, range(4))], {0: 10})
    world.throughput.forget(0)
    world.copies.learn_from_late(0, after)
    assert world.throughput.seconds_with(0) == pytest.approx(each)


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
            assert world.in_flight.abandon(worker, part, 0.0)[0] == [], "worker 0 still runs it"
    assert set(copied.values()) == {2}
    assert not world.copies.pay(0.0)
    assert world.in_flight.abandon(0, range(20), 100.0)[0], "what is assigned again may be copied again"
    world.in_flight.track(0, range(20), 100.0)
    assert world.take(1, 100.0) is not None
