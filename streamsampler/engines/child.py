"""What all worker processes do first, whoever started them."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
from collections.abc import Callable, Sequence

__all__ = ["STATUS", "Main", "ignore_interrupts", "run_as_child"]

Main = Callable[[int, Sequence[int]], None]
"""What a worker process runs: a function of a module, called with the worker number and descriptors."""

STATUS = struct.Struct("<q")
"""How the fork server is told worker numbers, and tells process ids and wait statuses."""


def ignore_interrupts() -> None:
    """Ignore SIGINT, in a child: the parent decides what Ctrl-C means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def run_as_child(main: Callable[[], None]) -> None:
    """Run `main` in a forked process and end that process, whatever happens: its parent's stack is not its own."""
    status = 1
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        main()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(status)
