"""What is checked, reported and raised: without a worker."""

import pytest

from streamsampler.protocol.messages import Checked, CheckOrder
from streamsampler.protocol.states import SamplerSide
from streamsampler.samplers import session
from streamsampler.samplers.setbacks import WorkerRecord


class Verdicts(session.Verdicts):
    """Verdicts, and records of three workers, which it takes numbers for."""

    def __init__(self, mode):
        super().__init__(mode)
        self.records = [WorkerRecord(SamplerSide(worker)) for worker in range(3)]

    def order_for(self, worker):
        return super().order_for(self.records[worker])

    def may_work(self, worker):
        return super().may_work(self.records[worker])

    def take(self, worker, checked, *, current):  # type: ignore[override]
        return super().take(self.records[worker], self.records, checked, current=current)

    def die(self, worker):
        self.worker_died(self.records[worker])
        self.records[worker] = WorkerRecord(SamplerSide(worker))


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
def test_a_finding_is_reported_once(current):
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
def test_a_worker_that_dies_while_it_checks(mode, again):
    verdicts = Verdicts(mode)
    verdicts.die(0)  # before it was sent an order
    assert verdicts.order_for(0) is not None
    verdicts.die(1)
    assert verdicts.order_for(0) is not None
    verdicts.die(0)
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
    # The successor of a dead worker writes where that one did.
    verdicts.die(1)
    assert verdicts.take(1, Checked(files=("a",)), current=True) == ([], "")
    assert verdicts.order_for(0) == CheckOrder()
