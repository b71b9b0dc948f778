"""The events that the scheduler of environments handles, and the instructions that it gives. Values; no I/O.

Transports make the events, and a manager carries the instructions out, in their order. An error is a value here, which
is passed on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

from streamsampler.core.errors import ActionError, Phase, RolloutError, SpentQuota, WorkerDiedError
from streamsampler.protocol.restarts import Incident

IT_RAISED = "it raised "
"""How the reason begins why an environment is not what it was, where it raised."""

_PHASES_OF_RESETS = ("reset", Phase.RESET, Phase.ENV_CONSTRUCTION)


class Done(NamedTuple):
    """The requests of some environments were carried out; the results lie in their rows.

    Attributes:
        env_ids: The environments.
        infos: The infos that are not empty, by environment.
    """

    env_ids: Sequence[int]
    infos: Mapping[int, dict[str, Any]] = MappingProxyType({})


@dataclass(frozen=True)
class Broken:
    """Environments failed. They are there again, and are to be reset.

    Attributes:
        env_ids: The environments.
        error: What happened.
        worker_number: The worker that the environments are in.
        culprit: The environment that ran when it happened; None if none did, or it is not known.
        is_new: Whether the environments are to be made again, because their process died or hung.
        is_final: Whether the error is raised in any case.
    """

    env_ids: Sequence[int]
    error: BaseException
    worker_number: int
    culprit: int | None = None
    is_new: bool = False
    is_final: bool = False

    @classmethod
    def alone(cls, env_id: int, error: RolloutError) -> Broken:
        """Return that an environment raised; where the caller's action was wrong, trying it again cannot help."""
        return cls([env_id], error, error.worker_number, env_id, is_final=is_of_action(error))

    @property
    def loss(self) -> Incident | None:
        """The loss that counts against the quotas; None for none."""
        losses: tuple[Incident, ...] = getattr(self.error, "incidents", ())
        return losses[-1] if losses else None

    @property
    def has_died(self) -> bool:
        """Whether the process ended, and did not hang."""
        return isinstance(self.error, WorkerDiedError)

    @property
    def is_of_reset(self) -> bool:
        """Whether it happened in a reset, or while environments were made."""
        return getattr(self.error, "phase", None) in _PHASES_OF_RESETS


def is_of_action(error: BaseException) -> bool:
    """Whether an environment raised because its caller's action was outside its space."""
    return isinstance(error, RolloutError) and isinstance(error.original, ActionError)


@dataclass(frozen=True)
class Restored:
    """An environment is what it was, or could not be made that: then it ignores steps until `ReleaseEnvs`.

    Attributes:
        env_id: The environment.
        n_timesteps: How many timesteps were run for it; None if it had no episode.
        why_not: Why it is not what it was; empty if it is. One that had no episode ignores no steps.
    """

    env_id: int
    n_timesteps: int | None
    why_not: str


@dataclass(frozen=True, slots=True)
class OrdersMade:
    """The orders are there that a `MakeOrders` is about.

    Attributes:
        number: Its number.
        unkept: By environment, why its episode cannot be restored: the order only makes the environment anew.
        restored: Environments whose episodes the orders restore; a `Restored` follows for each.
    """

    number: int
    unkept: Mapping[int, str]
    restored: Collection[int] = ()


EnvReport = Done | Broken | Restored
"""What a transport reports."""


class Place(Enum):
    """Where an environment that is restored lives."""

    NEW = "a new process"
    REMADE = "the same process, in which it is made anew"
    SAME = "the same object"


@dataclass(frozen=True, slots=True)
class RequestSteps:
    """Request steps; see `Transport.step`."""

    env_ids: Sequence[int]
    together: bool = False


@dataclass(frozen=True, slots=True)
class RequestResets:
    """Request resets with the seeds in the rows, and the options that are remembered."""

    env_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class BeginEpisodes:
    """Request the resets that the caller wants, with its seeds and options.

    Attributes:
        env_ids: The environments.
        n_discarded: How many results of steps are discarded by it.
        n_failed: How many episodes end by it whose environments have failed.
        n_abandoned: How many other episodes end by it.
    """

    env_ids: Sequence[int]
    n_discarded: int = 0
    n_failed: int = 0
    n_abandoned: int = 0


@dataclass(frozen=True, slots=True)
class MakeOrders:
    """Make the orders that restore environments, and report `OrdersMade` at once.

    Attributes:
        number: The number of these orders.
        going_on: Environments whose episodes are to go on.
        anew: Environments that are made anew: only requests of earlier times are repeated.
        place: Where all of them live.
    """

    number: int
    going_on: Sequence[int]
    anew: Sequence[int]
    place: Place


@dataclass(frozen=True, slots=True)
class RestoreEnvs:
    """Request that environments become what their orders say."""

    env_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReleaseEnvs:
    """Let environments take steps again that could not be restored."""

    env_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Rewind:
    """Let the last observation be the one that was received last: a lost step may have written another one."""

    env_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class CountRestored:
    """Account for an environment that was restored, or made anew, and warn where it is not what it was."""

    restored: Restored


@dataclass(frozen=True, slots=True)
class CountUnrestored:
    """Account for an episode that ends because its environment was not restored, and warn of it."""

    env_id: int
    why: str


@dataclass(frozen=True, slots=True)
class KeepError:
    """Keep what an environment raised, which is its result."""

    env_id: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class CountLoss:
    """Account for a process that was lost, and in whose place a new one is started."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class RaiseFailure:
    """Raise an error when all instructions are carried out; the first one counts.

    Attributes:
        error: The error.
        quota: The quota that is spent; None for none.
        history: All losses since the last error, where one is spent.
    """

    error: BaseException
    quota: SpentQuota | None = None
    history: tuple[Incident, ...] = ()


EnvInstruction = (
    RequestSteps
    | RequestResets
    | BeginEpisodes
    | MakeOrders
    | RestoreEnvs
    | ReleaseEnvs
    | Rewind
    | CountRestored
    | CountUnrestored
    | KeepError
    | CountLoss
    | RaiseFailure
)
