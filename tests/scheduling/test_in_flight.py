"""InFlight: who has what, and what is worth running twice."""

import pytest

from streamsampler.errors import ProtocolError
from streamsampler.scheduling.gathering import Gathering
from streamsampler.scheduling.in_flight import InFlight
from streamsampler.scheduling.plans import AtLeast, Endless, Exactly
from streamsampler.scheduling.throughput import Throughput
from streamsampler.scheduling.ticket_size import TICKET_SECONDS
from tests.scheduling.simulation import take


def throughput_of(*seconds):
    """Workers that take so many seconds for a trajectory of ten timesteps; None is unknown."""
    throughput = Throughput()
    for worker, each in enumerate(seconds):
        if each is not None:
            throughput.add([10] * 10, 10 * each, worker)
    return throughput


def test_the_first_of_two_copies_counts():
    in_flight = InFlight(2, throughput_of(4.0, 1.0))
    in_flight.add(0, range(1), 0.0)
    assert in_flight.ticket_to_copy(1, 0.0) == range(1)
    in_flight.add(1, range(1), 0.0)
    assert in_flight.arrive(1, range(1), 1.0) is True
    assert in_flight.arrive(0, range(1), 4.0) is False
    with pytest.raises(ProtocolError, match="does not hold"):
        in_flight.arrive(0, range(1), 4.0)


def test_what_somebody_else_still_has_is_not_lost():
    in_flight = InFlight(2, throughput_of(4.0, 1.0))
    in_flight.add(0, range(1), 0.0)
    in_flight.add(1, range(1), 0.0)
    assert in_flight.remove(0, range(1), 0.0) is False
    assert in_flight.remove(1, range(1), 0.0) is True


def test_what_has_come_in_is_not_lost():
    in_flight = InFlight(2, throughput_of(4.0, 1.0))
    in_flight.add(0, range(1), 0.0)
    in_flight.add(1, range(1), 0.0)
    assert in_flight.arrive(1, range(1), 1.0) is True
    assert in_flight.remove(0, range(1), 2.0) is False


@pytest.mark.parametrize(("now", "worth_it"), [(0.0, True), (2.4, True), (2.6, False), (100.0, False)])
def test_a_copy_must_be_expected_to_end_notably_earlier(now, worth_it):
    in_flight = InFlight(2, throughput_of(4.0, 1.0))
    in_flight.add(0, range(1), 0.0)
    assert (in_flight.ticket_to_copy(1, now) is not None) == worth_it


def test_workers_of_about_the_same_speed_copy_nothing():
    in_flight = InFlight(2, throughput_of(1.4, 1.0))
    in_flight.add(0, range(1), 0.0)
    assert in_flight.ticket_to_copy(1, 0.0) is None


def test_a_ticket_behind_another_one_is_copied_whatever_the_speed():
    in_flight = InFlight(2, throughput_of(1.0, 1.0))
    in_flight.add(0, range(1), 0.0)
    in_flight.add(0, range(1, 2), 0.0)
    assert in_flight.ticket_to_copy(1, 0.1) == range(1, 2)


def test_the_ticket_that_ends_last_is_copied_and_only_once():
    in_flight = InFlight(4, throughput_of(4.0, 8.0, 1.0, 1.0))
    in_flight.add(0, range(1), 0.0)
    in_flight.add(1, range(1, 2), 0.0)
    assert in_flight.ticket_to_copy(2, 0.0) == range(1, 2)
    in_flight.add(2, range(1, 2), 0.0)
    assert in_flight.ticket_to_copy(3, 0.0) == range(1)
    in_flight.add(3, range(1), 0.0)
    assert in_flight.arrive(2, range(1, 2), 1.0) is True
    assert in_flight.ticket_to_copy(2, 1.0) is None, "the other copies are under way, or have come in"


