"""Run the exit handlers (`atexit`) of environments and libraries in a worker process.

A worker process never reaches the interpreter's end, where they would run. A forked worker first forgets its copies of
the parent's handlers, which would remove files of the script.
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
    """Forget handlers of the parent, if this process is `forked`, and of `multiprocessing`."""
    if forked:
        atexit._clear()
        finalizers: Any = weakref.finalize
        for finalizer in list(finalizers._registry):
            finalizer.atexit = False
        finalizers._registered_with_atexit = False  # the next finalizer registers again
    # This handler closes queues before the last log records are sent, and waits for child processes, which end with the
    # worker.
    atexit.unregister(multiprocessing.util._exit_function)  # type: ignore[attr-defined]


def run_finalizers() -> None:
    """Let `multiprocessing` remove its temporary folders of this process."""
    multiprocessing.util._run_finalizers()  # type: ignore[attr-defined]


def run_exit_handlers(worker: int) -> None:
    """Run the exit handlers of this worker; log their exceptions."""

    def log(error: BaseException | None, handler: Any) -> None:
        name = "" if handler is None else f" ({handler!r})"
        summary = "an exception" if error is None else summary_of(error)
        _LOG.warning("an exit handler%s of worker %d raised %s", name, worker, summary, exc_info=error)

    before = sys.unraisablehook, sys.excepthook
    sys.unraisablehook = lambda found: log(found.exc_value, found.object)
    sys.excepthook = lambda *of_finalizer: log(of_finalizer[1], None)
    try:
        atexit._run_exitfuncs()
    finally:
        sys.unraisablehook, sys.excepthook = before
