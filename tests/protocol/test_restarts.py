"""Losses against quotas and rows that stand still, without processes and clocks."""

import math
import re
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.errors import UsageError
from streamsampler.protocol.hangs import HangWatch, Stillness
from streamsampler.protocol.long_trajectories import LengthWatch
from streamsampler.protocol.losses import (
    Loss,
    Losses,
    LossKind,
    Policy,
    cause_of_death,
    cause_of_exception,
    unready,
    was_killed,
)
from streamsampler.protocol.messages import Phase


def death(seconds=0.0, worker=0, **more):
    return Loss(worker, "was killed by SIGKILL", Phase.STEP, 7, 3, seconds, **more)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_restarts", [-1, 1.5, True]),
        ("max_lifetime_restarts", ["many"]),
        ("restart_window", [0, math.inf]),
        ("step_timeout", [-1.0, math.nan]),
        ("construction_timeout", ["1"]),
        ("max_worker_memory", [0]),
        ("on_failure", ["ignore"]),
        ("restart_on", [(ValueError, "OSError"), [ValueError]]),
    ],
)
def test_what_cannot_work_is_refused_by_name(name, values):
    for value in values:
        with pytest.raises(UsageError, match=name) as caught:
            Policy(**{name: value})
        assert repr(value) in str(caught.value) or "got" in str(caught.value)


def test_exceptions_are_known_by_the_names_of_their_classes():
    class Odd(OSError):
        pass

    kinds = tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in Odd.__mro__)
    policies = [Policy(restart_on=named) for named in ((OSError,), (ValueError, Odd), (ValueError,), ())]
    assert [policy.restarts_on(kinds) for policy in policies] == [True, True, False, False]


@pytest.mark.parametrize(
    ("policy", "seconds", "verdict"),
    [
        (
            {"max_restarts": 2, "restart_window": 10.0, "max_lifetime_restarts": None},
            [0.0, 1.0, 11.0, 12.0, 21.5, 21.6],
            "that is 3 losses within 10 s, and max_restarts is 2",
        ),
        # It waited until the trajectories before it were in, and counts with those before it.
        (
            {"max_restarts": 2, "restart_window": 10.0},
            [20.0, 5.0, 29.0],
            "that is 3 losses within 10 s, and max_restarts is 2",
        ),
        (
            {"max_restarts": None, "max_lifetime_restarts": 3},
            [0.0, 1e6, 2e6, 1e9],
            "that is 4 losses in all, and limits.max_lifetime_restarts is 3",
        ),
        ({"max_restarts": 1, "restart_window": None}, [0.0, 1e9], "that is 2 losses, and max_restarts is 1"),
        ({"max_restarts": None, "max_lifetime_restarts": None}, [0.0] * 1000, None),
    ],
)
def test_the_last_loss_is_one_too_many(policy, seconds, verdict):
    losses = Losses(Policy(**policy))
    verdicts = [losses.count(death(at)) for at in seconds]
    assert verdicts[:-1] == [None] * (len(seconds) - 1)
    assert (verdicts[-1] and str(verdicts[-1])) == verdict


@pytest.mark.parametrize(("n_workers", "most", "most_ever"), [(1, 10, 100), (8, 10, 100), (9, 12, 113), (64, 80, 800)])
def test_the_quotas_by_default_grow_with_the_number_of_workers(n_workers, most, most_ever):
    losses = Losses(Policy(), n_workers)
    assert [losses.count(death()) for _ in range(most)] == [None] * most
    assert str(losses.count(death())) == f"that is {most + 1} losses within 60 s, and max_restarts is {most}"
    assert [losses.count(death(100.0 * n)) for n in range(most_ever)] == [None] * most_ever
    verdict = losses.count(death(100.0 * most_ever))
    assert str(verdict) == f"that is {most_ever + 1} losses in all, and limits.max_lifetime_restarts is {most_ever}"


def test_an_error_spends_the_quota_and_the_history():
    losses = Losses(Policy(max_restarts=1))
    assert losses.count(death(0.0)) is None
    assert losses.count(death(1.0, worker=2)) is not None
    assert [(incident.seconds, incident.worker) for incident in losses.history()] == [(0.0, 0), (1.0, 2)]
    assert losses.history() == ()
    assert losses.count(death(2.0)) is None


