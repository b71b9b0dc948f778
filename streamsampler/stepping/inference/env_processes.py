"""Processes of a sampler's environments, with the agent here: requests to them, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from streamsampler.core.errors import (
    NotReproducibleError,
    RemoteTraceback,
    RolloutError,
    WorkerDiedError,
    WorkerError,
    WorkerHungError,
)
from streamsampler.core.serialization import Payload
from streamsampler.data.spaces import same_spaces
from streamsampler.engines.linked import STUCK_SECONDS
from streamsampler.protocol.losses import Losses
from streamsampler.protocol.messages import Phase
from streamsampler.stepping.carried_values import actions_frame
from streamsampler.stepping.env_messages import IT_RAISED, EnvsFailed
from streamsampler.stepping.failures import count_loss
from streamsampler.stepping.frames import request_frame
from streamsampler.stepping.games import GameFacts
from streamsampler.stepping.links import EnvLink
from streamsampler.stepping.process_transport import ProcessTransport
from streamsampler.stepping.rows import KINDS
from streamsampler.stepping.transport import UnansweredError
from streamsampler.workers.explain import is_interrupt
from streamsampler.workers.known_wrappers import EnvFacts

_HIDDEN = (
    "environment {} was lost with its process, and behaved differently when it was reset with the same seed and "
    "stepped with the same actions: it uses random numbers that its reset does not seed. Let it draw from "
    "self.np_random after super().reset(seed=seed)"
)
_RAISED = "environment {} was lost with its process, and raised when its actions were repeated"
TOO_LONG = "environment {} was lost with its process, in an episode too long to be restored"


class EnvironmentRaisedError(Exception):
    """Replaces an environment's exception that cannot be pickled, and names it."""


def own(error: Any) -> BaseException:
    """Return an environment's own exception, or, if it could not be pickled, the error about it."""
    if not isinstance(error, RolloutError) or error.original is None:
        assert isinstance(error, BaseException)
        return error
    error.original.__cause__ = error.__cause__ if isinstance(error.__cause__, RemoteTraceback) else None
    return error.original


def not_restored(env_id: int, index: int | None, why: str) -> NotReproducibleError:
    """Return the error of a failed restore: `why` is `TOO_LONG`, or the difference found."""
    if why is not TOO_LONG:
        why = _RAISED if why.startswith(IT_RAISED) else _HIDDEN
    return NotReproducibleError(why.format(env_id), worker_number=0, phase=Phase.STEP, trajectory=index)


class RolloutTransport(ProcessTransport):
    """Carries requests to processes that outlive their environments."""

    def _original(self, summary: str, pickled: bytes | None) -> BaseException | None:
        original = super()._original(summary, pickled)
        # The sampler would take an interrupt of the environment's process for its own.
        is_known = original is not None and not is_interrupt(original)
        return original if is_known else EnvironmentRaisedError(summary)

    def _start_lost(self, broken: Sequence[EnvsFailed]) -> None:
        """Raise the loss: the caller of `EnvProcesses` counts it."""
        are_final = [count_loss(event.error, self.losses) or event.is_final for event in broken]
        raise broken[are_final.index(True) if any(are_final) else 0].error

    def count_losses(self) -> None:
        """Count the losses not yet returned by `collect`."""
        for event in self._pending:
            if isinstance(event, EnvsFailed):
                count_loss(event.error, self.losses)

    def sleep(self, seconds: float) -> None:
        """Sleep until `collect` has an event, for at most so many seconds, even fewer than a poll can measure."""
        if not self._pending:
            self._pool.nap(seconds)

    def renew(self, updates: Mapping[int, Any]) -> None:
        """Set the updates for environments of later workers; running workers have read theirs."""
        self._pool.set_up(self._given(updates))

    def give(self, actions: Mapping[int, Any]) -> None:
        """Send actions for the next steps; see `EnvServer.take_actions`."""
        for number, ids in self._by_worker(list(actions)):
            self._link(number).write(actions_frame(self.rows, {env_id: actions[env_id] for env_id in ids}))

    def close_environments(self, close_timeout: float) -> list[BaseException]:
        """Let all workers close their environments, and stay; return the exceptions.

        Open requests are carried out before, and their results discarded. A worker busy with them after a second is
        killed, and so is any that takes longer than `close_timeout`.
        """
        running = [link for link in self._pool if not link.ended]
        for link in running:
            ids = self._envs_of[link.number][:1]
            self._send_request(link.number, ids, request_frame(ids, "close", "close", [None]))
        begin_within = min(close_timeout, STUCK_SECONDS)
        self._await_closed(running, begin_within)
        for link in running:
            if link.answer is None and self._pool.board.progress(link.number).phase is not Phase.CLOSE:
                self._pool.discard_worker(link)
        self._await_closed(running, close_timeout - begin_within)
        raised: list[BaseException] = []
        for link in running:
            if link.answer is None:
                self._pool.discard_worker(link)
                link.is_reported = True  # no request is lost with it
            elif link.answer[0] == "raised":
                raised.append(self._raised(link.number, self._envs_of[link.number][0], "close", *link.answer[2:]))
            link.waiting.clear()
        self._mark_reported(self._pending)
        self._pending = []
        self.in_critical_section = False  # all messages have arrived: the workers' last ones can be read
        return raised

    def _await_closed(self, links: Sequence[EnvLink], seconds: float) -> None:
        self._await(lambda: not any(link.requested for link in links), seconds)


