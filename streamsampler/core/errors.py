"""All exceptions of this package, which users import from `streamsampler.errors`; checks of arguments."""

import math
import numbers
import operator
from collections.abc import Mapping, Sequence
from enum import StrEnum
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast

__all__ = [
    "ActionError", "CheckMode", "ClosedError", "ConcurrentCallError", "DamagedShardError", "DataError",
    "NotReproducibleError", "ObservationError", "Phase", "ProtocolError", "ResourceLimitError", "RolloutError",
    "SamplerError", "SerializationError", "SpentQuota", "StorageError", "UnknownAgentError",
    "UnknownArgumentError", "UnknownEnvironmentError", "UnwritableInfoError", "UsageError", "WorkerDiedError",
    "WorkerError", "WorkerHungError", "check_mode", "keywords", "missing_attribute", "number",
    "positive", "positive_seconds", "refuse_two_numbers",
]  # fmt: skip

_NEXT_CALL = "the next call starts a new one in its place"
_SHOWN_INCIDENTS = 20


class SamplerError(Exception):
    """The base class of this package's exceptions.

    Attributes:
        task: The number of the failed task, in calls of several tasks; otherwise None.
        found: Results of earlier agents by name, where an agent of a comparison failed; otherwise None.
    """

    task: int | None = None
    found: Any = None


class UsageError(SamplerError, ValueError):
    """An argument has an impossible value or type."""


class UnknownArgumentError(UsageError, TypeError):
    """A call has no argument of that name. A TypeError, as Python's own."""


class UnknownEnvironmentError(UsageError):
    """No environment is registered under that id."""


class UnknownAgentError(UsageError):
    """No agent has that name."""


class DataError(SamplerError, ValueError):
    """Data does not fit its space or its batch.

    Attributes:
        row: The wrong row of a batch or recorder, -1 for a reset's result; None where unknown.
        position: The wrong trajectory's position in its ticket; None where unknown.
        timestep: Its timestep, unless the message names it.
        others: Position and summary of other wrong trajectories in the ticket, where known.
        located: Whether the message names environment and timestep.
    """

    others: Sequence[tuple[int, str]] = ()
    located = False

    def __init__(
        self, *args: Any, row: int | None = None, position: int | None = None, timestep: int | None = None
    ) -> None:
        super().__init__(*args)
        self.row = row
        self.position = position
        self.timestep = timestep


class ObservationError(DataError):
    """An observation differs from its space in shape or dtype."""


class ActionError(DataError):
    """An action is outside its space."""


class StorageError(SamplerError, ValueError):
    """A file holds no trajectory batch, or data cannot be stored."""


class DamagedShardError(StorageError):
    """A shard is damaged, missing, or of another folder."""


class UnwritableInfoError(StorageError):
    """No file can hold these infos.

    Attributes:
        problem: The info and the reason; the command line adds its own advice.
        names: The names of all such infos.
    """

    def __init__(self, problem: str, names: Sequence[str] = (), others: Sequence[str] = ()) -> None:
        keep = ", ".join(f'"{name}"' for name in others)
        advice = f"infos=[{keep}] to write only the others" if others else "infos=False to write no infos"
        super().__init__(f"{problem}. Pass {advice}" if names else problem)
        self.problem = problem
        self.names = list(names)


class SerializationError(SamplerError):
    """An agent, environment or update cannot be pickled."""


class ResourceLimitError(SamplerError, OSError):
    """The system grants this process fewer descriptors than its workers need."""

    def __str__(self) -> str:
        return str(self.strerror)


class ClosedError(SamplerError):
    """A call on a closed sampler."""


class ConcurrentCallError(SamplerError):
    """A call on a sampler during another call."""


class ProtocolError(SamplerError):
    """The worker's state machine forbids a message: a bug in this package.

    Attributes:
        trace: The events of a sampler's call before the error, for `save_trace`; otherwise None.
    """

    trace: bytes | None = None

    def save_trace(self, path: str | PathLike[str]) -> None:
        """Save the events before the error, for a bug report.

        `python -m streamsampler.testing.trace PATH` repeats the error. The file has trajectories' lengths and
        exceptions' texts, but no observations, actions or rewards. It is a pickle: load only files that you trust.

        Args:
            path: The file.

        Raises:
            UsageError: No sampler's call raised this error, so it has no events.
        """
        if self.trace is None:
            raise UsageError("this error has no trace: only errors that a call of a sampler raises have one")
        Path(path).write_bytes(self.trace)


