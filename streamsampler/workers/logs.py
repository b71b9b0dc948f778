"""Send log records of worker processes to the sampler's process with the next answer.

A `RecordKeeper` replaces handlers inherited by fork, which would write the same records as the sampler's process. The
sampler sends its logger levels with the first `Start` after they change.

Records must not fail a rollout: messages and tracebacks are formatted in the worker, and values from `extra` are sent
as text if they cannot be pickled.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MOST_RECORDS = 1_000
"""Maximum number of records in an answer; a final record counts the discarded ones."""

_MOST_BYTES = 1 << 20  # limit for an answer's records, checked before each record
_MOST_OF_ONE = 1 << 17  # bytes of a record; a larger record loses its values from `extra`
_MOST_CHARACTERS = 10_000  # of a single text

_STANDARD = set(logging.makeLogRecord({}).__dict__)
_formatter = logging.Formatter()


@dataclass(frozen=True)
class Levels:
    """Holds the logger levels of a process.

    Attributes:
        disabled: The argument of `logging.disable`, or 0.
        root: The level of the root logger.
        named: The levels of other loggers, by name.
    """

    disabled: int = 0
    root: int = logging.WARNING
    named: dict[str, int] = field(default_factory=dict)


def levels_here() -> Levels:
    manager = logging.root.manager
    # A copy, because another thread may add a logger at the same time.
    loggers = manager.loggerDict.copy()
    named = {name: log.level for name, log in loggers.items() if isinstance(log, logging.Logger) and log.level}
    return Levels(manager.disable, logging.root.level, named)


class RecordKeeper(logging.Handler):
    """Stores a worker's log records until its next answer."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = worker
        self._levels = Levels()
        self._inherited: list[logging.Handler] = []
        self._records: list[bytes] = []
        self._n_bytes = 0
        self._left_out: Counter[int] = Counter()  # by level

    def install(self) -> None:
        """Replace all handlers inherited by this process."""
        loggers = [log for log in logging.root.manager.loggerDict.values() if isinstance(log, logging.Logger)]
        for logger in (logging.root, *loggers):
            # Stored, not closed: a closed or collected handler may write the data buffered at the time of the fork.
            self._inherited += logger.handlers
            logger.handlers = []
            if logger is logging.root or not logger.propagate:
                logger.addHandler(self)

    def set_levels(self, levels: Levels) -> None:
        for name in self._levels.named.keys() - levels.named.keys():
            logging.getLogger(name).setLevel(logging.NOTSET)
        self._levels = levels
        logging.disable(levels.disabled)
        self.apply()

    def apply(self) -> None:
        for name, level in (("root", self._levels.root), *self._levels.named.items()):
            logger = logging.getLogger(name)
            if logger.level != level:
                logger.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        """Store a record, or count it if the limit is reached."""
        if len(self._records) >= MOST_RECORDS or self._n_bytes >= _MOST_BYTES:
            self._left_out[record.levelno] += 1
            return
        try:
            self._keep(record)
        except Exception:
            self.handleError(record)  # as `logging` does if arguments do not fit the message

    def _keep(self, record: logging.LogRecord) -> None:
        extra = {key: _pickled(value) for key, value in record.__dict__.items() if key not in _STANDARD}
        is_large = sum(map(len, extra.values())) > _MOST_OF_ONE
        data = pickle.dumps((_standard(record), {} if is_large else extra))
        self._records.append(data)
        self._n_bytes += len(data)

    def take(self) -> bytes:
        """Return and clear the stored records, pickled for `handle_records`."""
        if not self._records:
            return b""
        self.acquire()
        try:
            if self._left_out:
                self._keep(self._summary())
            records, self._records, self._n_bytes = self._records, [], 0
            self._left_out.clear()
        finally:
            self.release()
        return pickle.dumps(records)

    def _summary(self) -> logging.LogRecord:
        by_level = ", ".join(f"{n:,} {logging.getLevelName(level)}" for level, n in sorted(self._left_out.items()))
        message = "worker %d discarded %s log records (%s): an answer carries at most %s records or %s bytes"
        args = self._worker, f"{self._left_out.total():,}", by_level, f"{MOST_RECORDS:,}", f"{_MOST_BYTES:,}"
        level = max(logging.WARNING, *self._left_out)
        return logging.LogRecord("streamsampler", level, __file__, 0, message, args, None, "take")


def _standard(record: logging.LogRecord) -> dict[str, Any]:
    trace = record.exc_text or (_formatter.formatException(record.exc_info) if record.exc_info else None)
    return {
        **{key: value for key, value in record.__dict__.items() if key in _STANDARD},
        "levelno": int(record.levelno),
        "msg": _shortened(record.getMessage()),
        "args": None,
        "exc_info": None,
        "exc_text": trace and _shortened(trace),
        "stack_info": record.stack_info and _shortened(record.stack_info),
    }


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:
        try:
            text = _shortened(repr(value))
        except Exception:
            text = object.__repr__(value)
        return pickle.dumps(text)


def _shortened(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    half = _MOST_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters …\n{text[-half:]}"


def handle_records(worker: int, records: bytes) -> None:
    """Handle a worker's records with this process's loggers, with the attribute `worker` added."""
    for data in pickle.loads(records):
        try:
            values, extra = pickle.loads(data)
            record = logging.makeLogRecord({**values, **_read(extra), "worker": worker})
            logger = logging.getLogger(record.name)
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)
        except Exception:
            # A user's filter or handler raised: the call continues, as it does if a handler of `logging` fails.
            if logging.raiseExceptions and sys.stderr is not None:
                traceback.print_exc()


def _read(extra: dict[str, bytes]) -> dict[str, Any]:
    """Return a record's values from `extra`, except those of classes which this process cannot import."""
    found: dict[str, Any] = {}
    for key, pickled in extra.items():
        with contextlib.suppress(Exception):
            found[key] = pickle.loads(pickled)
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the library's warnings inside the block, for callers with a report of their own."""
    logger = logging.getLogger("streamsampler")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def naming(task: object) -> Iterator[None]:
    """Prefix this package's log messages inside the block with a task's name."""

    def put_in_front(record: logging.LogRecord) -> bool:
        record.msg, record.args = f"{task}: {record.getMessage()}", ()
        return True

    logger = logging.getLogger("streamsampler")
    logger.addFilter(put_in_front)
    try:
        yield
    finally:
        logger.removeFilter(put_in_front)
