"""Losses against quotas and rows that stand still, without processes and clocks."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.errors import UsageError
from streamsampler.protocol.messages import Phase
from streamsampler.protocol.restarts import Incident, Losses, Policy, Stillness, Watch, cause_of_death


def death(seconds=0.0, worker=0, **more):
    return Incident(worker, "was killed by SIGKILL", Phase.STEP, 7, 3, seconds, **more)


# ---------------------------------------------------------------------- policy


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_restarts": -1},
        {"max_restarts": 1.5},
        {"max_restarts": True},
        {"max_lifetime_restarts": "many"},
        {"restart_window": 0},
        {"restart_window": math.inf},
        {"step_timeout": -1.0},
        {"step_timeout": math.nan},
        {"construction_timeout": "1"},
        {"max_worker_memory": 0},
        {"on_failure": "ignore"},
        {"restart_on": (ValueError, "OSError")},
        {"restart_on": [ValueError]},
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_by_name(wrong):
    (name, value), *_ = wrong.items()
    with pytest.raises(UsageError, match=name) as caught:
        Policy(**wrong)
    assert repr(value) in str(caught.value) or "got" in str(caught.value)


def test_exceptions_are_known_by_the_names_of_their_classes():
    class Odd(OSError):
        pass

    kinds = tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in Odd.__mro__)
    assert Policy(restart_on=(OSError,)).restarts_on(kinds)
    assert Policy(restart_on=(ValueError, Odd)).restarts_on(kinds)
    assert not Policy(restart_on=(ValueError,)).restarts_on(kinds)
    assert not Policy().restarts_on(kinds)


# ---------------------------------------------------------------------- losses


def test_a_rate():
    losses = Losses(Policy(max_restarts=2, restart_window=10.0, max_lifetime_restarts=None))
    assert [losses.add(death(t)) for t in (0.0, 1.0, 11.0, 12.0, 21.5)] == [None] * 5
    verdict = losses.add(death(21.6))
    assert str(verdict) == "that is 3 losses within 10 s, and max_restarts is 2"


@pytest.mark.parametrize(("n_workers", "most", "most_ever"), [(1, 10, 100), (8, 10, 100), (9, 12, 113), (64, 80, 800)])
def test_the_quotas_by_default_grow_with_the_number_of_workers(n_workers, most, most_ever):
    losses = Losses(Policy(), n_workers)
    assert [losses.add(death()) for _ in range(most)] == [None] * most
    assert str(losses.add(death())) == f"that is {most + 1} losses within 60 s, and max_restarts is {most}"
    assert [losses.add(death(100.0 * n)) for n in range(most_ever)] == [None] * most_ever
    verdict = losses.add(death(100.0 * most_ever))
    assert str(verdict) == f"that is {most_ever + 1} losses in all, and max_lifetime_restarts is {most_ever}"


def test_a_loss_that_counts_late_counts_with_those_before_it():
    """It waited until the trajectories before it were in."""
    losses = Losses(Policy(max_restarts=2, restart_window=10.0))
    assert [losses.add(death(t)) for t in (20.0, 5.0)] == [None, None]
    assert str(losses.add(death(29.0))) == "that is 3 losses within 10 s, and max_restarts is 2"


def test_a_lifetime():
    losses = Losses(Policy(max_restarts=None, max_lifetime_restarts=3))
    assert [losses.add(death(1e6 * t)) for t in range(3)] == [None] * 3
    assert str(losses.add(death(1e9))) == "that is 4 losses in all, and max_lifetime_restarts is 3"


def test_without_a_window_the_rate_is_over_the_whole_life():
    losses = Losses(Policy(max_restarts=1, restart_window=None))
    assert losses.add(death(0.0)) is None
    assert str(losses.add(death(1e9))) == "that is 2 losses, and max_restarts is 1"


def test_no_quota_at_all():
    losses = Losses(Policy(max_restarts=None, max_lifetime_restarts=None))
    assert all(losses.add(death(0.0)) is None for _ in range(1000))


def test_an_error_spends_the_quota_and_the_history():
    losses = Losses(Policy(max_restarts=1))
    assert losses.add(death(0.0)) is None
    assert losses.add(death(1.0, worker=2)) is not None
    assert [(incident.seconds, incident.worker) for incident in losses.history()] == [(0.0, 0), (1.0, 2)]
    assert losses.history() == ()
    assert losses.add(death(2.0)) is None


@given(
    times=st.lists(st.floats(0, 100), max_size=40).map(sorted),
    max_restarts=st.integers(0, 5),
    window=st.floats(0.5, 50),
)
def test_the_rate_is_what_counting_says(times, max_restarts, window):
    losses = Losses(Policy(max_restarts=max_restarts, restart_window=window, max_lifetime_restarts=None))
    counted = []
    for now in times:
        counted = [then for then in counted if then > now - window] + [now]
        over = len(counted) > max_restarts
        assert (losses.add(death(now)) is not None) == over
        if over:
            counted = []


def test_an_incident_in_words():
    assert str(death()) == (
        "worker 0 was killed by SIGKILL while stepping the environment in trajectory 7 of agent version 3"
    )
    early = Incident(1, cause_of_death(3), Phase.WAITING, None, None, 0.0)
    assert str(early) == "worker 1 ended with exit code 3 while waiting for work"


@pytest.mark.parametrize(
    ("exitcode", "words"),
    [
        (None, "unknown exit code"),
        (0, "exit code 0"),
        (-9, "SIGKILL .*memory"),
        (-7, "SIGBUS .*full"),
        (-11, "SIGSEGV .*native code"),
        (-200, "signal 200"),
    ],
)
def test_causes_of_death(exitcode, words):

    assert re.search(words, cause_of_death(exitcode))


# ---------------------------------------------------------------------- hangs


class Waits:
    """A sampler that looks at one worker's row, with time that passes as it is told to."""

    def __init__(self, step_timeout=8.0, construction_timeout=80.0):
        self.watch = Watch({False: step_timeout, True: construction_timeout})
        self.stillness = Stillness()
        self.suspected = 0

    def wait(self, row, elapsed=None, *, constructing=False):
        """Wait once; return for how long the row stood still if that counts as a hang."""
        elapsed = self.watch.interval if elapsed is None else elapsed
        if not self.watch.is_due(self.watch.interval, elapsed):
            return None
        suspects, hung = self.watch.look({0: (self.stillness, row, constructing)})
        self.suspected += len(suspects)
        return hung.get(0)

    def until_hung(self, row, limit=100, **how):
        return next((n for n in range(1, limit) if self.wait(row, **how)), None)


