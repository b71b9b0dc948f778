"""The texts of the scheduler's warnings, and the errors that end calls."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from streamsampler.core.errors import (
    NotReproducibleError,
    Phase,
    RemoteTraceback,
    ResourceLimitError,
    RolloutError,
    SamplerError,
    SpentQuota,
    UsageError,
    WorkerDiedError,
    WorkerError,
    WorkerHungError,
)
from streamsampler.protocol.facts import (
    AlwaysTooLarge,
    ErrorFact,
    FaultEndsCall,
    FilesOverwritten,
    LongTrajectory,
    LossReplaced,
    LostInClosing,
    NotClosed,
    NotReproducible,
    OtherKernels,
    RunsBlocks,
    StartsInsideBlock,
    TooManyDropped,
    UnneededFault,
    WarningFact,
)
from streamsampler.protocol.faults import WorkerFault
from streamsampler.protocol.losses import Loss
from streamsampler.protocol.messages import Failure
from streamsampler.protocol.result import DroppedReport
from streamsampler.protocol.task_sections import TaskName

logger = logging.getLogger("streamsampler")

_NO_MIDDLE = (
    "first_trajectory must be 0, and parts and resume are not supported, for a vector environment with growing blocks: "
    'pass worker_args={{"n_envs": {0}, "block_size": {0}}}, in every part, for blocks of a fixed size'
)


def warning_of(fact: WarningFact) -> str:
    match fact:
        case LossReplaced(fault=fault) | LostInClosing(fault=fault):
            assert fault.incident is not None
            details = fault.incident.stack if fault.failure is None else fault.failure.traceback
            return f"{fault.incident}; a new one takes its place" + (f"\n{details}" if details else "")
        case UnneededFault(fault=fault):
            return f"{fault}; the call continues without it"
        case NotClosed(fault=WorkerFault(worker=worker, failure=failure)):
            assert failure is not None
            return f"worker {worker} failed to close while it was replaced: {failure.summary}"
        case AlwaysTooLarge(worker=worker, memory=memory, limit=limit):
            return (
                f"worker {worker} already uses {memory} bytes after its first report, more than max_worker_memory="
                f"{limit}, so workers are replaced all the time: raise the limit"
            )
        case LongTrajectory(worker=worker, trajectory=trajectory, needed=needed):
            return (
                f"trajectory {trajectory} in worker {worker} has run for more than ten times the {needed} timesteps "
                "that this batch needs, and may never end. Pass a (smaller) max_episode_length to truncate "
                "trajectories; this is logged once"
            )
        case FilesOverwritten(workers=workers, place=place):
            both = len(workers) == 2
            writers = "workers {} and {}" if both else "environments of worker {}"
            return (
                f"{writers.format(*workers)} write to the same files, {place}, and overwrite each other's. Make the "
                "environment in a function with a parameter `worker_number`, and use this number in the files' names"
            )
        case OtherKernels(text=text):
            return text


def error_of(fact: ErrorFact, exceptions: Mapping[int, object], seed_of: Callable[[int], int]) -> SamplerError:
    """Return the error that ends a call, with the task's number if workers run several tasks.

    `exceptions` has exceptions raised in this process, by the number of their failure; `seed_of` returns a trajectory's
    seed by its index, for messages about tasks.
    """
    error, task = _error_of(fact, exceptions, seed_of), _task_of(fact)
    if task is not None:
        error.task = task.number
    return error


def _task_of(fact: ErrorFact) -> TaskName | None:
    match fact:
        case FaultEndsCall(fault=WorkerFault(task=task)) | StartsInsideBlock(task=task) | TooManyDropped(task=task):
            return task
    return None


def _error_of(fact: ErrorFact, exceptions: Mapping[int, object], seed_of: Callable[[int], int]) -> SamplerError:
    match fact:
        case FaultEndsCall(fault=WorkerFault(failure=None, incident=incident), quota=quota, history=history):
            assert incident is not None
            return loss_error(incident, quota, history, of_seed=_seed_in(incident, seed_of))
        case FaultEndsCall(fault=WorkerFault(worker, failure, number, task=task), quota=quota, history=history):
            assert failure is not None
            of_task = "" if task is None else _in_task(task, failure.trajectory, seed_of)
            return failure_error(worker, failure, exceptions.get(number), of_task, quota=quota, history=history)
        case NotReproducible(fault=WorkerFault(worker, failure, number)):
            assert failure is not None
            return failure_error(worker, failure, exceptions.get(number))
        case OtherKernels(text=text, worker=worker):
            return kernels_error(worker, text)
        case RunsBlocks(worker=worker):
            return UsageError(
                f"worker {worker} runs trajectories in blocks since the agent's parameters were updated, but this call "
                "needs them one by one: pass the agent itself as agent_update"
            )
        case StartsInsideBlock(block=block, task=task):
            return UsageError(_NO_MIDDLE.format(block) if task is None else f"{task}: {_NO_MIDDLE.format(block)}")
        case TooManyDropped(last=last, version=version, n_dropped=n_dropped, n_kept=n_kept, task=task):
            return dropped_error(last, version, n_dropped, n_kept, task)


def _seed_in(incident: Loss, seed_of: Callable[[int], int]) -> str:
    if incident.task is None or incident.trajectory is None:
        return ""
    return f" (seed {seed_of(incident.trajectory)})"


def _in_task(task: TaskName, trajectory: int | None, seed_of: Callable[[int], int]) -> str:
    if trajectory is None:
        return f" of {task}"
    return f" in trajectory {trajectory} of {task} (seed {seed_of(trajectory)})"


def failure_error(
    worker: int, failure: Failure, exception: Any = None, of_task: str = "", *, quota: SpentQuota | None = None,
    history: tuple[Loss, ...] = (),
) -> SamplerError:  # fmt: skip
    """Return the error for a worker's failure, caused by the exception if it was raised in this process.

    A `WorkerError` or `ResourceLimitError` is returned itself, because its message is complete. `of_task` is the place
    if there are several tasks.
    """
    if isinstance(exception, WorkerError | ResourceLimitError):
        return exception
    where = "" if failure.trajectory is None else f" in trajectory {failure.trajectory}"
    if failure.ticket is not None:
        where = of_task or f"{where} of agent version {failure.ticket.version}"
    original = exception if isinstance(exception, BaseException) else unpickled(failure.exception)
    if failure.phase is Phase.CHECK and isinstance(original, NotReproducibleError):
        return original
    error = RolloutError(
        f"worker {worker} failed while {failure.phase}{where}: {failure.summary}",
        worker_number=worker,
        phase=failure.phase,
        trajectory=failure.trajectory,
        original=original,
        incidents=history,
        quota=quota,
    )
    # An exception from this process has its frames, for debuggers; from elsewhere only its text arrives.
    error.__cause__ = exception if isinstance(exception, BaseException) else RemoteTraceback(failure.traceback)
    return error


def dropped_error(
    last: DroppedReport, version: int, n_dropped: int, n_kept: int, task: TaskName | None = None
) -> RolloutError:
    worker, index, (_, phase, summary), _ = last
    where = f"agent version {version}" if task is None else str(task)
    return RolloutError(
        f"{n_dropped} trajectories failed and {n_kept} did not, which is too many to drop; the latest failure, in "
        f"trajectory {index} of {where}, was in worker {worker} while {phase}: {summary}",
        worker_number=worker,
        phase=phase,
        trajectory=index,
    )


def kernels_error(worker: int, what: str) -> NotReproducibleError:
    return NotReproducibleError(what, worker_number=worker, phase=Phase.CHECK, trajectory=None)


def unpickled(exception: bytes | None) -> BaseException | None:
    if exception is None:
        return None
    try:
        loaded = pickle.loads(exception)
    except (Exception, SystemExit, GeneratorExit):
        return None
    return loaded if isinstance(loaded, BaseException) else None


def loss_error(
    incident: Loss, quota: SpentQuota | None, history: tuple[Loss, ...], what: str = "", *, of_seed: str = ""
) -> WorkerError:
    """Return the error for a loss that ends a call."""
    what = what or f"{incident}{of_seed}" + ("" if quota is not None else "; a new worker would do the same")
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
