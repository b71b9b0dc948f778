"""When a worker checks its environment, and what is said of files: without a worker."""

import pytest

from streamsampler.protocol.states import SamplerSide
from streamsampler.samplers.session import PurityChecks
from streamsampler.samplers.supervisor import WorkerRecord


@pytest.fixture
def records():
    return [WorkerRecord(SamplerSide(worker)) for worker in range(3)]


@pytest.mark.parametrize("mode", ["warn", "error"])
def test_the_first_worker_checks_until_it_has_answered(mode, records):
    checks = PurityChecks(mode)
    for _ in range(2):
        assert [checks.may_work(record) for record in records] == [True, mode == "warn", mode == "warn"]
        assert [checks.is_due_in(record) for record in records] == [True, False, False]
        checks.take_answer(records[1])
        assert checks.is_due_in(records[0])  # its ticket was given up
        checks.take_answer(records[0])
        assert all(map(checks.may_work, records))
        assert not checks.is_due_in(records[0])
        checks.renew()
    checks.take_answer(records[0])  # of a ticket from before the new environment
    assert checks.is_due_in(records[0])


@pytest.mark.parametrize(("mode", "again"), [("warn", False), ("error", True)])
def test_a_worker_that_dies_while_it_checks(mode, again, records):
    checks = PurityChecks(mode)
    checks.worker_died(records[0])  # before it was told to
    assert checks.is_due_in(records[0])
    checks.worker_died(records[1])
    assert checks.is_due_in(records[0])
    checks.worker_died(records[0])
    assert checks.is_due_in(WorkerRecord(SamplerSide(0))) == again


def test_nothing_is_checked_where_nothing_is_to_be_checked(records):
    checks = PurityChecks(None)
    checks.renew()
    assert not checks.is_due_in(records[0])
    assert checks.may_work(records[1])


def test_places_that_several_write_to(records):
    checks = PurityChecks("warn")

    def said_of(worker, *files):
        return checks.shared_files(records[worker], records, files)

    assert said_of(1, "a", "b") == []
    (text,) = said_of(0, "b")
    assert text.startswith("workers 0 and 1 write to the same files, b,")
    (text,) = said_of(2, "c", "c")
    assert text.startswith("environments of worker 2 write to the same files, c,")
    records[1] = WorkerRecord(SamplerSide(1))  # writes where the dead one did
    assert said_of(1, "a") == []
