"""Take in what a transport reports: results and failures; hand out results."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from streamsampler.core.errors import WorkerError
from streamsampler.stepping.accounts import ManagerStats
from streamsampler.stepping.episodes import Episodes
from streamsampler.stepping.histories import BEFORE, TOO_MANY, PastRequest, digest_of_result
from streamsampler.stepping.ledger import EnvEvent, EnvState, Ledger
from streamsampler.stepping.options import ManagerOptions
from streamsampler.stepping.recovery import Recovery
from streamsampler.stepping.steps import Steps
from streamsampler.stepping.transport import Broken, Done, Event, Transport, UnansweredError

_LOG = logging.getLogger("streamsampler")


_ATTEMPTS = 10
"""How often it is tried to carry out what is no step, where workers are lost meanwhile."""


class Inbox:
    """What has arrived of environments, and is handed to the caller.

    Args:
        transport: What reports it.
        ledger: Where requests are accounted for.
        episodes: The episodes of the environments.
        options: The manager's arguments.
        accounts: Where failures are counted.

    Attributes:
        end_lost: See `Recovery.end_lost`.
    """

    def __init__(
        self, transport: Transport, ledger: Ledger, episodes: Episodes, options: ManagerOptions, accounts: ManagerStats
    ) -> None:
        self._transport = transport
        self._ledger = ledger
        self._episodes = episodes
        self._options = options
        self._accounts = accounts
        self._recovery = Recovery(transport, ledger, episodes, options, accounts)
        self.end_lost = self._recovery.end_lost
        self._in_hand: list[int] = []  # results that are being handed out
        # Environments to be reset when what they are at has ended, with the seed and the options, None for no others.
        self._due: dict[int, tuple[int | None, dict[str, Any] | None]] = {}

    def take_in(self, timeout: float | None) -> None:
        """Wait for events, and record them.

        Raises:
            WorkerError: An environment failed: see `on_failure`.
        """
        if not self._ledger.waiting and timeout is None:
            return
        first: BaseException | None = None
        events = self._transport.collect(self._recovery.seconds_to_try(timeout))
        lost_at = _places_of_losses(events) if len(events) > 1 else {}
        for place, event in enumerate(events):
            if isinstance(event, Done):
                self._episodes.keep_infos(event.infos)
                self._ledger.answer(event.env_ids)
                self._recovery.forgive(event.env_ids)
            elif isinstance(event, Broken):
                error = self._take_broken(event, place < lost_at.get(event.env_ids[0], -1))
                first = _first_of(first, error)  # not before: each failure is recorded
            elif place >= lost_at.get(event.env_id, -1):
                self._recovery.take_restored(event)
        self._recovery.try_due()
        if self._due:
            self._reset_due()
        self._transport.in_hand = False
        if first is not None:
            raise first

    def _take_broken(self, event: Broken, outdated: bool) -> BaseException | None:
        """Record a failure; return the error to raise: none where the caller's reset discards what failed."""
        open_steps = self._ledger.waiting.intersection(event.env_ids)
        is_discarded = bool(open_steps) and self._due.keys() >= open_steps and not event.is_final
        error = self._recovery.take_broken(event, outdated)
        return None if is_discarded else error

    def mend(self) -> None:
        """Let transport and accounts agree again, where a call was interrupted in the middle.

        What was being handed out has failed, as the caller did not get it; other environments come back as after a
        failure.
        """
        self._ledger.mend()
        self._ledger.fail(self._in_hand)
        self._in_hand = []
        self._recovery.take_interrupted(self._transport.interrupted(self._ledger.waiting))
        self._reset_due()
        self._transport.in_hand = False

    def ask(self, env_ids: list[int], kind: str, name: str, arguments: list[Any]) -> list[Any]:
        """Carry out what is no step, and keep what may have changed the environments.

        Where a worker is lost meanwhile, and environments are restored, it is carried out in the restored ones.
        """
        argument_of = dict(zip(env_ids, arguments, strict=True))
        values: dict[int, Any] = {}
        left, attempt = env_ids, 1
        while left:
            lost: WorkerError | None = None
            self._transport.in_hand = True  # until what may have changed environments is kept
            try:
                answered = dict(zip(left, self._transport.request(left, kind, name, arguments), strict=True))
            except UnansweredError as unanswered:
                answered, lost = unanswered.values, unanswered.error
            except Exception:
                self._keep(kind, name, argument_of, self._transport.tried, {})
                self._transport.in_hand = False
                raise
            self._keep(kind, name, argument_of, dict.fromkeys(answered, False), answered)
            self._transport.in_hand = False
            values |= answered
            if lost is not None:
                self.take_in(0)  # records the loss, and raises it with on_failure="raise"
                if self._options.on_failure != "restore" or attempt == _ATTEMPTS:
                    raise lost from None
            left, attempt = [env_id for env_id in env_ids if env_id not in values], attempt + 1
            arguments = [argument_of[env_id] for env_id in left]
        return [values[env_id] for env_id in env_ids]

    def _keep(
        self, kind: str, name: str, argument_of: Mapping[int, Any], tried: Mapping[int, bool], values: Mapping[int, Any]
    ) -> None:
        """Keep what a request did to environments, to repeat it with those that replace them.

        Args:
            kind: See `Stepper.request`.
            name: As above.
            argument_of: What each environment was given.
            tried: The environments that it reached, and whether it raised in each.
            values: What they returned.
        """
        if kind not in ("call", "set"):
            return
        states, arrived = self._ledger.states, self._ledger.arrived
        for env_id, raised in tried.items():
            digest = digest_of_result(values.get(env_id))
            request = PastRequest(BEFORE, kind, name, argument_of[env_id], raised, digest)
            if (
                self._episodes.keep_request(env_id, states[env_id], arrived=env_id in arrived, request=request)
                and self._options.on_failure == "restore"
            ):
                _LOG.warning("environment %d cannot be restored from now on: %s", env_id, TOO_MANY)

    def hand_out(self, env_ids: list[int]) -> Steps:
        """Return the results of environments, which have arrived."""
        abnormal = self._episodes.abnormal(env_ids)  # before anything changes: it is the user's function
        self._in_hand, self._transport.in_hand = env_ids, True
        steps, events = self._episodes.hand_out(env_ids, self._ledger.states, abnormal)
        for env_id, event in zip(env_ids, events, strict=True):
            self._ledger.hand_out(env_id, event)
        self._in_hand, self._transport.in_hand = [], False
        self._accounts.take_results(steps.timesteps, steps.ended, steps.failed)
        return steps

    def reset(self, resets: Mapping[int, tuple[int | None, dict[str, Any] | None]]) -> None:
        """Reset environments, each as soon as it is at nothing else; results that they have until then are discarded.

        Args:
            resets: By environment, the seed and the options; None for those that it has.
        """
        for env_id, (seed, options) in resets.items():
            earlier = self._due.get(env_id, (None, None))
            self._due[env_id] = (
                earlier[0] if seed is None else seed,
                earlier[1] if options is None else options,
            )
        self._reset_due()

    def _reset_due(self) -> None:
        env_ids = [env_id for env_id in self._due if env_id not in self._ledger.waiting]
        if not env_ids:
            return
        # The reset after an episode's end is one of those that `max_episodes` counts.
        counted = {env_id for env_id in env_ids if self._ledger.states[env_id] is EnvState.NEEDS_RESET}
        self._discard(env_ids)
        self._episodes.set_next_seeds({e: seed for e in env_ids if (seed := self._due[e][0]) is not None})
        self._cut_short(env_ids)
        self._episodes.begin_anew(env_ids, counted)
        self._ledger.request(env_ids, EnvEvent.RESET)
        self._transport.reset(env_ids, {e: given for e in env_ids if (given := self._due[e][1]) is not None})
        for env_id in env_ids:
            del self._due[env_id]

    def _discard(self, env_ids: Sequence[int]) -> None:
        """Throw away the results of environments that have arrived."""
        for env_id in env_ids:
            if env_id in self._ledger.arrived:
                self._accounts.abandoned_timesteps += self._ledger.states[env_id] is EnvState.STEPPING
                self._ledger.hand_out(env_id, EnvEvent.DISCARDED)

    def _cut_short(self, env_ids: Sequence[int]) -> None:
        """Count the episodes that a reset by the caller ends, before it is requested."""
        for env_id in env_ids:
            if self._episodes.goes_on(env_id):
                failed = self._ledger.states[env_id] is EnvState.FAILED
                self._accounts.failed_trajectories += failed
                self._accounts.abandoned_trajectories += not failed


def _first_of(first: BaseException | None, error: BaseException | None) -> BaseException | None:
    """Return which of two errors is raised; the other one is logged."""
    if first is not None and error is not None:
        _LOG.warning("in the same step: %s", error)
    return first or error


def _places_of_losses(events: Sequence[Event]) -> dict[int, int]:
    """Return where in the events environments are lost with their process: what is said of them before is outdated.

    To act on it would ask the new process for it, and for the same once more after the loss.
    """
    lost = [(place, it) for place, it in enumerate(events) if isinstance(it, Broken) and it.is_new]
    return {env_id: place for place, event in lost for env_id in event.env_ids}
