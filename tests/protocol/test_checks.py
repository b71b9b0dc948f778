"""When a worker checks its environment, and what is said of files: without a worker."""

import pytest

from streamsampler.protocol.facts import FilesOverwritten
from streamsampler.protocol.known_worker import KnownWorker
from streamsampler.protocol.run_twice_checks import RunTwiceChecks
from streamsampler.protocol.states import SamplerSide
from streamsampler.samplers.failures import warning_of


@pytest.fixture
def records():
    return [KnownWorker(SamplerSide(worker)) for worker in range(3)]


@pytest.mark.parametrize("mode", ["warn", "error"])
def test_the_first_worker_checks_until_it_has_answered(mode, records):
    checks = RunTwiceChecks(mode)
    for _ in range(2):
        assert [checks.may_work(record.worker) for record in records] == [True, mode == "warn", mode == "warn"]
        assert [checks.is_due_in(record) for record in records] == [True, False, False]
        checks.record_answer(records[1])
        assert checks.is_due_in(records[0])  # its ticket was given up
        checks.record_answer(records[0])
        assert all(map(checks.may_work, range(3)))
        assert not checks.is_due_in(records[0])
        checks.renew()
    checks.record_answer(records[0])  # of a ticket from before the new environment
    assert checks.is_due_in(records[0])


@pytest.mark.parametrize(("mode", "again"), [("warn", False), ("error", True)])
def test_a_worker_that_dies_while_it_checks(mode, again, records):
    checks = RunTwiceChecks(mode)
    checks.record_death(records[0])  # before it was told to
    assert checks.is_due_in(records[0])
    checks.record_death(records[1])
    assert checks.is_due_in(records[0])
    checks.record_death(records[0])
    assert checks.is_due_in(KnownWorker(SamplerSide(0))) == again


def test_nothing_is_checked_where_nothing_is_to_be_checked(records):
    checks = RunTwiceChecks(None)
    checks.renew()
    assert not checks.is_due_in(records[0])
    assert checks.may_work(1)


def test_places_that_several_write_to(records):
    checks = RunTwiceChecks("warn")

    def said_of(worker, *files):
        return checks.record_files(records[worker], records, files)

    assert said_of(1, "a", "b") == []
    assert said_of(0, "b") == [FilesOverwritten((0, 1), "b")]
    assert said_of(2, "c", "c") == [FilesOverwritten((2,), "c")]
    records[1] = KnownWorker(SamplerSide(1))  # writes where the dead one did
    assert said_of(1, "a") == []


def test_the_warning_names_the_workers():
    two, one = (warning_of(FilesOverwritten(workers, "c")) for workers in ((0, 1), (2,)))
    assert two.startswith("workers 0 and 1 write to the same files, c,")
    assert one.startswith("environments of worker 2 write to the same files, c,")
