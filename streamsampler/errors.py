"""Everything this package raises of its own.

::

    SamplerError
    ├── UsageError (ValueError)        an argument that cannot work
    │   ├── UnknownEnvironmentError    no environment of that id; near ids are suggested
    │   └── UnknownAgentError          no agent of that name
    ├── DataError (ValueError)         data that does not fit its space or its batch
    │   ├── ObservationError           an observation of another shape or dtype than its space
    │   └── ActionError                an action outside its space
    ├── StorageError (ValueError)      a file that is no trajectory batch, or data that cannot be stored
    │   └── DamagedShardError           a shard that is damaged, missing or of another run
    ├── SerializationError             an agent, an environment or an update that cannot be pickled
    ├── ResourceLimitError (OSError)   the system allows this process fewer descriptors than the workers need
    ├── ClosedError                    a call after close
    ├── ConcurrentCallError            a call while another is under way
    ├── WorkerError                    what a worker was asked to do failed
    │   ├── RolloutError               user code raised in a worker; its traceback is the cause
    │   ├── NotReproducibleError       a trajectory depends on more than its seed; see `check` of the samplers
    │   ├── WorkerDiedError            a worker process ended without being asked to
    │   └── WorkerHungError            a worker made no progress, and was killed
    └── ProtocolError                  a message that the state machine does not allow: a bug in this package
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ActionError",
    "ClosedError",
    "ConcurrentCallError",
    "DamagedShardError",
    "DataError",
    "NotReproducibleError",
    "ObservationError",
    "ProtocolError",
    "ResourceLimitError",
    "RolloutError",
    "SamplerError",
    "SerializationError",
    "StorageError",
    "UnknownAgentError",
    "UnknownEnvironmentError",
    "UsageError",
    "WorkerDiedError",
    "WorkerError",
    "WorkerHungError",
]


class SamplerError(Exception):
    """The root of this package's exceptions."""


class UsageError(SamplerError, ValueError):
    """An argument that cannot work."""


class UnknownEnvironmentError(UsageError):
    """No environment is registered under that id."""


class UnknownAgentError(UsageError):
    """No agent goes by that name."""


class DataError(SamplerError, ValueError):
    """Data that does not fit its space or its batch."""


class ObservationError(DataError):
    """An observation of another shape or dtype than its space."""


class ActionError(DataError):
    """An action outside its space."""


class StorageError(SamplerError, ValueError):
    """A file that holds no trajectory batch, or data that cannot be stored."""


class DamagedShardError(StorageError):
    """A shard of a folder that is damaged or missing, or another one than the folder's."""


class SerializationError(SamplerError):
    """An agent, an environment or an update that cannot be pickled."""


class ResourceLimitError(SamplerError, OSError):
    """The system allows this process fewer descriptors than the workers need."""

    def __str__(self) -> str:
        return str(self.strerror)


class ClosedError(SamplerError):
    """A call on a sampler that is closed."""


class ConcurrentCallError(SamplerError):
    """A call on a sampler while another one is under way."""


class ProtocolError(SamplerError):
    """A message that the worker's state machine does not allow."""


class RemoteTraceback(Exception):  # noqa: N818 - it is a traceback, carried as a cause
    """The traceback of a worker's exception, as text: frames do not cross processes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


def _without_init(cls: type[WorkerError], args: tuple[Any, ...]) -> WorkerError:
    error = cls.__new__(cls)
    error.args = args
    return error


class WorkerError(SamplerError):
    """What a worker was asked to do failed.

    Attributes:
        worker_number: The worker, 0 to n-1.
        phase: What it was doing, a word of `streamsampler.protocol.Phase`.
        trajectory: Index of the trajectory in hand, or None outside trajectories.
        incidents: What was lost before and made good (`streamsampler.scheduling.restarts.Incident`), this loss included if it
            was one; oldest first, and empty for an exception that is raised at once.
    """

    def __init__(
        self,
        message: str,
        *,
        worker_number: int,
        phase: str,
        trajectory: int | None,
        incidents: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(message)
        self.worker_number = worker_number
        self.phase = phase
        self.trajectory = trajectory
        self.incidents = incidents

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with the message alone.
        return _without_init, (type(self), self.args), self.__dict__


class RolloutError(WorkerError):
    """User code raised in a worker; the worker's traceback is `__cause__`.

    Attributes:
        original: The exception itself where it could be pickled, else None.
    """

    def __init__(
        self,
        message: str,
        *,
        worker_number: int,
        phase: str,
        trajectory: int | None,
        original: BaseException | None = None,
        incidents: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(message, worker_number=worker_number, phase=phase, trajectory=trajectory, incidents=incidents)
        self.original = original


class NotReproducibleError(WorkerError):
    """A trajectory depends on more than its seed: batches would differ with the number of workers and with timing."""


class WorkerDiedError(WorkerError):
    """A worker process ended without being asked to.

    Attributes:
        exitcode: Its exit code, negative for a signal, None where it is unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        worker_number: int,
        phase: str,
        trajectory: int | None,
        exitcode: int | None,
        incidents: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(message, worker_number=worker_number, phase=phase, trajectory=trajectory, incidents=incidents)
        self.exitcode = exitcode


class WorkerHungError(WorkerError):
    """A worker made no progress for too long, and was killed; its Python stacks are `__cause__`.

    Attributes:
        stack: The stacks of its threads as text; empty where they could not be had.
    """

    def __init__(
        self,
        message: str,
        *,
        worker_number: int,
        phase: str,
        trajectory: int | None,
        stack: str,
        incidents: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(message, worker_number=worker_number, phase=phase, trajectory=trajectory, incidents=incidents)
        self.stack = stack
