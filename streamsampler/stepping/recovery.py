"""Decide what becomes of environments that failed: they are restored, or their episodes end, or an error is raised."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

from streamsampler.core.errors import WorkerDiedError, WorkerHungError
from streamsampler.stepping.accounts import ManagerStats
from streamsampler.stepping.episodes import Episodes
from streamsampler.stepping.histories import RestoreOrder
from streamsampler.stepping.ledger import EnvState, Ledger
from streamsampler.stepping.options import ManagerOptions
from streamsampler.stepping.transport import Broken, Restored, Transport, is_of_action
from streamsampler.workers.restoring import NotRestoredError

_LOG = logging.getLogger("streamsampler")

_ATTEMPTS, _ATTEMPTS_AFTER_DEATHS = 1, 9
"""How often an environment is tried again that fails in the same request; whoever kills workers may do it again."""


class Recovery:
    """Brings environments back that failed.

    Args:
        transport: What carries requests to them.
        ledger: Where requests are accounted for.
        episodes: The episodes of the environments.
        options: The manager's arguments.
        accounts: Where failures are counted.
    """

    def __init__(
        self, transport: Transport, ledger: Ledger, episodes: Episodes, options: ManagerOptions, accounts: ManagerStats
    ) -> None:
        self._transport = transport
        self._ledger = ledger
        self._episodes = episodes
        self._options = options
        self._accounts = accounts
        # By environment, and whether its process died: how often its open request has failed.
        self._attempts: dict[tuple[int, bool], int] = {}
        self._later: list[tuple[float, _Again]] = []  # and when

    # ------------------------------------------------------------------ tries that wait

    def _try_again(self, event: Broken, again: _Again) -> None:
        """Let environments that failed do something: now, or when the environment that raised has had time to recover.

        Only where its request is open, so that its caller sends it nothing meanwhile; what has failed for good is tried
        again when its caller wants it. A process that is lost is not waited for here: whatever carries the requests
        starts the next one in time.
        """
        is_open = not self._ledger.waiting.isdisjoint(event.env_ids)
        if event.is_new or not is_open or not self._options.restart_wait:
            again.carry_out(self._transport)
        else:
            self._later.append((time.monotonic() + self._options.restart_wait, again))

    def seconds_to_try(self, timeout: float | None) -> float | None:
        """Return for how many seconds to wait at most, if the caller's limit is `timeout`."""
        if not self._later:
            return timeout
        left = max(0.0, self._later[0][0] - time.monotonic())
        return left if timeout is None else min(left, timeout)

    def try_due(self) -> None:
        """Carry out what has waited long enough."""
        while self._later and self._later[0][0] <= time.monotonic():
            self._later.pop(0)[1].carry_out(self._transport)

    # ------------------------------------------------------------------ failures

    def forgive(self, env_ids: Sequence[int]) -> None:
        """Forget earlier failures of environments whose requests were carried out."""
        if self._attempts:
            for env_id in env_ids:
                self._attempts.pop((env_id, True), None)
                self._attempts.pop((env_id, False), None)

    def take_broken(self, event: Broken, outdated: bool = False) -> BaseException | None:
        """Record a failure; return the error to raise, if it is to be raised.

        Args:
            event: The failure.
            outdated: Whether the environments are lost with their process since: they come back after that.
        """
        self._accounts.failures += not is_of_action(event.error)
        self._accounts.restarts += event.is_new
        self._accounts.hangs += isinstance(event.error, WorkerHungError)
        _LOG.info("an environment failed: %s", event.error)
        is_hopeless = self._is_hopeless(event)
        if outdated:
            return event.error if self._options.on_failure == "raise" or event.is_final else None
        is_final = event.is_final or (is_hopeless and self._is_resetting(event.culprit))
        return event.error if self._bring_back(event, is_final, is_hopeless) else None

    def take_interrupted(self, events: Sequence[Broken]) -> None:
        """Bring environments back that are lost because a call was interrupted; no failure is counted for that."""
        if self._options.autoreset != "same_step":
            ended = [env_id for env_id in sorted(self._ledger.waiting) if self._episodes.has_failed(env_id)]
            self._ledger.answer(ended)
        self._later.clear()  # what waited is lost as well, and is brought back by what follows
        for event in events:
            self._accounts.restarts += event.is_new
            self._bring_back(event, is_final=False, is_hopeless=False)

    def _bring_back(self, event: Broken, is_final: bool, is_hopeless: bool) -> bool:
        """Do with environments that failed what is to be done; return whether the error is to be raised."""
        lost = [env_id for env_id in event.env_ids if env_id in self._ledger.waiting]
        # What waited is brought back by this; carried out as well, it would be done twice.
        self._later = [it for it in self._later if not set(it[1].env_ids).intersection(event.env_ids)]
        self._episodes.rewind(lost)
        if self._options.on_failure == "raise" or is_final:
            unknown = [env_id for env_id in event.env_ids if env_id not in self._ledger.arrived]
            self._make_anew(event)
            self._ledger.fail(unknown)
            self._episodes.lose([env_id for env_id in event.env_ids if event.is_new and env_id not in unknown])
            return True
        if self._options.on_failure == "restore":
            if is_hopeless and event.culprit is not None and self._goes_on(event.culprit):
                self.forgive([event.culprit])
                self._ledger.fail([event.culprit])
            self._restore(event, [env_id for env_id in lost if env_id in self._ledger.waiting])
            return is_hopeless
        self._reset(event, lost)
        return False

    def _is_resetting(self, env_id: int | None) -> bool:
        """Whether the open request of an environment is a reset that its caller, or an end, asked for."""
        if env_id is None or env_id not in self._ledger.waiting:
            return False
        return self._ledger.states[env_id] is EnvState.RESETTING or self._episodes.has_failed(env_id)

    def _is_hopeless(self, event: Broken) -> bool:
        """Count the failure of the environment that ran; return whether it fails whenever it is asked for the same."""
        if event.culprit is None:
            return False
        died = isinstance(event.error, WorkerDiedError)
        key = event.culprit, died
        failed = self._attempts[key] = self._attempts.get(key, 0) + 1
        return failed > (_ATTEMPTS_AFTER_DEATHS if died else _ATTEMPTS)

    # ------------------------------------------------------------------ episodes that end

    def _reset(self, event: Broken, lost: list[int]) -> None:
        self._make_anew(event)
        states = self._ledger.states
        again = [env_id for env_id in lost if states[env_id] is EnvState.RESETTING]
        if again:
            self._try_again(event, _Again(event.env_ids, resets=again))
        self.end_lost([env_id for env_id in lost if states[env_id] is EnvState.STEPPING])
        self._episodes.lose([env_id for env_id in event.env_ids if env_id not in lost])

    def end_lost(self, env_ids: list[int]) -> None:
        """End the episodes of environments that failed, with an open step."""
        self.forgive(env_ids)
        self._episodes.fail(env_ids)
        if self._options.autoreset == "same_step" and env_ids:
            self._transport.reset(env_ids, {})
        else:
            self._ledger.answer(env_ids)

    # ------------------------------------------------------------------ episodes that go on

    def _restore(self, event: Broken, lost: list[int]) -> None:
        """Restore environments, and request their open steps again."""
        orders, ended = [], []
        resets: list[int] = []
        steps: list[int] = []
        for env_id in event.env_ids:
            why_not, remake = "", not event.is_new
            if not self._goes_on(env_id):
                order = self._order_anew(env_id, remake=remake)
            else:
                order, why_not = self._order(env_id, remake=remake)
            if order is not None:
                orders.append(order)
            if why_not:
                ended.append((env_id, why_not))
            elif env_id in lost:
                (resets if self._is_resetting(env_id) else steps).append(env_id)
        self._try_again(event, _Again(event.env_ids, orders, resets, steps))
        for env_id, why_not in ended:
            self._give_up(env_id, why_not)

    def _goes_on(self, env_id: int) -> bool:
        """Whether an environment has an episode that is not about to begin again."""
        has_none = self._ledger.states[env_id] in (EnvState.VOID, EnvState.FAILED)
        return not has_none and not self._is_resetting(env_id)

    def _order_anew(self, env_id: int, *, remake: bool) -> RestoreOrder | None:
        try:
            return self._episodes.order_anew(env_id, remake=remake)
        except NotRestoredError as error:
            _warn_of_other(env_id, error)
            return RestoreOrder(env_id, remake=True) if remake else None

    def _make_anew(self, event: Broken) -> None:
        """Repeat with environments that are in a new process what `call` and `set_attr` did to them."""
        if event.is_new:
            orders = [self._order_anew(env_id, remake=False) for env_id in event.env_ids]
            self._transport.restore([order for order in orders if order is not None])

    def _order(self, env_id: int, *, remake: bool) -> tuple[RestoreOrder | None, str]:
        """Return how an environment is restored, None if there is nothing to do; and why it cannot be."""
        state, arrived = self._ledger.states[env_id], env_id in self._ledger.arrived
        try:
            return self._episodes.restore_order(env_id, state, arrived=arrived, remake=remake), ""
        except NotRestoredError as error:
            return self._order_anew(env_id, remake=remake), f"could not be restored: {error}"

    def take_restored(self, event: Restored) -> None:
        """Record that an environment was restored, or that it was not: then its episode ends."""
        self._accounts.lost_timesteps += event.n_timesteps or 0
        if event.why_not and event.n_timesteps is None:
            _warn_of_other(event.env_id, event.why_not)
        elif event.why_not:
            if not self._is_resetting(event.env_id):
                self._transport.give_up([event.env_id])
            self._give_up(event.env_id, f"could not be restored: {event.why_not}")
            return
        self._accounts.restored += event.n_timesteps is not None
        if event.env_id not in self._ledger.waiting:
            self.forgive([event.env_id])

    def _give_up(self, env_id: int, why: str) -> None:
        """End an episode that goes on and was not restored, now or with its next step."""
        self._accounts.not_restored += 1
        is_open = env_id in self._ledger.waiting
        if is_open and not self._is_resetting(env_id):
            self.end_lost([env_id])
        elif not is_open:
            self._episodes.lose([env_id])
        _LOG.warning("environment %d %s. Its episode ends, marked in Steps.failed.", env_id, why)


class _Again(NamedTuple):
    """What environments that failed do again.

    Attributes:
        env_ids: The environments.
        orders: How they become what they were.
        resets: Those of which a reset is requested.
        steps: Those of which a step is.
    """

    env_ids: Sequence[int]
    orders: Sequence[RestoreOrder] = ()
    resets: Sequence[int] = ()
    steps: Sequence[int] = ()

    def carry_out(self, transport: Transport) -> None:
        transport.restore(self.orders)
        transport.reset(self.resets, {})
        transport.step(self.steps)


def _warn_of_other(env_id: int, why: object) -> None:
    _LOG.warning("environment %d is made anew, and is not what it was: %s", env_id, why)
