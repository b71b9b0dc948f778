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
from streamsampler.protocol.losses import Loss

IT_RAISED = "it raised "
"""Start of the reason why an environment was not restored, if it raised."""

_PHASES_OF_RESETS = ("reset", Phase.RESET, Phase.ENV_CONSTRUCTION)


class RequestsDone(NamedTuple):
    """Requests were carried out; the results are in the rows, non-empty infos in `infos`."""

    env_ids: Sequence[int]
    infos: Mapping[int, dict[str, Any]] = MappingProxyType({})


@dataclass(frozen=True)
class EnvsFailed:
    """Environments failed, and need a reset."""

    env_ids: Sequence[int]
    error: BaseException
    worker_number: int
    culprit: int | None = None  # the environment running at the time, if it is known
    is_new: bool = False  # whether their process died or hung: then all of them are made again
    is_final: bool = False  # whether the error is raised in any case

    @classmethod
    def alone(cls, env_id: int, error: RolloutError) -> EnvsFailed:
        """Return the failure of one environment, final if the caller's action was invalid: a retry cannot help."""
        return cls([env_id], error, error.worker_number, env_id, is_final=is_of_action(error))

    @property
    def loss(self) -> Loss | None:
        """The loss counted against the quotas, if any."""
        losses: tuple[Loss, ...] = getattr(self.error, "incidents", ())
        return losses[-1] if losses else None

    @property
    def has_died(self) -> bool:
        return isinstance(self.error, WorkerDiedError)

    @property
    def is_of_reset(self) -> bool:
        """Whether environments were being reset or made."""
        return getattr(self.error, "phase", None) in _PHASES_OF_RESETS


def is_of_action(error: BaseException) -> bool:
    return isinstance(error, RolloutError) and isinstance(error.original, ActionError)


@dataclass(frozen=True)
class Restored:
    """The outcome of a restore: `why_not` is empty, or the environment ignores steps until `ReleaseEnvs`.

    `n_timesteps` were repeated; without an episode it is None, and no step is ignored.
    """

    env_id: int
    n_timesteps: int | None
    why_not: str


@dataclass(frozen=True, slots=True)
class OrdersMade:
    """Orders were made, except for the episodes in `unkept`, with the reasons. `restored` are to be restored."""

    number: int
    unkept: Mapping[int, str]
    restored: Collection[int] = ()


EnvReport = RequestsDone | EnvsFailed | Restored
"""The reports of a transport."""


class Place(Enum):
    """Where a restored environment lives."""

    NEW = "a new process"
    REMADE = "the same process, in which it is made again"
    SAME = "the same object"


@dataclass(frozen=True, slots=True)
class RequestSteps:
    """Request steps; see `Transport.step`."""

    env_ids: Sequence[int]
    together: bool = False


@dataclass(frozen=True, slots=True)
class RequestResets:
    """Request resets with the seeds in the rows and the current options."""

    env_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class StartEpisodes:
    """Request the caller's resets, and count the steps and episodes they discard."""

    env_ids: Sequence[int]
    n_discarded: int = 0  # results of steps
    n_failed: int = 0  # episodes of failed environments
    n_abandoned: int = 0  # other episodes


@dataclass(frozen=True, slots=True)
class MakeOrders:
    """Make the orders to restore environments, and report `OrdersMade` at once."""

    number: int
    to_restore: Sequence[int]  # environments with an episode to restore
    to_remake: Sequence[int]  # environments to make again; only earlier `call` and `set_attr` are repeated
    place: Place


@dataclass(frozen=True, slots=True)
class RestoreEnvs:
    """Request environments to carry out their orders."""

    env_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReleaseEnvs:
    """Let environments step again after a failed restore."""

    env_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Rewind:
    """Return to the last received observation: a lost step may have written the next one."""

    env_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class CountRestored:
    """Count an environment restored or made again; warn if it differs."""

    restored: Restored


@dataclass(frozen=True, slots=True)
class CountUnrestored:
    """Count an episode ended by a failed restore; warn of it."""

    env_id: int
    why: str


@dataclass(frozen=True, slots=True)
class KeepError:
    """Keep an environment's exception as the result of its request."""

    env_id: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class CountLoss:
    """Count a lost and replaced process."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class RaiseFailure:
    """Raise an error after all other instructions, the first of several."""

    error: BaseException
    quota: SpentQuota | None = None  # if it is exhausted
    history: tuple[Loss, ...] = ()  # then the losses since the last error


EnvInstruction = (
    RequestSteps
    | RequestResets
    | StartEpisodes
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
