"""What is ordered, what is told and what is raised: without a worker."""

import pytest

from streamsampler.protocol.messages import Checked, CheckOrder
from streamsampler.samplers.verdicts import Verdicts

FOUND = Checked("kind", complete=True, timesteps=3, finding="found")


def test_only_the_first_worker_checks_and_only_once():
    verdicts = Verdicts("warn")
    assert verdicts.order_for(1) is None
    assert verdicts.order_for(0) == CheckOrder()
    assert verdicts.take(0, Checked("kind", complete=True), current=True) == ([], "")
    assert verdicts.order_for(0) is None
    verdicts.renew()
    assert verdicts.order_for(0) == CheckOrder(done="kind")


@pytest.mark.parametrize("current", [False, True])
def test_a_finding_is_told_once(current):
    verdicts = Verdicts("warn")
    assert verdicts.take(0, FOUND, current=current) == (["found"], "")
    verdicts.renew()
    assert verdicts.take(0, FOUND, current=current) == ([], "")


def test_a_finding_is_raised_again_and_again_but_not_in_another_call():
    verdicts = Verdicts("error")
    for _ in range(2):
        assert verdicts.exclusive
        assert [verdicts.may_work(worker) for worker in (0, 1)] == [True, False]
        assert verdicts.order_for(0) == CheckOrder()
        assert verdicts.take(0, FOUND, current=True) == ([], "found")
    assert verdicts.take(0, FOUND, current=False) == ([], "")
    assert verdicts.take(0, Checked("kind", complete=True), current=True) == ([], "")
    assert verdicts.may_work(1)


def test_what_was_broken_off_goes_on_with_what_is_left():
    verdicts = Verdicts("warn")
    verdicts.take(0, Checked("one", complete=True), current=True)
    verdicts.renew()
    verdicts.take(0, Checked("two", complete=False, seconds=0.125), current=True)
    assert verdicts.order_for(0) == CheckOrder("one", "two", 0.125)


@pytest.mark.parametrize(("mode", "again"), [("warn", False), ("error", True)])
def test_a_worker_that_is_lost_while_it_checks(mode, again):
    verdicts = Verdicts(mode)
    verdicts.lost(0)  # before it was told to
    assert verdicts.order_for(0) is not None
    verdicts.lost(1)
    assert verdicts.order_for(0) is not None
    verdicts.lost(0)
    assert (verdicts.order_for(0) is not None) == again


def test_nothing_is_ordered_where_nothing_is_to_be_checked():
    verdicts = Verdicts(None)
    verdicts.renew()
    assert verdicts.order_for(0) is None
    assert verdicts.may_work(1)


def test_places_that_several_write_to():
    verdicts = Verdicts("warn")
    assert verdicts.take(1, Checked(files=("a", "b")), current=True) == ([], "")
    ((text,), _) = verdicts.take(0, Checked(files=("b",)), current=False)
    assert text.startswith("workers 0 and 1 write to the same files, b,")
    ((text,), _) = verdicts.take(2, Checked(files=("c", "c")), current=True)
    assert text.startswith("environments of worker 2 write to the same files, c,")
    # The one in place of a lost one writes where that one did.
    verdicts.lost(1)
    assert verdicts.take(1, Checked(files=("a",)), current=True) == ([], "")
    assert verdicts.order_for(0) == CheckOrder()