class RemoteTraceback(Exception):  # noqa: N818 - it is a traceback, carried as a cause
    """The traceback of a worker's exception, as text: frames do not cross processes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


class SpentQuota(NamedTuple):
    """The exhausted quota of losses that ended a call; the command line names another argument.

    Attributes:
        losses: The number of losses.
        within: The time window, such as " within 60 s", or empty; of equal losses, " of trajectory 7".
        argument: The sampler's argument for the quota.
        limit: Its value; None for too many equal losses without this quota.
    """

    losses: int
    within: str
    argument: str
    limit: int | None

    def __str__(self) -> str:
        if self.limit is None:
            return (
                f"that is {self.losses} equal losses{self.within}, which {self.argument}=None does not retry forever; "
                "pass a number to retry so often"
            )
        plural = "es" if self.losses > 1 else ""
        return f"that is {self.losses} loss{plural}{self.within}, and {self.argument} is {self.limit}"


def _without_init(cls: "type[WorkerError]", args: tuple[Any, ...]) -> "WorkerError":
    error = cls.__new__(cls)
    error.args = args
    return error


class Phase(StrEnum):
    """A worker's activity, in the words of error messages."""

    WAITING = "waiting for work"
    AGENT_CONSTRUCTION = "constructing the agent"
    AGENT_UPDATE = "updating the agent"
    ENV_CONSTRUCTION = "making the environment"
    RESET = "resetting the environment"
    AGENT_RESET = "resetting the agent"
    ACTION = "choosing an action"
    STEP = "stepping the environment"
    RECORDING = "recording the trajectory"
    SENDING = "sending the rollouts"
    CLOSE = "closing the environment"
    CHECK = "checking that trajectories depend on their seeds alone"
    UNSEEN = "running its tickets"
    """The worker died, and the sampler does not know in which phase."""
    HOOK_CREATED = "calling the hook on_environment_created"
    HOOK_START = "calling the hook on_trajectory_start"
    HOOK_TIMESTEP = "calling the hook on_timestep"
    HOOK_END = "calling the hook on_trajectory_end"
    HOOK_LOST = "calling the hook on_trajectory_lost"
    DROP_IF = "calling drop_if"
    CALL = "calling a method of the environment"
    STARTING = "starting"
    """The worker was lost before its first report."""
    IN_FLIGHT = "waiting for environments and agents"


class WorkerError(SamplerError):
    """A worker's task failed.

    Attributes:
        worker_number: The worker, 0 to n-1.
        phase: Its activity, a value of `Phase`.
        trajectory: Index of the current trajectory; None outside trajectories.
        incidents: Losses (`streamsampler.protocol.losses.Loss`), oldest first; empty for an exception without
            retry.
        what: The message without `quota`, `outlook` and `incidents`.
        quota: The exhausted quota, or None.
        outlook: The consequence for the sampler's next call, or "".
    """

    outlook = ""

    def __init__(
        self,
        what: str,
        *,
        worker_number: int,
        phase: str,
        trajectory: int | None,
        incidents: tuple[Any, ...] = (),
        quota: SpentQuota | None = None,
    ) -> None:
        self.what = what
        self.quota = quota
        self.worker_number = worker_number
        self.phase = phase
        self.trajectory = trajectory
        self.incidents = incidents
        super().__init__(self.worded(quota, self.outlook))

    def worded(self, quota: SpentQuota | None, outlook: str = "") -> str:
        """Return the message with another quota and outlook."""
        parts = self.what, "" if quota is None else str(quota), outlook
        return "; ".join(filter(None, parts)) + _listed(self.incidents)

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would pass only the message to the constructor.
        return _without_init, (type(self), self.args), self.__dict__


def _listed(incidents: tuple[Any, ...]) -> str:
    if len(incidents) < 2:
        return ""
    shown = incidents[-_SHOWN_INCIDENTS:]
    lines = [f"  {incident.seconds:9.2f} s: {incident}" for incident in shown]
    if len(incidents) > len(shown):
        lines.insert(0, f"  … {len(incidents) - len(shown)} earlier losses")
    return "\nLosses, in seconds since the sampler was made:\n" + "\n".join(lines)


