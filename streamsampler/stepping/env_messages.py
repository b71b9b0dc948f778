"""The events and instructions of the scheduler of environments, as values. No I/O.

Transports make the events; a manager carries out the instructions in their order.
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
"""Start of the reason why an environment was not restored, if it raised."""

_PHASES_OF_RESETS = ("reset", Phase.RESET, Phase.ENV_CONSTRUCTION)


class Done(NamedTuple):
    """The requests of `env_ids` were carried out; the results are in their rows, non-empty infos in `infos`."""

    env_ids: Sequence[int]
    infos: Mapping[int, dict[str, Any]] = MappingProxyType({})


@dataclass(frozen=True)
class Broken:
    """Environments failed. Whatever lives again needs a reset.

    Attributes:
        env_ids: The environments.
        error: The error of the environment or of its worker.
        worker_number: The worker of these environments.
        culprit: The environment that ran when it failed; None if none did, or if it is unknown.
        is_new: Whether their process died or hung, so that all of them are made again.
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
        """Return the failure of one environment. It is final if the caller's action was wrong: a retry cannot help."""
        return cls([env_id], error, error.worker_number, env_id, is_final=is_of_action(error))

    @property
    def loss(self) -> Incident | None:
        """The loss counted against the quotas, if any."""
        losses: tuple[Incident, ...] = getattr(self.error, "incidents", ())
        return losses[-1] if losses else None

    @property
    def has_died(self) -> bool:
        """Whether the process ended, as opposed to hung."""
        return isinstance(self.error, WorkerDiedError)

    @property
    def is_of_reset(self) -> bool:
        """Whether environments were being reset or made."""
        return getattr(self.error, "phase", None) in _PHASES_OF_RESETS


def is_of_action(error: BaseException) -> bool:
    """Whether an environment raised because the caller's action was outside its space."""
    return isinstance(error, RolloutError) and isinstance(error.original, ActionError)


@dataclass(frozen=True)
class Restored:
    """An environment was restored, or could not be: then it ignores steps until `ReleaseEnvs`.

    Attributes:
        env_id: The environment.
        n_timesteps: How many recorded timesteps were run again; None if it had no episode.
        why_not: Why it was not restored; empty if it was. Without an episode it ignores no steps.
    """

    env_id: int
    n_timesteps: int | None
    why_not: str


@dataclass(frozen=True, slots=True)
class OrdersMade:
    """The orders of the `MakeOrders` with this number were made.

    Attributes:
        number: The number of the `MakeOrders`.
        unkept: By environment, why its episode cannot be restored: its order only makes the environment again.
        restored: Environments with an order to restore an episode; a `Restored` follows for each.
    """

    number: int
    unkept: Mapping[int, str]
    restored: Collection[int] = ()


EnvReport = Done | Broken | Restored
"""The reports of a transport."""


class Place(Enum):
    """Where a restored environment lives."""

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
    """Request resets with the seeds in the rows, and each environment's current options."""

    env_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class BeginEpisodes:
    """Request the caller's resets, with its seeds and options.

    Attributes:
        env_ids: The environments.
        n_discarded: How many results of steps these resets discard.
        n_failed: How many episodes of failed environments they end.
        n_abandoned: How many other episodes they end.
    """

    env_ids: Sequence[int]
    n_discarded: int = 0
    n_failed: int = 0
    n_abandoned: int = 0


@dataclass(frozen=True, slots=True)
class MakeOrders:
    """Make the orders to restore environments, and report `OrdersMade` at once.

    Attributes:
        number: The number of these orders.
        going_on: Environments with an episode to restore.
        anew: Environments to make again; of their past only `call` and `set_attr` are repeated.
        place: Where all of them live.
    """

    number: int
    going_on: Sequence[int]
    anew: Sequence[int]
    place: Place


@dataclass(frozen=True, slots=True)
class RestoreEnvs:
    """Request that environments carry out their orders."""

    env_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReleaseEnvs:
    """Let environments that could not be restored step again."""

    env_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Rewind:
    """Return to the observation that was received last: a lost step may have written the next one."""

    env_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class CountRestored:
    """Account for an environment that was restored or made again; warn if it was not restored."""

    restored: Restored


@dataclass(frozen=True, slots=True)
class CountUnrestored:
    """Account for an episode that ends because its environment was not restored; warn of it."""

    env_id: int
    why: str


@dataclass(frozen=True, slots=True)
class KeepError:
    """Keep an environment's exception as the result of its request."""

    env_id: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class CountLoss:
    """Account for a lost process, which a new one replaces."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class RaiseFailure:
    """Raise an error after all other instructions; the first one counts.

    Attributes:
        error: The error.
        quota: The exhausted quota, if any.
        history: If a quota is exhausted, all losses since the last error.
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