def equal(line=7, subject="trajectory 7", **more):
    return death(likeness=LossKind(subject, ("ValueError", line), **more))


NONE: dict[str, Any] = {"max_restarts": None, "max_lifetime_restarts": None}


@pytest.mark.parametrize(
    ("quotas", "most", "said"),
    [
        (NONE, 2, "that is 3 equal losses of trajectory 7, which max_restarts=None does not retry forever; pass a"),
        ({"max_restarts": None}, 2, "3 equal losses of trajectory 7, which max_restarts=None"),
        ({"max_lifetime_restarts": None}, 2, "3 equal losses of trajectory 7, which limits.max_lifetime_restarts=None"),
        # A number is obeyed as given, and what it does not bound ends as well.
        ({"max_restarts": None, "max_lifetime_restarts": 6}, 6, "that is 7 losses in all, and limits."),
        ({"max_restarts": 5, "max_lifetime_restarts": None}, 5, "that is 6 losses within 60 s, and max_restarts is 5"),
        (
            {"max_restarts": 5, "restart_window": 0.5, "max_lifetime_restarts": None}, 5,
            "that is 6 equal losses of trajectory 7, which limits.max_lifetime_restarts=None",
        ),
        ({"max_restarts": 0, "max_lifetime_restarts": None}, 0, "that is 1 loss within 60 s, and max_restarts is 0"),
        ({"max_restarts": 20}, 20, "that is 21 losses within 60 s, and max_restarts is 20"),
        ({}, 10, "that is 11 losses within 60 s, and max_restarts is 10"),
    ],
)  # fmt: skip
def test_three_equal_losses_are_an_error_where_a_quota_is_none_and_a_number_is_obeyed(quotas, most, said):
    losses = Losses(Policy(**quotas))
    incidents = [death(float(at), likeness=equal().likeness) for at in range(most + 1)]
    *before, last = map(losses.count, incidents)
    assert before == [None] * most
    assert said in str(last)
    assert (last.limit is None) == ("equal" in said)
    assert len(losses.history()) == most + 1


def test_losses_that_differ_in_anything_are_not_equal():
    losses = Losses(Policy(**NONE))
    found = [equal(line, subject) for line in range(10) for subject in ("trajectory 7", "trajectory 8") for _ in "ab"]
    assert [losses.count(it) for it in found] == [None] * 40
    assert losses.count(equal(0)) is not None


def test_what_succeeds_and_what_a_call_ends_with_is_forgotten():
    losses = Losses(Policy(**NONE))
    for _ in range(5):
        assert [losses.count(equal(subject="environment 1")) for _ in "ab"] == [None, None]
        losses.forget("environment 1")
        assert [losses.count(equal(of_call=True)) for _ in "ab"] == [None, None]
        losses.begin_call()
    assert [losses.count(equal(subject=unready(2))) for _ in "ab"] == [None, None]
    losses.begin_call()
    losses.forget(unready(1))
    verdict = losses.count(equal(subject=unready(2)))
    assert "that is 3 equal losses of worker 2 before it became ready" in str(verdict)
    assert [losses.count(equal(subject=unready(2))) for _ in "ab"] == [None, None], "after an error all begins again"


def test_what_something_outside_may_have_killed_is_tried_more_often():
    losses = Losses(Policy(**NONE))
    verdicts = [losses.count(equal(by_chance=True)) for _ in range(10)]
    assert verdicts[:-1] == [None] * 9
    assert str(verdicts[-1]).startswith("that is 10 equal losses")
    outside, own = (None, -signal.SIGKILL, -signal.SIGTERM), (0, 3, 255, -signal.SIGSEGV, -signal.SIGABRT)
    assert [was_killed(code) for code in (*outside, *own)] == [True] * 3 + [False] * 5


TRACEBACK = """Traceback (most recent call last):
  File "a.py", line 3, in step
    {}
  File "b.py", line 9, in connect
    raise ValueError({})
ValueError: {}"""


def test_equal_exceptions_have_one_class_and_one_line_whatever_they_say():
    found = {cause_of_exception("ValueError", TRACEBACK.format(*"123" if n else "456")) for n in range(2)}
    assert found == {("ValueError", 'b.py", line 9')}
    assert cause_of_exception("OSError", TRACEBACK) not in found
    assert cause_of_exception("ValueError", TRACEBACK.replace("9", "8")) not in found
    assert cause_of_exception("ValueError", "ValueError: 1") == ("ValueError", "")


