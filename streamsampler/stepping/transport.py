"""What a manager needs of the place where its environments live."""

from __future__ import annotations

import abc
import logging
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from streamsampler.core.errors import WorkerError
from streamsampler.protocol.restarts import Losses
from streamsampler.stepping.env_messages import Broken, EnvReport
from streamsampler.stepping.env_times import WorkerReport
from streamsampler.stepping.restores import RestoreOrder
from streamsampler.stepping.rows import EnvSpaces, Rows

_LOG = logging.getLogger("streamsampler")


class UnansweredError(Exception):
    """Workers were lost while their environments carried out what is no step: the first error, and others' values."""

    def __init__(self, error: WorkerError, values: dict[int, Any]) -> None:
        super().__init__(str(error))
        self.error = error
        self.values = values


class Transport(abc.ABC):
    """Carries requests to environments, and their results back.

    Attributes:
        losses: The quotas, against which losses before the end of `start` are counted here.
        in_hand: Whether a call is at something that must not be left half done: what was read is not recorded yet, or
            what is recorded is not sent. It stays True where an unexpected exception, such as Ctrl-C, ends the
            call there: then `interrupted` is to be called before anything else.
        tried: Where a request raised, which environments it reached, and whether it raised in each.
    """

    rows: Rows
    spaces: EnvSpaces
    losses: Losses
    in_hand: bool = False
    _has_warned = False  # of draws from global generators
    tried: Mapping[int, bool] = MappingProxyType({})

    @abc.abstractmethod
    def start(self) -> None:
        """Make the environments."""

    def send_settings(self) -> None:  # noqa: B027 - environments in this process have them
        """Give environments in other processes the settings of this one, where they have changed since."""

    @abc.abstractmethod
    def step(self, env_ids: Sequence[int], *, together: bool = False) -> None:
        """Request steps of environments, whose actions lie in their rows.

        With `together` nothing goes on before all results are there: then each worker gives all of its own at once.
        Otherwise it gives results that are there before others would be late.
        """

    @abc.abstractmethod
    def reset(self, env_ids: Sequence[int], options: Mapping[int, dict[str, Any] | None]) -> None:
        """Request resets; the seeds lie in the rows. Environments that have no options here keep theirs."""

    @abc.abstractmethod
    def restore(self, orders: Sequence[RestoreOrder]) -> None:
        """Request that environments become what they were; a `Restored` tells whether each is."""

    @abc.abstractmethod
    def give_up(self, env_ids: Sequence[int]) -> None:
        """Let environments take steps again that could not be restored."""

    @abc.abstractmethod
    def forget_options(self, env_ids: Sequence[int]) -> dict[int, dict[str, Any] | None]:
        """Let later resets of environments have no options; return those that they had."""

    @abc.abstractmethod
    def interrupted(self, waiting: Collection[int]) -> Sequence[Broken]:
        """Give up whatever may be half done, given the requests without answers; return the environments lost."""

    @abc.abstractmethod
    def collect(self, timeout: float | None, awaited: Sequence[int] = ()) -> Sequence[EnvReport]:
        """Return what has happened since the last call; wait for it if it is nothing yet.

        `in_hand` is False while it waits, and True when it returns: the caller sets it to False when all is recorded.
        Without the results of the `awaited`, in their order, nothing goes on: others need not end the wait.
        """

    @abc.abstractmethod
    def take_round(self, n: int) -> Mapping[int, dict[str, Any]] | None:
        """Wait for the results of a step of all n environments, requested at once; return their infos.

        `in_hand` is as in `collect`. None where something else has happened before all are there, which `collect`
        returns then.
        """

    @abc.abstractmethod
    def request(self, env_ids: Sequence[int], kind: str, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Carry out what is no step, see `EnvServer.request`, while no request of these environments is open.

        Raises UnansweredError where workers were lost meanwhile.
        """

    @abc.abstractmethod
    def reports(self) -> Sequence[WorkerReport]:
        """Return what workers have said of their time since the last call; ask those that have nothing to do."""

    def _warn_of_draws(self, env_id: int, name: str, seconds: float) -> None:
        """Log, once, that an environment draws from a global generator, which others in its process may draw from."""
        if self._has_warned:
            return
        self._has_warned = True
        _LOG.warning(
            "environment %d (%s) draws from a global generator (random, numpy.random or torch), which the environments "
            "of a process share: its earlier episodes may have depended on the others. From now on it has states of "
            "its own, which takes %.2f ms for each of its calls; others that draw are treated alike. Let it draw from "
            "self.np_random, or pass own_generators=True, which does so from the start",
            env_id, name, 1000 * seconds,
        )  # fmt: skip

    @property
    def is_ours(self) -> bool:
        """Whether the environments can be used in this process."""
        return True

    @abc.abstractmethod
    def close(self) -> None:
        """Close the environments; may be repeated."""


def warn_of_unclosed(raised: Mapping[int, str]) -> None:
    """Log what environments raised while they were closed, when no call is left that could raise it."""
    for env_id, summary in raised.items():
        _LOG.warning("environment %d raised while it was closed: %s", env_id, summary)
