"""Run what environments and libraries have registered in a worker process for its end: handlers of `atexit`.

A worker process does not return into its parent's code, and so never comes to the interpreter's end, where such
handlers run. A worker that ends cleanly runs them itself; the sampler kills one that takes longer than `close_timeout`.

A forked worker has copies of its parent's handlers, too: these would remove what the script still needs. It forgets
them at its beginning.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing.util
import sys
import weakref
from typing import Any

from streamsampler.workers.explain import summary_of

__all__ = ["forget_foreign_handlers", "run_exit_handlers", "run_finalizers"]

_LOG = logging.getLogger("streamsampler")


def forget_foreign_handlers(*, forked: bool = True) -> None:
    """Forget the exit handlers that are not this worker's own.

    Args:
        forked: Whether this process is a copy of another one, whose handlers it has.
    """
    if forked:
        atexit._clear()
        finalizers: Any = weakref.finalize
        for finalizer in list(finalizers._registry):
            finalizer.atexit = False
        finalizers._registered_with_atexit = False  # the next one is registered again
    # It closes queues before the last log records are sent, and waits for child processes, which end with the worker.
    atexit.unregister(multiprocessing.util._exit_function)  # type: ignore[attr-defined]


def run_finalizers() -> None:
    """Let `multiprocessing` remove what it has opened in this process, such as temporary folders."""
    multiprocessing.util._run_finalizers()  # type: ignore[attr-defined]


def run_exit_handlers(worker: int) -> None:
    """Run the exit handlers of this process, a worker; log what they raise.

    Args:
        worker: The worker number.
    """

    def log(error: BaseException | None, handler: Any) -> None:
        name = "" if handler is None else f" ({handler!r})"
        summary = "an exception" if error is None else summary_of(error)
        _LOG.warning("worker %d ended, and an exit handler%s raised %s", worker, name, summary, exc_info=error)

    before = sys.unraisablehook, sys.excepthook
    sys.unraisablehook = lambda found: log(found.exc_value, found.object)
    sys.excepthook = lambda *of_finalizer: log(of_finalizer[1], None)
    try:
        atexit._run_exitfuncs()
    finally:
        sys.unraisablehook, sys.excepthook = before
