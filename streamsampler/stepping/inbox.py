"""Take in what a transport reports: results and failures; hand out results."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from streamsampler.core.errors import WorkerDiedError, WorkerError, WorkerHungError
from streamsampler.protocol.messages import Phase
from streamsampler.stepping.env_states import EnvEvent, EnvState
from streamsampler.stepping.episodes import Episodes, RoundResults
from streamsampler.stepping.manager_stats import ManagerStats
from streamsampler.stepping.options import ManagerOptions
from streamsampler.stepping.past_requests import BEFORE, TOO_MANY, PastRequest, digest_of_result
from streamsampler.stepping.requests import OpenRequests
from streamsampler.stepping.restores import RestoreOrder
from streamsampler.stepping.steps import Steps
from streamsampler.stepping.transport import Broken, Done, Event, Restored, Transport, UnansweredError, is_of_action
from streamsampler.workers.restoring import NotRestoredError

_LOG = logging.getLogger("streamsampler")

# ----------------------------------------------------------------------
# Decide what becomes of environments that failed: they are restored, or their episodes end, or an error is raised.


_RESTORE_ATTEMPTS, _ATTEMPTS_AFTER_DEATHS = 1, 9
"""How often an environment is tried again that fails in the same step; whoever kills workers may do it again."""

_PHASES_OF_RESETS = ("reset", Phase.RESET, Phase.ENV_CONSTRUCTION)


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
        self,
        transport: Transport,
        ledger: OpenRequests,
        episodes: Episodes,
        options: ManagerOptions,
        accounts: ManagerStats,
    ) -> None:  # fmt: skip
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

    @property
    def has_plans(self) -> bool:
        """Whether something is to be tried again."""
        return bool(self._later)

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
        """Forget how often the open requests of environments have failed."""
        if self._attempts:
            for env_id in env_ids:
                self._attempts.pop((env_id, True), None)
                self._attempts.pop((env_id, False), None)

    def record_success(self, env_ids: Sequence[int]) -> None:
        """Forget all failures of environments whose requests were carried out."""
        self.forgive(env_ids)
        self._transport.setbacks.record_success(env_ids)

    def take_broken(self, event: Broken, outdated: bool) -> BaseException | None:
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
        return event.error if self._bring_back(event, event.is_final, is_hopeless) else None

    def take_interrupted(self, events: Sequence[Broken], to_reset: Collection[int]) -> None:
        """Bring environments back that are lost because a call was interrupted; no failure is counted for that.

        Args:
            events: Which are lost.
            to_reset: Environments that their caller resets: their open steps are not taken again.
        """
        if self._options.autoreset != "same_step":
            ended = [env_id for env_id in sorted(self._ledger.waiting) if self._episodes.has_failed(env_id)]
            self._ledger.answer(ended)
        self._later.clear()  # what waited is lost as well, and is brought back by what follows
        for event in events:
            self._accounts.restarts += event.is_new
            self._bring_back(event, is_final=False, is_hopeless=False, to_reset=to_reset)

    def _bring_back(self, event: Broken, is_final: bool, is_hopeless: bool, to_reset: Collection[int] = ()) -> bool:
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
            self._restore(event, [env_id for env_id in lost if env_id in self._ledger.waiting], to_reset)
            return is_hopeless
        self._reset(event, lost)
        return False

    def _is_resetting(self, env_id: int | None) -> bool:
        """Whether the open request of an environment is a reset that its caller, or an end, asked for."""
        if env_id is None or env_id not in self._ledger.waiting:
            return False
        return self._ledger.states[env_id] is EnvState.RESETTING or self._episodes.has_failed(env_id)

    def _is_hopeless(self, event: Broken) -> bool:
        """Count the failure of the environment that ran; return whether it fails whenever it is asked for the same.

        A reset is tried again as often as the quotas allow: nothing of an episode is lost by it.
        """
        if event.culprit is None or getattr(event.error, "phase", None) in _PHASES_OF_RESETS:
            return False
        died = isinstance(event.error, WorkerDiedError)
        key = event.culprit, died
        failed = self._attempts[key] = self._attempts.get(key, 0) + 1
        return failed > (_ATTEMPTS_AFTER_DEATHS if died else _RESTORE_ATTEMPTS)

    # ------------------------------------------------------------------ episodes that end

    def _reset(self, event: Broken, lost: list[int]) -> None:
        self._make_anew(event)
        ended, orders = list[int](), list[RestoreOrder | None]()
        resets, steps = list[int](), list[int]()
        for env_id in lost:
            is_step = self._ledger.states[env_id] is EnvState.STEPPING and not self._episodes.has_failed(env_id)
            if is_step and self._episodes.goes_on(env_id):
                ended.append(env_id)
                continue
            (steps if is_step else resets).append(env_id)  # a step that begins an episode is a reset
            if not event.is_new and self._options.renew:
                orders.append(self._order_anew(env_id, remake=True))
        if resets or steps:
            self._try_again(event, _Again(event.env_ids, [it for it in orders if it is not None], resets, steps))
        self.end_lost(ended)
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

    def _restore(self, event: Broken, lost: list[int], to_reset: Collection[int]) -> None:
        """Restore environments, and request their open steps again."""
        remake, is_same = not event.is_new and self._options.renew, not event.is_new and not self._options.renew
        orders, ended = [], []
        resets: list[int] = []
        steps: list[int] = []
        for env_id in event.env_ids:
            why_not = ""
            if env_id in to_reset or not self._goes_on(env_id):
                order = None if is_same else self._order_anew(env_id, remake=remake)
            else:
                order, why_not = self._order(env_id, remake=remake)
                if order is not None and is_same:
                    order = replace(order, requests=[it for it in order.requests if it.timestep != BEFORE])
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


# ----------------------------------------------------------------------


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
        self,
        transport: Transport,
        ledger: OpenRequests,
        episodes: Episodes,
        options: ManagerOptions,
        accounts: ManagerStats,
    ) -> None:  # fmt: skip
        self._transport = transport
        self._ledger = ledger
        self._episodes = episodes
        self._options = options
        self._accounts = accounts
        self._recovery = Recovery(transport, ledger, episodes, options, accounts)
        self.end_lost = self._recovery.end_lost
        self._in_hand: list[int] = []  # results that are being handed out
        self._round: list[int] = []  # all environments, while all are at a step that the ledger does not know of
        # Environments to be reset when what they are at has ended, with the seed and the options, None for no others.
        self._due: dict[int, tuple[int | None, dict[str, Any] | None]] = {}

    # ------------------------------------------------------------------ rounds

    @property
    def can_begin_round(self) -> bool:
        """Whether nothing waits to be done, apart from what the ledger and the episodes know of."""
        return not (self._due or self._round or self._recovery.has_plans)

    def begin_round(self, env_ids: list[int]) -> None:
        """Request a step of each environment, all of which await actions; these lie in rows.

        That all go well together is by far the most frequent, and takes no account of each: while they are under way,
        and after it, all are ready. Where one does not go well, or another call comes in between, `open_round` gives an
        account of them.
        """
        self._round, self._transport.in_hand = env_ids, True
        self._transport.step(env_ids, together=True)
        self._transport.in_hand = False

    def end_round(self) -> RoundResults | None:
        """Return the results of the round that is under way, if all go well; otherwise open it, and return None."""
        transport, env_ids = self._transport, self._round
        if not env_ids:
            return None
        infos = transport.take_round(len(env_ids))
        if infos is None or (infos and self._are_abnormal(env_ids, infos)):
            self._open_answered(env_ids, infos)
            return None
        self._recovery.record_success(env_ids)
        self._in_hand, self._round = env_ids, []
        n_begun = self._episodes.n_over
        results = self._episodes.hand_out_round(infos)
        self._in_hand, transport.in_hand = [], False
        self._accounts.kept_timesteps += len(env_ids) - n_begun
        self._accounts.kept_trajectories += len(results.ended)
        return results

    def _are_abnormal(self, env_ids: list[int], infos: Mapping[int, dict[str, Any]]) -> bool:
        """Whether one of the infos of a round says that its environment failed."""
        try:
            return any(map(self._episodes.is_abnormal, infos.values()))
        except BaseException:  # of the user's function: the results may be received again
            self._open_answered(env_ids, infos)
            raise

    def _open_answered(self, env_ids: list[int], infos: Mapping[int, dict[str, Any]] | None) -> None:
        """Open a round whose results are there, if their infos are known."""
        self.open_round()
        if infos is not None:
            self._episodes.keep_infos(infos)
            self._ledger.answer(env_ids)
        self._transport.in_hand = False

    def open_round(self) -> None:
        """Give an account of the round that is under way, if there is one: as if each had been sent its action."""
        if self._round:
            env_ids, self._round = self._round, []
            self._ledger.request(env_ids, EnvEvent.SENT)

    # ------------------------------------------------------------------ results

    def take_in(self, timeout: float | None, awaited: Sequence[int] = ()) -> None:
        """Wait for events, and record them; see `Transport.collect`.

        Raises:
            WorkerError: An environment failed: see `on_failure`.
        """
        if not self._ledger.waiting and timeout is None:
            return
        first: BaseException | None = None
        events = self._transport.collect(self._recovery.seconds_to_try(timeout), awaited)
        lost_at = _places_of_losses(events) if len(events) > 1 else {}
        for place, event in enumerate(events):
            if isinstance(event, Done):
                self._take_done(event)
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

    def _take_done(self, event: Done) -> None:
        self._episodes.keep_infos(event.infos)
        self._ledger.answer(event.env_ids)
        self._recovery.record_success(event.env_ids)

    def _take_broken(self, event: Broken, outdated: bool) -> BaseException | None:
        """Record a failure; return the error to raise: none where the caller's reset discards what failed."""
        open_steps = self._ledger.waiting.intersection(event.env_ids)
        is_discarded = bool(open_steps) and self._due.keys() >= open_steps and not event.is_final
        error = self._recovery.take_broken(event, outdated)
        return None if is_discarded else error

    def mend(self, to_reset: Collection[int] = ()) -> None:
        """Let transport and accounts agree again, where a call was interrupted in the middle.

        What was being handed out has failed, as the caller did not get it; other environments come back as after a
        failure.

        Args:
            to_reset: Environments that their caller resets now: a step that was interrupted is not taken again.
        """
        self.open_round()
        self._ledger.mend()
        self._ledger.fail(self._in_hand)
        self._in_hand = []
        lost = self._transport.interrupted(self._ledger.waiting)
        to_reset = {*to_reset, *self._due}.difference(self._ledger.arrived)
        # As far as the reset is concerned, which discards them, results of lost environments are there. Those of the
        # other ones arrive by themselves, and the reset waits for them.
        unanswered = self._ledger.waiting.intersection(env_id for event in lost for env_id in event.env_ids)
        self._ledger.answer(sorted(unanswered & to_reset))
        self._recovery.take_interrupted(lost, to_reset)
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
            kind: See `EnvServer.request`.
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
        for event, of_these in events.items():
            self._ledger.hand_out(of_these, event)
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
                self._ledger.hand_out([env_id], EnvEvent.DISCARDED)

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
