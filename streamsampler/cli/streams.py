"""Standard output is for the result alone."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator

__all__ = ["stdout_reserved"]


@contextlib.contextmanager
def stdout_reserved() -> Iterator[None]:
    """Send what environments, agents and libraries print to standard error, in this process and in its workers.

    Some greet whoever imports them. A program that reads the result must not find that in it.
    """
    try:
        stdout = sys.stdout.fileno()
        stderr = sys.stderr.fileno()
    except (AttributeError, OSError, io.UnsupportedOperation):
        yield  # streams of somebody's own, which no other process writes to
        return
    sys.stdout.flush()
    kept = os.dup(stdout)
    os.dup2(stderr, stdout)
    try:
        yield
    finally:
        # A stream that nobody reads any more is found out when the result is printed.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os.dup2(kept, stdout)
        os.close(kept)
