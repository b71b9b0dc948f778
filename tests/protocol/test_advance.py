"""Tickets that are assigned before the call: together all that it is expected to need, and used where they fit."""

from __future__ import annotations

from typing import Any

import pytest

from streamsampler.protocol.gathering import ADVANCE_BYTES, Assignment, Gathering, GivenTicket
from streamsampler.protocol.plans import AtLeast, Exactly, ExactlyPerWorker, GatherPlan, Layout
from streamsampler.protocol.throughput import Throughput

LENGTH = 10


def throughput(*speeds: float, n_bytes: int = 0) -> Throughput:
    """What is known after a call: trajectories of one length, and how many times as long as others workers take."""
    known = Throughput()
    for worker, slowness in enumerate(speeds):
        known.add([LENGTH] * 20, 20 * slowness, worker, 20 * n_bytes)
    return known


def gathering(plan: GatherPlan, n_workers: int = 2, known: Throughput | None = None, **options: Any) -> Gathering:
    return Gathering(plan, n_workers=n_workers, throughput=known or throughput(*[1.0] * n_workers), **options)


def in_advance(one: Gathering, n_workers: int = 2, n_tickets: int = 2) -> list[GivenTicket]:
    sizes = one.sizes_in_advance(range(n_workers), n_tickets)
    each = [(worker, one.take_in_advance(worker, sizes[worker])) for worker in [*range(n_workers)] * n_tickets]
    return [GivenTicket(worker, assignment.indices, 0.0) for worker, assignment in each if assignment is not None]


def indices(given: list[GivenTicket]) -> list[int]:
    return [index for ticket in given for index in ticket.indices]


@pytest.mark.parametrize("n_workers", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "plan", [Exactly(53), AtLeast(53 * LENGTH), Exactly(53, first=9), AtLeast(53 * LENGTH, first=9), Exactly(1)]
)
def test_all_that_is_needed_is_assigned(plan: GatherPlan, n_workers: int) -> None:
    given = in_advance(gathering(plan, n_workers), n_workers)
    n = plan.limit or 53
    assert indices(given) == list(range(plan.first, plan.first + n))
    assert max(len(ticket.indices) for ticket in given) <= -(-n // (2 * n_workers))


def test_a_slow_worker_gets_less_and_large_observations_are_not_all_in_one_ticket() -> None:
    one = gathering(Exactly(90), known=throughput(1.0, 1.0, 4.0), n_workers=3)
    sizes = one.sizes_in_advance(range(3), 2)
    assert sizes[0] == sizes[1] > 3 * sizes[2]
    own = gathering(Exactly(90), known=throughput(1.0, 1.0, 4.0), n_workers=3, own_queues=True)
    assert set(own.sizes_in_advance(range(3), 2).values()) == {15}, "no other worker may run what is its own"
    large = gathering(Exactly(90), known=throughput(1.0, 1.0, n_bytes=ADVANCE_BYTES // 5))
    assert {len(ticket.indices) for ticket in in_advance(large)} == {5}


@pytest.mark.parametrize(
    ("guess", "plan", "options", "fits"),
    [
        (Exactly(12), Exactly(12), {}, True),
        (Exactly(12), Exactly(5), {}, True),  # what is left over is surplus
        (Exactly(12), AtLeast(70), {}, True),
        (AtLeast(120), ExactlyPerWorker(9, 2), {}, True),
        (Exactly(12), Exactly(12, first=4), {}, False),
        (Exactly(10), Exactly(10), {"layout": Layout(4, 4)}, True),
        (Exactly(10), AtLeast(10), {"layout": Layout(4, 4)}, False),  # whose last block would have four
        (Exactly(12), Exactly(10), {"layout": Layout(4, 4)}, False),
        (Exactly(12), Exactly(20), {"layout": Layout(4, 4)}, True),
        (Exactly(10), Exactly(20), {"layout": Layout(4, 4)}, False),
        (AtLeast(120), AtLeast(30), {"layout": Layout(4, 4)}, True),
        (ExactlyPerWorker(5, 2), ExactlyPerWorker(5, 2), {"own_queues": True}, True),
        (ExactlyPerWorker(5, 2), ExactlyPerWorker(4, 2), {"own_queues": True}, False),
        (ExactlyPerWorker(5, 2), Exactly(10), {"own_queues": True}, False),
        (Exactly(10), AtLeast(120), {"own_queues": True}, True),
        (Exactly(10), Exactly(8), {"own_queues": True}, False),
    ],
)
def test_tickets_are_used_where_the_plan_would_cut_them(
    guess: GatherPlan, plan: GatherPlan, options: dict[str, Any], fits: bool
) -> None:
    given = in_advance(gathering(guess, **options))
    one = gathering(plan, **options)
    assert one.take_over(given) is fits
    handed_out = indices(given) if fits else []
    for ticket in given if fits else []:
        assert one.add(ticket.worker, ticket.indices, [LENGTH] * len(ticket.indices), None)
    while not one.result.complete:
        for worker in range(2):
            if (assignment := one.take(worker)) is not None:
                assert isinstance(assignment, Assignment)
                handed_out += assignment.indices
                one.add(worker, assignment.indices, [LENGTH] * len(assignment.indices), None)
    assert len(handed_out) == len(set(handed_out)), "nothing is run twice"
    kept = [index for segment in one.result.segments() for index in segment.indices]
    assert kept == list(range(plan.first, plan.first + len(kept)))
    assert len(kept) == (plan.limit or -(-(plan.timesteps or 0) // LENGTH))


def test_a_ticket_that_is_lost_is_run_again() -> None:
    guess = gathering(Exactly(12))
    given = in_advance(guess)
    one = gathering(Exactly(5))
    assert one.take_over(given)
    for ticket in given:
        one.put_back(ticket.worker, ticket.indices)
    while not one.result.complete:
        assignment = one.take(0)
        assert assignment is not None
        one.add(0, assignment.indices, [LENGTH] * len(assignment.indices), None)
    assert one.result.n_trajectories == 5
