"""All exceptions of this package, which `streamsampler.errors` shows, and checks of arguments of several rooms."""

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
    """The root of this package's exceptions.

    Attributes:
        task: Of a call in which workers ran several tasks, the number of the task that the error is about; None
            otherwise.
        found: Of a comparison in which an agent failed, the results of the agents before it, by name; None otherwise.
    """

    task: int | None = None
    found: Any = None


class UsageError(SamplerError, ValueError):
    """An argument that cannot work."""


class UnknownArgumentError(UsageError, TypeError):
    """A call has no argument of that name; near names are suggested. It is a TypeError, as Python's own is."""


class UnknownEnvironmentError(UsageError):
    """No environment is registered under that id."""


class UnknownAgentError(UsageError):
    """No agent goes by that name."""


class DataError(SamplerError, ValueError):
    """Data that does not fit its space or its batch.

    Attributes:
        row: Which row of a batch or of what a recorder holds is wrong, -1 for what a reset returned; None where that is
            not known.
        position: Position in its ticket of the trajectory that is wrong; None where that is not known.
        timestep: The timestep of that trajectory, where the message does not name it; None otherwise.
        others: Position and summary of other trajectories of the ticket that are wrong, if those are known as well.
        located: Whether the message names the environment and the timestep.
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
    """An observation of another shape or dtype than its space."""


class ActionError(DataError):
    """An action outside its space."""


class StorageError(SamplerError, ValueError):
    """A file that holds no trajectory batch, or data that cannot be stored."""


class DamagedShardError(StorageError):
    """A shard of a folder that is damaged or missing, or another one than the folder's."""


class UnwritableInfoError(StorageError):
    """Infos that no file can hold.

    Attributes:
        problem: What cannot be written, and why; without advice, since the command line gives another one.
        names: The names of all such infos.
    """

    def __init__(self, problem: str, names: Sequence[str] = (), others: Sequence[str] = ()) -> None:
        keep = ", ".join(f'"{name}"' for name in others)
        advice = f"infos=[{keep}] to write only the others" if others else "infos=False to write no infos"
        super().__init__(f"{problem}. Give {advice}" if names else problem)
        self.problem = problem
        self.names = list(names)


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
    """A message that the worker's state machine does not allow: a bug in this package.

    Attributes:
        trace: Of an error of a sampler's call, the events that led to it, as `save_trace` writes them; None otherwise.
    """

    trace: bytes | None = None

    def save_trace(self, path: str | PathLike[str]) -> None:
        """Save the events that led to the error, for a report of the bug.

        `python -m streamsampler.testing.trace PATH` repeats the error from them. The file has no observations, actions
        and rewards, but the lengths of trajectories and the texts of exceptions. It is a pickle: load only those that
        you trust.

        Args:
            path: The file.

        Raises:
            UsageError: The error is not of a sampler's call, and has no events.
        """
        if self.trace is None:
            raise UsageError("this error has no trace: only those that a call of a sampler raises have one")
        Path(path).write_bytes(self.trace)


class RemoteTraceback(Exception):  # noqa: N818 - it is a traceback, carried as a cause
    """The traceback of a worker's exception, as text: frames do not cross processes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


class SpentQuota(NamedTuple):
    """The quota of losses that ended a call; the command line names another argument.

    Attributes:
        losses: How many losses there were.
        within: In what time, such as " within 60 s"; empty where no time is given. Of equal losses, what was lost, such
            as " of trajectory 7".
        argument: The sampler's argument that sets the quota.
        limit: Its value; None where there were too many equal losses for a sampler without this quota.
    """

    losses: int
    within: str
    argument: str
    limit: int | None

    def __str__(self) -> str:
        if self.limit is None:
            return (
                f"that is {self.losses} equal losses{self.within}, which {self.argument}=None does not retry forever; "
                "a number is obeyed as given"
            )
        plural = "es" if self.losses > 1 else ""
        return f"that is {self.losses} loss{plural}{self.within}, and {self.argument} is {self.limit}"


def _without_init(cls: "type[WorkerError]", args: tuple[Any, ...]) -> "WorkerError":
    error = cls.__new__(cls)
    error.args = args
    return error


class Phase(StrEnum):
    """What a worker is doing, in the words that error messages use."""

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
    """The sampler does not know what the worker did when it died."""
    HOOK_CREATED = "calling the hook on_environment_created"
    HOOK_START = "calling the hook on_trajectory_start"
    HOOK_TIMESTEP = "calling the hook on_timestep"
    HOOK_END = "calling the hook on_trajectory_end"
    HOOK_LOST = "calling the hook on_trajectory_lost"
    DROP_IF = "calling drop_if"
    CALL = "calling a method of the environment"
    STARTING = "starting"
    """The worker was lost before it had done anything."""
    IN_FLIGHT = "waiting for environments and agents"


class WorkerError(SamplerError):
    """What a worker was asked to do failed.

    Attributes:
        worker_number: The worker, 0 to n-1.
        phase: What it was doing, a word of `Phase`.
        trajectory: Index of the trajectory in hand, or None outside trajectories.
        incidents: The losses before (`streamsampler.protocol.restarts.Incident`), this loss included
            if it was one; oldest first, and empty for an exception that is raised at once.
        what: What happened: the message without `quota`, `outlook` and the list of `incidents`.
        quota: The quota that is spent; None where none is.
        outlook: What follows for the sampler's next call, or nothing.
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
        """Return the message with a quota and an outlook in other words."""
        parts = self.what, "" if quota is None else str(quota), outlook
        return "; ".join(filter(None, parts)) + _listed(self.incidents)

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with the message alone.
        return _without_init, (type(self), self.args), self.__dict__


