"""A trajectory that is far longer than its batch needs is found, once, and by few looks."""

import math

import pytest

from streamsampler.protocol.restarts import LengthWatch


def watch(needed=100, side_by_side=1, now=0.0):
    made = LengthWatch()
    made.begin(needed, side_by_side, now)
    return made


def test_a_trajectory_counts_from_when_it_was_first_seen():
    found = watch()
    assert found.look({0: (3, 5000)}, 1.0) is None  # of this ticket, which may have had many before
    assert found.look({0: (3, 6000)}, 3.0) is None
    assert found.look({0: (3, 6001)}, 7.0) == (0, 3)
    assert found.needed == 100


def test_what_was_added_by_several_trajectories_does_not_count():
    found = watch()
    for number, now in enumerate([1.0, 3.0, 7.0, 15.0, 31.0]):
        assert found.look({0: (number, 10**number)}, now) is None
    assert found.look({0: (9, 10)}, 63.0) is None
    assert found.look({0: (9, 5)}, 127.0) is None  # another ticket, of an index that ran again
    assert found.look({0: (9, 1006)}, 255.0) == (0, 9)


def test_the_timesteps_of_trajectories_side_by_side_are_shared():
    found = watch(side_by_side=4)
    assert found.look({2: (1, 0)}, 1.0) is None
    assert found.look({2: (1, 4000)}, 3.0) is None
    assert found.look({2: (1, 4001)}, 7.0) == (2, 1)


def test_looks_come_after_times_that_double():
    found = watch(now=50.0)
    times = []
    for _ in range(6):
        times.append(found.next_look - 50.0)
        assert found.look({0: (0, 10**6)}, found.next_look - 0.001) is None
        assert found.look({0: (0, 0)}, found.next_look) is None
    assert times == [1.0, 3.0, 7.0, 15.0, 31.0, 63.0]


def test_it_is_reported_once():
    found = watch()
    found.look({0: (0, 0)}, 1.0)
    assert found.look({0: (0, 5000)}, 3.0) == (0, 0)
    assert found.next_look == math.inf
    found.begin(100, 1, 100.0)
    assert found.next_look == math.inf


def test_a_new_call_begins_from_nothing():
    found = watch()
    found.look({0: (0, 0)}, 1.0)
    found.begin(10, 1, 2.0)
    assert found.next_look == 3.0
    assert found.look({0: (0, 10**6)}, 3.0) is None


@pytest.mark.parametrize("needed", [None])
def test_where_timesteps_do_not_count_there_is_nothing_to_look_for(needed):
    assert watch(needed).next_look == math.inf
