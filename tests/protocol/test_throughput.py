"""Throughput: what is known of lengths and speeds."""

import statistics

import pytest

from streamsampler.protocol.throughput import Throughput


def test_throughput_follows_a_policy_that_learns():
    throughput = Throughput()
    assert (throughput.timesteps, throughput.seconds, throughput.trajectories_in(0.05, 1 << 20)) == (None, None, 1)
    throughput.measure([20] * 1000, 1.0)
    assert throughput.timesteps == pytest.approx(20)
    throughput.measure([500] * 1000, 25.0)
    assert throughput.timesteps == pytest.approx(500, rel=0.2)
    assert throughput.seconds == pytest.approx(0.02, rel=0.3)
    before = throughput.timesteps
    throughput.measure([], 0.0)
    assert throughput.timesteps == before


def test_lengths_that_never_change_have_exactly_no_spread():
    throughput = Throughput()
    for n in (1, 3, 7, 50, 1) * 60:
        throughput.measure([1000] * n, 0.1 * n)
        assert (throughput.timesteps, throughput.spread) == (1000, 0)


def test_the_spread_is_the_standard_deviation_however_the_lengths_come_in():
    lengths = [(37 * n) % 101 + 1 for n in range(150)]
    throughput = Throughput()
    for start, stop in [(0, 1), (1, 40), (40, 43), (43, 150)]:
        throughput.measure(lengths[start:stop], 1.0)
    assert throughput.timesteps == pytest.approx(statistics.mean(lengths))
    assert throughput.spread == pytest.approx(statistics.pstdev(lengths))


def test_each_worker_has_a_speed_of_its_own():
    throughput = Throughput()
    throughput.measure([10, 10], 0.2, worker=0)
    assert throughput.seconds_with(1) is None
    throughput.measure([30], 1.2, worker=1)
    mean = throughput.timesteps or 0.0
    assert throughput.seconds_with(0) == pytest.approx(0.01 * mean)
    assert throughput.seconds_with(1) == pytest.approx(0.04 * mean), "per timestep: its trajectory was longer, too"
    assert throughput.slowness(1) == pytest.approx(4 * throughput.slowness(0))
    assert throughput.slowness(2) == 1, "unknown: like the average"


def test_a_worker_that_slows_down_is_believed_after_some_reports():
    throughput = Throughput()
    for n, seconds in [(100, 0.1), (20, 0.4)]:
        for _ in range(n):
            throughput.measure([10], seconds, worker=0)
    assert throughput.seconds_with(0) == pytest.approx(0.4, rel=0.15)


def test_tickets_that_leave_rows_idle_make_a_worker_slower_a_little_at_a_time() -> None:
    throughput = Throughput()

    def seconds() -> float:
        return throughput.seconds_with(0) or 0.0

    throughput.measure([10, 10], 2.0, 0, fills_rows=False)
    assert seconds() == pytest.approx(1.0), "better than nothing"
    throughput.measure([10] * 80, 8.0, 0)
    before = seconds()
    throughput.measure([10] * 2, 1.6, 0, fills_rows=False)
    assert before < seconds() < 1.05 * before
    for _ in range(60):
        throughput.measure([10] * 2, 1.6, 0, fills_rows=False)
    assert seconds() > 4 * before
    throughput.measure([10] * 40, 0.04, 0, fills_rows=False)
    assert seconds() < 2 * before, "who is quick although rows are idle is quick"