def test_an_incident_in_words():
    assert str(death()) == (
        "worker 0 was killed by SIGKILL while stepping the environment in trajectory 7 of agent version 3"
    )
    early = Loss(1, cause_of_death(3), Phase.WAITING, None, None, 0.0)
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


class Waits:
    """A sampler that looks at one worker's row, with time that passes as it is told to."""

    def __init__(self, step_timeout=8.0, construction_timeout=80.0):
        self.watch = HangWatch({False: step_timeout, True: construction_timeout})
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
    assert (waits.wait("row"), waits.suspected) == (None, 0)
    assert (waits.wait("row"), waits.suspected) == (None, 1)
    # One look that remembers, one that suspects, and then the limit.
    assert (waits.until_hung("row"), waits.suspected) == (8, 1)
    assert Waits().until_hung("row", constructing=True) == 82, "construction has its own limit"
    assert Waits(construction_timeout=4.0).until_hung("row", constructing=True) == 10, "and may be the shorter one"
    assert Waits().until_hung("row", limit=1000, elapsed=0.125) == 80, "many short waits add up"


def test_progress_and_answers_clear_a_suspect():
    waits = Waits()
    for row in range(50):
        assert waits.wait(row // 9) is None
    assert waits.suspected > 0
    for _ in range(20):
        waits.stillness.reset()
        for _ in range(9):
            assert waits.wait("row") is None
    assert waits.until_hung("still") is not None


@pytest.mark.parametrize(
    ("step_timeout", "elapsed"),
    [
        (8.0, 0.001),  # the sampler waits for a moment only, between long computations of its own
        (8.0, 3600.0),  # the machine was suspended
        *((0.2, elapsed) for elapsed in (0.15, 0.9, 3.0)),  # the machine stood still for a moment
    ],
)
def test_a_wait_in_which_no_worker_had_a_chance_to_move_is_no_hang(step_timeout, elapsed):
    waits = Waits(step_timeout)
    assert [waits.wait("row") for _ in range(2)] == [None, None]
    assert waits.wait("row", elapsed) is None
    assert step_timeout < 1 or waits.until_hung("row", limit=1000, elapsed=elapsed) is None
    assert waits.until_hung("row") is not None


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


def length_watch(needed=100, side_by_side=1, now=0.0):
    watch = LengthWatch()
    watch.begin(needed, side_by_side, now)
    return watch


# What the board shows at each look: for a worker, the trajectory in hand and the timesteps of its ticket so far.
@pytest.mark.parametrize(
    ("side_by_side", "shown", "found"),
    [
        (1, [(3, 5000), (3, 6000), (3, 6001)], (2, 3)),  # of this ticket, which may have had many before
        (1, [*((n, 10**n) for n in range(5)), (9, 10), (9, 5), (9, 1006)], (2, 9)),  # 5: another ticket
        (4, [(1, 0), (1, 4000), (1, 4001)], (2, 1)),  # the timesteps are shared
        (1, [(0, 0), (0, 5000)], (2, 0)),
    ],
)
def test_a_trajectory_far_longer_than_its_batch_needs_is_found_once(side_by_side, shown, found):
    watch = length_watch(side_by_side=side_by_side, now=50.0)
    for number, row in enumerate(shown):
        assert watch.next_reading == 50.0 + 2 ** (number + 1) - 1, "looks come after times that double"
        assert watch.find({2: row}, watch.next_reading - 0.001) is None
        assert watch.find({2: row}, watch.next_reading) == (found if number == len(shown) - 1 else None)
    assert watch.next_reading == math.inf
    watch.begin(100, 1, 100.0)
    assert watch.next_reading == math.inf


def test_a_new_call_begins_from_nothing():
    watch = length_watch()
    watch.find({0: (0, 0)}, 1.0)
    watch.begin(10, 1, 2.0)
    assert watch.next_reading == 3.0
    assert watch.find({0: (0, 10**6)}, 3.0) is None
    assert length_watch(None).next_reading == math.inf, "where timesteps do not count there is nothing to look for"
