"""The interface between a manager and the place where its environments live."""

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
    """Workers were lost during a request other than a step: the first error, and the values of other environments."""

    def __init__(self, error: WorkerError, values: dict[int, Any]) -> None:
        super().__init__(str(error))
        self.error = error
        self.values = values


class Transport(abc.ABC):
    """Carries requests to environments, and their results back.

    Attributes:
        losses: The quotas; losses before the end of `start` are counted here.
        in_hand: Whether a call is in a section that must not be left half done: messages are read and not recorded, or
            recorded and not sent. After an unexpected exception there, such as Ctrl-C, it stays True: then
            `interrupted` must be called before anything else.
        tried: After a request raised, the environments it reached, and whether it raised in each.
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
        """Send this process's settings to environments in other processes, if they have changed."""

    @abc.abstractmethod
    def step(self, env_ids: Sequence[int], *, together: bool = False) -> None:
        """Request steps of environments, with the actions in their rows.

        With `together`, the caller needs all results at once: then each worker sends all of its own in a single
        message. Otherwise it sends finished results before they would wait for slow steps.
        """

    @abc.abstractmethod
    def reset(self, env_ids: Sequence[int], options: Mapping[int, dict[str, Any] | None]) -> None:
        """Request resets, with the seeds in the rows. Environments missing in `options` keep theirs."""

    @abc.abstractmethod
    def restore(self, orders: Sequence[RestoreOrder]) -> None:
        """Request that environments be restored; a `Restored` reports the outcome of each."""

    @abc.abstractmethod
    def give_up(self, env_ids: Sequence[int]) -> None:
        """Let environments that could not be restored step again."""

    @abc.abstractmethod
    def forget_options(self, env_ids: Sequence[int]) -> dict[int, dict[str, Any] | None]:
        """Remove the options of later resets; return them."""

    @abc.abstractmethod
    def interrupted(self, waiting: Collection[int]) -> Sequence[Broken]:
        """Discard all half-done work, given the environments with unanswered requests; return the lost environments."""

    @abc.abstractmethod
    def collect(self, timeout: float | None, awaited: Sequence[int] = ()) -> Sequence[EnvReport]:
        """Return the events since the last call; wait for the first if there is none.

        `in_hand` is False during the wait, and True on return: the caller sets it to False when all is recorded. The
        caller needs the results of `awaited`, in their order: others need not end the wait.
        """

    @abc.abstractmethod
    def take_round(self, n: int) -> Mapping[int, dict[str, Any]] | None:
        """Wait for the results of a step of all n environments, requested at once; return their infos.

        `in_hand` is as in `collect`. Returns None if any other event comes first; `collect` then returns it.
        """

    @abc.abstractmethod
    def request(self, env_ids: Sequence[int], kind: str, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Carry out a request other than a step, see `EnvServer.request`; these environments have no open request.

        Raises UnansweredError if workers were lost meanwhile.
        """

    @abc.abstractmethod
    def reports(self) -> Sequence[WorkerReport]:
        """Return the workers' reports since the last call; request them of idle workers."""

    def _warn_of_draws(self, env_id: int, name: str, seconds: float) -> None:
        """Log, once, that an environment draws from a global generator, which its process shares."""
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
    """Log exceptions of environments' `close`, if no call is left to raise them."""
    for env_id, summary in raised.items():
        _LOG.warning("environment %d raised while it was closed: %s", env_id, summary)
