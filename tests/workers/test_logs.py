"""Log records of workers, without processes."""

import enum
import logging

import numpy as np
import pytest

from streamsampler.workers import logs as worker_logs
from streamsampler.workers.logs import Levels, RecordKeeper, handle_records, levels_here


class Raises:
    """Has no text, and cannot be pickled."""

    def __str__(self):
        raise ValueError("no text")

    __repr__ = __reduce__ = __str__


class OfTheWorkerAlone:
    """What the sampler's process cannot read."""

    def __reduce__(self):
        return (__import__, ("no_such_module",))


class Kept(logging.Handler):
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
def keeper(logger):
    keeper = RecordKeeper(3)
    keeper.set_levels(Levels(0, logging.root.level, {logger.name: logging.DEBUG}))
    logger.addHandler(keeper)
    yield keeper
    logger.removeHandler(keeper)


def crossed(keeper, logger):
    """Let a worker's records be handled here, and return them."""
    kept = Kept()
    before, logger.handlers = logger.handlers, [kept]
    records = keeper.take()
    if records:
        handle_records(3, records)
    logger.handlers = before
    return kept.records


def test_a_record_is_what_it_was_and_says_which_worker_made_it(keeper, logger):
    logger.info("%d of %s", 3, "four", extra={"episode": 7})
    (record,) = crossed(keeper, logger)
    assert (record.name, record.levelno, record.getMessage()) == (logger.name, logging.INFO, "3 of four")
    assert (record.worker, record.episode, record.funcName) == (3, 7, "test_" + record.funcName[5:])
    assert record.pathname == __file__
    assert keeper.take() == b""


def test_arguments_are_formatted_when_the_record_is_made(keeper, logger):
    values = [1]
    logger.info("values %s", values, extra={"values": values})
    values.append(2)
    (record,) = crossed(keeper, logger)
    assert record.getMessage() == "values [1]"
    assert record.values == [1]


def test_exceptions_and_stacks_travel_as_text(keeper, logger):
    try:
        raise KeyError("gone")
    except KeyError:
        logger.exception("oh", stack_info=True)
    (record,) = crossed(keeper, logger)
    text = logging.Formatter("%(message)s").format(record)
    assert text.startswith("oh\nTraceback (most recent call last)")
    assert "KeyError: 'gone'" in text
    assert "Stack (most recent call last)" in text


class Level(enum.IntEnum):
    NOTICE = 25


@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        (np.float32(0.5), np.float32(0.5)),
        (Level.NOTICE, Level.NOTICE),
        ({"a": (1, [2.0])}, {"a": (1, [2.0])}),
        (b"bytes", b"bytes"),
        ("\udcff", "\udcff"),
        (logging, repr(logging)),
    ],
    ids=str,
)
def test_what_extra_gives_arrives_or_its_text_does(keeper, logger, given, arrives):
    logger.log(Level.NOTICE, "", extra={"given": given})
    (record,) = crossed(keeper, logger)
    assert record.given == arrives
    assert type(record.given) is type(arrives)
    assert (record.levelno, type(record.levelno)) == (25, int)


def test_nothing_that_cannot_be_written_fails_the_rollout(keeper, logger, capsys):
    logger.info("bad %d", "text")
    logger.info("%s", Raises())
    logger.info("odd", extra={"raises": Raises(), "good": 1})
    (odd,) = crossed(keeper, logger)
    assert "Raises object" in odd.raises
    assert odd.good == 1
    assert capsys.readouterr().err.count("--- Logging error ---") == 2


def test_what_the_sampler_cannot_read_is_left_out_of_the_record(keeper, logger):
    logger.info("read", extra={"value": OfTheWorkerAlone(), "good": 1})
    (record,) = crossed(keeper, logger)
    assert record.getMessage() == "read"
    assert not hasattr(record, "value")
    assert record.good == 1


def test_logging_raises_nothing_and_says_nothing_where_it_is_told_so(keeper, logger, capsys, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.info("bad %d", "text")
    assert crossed(keeper, logger) == []
    assert capsys.readouterr().err == ""


def test_records_are_bounded_in_number_and_size(keeper, logger, monkeypatch):
    summaries = Kept()
    monkeypatch.setattr(logging.getLogger("streamsampler"), "handlers", [summaries])
    for count in range(worker_logs.MOST_RECORDS + 5):
        logger.info("%d", count)
    logger.error("too late")
    records = crossed(keeper, logger)
    assert [int(record.getMessage()) for record in records] == list(range(worker_logs.MOST_RECORDS))
    (summary,) = summaries.records
    assert summary.getMessage() == (
        "worker 3 made 6 more log records than travel with one answer (5 INFO, 1 ERROR): they were left out"
    )
    assert (summary.levelno, summary.worker) == (logging.ERROR, 3)
    # The next answer has room again.
    logger.info("again")
    assert [record.getMessage() for record in crossed(keeper, logger)] == ["again"]


def test_long_texts_are_cut_in_the_middle(keeper, logger):
    logger.info("%s", "a" * 50_000 + "z", extra={"text": "b" * 50_000, "many": [f"{n}" * 5_000 for n in range(100)]})
    (record,) = crossed(keeper, logger)
    message = record.getMessage()
    assert len(message) < 10_100
    assert message.startswith("aaa")
    assert message.endswith("z")
    assert "40,001 characters" in message
    assert not hasattr(record, "many")  # all that `extra` gave was too much


@pytest.mark.parametrize(
    ("name", "level", "kept"),
    [
        ("a", logging.INFO, True),
        ("a", logging.DEBUG, False),
        ("a.b.c", logging.INFO, True),
        ("ab", logging.INFO, False),
        ("ab", logging.ERROR, True),
        ("a.loud", logging.DEBUG, True),
    ],
)
def test_a_worker_keeps_what_the_sampler_lets_through(name, level, kept):
    keeper = RecordKeeper(0)
    keeper.set_levels(Levels(0, logging.root.level, {"a": logging.INFO, "a.loud": logging.DEBUG}))
    try:
        logging.getLogger(name).addHandler(keeper)
        logging.getLogger(name).log(level, "message")
        assert bool(keeper.take()) == (kept or level >= logging.root.level)
    finally:
        logging.getLogger(name).removeHandler(keeper)
        keeper.set_levels(Levels(0, logging.root.level, {}))
    assert (logging.getLogger("a").level, logging.getLogger("a.loud").level) == (0, 0)


def test_levels_are_those_of_the_loggers(monkeypatch, logger):
    levels = levels_here()
    assert levels.named[logger.name] == logging.DEBUG
    assert (levels.root, levels.disabled) == (logging.root.level, 0)
    logging.disable(logging.ERROR)
    try:
        assert levels_here().disabled == logging.ERROR
    finally:
        logging.disable(logging.NOTSET)


def test_a_handler_that_raises_does_not_end_the_call(keeper, logger, capsys, monkeypatch):
    logger.info("one")
    logger.info("two")
    seen = []

    class Fails(Kept):
        def handle(self, record):
            seen.append(record.getMessage())
            raise ValueError("a handler's own error")

    monkeypatch.setattr(logger, "handlers", [Fails()])
    handle_records(3, keeper.take())
    assert seen == ["one", "two"]
    assert capsys.readouterr().err.count("ValueError: a handler's own error") == 2
