"""Log records of workers, without processes."""

import logging

import pytest

from streamsampler.workers import logs as worker_logs
from streamsampler.workers.logs import Levels, RecordKeeper, handle_records


class Raises:
    """Has no text, and cannot be pickled."""

    def __str__(self):
        raise ValueError("no text")

    __repr__ = __reduce__ = __str__


class OfTheWorkerAlone:
    """What the sampler's process cannot read."""

    def __reduce__(self):
        return (__import__, ("no_such_module",))


class StoredContext(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


@pytest.fixture
def logger():
    """A logger of this test alone, with nothing above it."""
    name = "records of a worker"
    log = logging.getLogger(name)
    log.parent, log.level = None, logging.DEBUG
    yield log
    del logging.root.manager.loggerDict[name]


@pytest.fixture
def crossed(logger):
    """Return what lets a worker's records be handled here, and returns them."""
    keeper, kept = RecordKeeper(3), StoredContext()
    keeper.set_levels(Levels(0, logging.root.level, {logger.name: logging.DEBUG}))
    logger.handlers = [keeper]

    def cross():
        kept.records.clear()
        logger.handlers = [kept]
        if records := keeper.take():
            handle_records(3, records)
        assert keeper.take() == b""
        logger.handlers = [keeper]
        return list(kept.records)

    yield cross
    logger.handlers = []


def test_a_record_is_what_it_was_when_it_was_made_and_says_which_worker_made_it(logger, crossed):
    values = [1]
    logger.info("%d of %s", 3, values, extra={"episode": 7, "values": values, "module_of": logging})
    values.append(2)
    (record,) = crossed()
    assert (record.name, record.levelno, record.getMessage()) == (logger.name, logging.INFO, "3 of [1]")
    assert (record.worker, record.episode, record.values, record.funcName[:14]) == (3, 7, [1], "test_a_record_")
    assert (record.pathname, record.module_of) == (__file__, repr(logging)), "what cannot be pickled is shown"


def test_exceptions_and_stacks_travel_as_text(logger, crossed):
    try:
        raise KeyError("gone")
    except KeyError:
        logger.exception("oh", stack_info=True)
    (record,) = crossed()
    text = logging.Formatter("%(message)s").format(record)
    assert text.startswith("oh\nTraceback (most recent call last)")
    assert "KeyError: 'gone'" in text
    assert "Stack (most recent call last)" in text


def test_nothing_that_cannot_be_written_fails_the_rollout(logger, crossed, capsys, monkeypatch):
    logger.info("bad %d", "text")
    logger.info("%s", Raises())
    logger.info("odd", extra={"raises": Raises(), "good": 1, "unread": OfTheWorkerAlone()})
    (odd,) = crossed()
    assert "Raises object" in odd.raises
    assert (odd.good, odd.getMessage()) == (1, "odd")
    assert not hasattr(odd, "unread"), "the sampler cannot read it"
    assert capsys.readouterr().err.count("--- Logging error ---") == 2
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.info("bad %d", "text")
    assert crossed() == []
    assert capsys.readouterr().err == ""


def test_records_are_bounded_in_number_and_size(logger, crossed, monkeypatch):
    summaries = StoredContext()
    monkeypatch.setattr(logging.getLogger("streamsampler"), "handlers", [summaries])
    for count in range(worker_logs.MOST_RECORDS + 5):
        logger.info("%d", count)
    logger.error("too late")
    assert [int(record.getMessage()) for record in crossed()] == list(range(worker_logs.MOST_RECORDS))
    (summary,) = summaries.records
    assert summary.getMessage() == (
        "worker 3 discarded 6 log records (5 INFO, 1 ERROR): an answer carries at most 1,000 records or 1,048,576 bytes"
    )
    assert (summary.levelno, summary.worker) == (logging.ERROR, 3)
    # The next answer has room again; long texts are cut in the middle.
    logger.info("%s", "a" * 50_000 + "z", extra={"text": "b" * 50_000, "many": [f"{n}" * 5_000 for n in range(100)]})
    (record,) = crossed()
    message = record.getMessage()
    assert len(message) < 10_100
    assert (message[:3], message[-1]) == ("aaa", "z")
    assert "40,001 characters" in message
    assert not hasattr(record, "many")  # all that `extra` gave was too much


def test_a_worker_keeps_what_the_sampler_lets_through():
    keeper, info, debug = RecordKeeper(0), logging.INFO, logging.DEBUG
    cases = [("a", info, True), ("a", debug, False), ("a.b.c", info, True), ("ab", info, False)]
    cases += [("ab", logging.ERROR, True), ("a.loud", debug, True)]
    keeper.set_levels(Levels(0, logging.root.level, {"a": info, "a.loud": debug}))
    try:
        for name, level, kept in cases:
            logging.getLogger(name).addHandler(keeper)
            logging.getLogger(name).log(level, "message")
            logging.getLogger(name).removeHandler(keeper)
            assert bool(keeper.take()) == (kept or level >= logging.root.level), (name, level)
    finally:
        keeper.set_levels(Levels(0, logging.root.level, {}))
    assert (logging.getLogger("a").level, logging.getLogger("a.loud").level) == (0, 0)
