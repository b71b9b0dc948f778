"""The processes of a sampler's environments: started, changed, started again where one is lost, and ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from streamsampler.errors import WorkerDiedError, WorkerError, WorkerHungError
from streamsampler.serialization import Payload
from streamsampler.stepping.env_spaces import KINDS
from streamsampler.stepping.inference.raised import own
from streamsampler.stepping.inference.transport import RolloutTransport
from streamsampler.stepping.setbacks import Setbacks
from streamsampler.stepping.transport import UnansweredError
from streamsampler.workers.known_wrappers import EnvFacts

__all__ = ["EnvProcesses", "Launch"]

Launch = Callable[[Mapping[int, Payload], Setbacks | None], RolloutTransport]
"""Returns processes, not started, from what makes each environment, and what has counted the losses so far."""


class EnvProcesses:
    """The processes that environments live in.

    Args:
        n_envs: How many environments there are.
        launch: Returns the processes.
        close_timeout: Seconds that all environments together may take to close.
        note_loss: Takes the error of a process that was lost, and is started again.
    """

    def __init__(
        self, n_envs: int, launch: Launch, close_timeout: float, note_loss: Callable[[WorkerError], None]
    ) -> None:
        self._n_envs, self._launch, self._close_timeout, self._note_loss = n_envs, launch, close_timeout, note_loss
        self._transport: RolloutTransport | None = None
        self._setbacks: Setbacks | None = None

    @property
    def transport(self) -> RolloutTransport:
        """What carries requests to them."""
        assert self._transport is not None
        return self._transport

    @property
    def running(self) -> bool:
        """Whether there are any."""
        return self._transport is not None

    def pids(self) -> list[int]:
        """Return the ids of the processes that there are."""
        return [] if self._transport is None else [pid for pid in self._transport.pids() if pid is not None]

    def update(self, payload: Payload) -> list[EnvFacts]:
        """Make the environments, or change those that are there, which have no open requests.

        Where a process is lost meanwhile, all of them are started again, as long as the quotas allow it.

        Args:
            payload: The pickled `EnvUpdate`.

        Returns:
            What is known of each.

        Raises:
            UsageError: The environments cannot be run from here.
            WorkerError: Too many processes were lost.
            Exception: What one of them raises. Then there are none.
        """
        updates = dict.fromkeys(range(self._n_envs), payload)
        while True:
            try:
                return self._updated(updates)
            except (WorkerDiedError, WorkerHungError, UnansweredError) as error:
                self.shut_down()
                loss = error.error if isinstance(error, UnansweredError) else error
                if loss.quota is not None:
                    raise loss from loss.__cause__
                self._note_loss(loss)
            except BaseException as error:
                self.shut_down()
                raise own(error) from error.__cause__

    def _updated(self, updates: Mapping[int, Payload]) -> list[EnvFacts]:
        if self._transport is None or not self._changed(self._transport, updates):
            self.shut_down()
            self._transport = self._launch(updates, self._setbacks)
            self._setbacks = self._transport.setbacks
            self._transport.start()
            for kind in KINDS:
                self._transport.spaces.common(kind)
        return self._transport.request(range(self._n_envs), "facts", "facts", [None] * self._n_envs)

    def _changed(self, transport: RolloutTransport, updates: Mapping[int, Payload]) -> bool:
        """Change the environments where they are; return whether their spaces are what they were."""
        transport.renew(updates)
        spaces = transport.request(range(self._n_envs), "update", "update", list(updates.values()))
        rows = transport.rows
        return all(pair == (rows.observation_space, rows.action_space) for pair in spaces)

    def close_environments(self) -> None:
        """Close the environments, and let the processes wait for others.

        Raises:
            Exception: What the first of them raised.
        """
        if self._transport is not None:
            for error in self._transport.close_environments(self._close_timeout):
                raise own(error) from error.__cause__

    def shut_down(self) -> None:
        """Close the environments, and end the processes; may be repeated."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None  # after an interrupt in there it is closed again