def test_a_row_that_stands_still_is_suspected_first_and_hangs_later():
    waits = Waits()
    assert waits.wait("row") is None
    assert waits.suspected == 0
    assert waits.wait("row") is None
    assert waits.suspected == 1
    # One look that remembers, one that suspects, and then the limit.
    assert waits.until_hung("row") == 8
    assert waits.suspected == 1


def test_progress_clears_a_suspect():
    waits = Waits()
    for row in range(50):
        assert waits.wait(row // 9) is None
    assert waits.suspected > 0
    assert waits.until_hung("still") is not None


def test_an_answer_clears_a_suspect():
    waits = Waits()
    for _ in range(20):
        for _ in range(9):
            assert waits.wait("row") is None
        waits.stillness.reset()


def test_construction_has_its_own_limit():
    waits = Waits()
    assert waits.until_hung("row", constructing=True) == 82
    assert Waits(construction_timeout=4.0).until_hung("row", constructing=True) == 10


def test_a_sampler_that_is_busy_sees_no_hang():
    """It waits for a moment only, between long computations of its own."""
    waits = Waits(step_timeout=8.0)
    assert waits.until_hung("row", limit=1000, elapsed=0.001) is None


def test_a_suspended_machine_is_no_hang():
    waits = Waits(step_timeout=8.0)
    assert waits.until_hung("row", limit=1000, elapsed=3600.0) is None
    assert waits.until_hung("row") is not None


@pytest.mark.parametrize("elapsed", [0.15, 0.9, 3.0])
def test_one_wait_that_took_much_longer_than_planned_is_no_hang(elapsed):
    """With a limit of 0.2 s: the machine stood still for a moment, and no worker had a chance to move."""
    waits = Waits(step_timeout=0.2)
    assert waits.wait("row") is None
    assert waits.wait("row") is None
    assert waits.suspected == 1
    assert waits.wait("row", elapsed) is None
    assert waits.until_hung("row") is not None


def test_many_short_waits_add_up():
    waits = Waits(step_timeout=8.0)
    assert waits.until_hung("row", limit=1000, elapsed=0.125) == 80


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 5)), max_size=60))
def test_nobody_hangs_who_was_seen_to_move_within_the_limit(waits_of):
    waits = Waits(step_timeout=8.0)
    still, last = 0.0, None
    for row, elapsed in waits_of:
        seconds = waits.wait(row, elapsed)
        still = still + elapsed if row == last else 0.0
        last = row
        if seconds is not None:
            assert 8.0 <= seconds <= still


def test_a_watch_only_where_there_is_a_limit():
    assert Policy().watch() is None
    assert Policy(step_timeout=2.0).watch().interval == 0.25
    assert Policy(step_timeout=2.0, construction_timeout=0.8).watch().interval == 0.1
    only_construction = Policy(construction_timeout=8.0).watch()
    assert only_construction.interval == 1.0
