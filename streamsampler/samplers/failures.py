"""Make the errors that calls raise for what went wrong in a worker."""

from __future__ import annotations

import pickle
from typing import Any

from streamsampler.errors import (
    RemoteTraceback,
    RolloutError,
    SpentQuota,
    WorkerDiedError,
    WorkerError,
    WorkerHungError,
)
from streamsampler.protocol.messages import Failure
from streamsampler.scheduling.restarts import Incident
from streamsampler.scheduling.result import LeftOut

__all__ = ["dropped_error", "failure_error", "loss_error"]


def failure_error(
    worker: int, failure: Failure, exception: Any = None, *, quota: SpentQuota | None = None,
    history: tuple[Incident, ...] = (),
) -> RolloutError:  # fmt: skip
    """Return the error for a worker's failure, with its cause attached.

    Args:
        worker: The worker number.
        failure: What the worker reported.
        exception: The exception itself, where it did not leave this process.
        quota: The quota that is spent, where the trajectory would have been run again otherwise.
        history: All losses since the last error, this one included if it is one.
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
        incidents=history,
        quota=quota,
    )
    # In this process the exception has its frames, which a debugger can look into; elsewhere there is only text.
    error.__cause__ = exception if isinstance(exception, BaseException) else RemoteTraceback(failure.traceback)
    return error


def dropped_error(last: LeftOut, version: int, n_dropped: int, n_kept: int) -> RolloutError:
    """Return the error that ends a call in which nearly every trajectory fails, and which would never be complete.

    Args:
        last: The last trajectory that was left out.
        version: The call's agent version.
        n_dropped: How many trajectories of the call were left out.
        n_kept: How many were not.
    """
    worker, index, (_, phase, summary), _ = last
    return RolloutError(
        f"{n_dropped} trajectories failed and {n_kept} did not: that is too many to leave out; the latest, "
        f"trajectory {index} of agent version {version}, failed in worker {worker} while {phase}: {summary}",
        worker_number=worker,
        phase=phase,
        trajectory=index,
    )


def _unpickled(exception: bytes | None) -> BaseException | None:
    if exception is None:
        return None
    try:
        loaded = pickle.loads(exception)
    except (Exception, SystemExit, GeneratorExit):
        return None
    return loaded if isinstance(loaded, BaseException) else None


def loss_error(incident: Incident, quota: SpentQuota | None, history: tuple[Incident, ...]) -> WorkerError:
    """Return the error that ends a call because of a loss.

    Args:
        incident: The loss: a death or a hang.
        quota: The quota that is spent; None where a new worker would do the same.
        history: All losses since the last error, this one included.
    """
    what = str(incident) if quota is not None else f"{incident}; a new worker would do the same"
    fields: dict[str, Any] = {
        "worker_number": incident.worker,
        "phase": incident.phase,
        "trajectory": incident.trajectory,
        "incidents": history,
        "quota": quota,
    }
    if not incident.hung:
        return WorkerDiedError(what, exitcode=incident.exitcode, **fields)
    error = WorkerHungError(what, stack=incident.stack, **fields)
    if incident.stack:
        error.__cause__ = RemoteTraceback(incident.stack)
    return error
