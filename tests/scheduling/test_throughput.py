"""Pace: what is known of lengths and speeds."""

import statistics

import pytest

from streamsampler.scheduling.throughput import Pace


def test_pace_follows_a_policy_that_learns():
    pace = Pace()
    assert pace.timesteps is None
    assert pace.seconds is None
    assert pace.trajectories_in(0.05) == 1
    pace.add([20] * 1000, 1.0)
    assert pace.timesteps == pytest.approx(20)
    pace.add([500] * 1000, 25.0)
    assert pace.timesteps is not None
    assert pace.timesteps > 400
    assert pace.seconds == pytest.approx(0.02, rel=0.3)
    before = pace.timesteps
    pace.add([], 0.0)
    assert pace.timesteps == before


def test_lengths_that_never_change_have_exactly_no_spread():
    pace = Pace()
    for n in (1, 3, 7, 50, 1) * 60:
        pace.add([1000] * n, 0.1 * n)
        assert pace.timesteps == 1000
        assert pace.spread == 0


def test_the_spread_is_the_standard_deviation_however_the_lengths_come_in():
    lengths = [(37 * n) % 101 + 1 for n in range(150)]
    pace = Pace()
    for start, stop in [(0, 1), (1, 40), (40, 43), (43, 150)]:
        pace.add(lengths[start:stop], 1.0)
    assert pace.timesteps == pytest.approx(statistics.mean(lengths))
    assert pace.spread == pytest.approx(statistics.pstdev(lengths))


def test_each_worker_has_a_speed_of_its_own():
    pace = Pace()
    pace.add([10, 10], 0.2, worker=0)
    assert pace.seconds_with(1) is None
    pace.add([30], 1.2, worker=1)
    mean = pace.timesteps or 0.0
    assert pace.seconds_with(0) == pytest.approx(0.01 * mean)
    assert pace.seconds_with(1) == pytest.approx(0.04 * mean), "per timestep: its trajectory was longer, too"
    assert pace.slowness(1) == pytest.approx(4 * pace.slowness(0))
    assert pace.slowness(2) == 1, "unknown: like the average"


def test_a_worker_that_slows_down_is_believed_after_some_reports():
    pace = Pace()
    for _ in range(100):
        pace.add([10], 0.1, worker=0)
    for _ in range(20):
        pace.add([10], 0.4, worker=0)
    assert pace.seconds_with(0) == pytest.approx(0.4, rel=0.15)