def _listed(incidents: tuple[Any, ...]) -> str:
    """Return incidents as a message's last lines; nothing where there was but one."""
    if len(incidents) < 2:
        return ""
    shown = incidents[-_SHOWN_INCIDENTS:]
    lines = [f"  {incident.seconds:9.2f} s: {incident}" for incident in shown]
    if len(incidents) > len(shown):
        lines.insert(0, f"  … {len(incidents) - len(shown)} before")
    return "\nWhat was lost, in seconds since the sampler was made:\n" + "\n".join(lines)


class RolloutError(WorkerError):
    """User code raised in a worker; the worker's traceback is `__cause__`.

    Attributes:
        original: The exception itself where it could be pickled, else None.
    """

    def __init__(self, what: str, *, original: BaseException | None = None, **fields: Any) -> None:
        super().__init__(what, **fields)
        self.original = original


class NotReproducibleError(WorkerError):
    """A trajectory depends on more than its seed: batches would differ with the number of workers and with timing."""


class WorkerDiedError(WorkerError):
    """A worker process ended without being asked to.

    Attributes:
        exitcode: Its exit code, negative for a signal, None where it is unknown.
    """

    outlook = _NEXT_CALL

    def __init__(self, what: str, *, exitcode: int | None, **fields: Any) -> None:
        super().__init__(what, **fields)
        self.exitcode = exitcode


class WorkerHungError(WorkerError):
    """A worker made no progress for too long, and was killed; its Python stacks are `__cause__`.

    Attributes:
        stack: The stacks of its threads as text; empty where they could not be had.
    """

    outlook = _NEXT_CALL

    def __init__(self, what: str, *, stack: str, **fields: Any) -> None:
        super().__init__(what, **fields)
        self.stack = stack


# ---------------------------------------------------------------------- checks of arguments

CheckMode: TypeAlias = Literal["warn", "error"] | None
"""What is done about data that may be wrong: a warning, an error, or nothing."""


def check_mode(value: Any, name: str = "check") -> CheckMode:
    """Return `value` as the argument `check` of a sampler, or as another one like it.

    Raises:
        UsageError: It is none of "warn", "error" and None.
    """
    if value is None or (isinstance(value, str) and value in ("warn", "error")):
        return cast(CheckMode, value)
    raise UsageError(f'{name} must be "warn", "error" or None, got {value!r}')


def positive(name: str, value: Any, least: int = 1) -> int:
    """Return `value` as an int.

    Raises:
        UsageError: It is no integer, or less than `least`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} must be an integer, got {value!r}") from None
    if isinstance(value, bool) or number < least:
        raise UsageError(f"{name} must be at least {least}, got {value!r}")
    return number


def number(name: str, value: Any) -> float:
    """Return `value` as a float.

    Raises:
        UsageError: It is no number.
    """
    try:
        if not isinstance(value, bool | str | bytes):
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise UsageError(f"{name} must be a number, got {value!r:.60}")


def keywords(name: str, value: Any) -> dict[str, Any]:
    """Return keyword arguments as a dict of their own; none for None.

    Raises:
        UsageError: They are no dict with strings as keys.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{name} must be a dict with the arguments' names as keys, got {value!r}")
    return dict(value)


def positive_seconds(name: str, value: Any) -> float:
    """Return `value` as a float.

    Raises:
        UsageError: It is no finite number, or not above 0.
    """
    try:
        seconds = float(value) if not isinstance(value, (bool, str)) else math.nan
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(f"{name} must be a number of seconds above 0, got {value!r}")
    return seconds


def missing_attribute(obj: object, name: str, todays: Mapping[str, str]) -> AttributeError:
    """Return the error of an attribute that an object does not have.

    Args:
        obj: The object.
        name: The attribute's name.
        todays: By names that other libraries use, what stands here instead.
    """
    said = f"{type(obj).__name__!r} object has no attribute {name!r}"
    if name in todays:
        return AttributeError(f"{said}: here it is {todays[name]}")
    return AttributeError(said, name=name, obj=obj)


def refuse_two_numbers(method: str, name: str, amount: Any, agent_update: Any) -> None:
    """Refuse a call such as `obtain_samples(itr, num_samples)`, which other libraries' samplers take.

    Args:
        method: The method's name.
        name: What its first argument is called.
        amount: What was given for it.
        agent_update: What was given for the second argument.

    Raises:
        UsageError: The agent update is an integer, or a Python float.
    """
    if isinstance(agent_update, numbers.Integral) or type(agent_update) is float:
        raise UsageError(
            f"{method}({amount!r}, {agent_update!r}): the arguments are ({name}, agent_update=None, env_update=None, "
            f"progress=False). The second one updates the agent, which a number cannot, and none is an iteration "
            f"number: did you mean {method}({agent_update!r})? (A parameter that is a number goes into a tuple.)"
        )


# Users import them from there; tracebacks and pickles say so, too.
for _name in __all__:
    if isinstance(_exception := globals()[_name], type):
        _exception.__module__ = "streamsampler.errors"