class RolloutError(WorkerError):
    """User code raised in a worker; the worker's traceback is `__cause__`.

    Attributes:
        original: The exception itself; None where it cannot be pickled.
    """

    def __init__(self, what: str, *, original: BaseException | None = None, **fields: Any) -> None:
        super().__init__(what, **fields)
        self.original = original


class NotReproducibleError(WorkerError):
    """A trajectory depends on more than its seed, so batches would vary with timing and the number of workers."""


class WorkerDiedError(WorkerError):
    """A worker process ended without an order.

    Attributes:
        exitcode: Its exit code, negative for a signal; None where unknown.
    """

    outlook = _NEXT_CALL

    def __init__(self, what: str, *, exitcode: int | None, **fields: Any) -> None:
        super().__init__(what, **fields)
        self.exitcode = exitcode


class WorkerHungError(WorkerError):
    """A worker made no progress for too long, and was killed; its Python stacks are `__cause__`.

    Attributes:
        stack: The stacks of its threads as text, where available.
    """

    outlook = _NEXT_CALL

    def __init__(self, what: str, *, stack: str, **fields: Any) -> None:
        super().__init__(what, **fields)
        self.stack = stack


CheckMode: TypeAlias = Literal["warn", "error"] | None
"""The reaction to suspect data: a warning, an error, or nothing."""


def check_mode(value: Any, name: str = "check") -> CheckMode:
    """Return an argument such as a sampler's `check`; raise UsageError unless "warn", "error" or None."""
    if value is None or (isinstance(value, str) and value in ("warn", "error")):
        return cast(CheckMode, value)
    raise UsageError(f'{name} must be "warn", "error" or None, got {value!r}')


def positive(name: str, value: Any, least: int = 1) -> int:
    """Return an argument as an int; raise UsageError unless it is an integer of at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} must be an integer, got {value!r}") from None
    if isinstance(value, bool) or number < least:
        raise UsageError(f"{name} must be at least {least}, got {value!r}")
    return number


def number(name: str, value: Any) -> float:
    """Return an argument as a float; raise UsageError unless it is a number."""
    try:
        if not isinstance(value, bool | str | bytes):
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise UsageError(f"{name} must be a number, got {value!r:.60}")


def keywords(name: str, value: Any) -> dict[str, Any]:
    """Return a copy of keyword arguments, empty for None; raise UsageError unless their names are strings."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{name} must be a dict with the arguments' names as keys, got {value!r}")
    return dict(value)


def positive_seconds(name: str, value: Any) -> float:
    """Return an argument as a float; raise UsageError unless it is finite and above 0."""
    try:
        seconds = float(value) if not isinstance(value, (bool, str)) else math.nan
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(f"{name} must be a number of seconds above 0, got {value!r}")
    return seconds


def missing_attribute(obj: object, name: str, todays: Mapping[str, str]) -> AttributeError:
    """Return the error for a missing attribute; `todays` maps other libraries' names to ours."""
    said = f"{type(obj).__name__!r} object has no attribute {name!r}"
    if name in todays:
        return AttributeError(f"{said}: here it is {todays[name]}")
    return AttributeError(said, name=name, obj=obj)


def refuse_two_numbers(method: str, name: str, amount: Any, agent_update: Any) -> None:
    """Refuse `obtain_samples(itr, num_samples)`, the signature of other libraries: raise UsageError for a number."""
    if isinstance(agent_update, numbers.Integral) or type(agent_update) is float:
        raise UsageError(
            f"{method}({amount!r}, {agent_update!r}): the arguments are ({name}, agent_update=None, env_update=None, "
            f"progress=False). The second argument updates the agent, which a number cannot; no argument is an "
            f"iteration number. Did you mean {method}({agent_update!r})? (Pass a numeric parameter in a tuple.)"
        )


# Users import the exceptions from `streamsampler.errors`; tracebacks and pickles name the same module.
for _name in __all__:
    if isinstance(_exception := globals()[_name], type):
        _exception.__module__ = "streamsampler.errors"