Launch = Callable[[Mapping[int, Payload]], RolloutTransport]
"""Makes the transport of processes, not started, from each environment's update."""


class EnvProcesses:
    """The processes of environments. `note_loss` receives the error of a lost and restarted process."""

    def __init__(
        self, n_envs: int, launch: Launch, close_timeout: float, note_loss: Callable[[WorkerError], None]
    ) -> None:
        self._n_envs, self._launch, self._close_timeout, self._note_loss = n_envs, launch, close_timeout, note_loss
        self._transport: RolloutTransport | None = None
        self.losses: Losses | None = None  # of all processes so far

    @property
    def transport(self) -> RolloutTransport:
        assert self._transport is not None
        return self._transport

    @property
    def running(self) -> bool:
        return self._transport is not None

    def pids(self) -> list[int]:
        return [] if self._transport is None else [pid for pid in self._transport.pids() if pid is not None]

    def update(self, payload: Payload) -> list[tuple[EnvFacts, GameFacts | None]]:
        """Make the environments, or update existing ones without open requests; return their facts.

        After a loss, all processes are started again, as long as the quotas allow it. If this raises, no processes
        remain.
        """
        # `about` stays here: the processes would import its classes.
        updates = dict.fromkeys(range(self._n_envs), replace(payload, about=None))
        while True:
            try:
                return self._updated(updates)
            except (WorkerDiedError, WorkerHungError, UnansweredError) as error:
                self.transport.count_losses()
                self.shut_down()
                loss = error.error if isinstance(error, UnansweredError) else error
                if loss.quota is not None:
                    raise loss from loss.__cause__
                # Its traceback holds frames, and these the memory of the processes, until the garbage collector runs.
                self._note_loss(loss.with_traceback(None))
            except BaseException as error:
                self.shut_down()
                raise own(error) from error.__cause__

    def _updated(self, updates: Mapping[int, Payload]) -> list[tuple[EnvFacts, GameFacts | None]]:
        if self._transport is None or not self._changed(self._transport, updates):
            self.shut_down()
            transport = self._transport = self._launch(updates)
            if self.losses is not None:
                transport.losses = self.losses  # continues the count of earlier processes
            self.losses = transport.losses
            transport.start()
            for kind in KINDS:
                transport.spaces.common(kind)
        return self._transport.request(range(self._n_envs), "facts", "facts", [None] * self._n_envs)

    def _changed(self, transport: RolloutTransport, updates: Mapping[int, Payload]) -> bool:
        """Update existing environments; return whether their spaces are unchanged."""
        transport.renew(updates)
        spaces = transport.request(range(self._n_envs), "update", "update", list(updates.values()))
        rows = transport.rows
        return all(same_spaces(pair, (rows.observation_space, rows.action_space)) for pair in spaces)

    def close_environments(self) -> None:
        """Close the environments, but not the processes; raise the first exception."""
        if self._transport is not None:
            for error in self._transport.close_environments(self._close_timeout):
                raise own(error) from error.__cause__

    def shut_down(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None  # last: if closing is interrupted, the next call closes it again
