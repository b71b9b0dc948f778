"""The errors that tell a caller what went wrong in a worker."""

from __future__ import annotations

import pickle
from typing import Any

from streamsampler.errors import RemoteTraceback, RolloutError, WorkerDiedError, WorkerError, WorkerHungError
from streamsampler.protocol.messages import Failure
from streamsampler.scheduling.restarts import Incident
from streamsampler.scheduling.result import LeftOut

__all__ = ["dropped_error", "failure_error", "loss_error", "told"]

_SHOWN = 20


def failure_error(
    worker: int, failure: Failure, exception: Any = None, *, verdict: str = "", history: tuple[Incident, ...] = ()
) -> RolloutError:
    """Return the error that tells the caller of a worker's failure, with its cause attached.

    Args:
        worker: The worker number.
        failure: What it said.
        exception: The exception itself, where it did not leave this process.
        verdict: Why it is not made good, where it might have been.
        history: All losses since the last error, this one included if it is one.
    """
    where = "" if failure.trajectory is None else f" in trajectory {failure.trajectory}"
    if failure.ticket is not None:
        where += f" of agent version {failure.ticket.version}"
    original = exception if isinstance(exception, BaseException) else _unpickled(failure.exception)
    error = RolloutError(
        f"worker {worker} failed while {failure.phase}{where}: {failure.summary}{verdict and f'; {verdict}'}"
        f"{told(history)}",
        worker_number=worker,
        phase=failure.phase,
        trajectory=failure.trajectory,
        original=original,
        incidents=history,
    )
    # In this process the exception has its frames, which a debugger can look into; elsewhere there is only text.
    error.__cause__ = exception if isinstance(exception, BaseException) else RemoteTraceback(failure.traceback)
    return error


def dropped_error(last: LeftOut, version: int, n_dropped: int, n_kept: int) -> RolloutError:
    """Return the error that ends a call in which (nearly) everything fails, which would go on for ever.

    Args:
        last: The last trajectory that was left out.
        version: The call's agent version.
        n_dropped: How many trajectories of the call were left out.
        n_kept: How many were not.
    """
    worker, index, (_, phase, summary), _ = last
    return RolloutError(
        f'{n_dropped} trajectories failed and {n_kept} did not: that is more than on_failure="drop" is for; the '
        f"latest, trajectory {index} of agent version {version}, failed in worker {worker} while {phase}: {summary}",
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


def loss_error(incident: Incident, verdict: str, history: tuple[Incident, ...]) -> WorkerError:
    """Return the error that tells the caller of a loss which is not made good.

    Args:
        incident: The loss: a death or a hang.
        verdict: Which quota is spent.
        history: All losses since the last error, this one included.
    """
    message = f"{incident}; {verdict}; the next call starts a new one in its place{told(history)}"
    if incident.hung:
        hung = WorkerHungError(
            message,
            worker_number=incident.worker,
            phase=incident.phase,
            trajectory=incident.trajectory,
            stack=incident.stack,
            incidents=history,
        )
        if incident.stack:
            hung.__cause__ = RemoteTraceback(incident.stack)
        return hung
    return WorkerDiedError(
        message,
        worker_number=incident.worker,
        phase=incident.phase,
        trajectory=incident.trajectory,
        exitcode=incident.exitcode,
        incidents=history,
    )


def told(history: tuple[Incident, ...]) -> str:
    """Return a history of losses as an error message's last lines; nothing where there was but one."""
    if len(history) < 2:
        return ""
    shown = history[-_SHOWN:]
    lines = [f"  {incident.seconds:9.2f} s: {incident}" for incident in shown]
    if len(history) > len(shown):
        lines.insert(0, f"  … {len(history) - len(shown)} before")
    return "\nWhat was lost, in seconds since the sampler was made:\n" + "\n".join(lines)
