"""What a report costs the sampler's process: its own functions, and a look at each of the other workers."""

import sys

import pytest

from benchmarks.contenders.simulated import ParentCost, SimulatedEngine


def calls_for_a_report(n_workers: int, rows: int) -> float:
    """Return how many Python functions are called: the same in each run, other than times."""
    cost = ParentCost(n_workers, 4, rows=rows)
    n_calls = n_reports = 0
    elsewhere = False

    def count(frame, event, _):
        nonlocal n_calls, n_reports, elsewhere
        if event not in ("call", "return"):
            return
        if frame.f_code is SimulatedEngine._answer_next.__code__:
            elsewhere = event == "call"
            n_reports += elsewhere
        elif event == "call" and not elsewhere:
            n_calls += 1

    sys.setprofile(count)
    try:
        cost.measure(8 * n_workers)
    finally:
        sys.setprofile(None)
        cost.close()
    return n_calls / n_reports


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 8])
def test_a_report_calls_two_more_functions_at_most_for_each_other_worker(rows):
    few, many = calls_for_a_report(8, rows), calls_for_a_report(64, rows)
    assert few < 230
    assert many < few + 2 * (64 - 8)
