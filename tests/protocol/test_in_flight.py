"""InFlight: who has what, and what is worth running twice."""

import pytest

from streamsampler.errors import ProtocolError
from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.in_flight import InFlight
from streamsampler.protocol.plans import AtLeast, Exactly, Streamed
from streamsampler.protocol.throughput import TICKET_SECONDS, Throughput
from tests.protocol.simulation import take


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
    in_flight.add_copy(1, range(1), range(1), 0.0)
    assert in_flight.arrive(1, range(1), 1.0) == (True, [], [0])
    assert in_flight.arrive(0, range(1), 4.0) == (False, [], [])
    with pytest.raises(ProtocolError, match="does not hold"):
        in_flight.arrive(0, range(1), 4.0)


def test_what_somebody_else_still_has_is_not_lost():
    in_flight = InFlight(2, throughput_of(4.0, 1.0))
    in_flight.add(0, range(1), 0.0)
    in_flight.add_copy(1, range(1), range(1), 0.0)
    assert in_flight.remove(0, range(1), 0.0) == []
    assert in_flight.remove(1, range(1), 0.0) == [range(1)]


def test_what_has_come_in_is_not_lost():
    in_flight = InFlight(2, throughput_of(4.0, 1.0))
    in_flight.add(0, range(1), 0.0)
    in_flight.add_copy(1, range(1), range(1), 0.0)
    assert in_flight.arrive(1, range(1), 1.0).counts
    assert in_flight.remove(0, range(1), 2.0) == []


def cut():
    """Worker 0 holds a ticket of nine; worker 1 has copied the first three, worker 2 the next two."""
    in_flight = InFlight(3, throughput_of(4.0, 1.0, 1.0))
    in_flight.add(0, range(9), 0.0)
    in_flight.add_copy(1, range(9), range(3), 0.0)
    in_flight.add_copy(2, range(9), range(3, 5), 0.0)
    assert in_flight.uncopied(range(9)) == [range(5, 9)]
    return in_flight


def test_a_ticket_that_arrives_before_copies_of_its_parts_counts_as_a_whole():
    in_flight = cut()
    assert in_flight.arrive(0, range(9), 1.0) == (True, [], [1, 2])
    assert in_flight.arrive(2, range(3, 5), 2.0) == (False, [], [])
    assert in_flight.remove(1, range(3), 2.0) == []


def test_a_ticket_that_arrives_after_the_copy_of_a_part_gives_back_what_nobody_else_holds():
    in_flight = cut()
    assert in_flight.arrive(1, range(3), 1.0) == (True, [], [0])
    assert in_flight.arrive(0, range(9), 2.0) == (False, [range(5, 9)], [])
    assert in_flight.arrive(2, range(3, 5), 2.0) == (True, [], [])


def test_a_lost_ticket_leaves_its_copied_parts_to_the_copies():
    in_flight = cut()
    assert in_flight.arrive(1, range(3), 1.0).counts
    assert in_flight.remove(0, range(9), 2.0) == [range(5, 9)]
    assert in_flight.remove(2, range(3, 5), 2.0) == [range(3, 5)]


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
    gathering = Gathering(Streamed(), n_workers=2, throughput=throughput_of(4.0, 1.0))

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
    assert gathering.result.complete
    assert gathering.add(0, range(1), [10], "second", 4.0) is False
    assert gathering.arrived_trajectories == 1
    assert gathering.result.pending() == (0, 0)
    assert [segment.delivery for segment in gathering.result.segments()] == ["first"]
