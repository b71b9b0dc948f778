"""The errors that tell a caller what went wrong in a worker."""

from __future__ import annotations

import pickle
import signal
import traceback
from typing import Any

from streamsampler.board import Progress
from streamsampler.errors import RemoteTraceback, RolloutError, WorkerDiedError
from streamsampler.protocol import Failure, Phase, Ticket

__all__ = ["death_error", "failure_error", "unreadable"]


def failure_error(worker: int, failure: Failure, exception: Any = None) -> RolloutError:
    """Return the error that tells the caller of a worker's failure, with its cause attached.

    Args:
        worker: The worker number.
        failure: What it said.
        exception: The exception itself, where it did not leave this process.
    """
    where = "" if failure.trajectory is None else f" in trajectory {failure.trajectory}"
    if failure.ticket is not None:
        where += f" of agent version {failure.ticket.version}"
    original = exception if isinstance(exception, BaseException) else _unpickled(failure.exception)
    error = RolloutError(
        f"worker {worker} failed while {failure.phase}{where}: {failure.summary}",
        worker_number=worker,
        phase=failure.phase,
        trajectory=failure.trajectory,
        original=original,
    )
    # In this process the exception has its frames, which a debugger can look into; elsewhere there is only text.
    error.__cause__ = exception if isinstance(exception, BaseException) else RemoteTraceback(failure.traceback)
    return error


def unreadable(ticket: Ticket, error: Exception) -> Failure:
    """Return the failure of a report whose contents cannot be unpickled here."""
    text = "".join(traceback.format_exception(error)).rstrip()
    summary = f"what it recorded was pickled there, but cannot be unpickled here: {type(error).__name__}: {error}"
    return Failure(ticket, Phase.SENDING, None, summary, text)


def _unpickled(exception: bytes | None) -> BaseException | None:
    if exception is None:
        return None
    try:
        loaded = pickle.loads(exception)
    except (Exception, SystemExit, GeneratorExit):
        return None
    return loaded if isinstance(loaded, BaseException) else None


def death_error(worker: int, exitcode: int | None, seen: Progress, version: int | None) -> WorkerDiedError:
    """Return the error that tells the caller of a worker's death.

    Args:
        worker: The worker number.
        exitcode: Negative for a signal; None if unknown.
        seen: What the worker was last seen doing.
        version: The agent version that it had begun; None if it died before it began the one in hand.
    """
    trajectory = None if version is None else seen.trajectory
    where = "" if trajectory is None else f" in trajectory {trajectory} of agent version {version}"
    return WorkerDiedError(
        f"worker {worker} {_cause_of_death(exitcode)} while {seen.phase}{where}; "
        "the next call starts a new one in its place",
        worker_number=worker,
        phase=seen.phase,
        trajectory=trajectory,
        exitcode=exitcode,
    )


def _cause_of_death(exitcode: int | None) -> str:
    if exitcode is None:
        return "ended, and nobody knows its exit code,"
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    hints = {
        "SIGKILL": " (often the kernel, when memory is short)",
        "SIGSEGV": " (a fault in native code)",
        "SIGABRT": " (native code gave up)",
        "SIGBUS": " (often a full file system or shared memory)",
    }
    return f"was killed by {name}{hints.get(name, '')}"
