"""What the library logs, on standard error, and the progress bar unharmed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import click

from streamsampler.cli.failures import without_own_frames
from streamsampler.progress import Bar

__all__ = ["notices_shown"]

_LOGGER = logging.getLogger("streamsampler")


class _AboveTheBar(logging.Handler):
    """Writes warnings, and what is worse, as lines above the bar; or as plain lines where no bar is drawn."""

    def __init__(self, bar: Bar) -> None:
        super().__init__(logging.WARNING)
        self._bar = bar

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.levelname.capitalize()}: {without_own_frames(record.getMessage())}"
        if not self._bar.write_above(text):
            click.echo(text, err=True)


@contextlib.contextmanager
def notices_shown(bar: Bar, *, quiet: bool) -> Iterator[None]:
    """Show what the logger `streamsampler` is told.

    Args:
        bar: The bar that may be on the screen.
        quiet: Show nothing.
    """
    handler = logging.NullHandler() if quiet else _AboveTheBar(bar)
    # A handler of the user's own, at the root, would write the same again, across the bar.
    before, _LOGGER.propagate = _LOGGER.propagate, False
    _LOGGER.addHandler(handler)
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.propagate = before