@pytest.mark.parametrize("speeds", [(4.0, None), (None, 1.0)])
def test_an_unknown_worker_neither_copies_nor_is_copied(speeds):
    in_flight = InFlight(2, throughput_of(*speeds))
    in_flight.add(0, range(1), 0.0)
    assert in_flight.ticket_to_copy(1, 0.0) is None


def test_what_is_behind_begins_when_what_was_before_comes_in():
    in_flight = InFlight(1, throughput_of(1.0))
    in_flight.add(0, range(2), 10.0)
    in_flight.add(0, range(2, 3), 10.0)
    assert in_flight.expected_end(0, 10.5) == pytest.approx(13)
    in_flight.arrive(0, range(2), 11.0)
    assert in_flight.expected_end(0, 11.5) == pytest.approx(12)
    assert in_flight.expected_end(0, 20.0) == 20.0, "overdue"


def test_a_slow_worker_is_spared_where_the_others_end_sooner():
    gathering = Gathering(Exactly(4), n_workers=3, throughput=throughput_of(40.0, 1.0, 1.0))
    assert take(gathering, 1) == range(1)
    assert take(gathering, 2) == range(1, 2)
    assert take(gathering, 0) is None
    assert take(gathering, 0) is None
    gathering.add(1, range(1), [10], None, 1.0)
    assert take(gathering, 1, now=1.0) == range(2, 3)
    assert take(gathering, 0, now=1.0) is None
    gathering = Gathering(Exactly(400), n_workers=3, throughput=throughput_of(40.0, 1.0, 1.0))
    assert take(gathering, 1) is not None
    assert take(gathering, 0) is not None, "there is enough for all"


def test_a_slow_worker_gets_work_where_nobody_else_is_busy():
    gathering = Gathering(Exactly(2), n_workers=2, throughput=throughput_of(40.0, 1.0))
    assert take(gathering, 0) == range(1)


def test_a_slow_workers_tickets_take_no_longer_than_others():
    gathering = Gathering(Exactly(10_000), n_workers=3, throughput=throughput_of(0.004, 0.001, 0.001))
    slow, fast = len(take(gathering, 0)), len(take(gathering, 1))
    assert 0.8 * TICKET_SECONDS < 0.004 * slow <= TICKET_SECONDS
    assert fast > 1.9 * slow


@pytest.mark.parametrize("arguments", [{"own_queues": True}, {"concurrent": False}])
def test_no_copies_where_workers_cannot_help_each_other(arguments):
    helping = Gathering(Exactly(1), n_workers=2, throughput=throughput_of(4.0, 1.0))
    assert [take(helping, worker) for worker in range(2)] == [range(1), range(1)]
    alone = Gathering(Exactly(1), n_workers=2, throughput=throughput_of(4.0, 1.0), **arguments)
    assert [take(alone, worker) for worker in range(2)] == [range(1), None]


def test_what_a_streams_consumer_has_not_taken_makes_nobody_wait():
    gathering = Gathering(Endless(), n_workers=2, throughput=throughput_of(4.0, 1.0))

    def run_all(worker):
        while (indices := take(gathering, worker)) not in (None, slow):
            gathering.add(worker, indices, [10], None)
        return indices

    slow = None
    first = take(gathering, 1)
    gathering.add(1, first, [10], None)
    slow = take(gathering, 0)
    assert run_all(1) is None, "the consumer has something to take"
    assert len(gathering.result.pop_segments()) == 1
    assert run_all(1) == slow, "now it waits for what the slow worker holds"


def test_late_copies_are_not_part_of_the_accounts():
    gathering = Gathering(AtLeast(10), n_workers=2, throughput=throughput_of(4.0, 1.0))
    assert [take(gathering, worker) for worker in range(2)] == [range(1), range(1)]
    assert gathering.add(1, range(1), [10], "first", 1.0) is True
    assert gathering.complete
    assert gathering.add(0, range(1), [10], "second", 4.0) is False
    assert gathering.arrived_trajectories == 1
    assert gathering.result.pending() == (0, 0)
    assert [segment.delivery for segment in gathering.result.segments()] == ["first"]
