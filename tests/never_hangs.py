"""End a test that hangs, so that it fails by itself and the others go on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

__all__ = ["alarm", "within"]


@contextmanager
def alarm(handler: Any) -> Iterator[None]:
    """Lend a test the alarm clock of this process, with a handler of its own; afterwards the limit counts again."""
    left, before = signal.alarm(0), signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.alarm(left)


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail, whatever is being waited for, when so many seconds have passed."""

    def too_long(_: int, frame: FrameType | None) -> None:
        # No `Exception`: nothing between here and the test may take it for an error that it knows how to handle.
        pytest.fail(f"still not done after {seconds} seconds")

    if not hasattr(signal, "SIGALRM"):  # where POSIX was taken away
        yield
        return
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
