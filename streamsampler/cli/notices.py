"""Show logs and warnings above the progress bar."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator

from streamsampler.agents.vec_normalize import VecNormalizeWarning
from streamsampler.cli.streams import print_error
from streamsampler.core.progress import Output
from streamsampler.workers.explain import without_own_frames

_LOGGER = logging.getLogger("streamsampler")
_PLAIN = logging.Formatter()
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class _AboveTheBar(logging.Handler):
    """Writes warnings and errors of the log above the bar, or as plain lines without a bar."""

    def __init__(self, bar: Output) -> None:
        super().__init__(logging.WARNING)
        self._bar = bar

    def emit(self, record: logging.LogRecord) -> None:
        try:
            own = record.name == _LOGGER.name
            text = without_own_frames(record.getMessage()) if own else f"{record.name}: {_PLAIN.format(record)}"
        except Exception:
            self.handleError(record)
            return
        _write(self._bar, f"{record.levelname.capitalize()}: {text}")


def _write(bar: Output, text: str) -> None:
    if not _takes_colours():
        text = _COLOUR.sub("", text)
    if not bar.write_above(text):
        print_error(text)


def _takes_colours() -> bool:
    """Return whether colours are shown: on a terminal that has them, unless NO_COLOR is set (see no-color.org)."""
    stream = sys.stderr
    return bool(stream and stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR"))


def _text_of_warning(warning: Warning | str) -> str:
    text = str(warning).replace("WARN: ", "", 1)  # Gymnasium's own prefix
    if isinstance(warning, VecNormalizeWarning):
        text = text.replace("vec_normalize=False", "--vec-normalize none").replace("vec_normalize=", "--vec-normalize ")
    return text


@contextlib.contextmanager
def notices_shown(bar: Output, *, quiet: bool) -> Iterator[None]:
    """Show the library's log and, unless the user's modules set up logging themselves, all other logs.

    Python's warnings are shown in the same way, each in a line.

    Args:
        bar: The bar that may be on the screen.
        quiet: Show neither logs nor warnings but a `VecNormalizeWarning`, after which the result is probably wrong.
    """
    handler = logging.NullHandler() if quiet else _AboveTheBar(bar)
    # A user's own handler at the root would write the same line again, across the bar.
    before, _LOGGER.propagate = _LOGGER.propagate, False
    loggers = [_LOGGER] if quiet or logging.root.handlers else [_LOGGER, logging.root]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            if quiet:
                warnings.simplefilter("ignore")
            warnings.simplefilter("always", VecNormalizeWarning)
            warnings.showwarning = lambda warning, *_: _write(bar, f"Warning: {_text_of_warning(warning)}")
            yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        _LOGGER.propagate = before
