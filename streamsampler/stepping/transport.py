"""The interface between a manager and the place where its environments live."""

from __future__ import annotations

import abc
import logging
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from streamsampler.core.errors import WorkerError
from streamsampler.protocol.losses import Losses
from streamsampler.stepping.env_messages import EnvReport, EnvsFailed
from streamsampler.stepping.env_times import WorkerReport
from streamsampler.stepping.restores import RestoreOrder
from streamsampler.stepping.rows import EnvSpaces, Rows

_LOG = logging.getLogger("streamsampler")


class UnansweredError(Exception):
    """Workers were lost during a request other than a step; has the first error, and other environments' values."""

    def __init__(self, error: WorkerError, values: dict[int, Any]) -> None:
        super().__init__(str(error))
        self.error = error
        self.values = values


class Transport(abc.ABC):
    """Carries requests to environments, and their results back."""

    rows: Rows
    spaces: EnvSpaces
    losses: Losses  # the quotas; losses before the end of `start` are counted here
    # Whether a call is in a section not to be left half done: messages are read and not recorded, or recorded and not
    # sent. An unexpected exception there, such as Ctrl-C, leaves it True: then `interrupted` must be the next call.
    in_critical_section: bool = False
    _has_warned = False  # of draws from global generators
    tried: Mapping[int, bool] = MappingProxyType({})  # after an exception: environments reached, and if each raised

    @abc.abstractmethod
    def start(self) -> None: ...

    def send_settings(self) -> None:  # noqa: B027 - environments in this process have them
        """Send this process's settings to other processes, if they have changed."""

    @abc.abstractmethod
    def step(self, env_ids: Sequence[int], *, together: bool = False) -> None:
        """Request steps with the actions in the rows.

        With `together`, the caller needs all results at once, so each worker sends a single message. Otherwise it sends
        finished results before they would wait for slow steps.
        """

    @abc.abstractmethod
    def reset(self, env_ids: Sequence[int], options: Mapping[int, dict[str, Any] | None]) -> None:
        """Request resets, with the seeds in the rows. Environments missing in `options` keep theirs."""

    @abc.abstractmethod
    def restore(self, orders: Sequence[RestoreOrder]) -> None: ...

    @abc.abstractmethod
    def release(self, env_ids: Sequence[int]) -> None:
        """Let environments step again after a failed restore."""

    @abc.abstractmethod
    def forget_options(self, env_ids: Sequence[int]) -> dict[int, dict[str, Any] | None]: ...

    @abc.abstractmethod
    def interrupted(self, waiting: Collection[int]) -> Sequence[EnvsFailed]:
        """Discard half-done work, given the environments with unanswered requests; return lost environments."""

    @abc.abstractmethod
    def collect(self, timeout: float | None, awaited: Sequence[int] = ()) -> Sequence[EnvReport]:
        """Return new events; wait for the first if need be, ignoring others while results of `awaited` are missing.

        `in_critical_section` is False during the wait, and True on return: the caller sets it to False when all is
        recorded.
        """

    @abc.abstractmethod
    def receive_round(self, n: int) -> Mapping[int, dict[str, Any]] | None:
        """Wait for the results of a step of all n environments, requested at once; return their infos.

        Returns None if any other event comes first, which `collect` then returns; `in_critical_section` is as there.
        """

    @abc.abstractmethod
    def request(self, env_ids: Sequence[int], kind: str, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Carry out a request other than a step; raise UnansweredError if workers are lost meanwhile."""

    @abc.abstractmethod
    def reports(self) -> Sequence[WorkerReport]:
        """Return the workers' reports since the last call; request them of idle workers."""

    def _warn_of_draws(self, env_id: int, name: str, seconds: float) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        _LOG.warning(
            "environment %d (%s) draws from a global generator (random, numpy.random or torch), which all environments "
            "of its process share: its earlier episodes may have depended on the others. From now on it has its "
            "own states, which adds %.2f ms to each of its calls; other environments that draw are treated the same. "
            "Let it draw from self.np_random, or pass own_generators=True for own states from the start",
            env_id, name, 1000 * seconds,
        )  # fmt: skip

    @property
    def is_ours(self) -> bool:
        """Whether this process can use the environments."""
        return True

    @abc.abstractmethod
    def close(self) -> None: ...


def warn_of_unclosed(raised: Mapping[int, str]) -> None:
    """Log exceptions of `close`, if no call is left to raise them."""
    for env_id, summary in raised.items():
        _LOG.warning("environment %d raised in close: %s", env_id, summary)
