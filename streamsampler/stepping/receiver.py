"""Receive a transport's reports, let the scheduler decide, and carry out its instructions."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from streamsampler.core.errors import RolloutError, WorkerError, WorkerHungError
from streamsampler.stepping.env_messages import (
    CountRestored,
    CountUnrestored,
    EnvInstruction,
    EnvsFailed,
    MakeOrders,
    OrdersMade,
    Place,
    RaiseFailure,
    ReleaseEnvs,
    RequestResets,
    RequestsDone,
    RequestSteps,
    RestoreEnvs,
    Rewind,
    StartEpisodes,
    is_of_action,
)  # fmt: skip
from streamsampler.stepping.env_scheduler import EnvScheduler
from streamsampler.stepping.episodes import EnvEpisodes, RoundResults
from streamsampler.stepping.failures import count_loss, reword
from streamsampler.stepping.manager_stats import ManagerStats
from streamsampler.stepping.options import ManagerOptions
from streamsampler.stepping.past_requests import BEFORE, TOO_MANY, PastRequest, digest_of_result
from streamsampler.stepping.restores import RestoreOrder
from streamsampler.stepping.steps import Steps
from streamsampler.stepping.transport import Transport, UnansweredError
from streamsampler.workers.restoring import NotRestoredError

_LOG = logging.getLogger("streamsampler")

_ATTEMPTS = 10
"""How often a request other than a step is tried while workers are lost."""


class Receiver:
    """Connects a manager, its transport and the scheduler of its environments."""

    def __init__(
        self, transport: Transport, scheduler: EnvScheduler, episodes: EnvEpisodes, options: ManagerOptions,
        accounts: ManagerStats,
    ) -> None:  # fmt: skip
        self._transport = transport
        self._scheduler = scheduler
        self._episodes = episodes
        self._on_failure = options.on_failure
        self._accounts = accounts
        self._orders: dict[int, RestoreOrder] = {}  # not carried out yet
        # Resets not requested yet: the seed and the options, None where unchanged.
        self._due: dict[int, tuple[int | None, dict[str, Any] | None]] = {}

    def carry_out(self, instructions: Sequence[EnvInstruction]) -> None:
        first: BaseException | None = None
        for it in instructions:
            if isinstance(it, RequestSteps):
                self._transport.step(it.env_ids, together=it.together)
            elif isinstance(it, RaiseFailure):
                reword(it.error, it.quota, it.history)
                if first is not None:
                    _LOG.warning("another failure in the same step: %s", it.error)
                first = first or it.error
            else:
                self._carry_out(it)
        if first is not None:
            self._transport.in_critical_section = False
            raise first

    def _carry_out(self, it: EnvInstruction) -> None:
        transport = self._transport
        match it:
            case RequestResets():
                transport.reset(it.env_ids, {})
            case StartEpisodes():
                self._start_episodes(it)
            case MakeOrders():
                self.carry_out(self._scheduler.handle([self._make_orders(it)], time.monotonic()))
            case RestoreEnvs():
                transport.restore([self._orders.pop(env_id) for env_id in it.env_ids if env_id in self._orders])
            case ReleaseEnvs():
                transport.release(it.env_ids)
            case Rewind():
                self._episodes.rewind(it.env_ids)
            case CountRestored() | CountUnrestored():
                self._count_restoring(it)

    def _count_restoring(self, it: CountRestored | CountUnrestored) -> None:
        if isinstance(it, CountUnrestored):
            self._accounts.not_restored += 1
            what = "environment %d could not be restored: %s. Its episode ends, marked in Steps.failed."
            _LOG.warning(what, it.env_id, it.why)
            return
        restored = it.restored
        self._accounts.lost_timesteps += restored.n_timesteps or 0
        if not restored.why_not:
            self._accounts.restored += restored.n_timesteps is not None
        elif restored.n_timesteps is None:
            _warn_of_other(restored.env_id, restored.why_not)

    def _start_episodes(self, it: StartEpisodes) -> None:
        given = {env_id: self._due[env_id] for env_id in it.env_ids}
        self._accounts.abandoned_timesteps += it.n_discarded
        self._accounts.failed_trajectories += it.n_failed
        self._accounts.abandoned_trajectories += it.n_abandoned
        self._episodes.set_next_seeds({e: seed for e, (seed, _) in given.items() if seed is not None})
        self._episodes.forget(it.env_ids)
        self._transport.reset(it.env_ids, {e: options for e, (_, options) in given.items() if options is not None})
        for env_id in it.env_ids:
            del self._due[env_id]

    def _make_orders(self, wanted: MakeOrders) -> OrdersMade:
        unkept = {}
        for env_id in (*wanted.to_restore, *wanted.to_remake):
            self._orders.pop(env_id, None)
            try:
                order = self._order(env_id, wanted)
            except NotRestoredError as error:
                unkept[env_id] = str(error)
                order = self._remake_order(env_id, wanted)
            if order is not None and wanted.place is Place.SAME:
                order = replace(order, requests=[each for each in order.requests if each.timestep != BEFORE])
            if order is not None:
                self._orders[env_id] = order
        restored = [env_id for env_id in wanted.to_restore if (it := self._orders.get(env_id)) and it.seed is not None]
        return OrdersMade(wanted.number, unkept, restored)

    def _order(self, env_id: int, wanted: MakeOrders) -> RestoreOrder | None:
        if env_id in wanted.to_restore:
            return self._episodes.restore_order(env_id, remake=wanted.place is Place.REMADE)
        return self._remake_order(env_id, wanted)

    def _remake_order(self, env_id: int, wanted: MakeOrders) -> RestoreOrder | None:
        remake = wanted.place is Place.REMADE
        try:
            return self._episodes.remake_order(env_id, remake=remake)
        except NotRestoredError as error:
            _warn_of_other(env_id, error)
            return RestoreOrder(env_id, remake=True) if remake else None

    def start_round(self, env_ids: list[int]) -> None:
        self._transport.in_critical_section = True
        self._scheduler.in_round = True
        self._transport.step(env_ids, together=True)
        self._transport.in_critical_section = False

    def open_round(self) -> None:
        if self._scheduler.in_round:
            self._transport.in_critical_section = True
            self._scheduler.open_round()
            self._transport.in_critical_section = False

    def end_round(self, env_ids: list[int]) -> RoundResults | None:
        """Return a round's results, or None after a failure, when `recv_from` returns the others."""
        transport, scheduler = self._transport, self._scheduler
        if not scheduler.in_round:
            return None
        infos = transport.receive_round(len(env_ids))
        if infos is None or (infos and self._are_abnormal(env_ids, infos)):
            self._open_answered(env_ids, infos)
            return None
        scheduler.record_success(env_ids)
        scheduler.received, scheduler.in_round = env_ids, False
        n_begun = len(scheduler.over)
        results = self._episodes.make_round_results(infos)
        scheduler.received, transport.in_critical_section = (), False
        self._accounts.kept_timesteps += len(env_ids) - n_begun
        self._accounts.kept_trajectories += len(results.ended)
        return results

    def _are_abnormal(self, env_ids: list[int], infos: Mapping[int, dict[str, Any]]) -> bool:
        try:
            return any(map(self._episodes.is_abnormal, infos.values()))
        except BaseException:  # of the user's function: the results can be received again
            self._open_answered(env_ids, infos)
            raise

    def _open_answered(self, env_ids: list[int], infos: Mapping[int, dict[str, Any]] | None) -> None:
        """Open a round; with `infos`, all its results have arrived."""
        self._scheduler.open_round()
        if infos is not None:
            self._episodes.keep_infos(infos)
            self._scheduler.answer(env_ids)
        self._transport.in_critical_section = False

    def receive(self, timeout: float | None, awaited: Sequence[int] = ()) -> None:
        scheduler = self._scheduler
        if not scheduler.waiting and timeout is None:
            return
        events = self._transport.collect(scheduler.seconds_to_wait(timeout, time.monotonic()), awaited)
        for event in events:
            if isinstance(event, RequestsDone):
                if event.infos:
                    self._episodes.keep_infos(event.infos)
            elif isinstance(event, EnvsFailed):
                self._count_failure(event)
        if instructions := scheduler.handle(events, time.monotonic()):
            self.carry_out(instructions)
        self._transport.in_critical_section = False

    def _count_failure(self, event: EnvsFailed) -> None:
        self._accounts.failures += not is_of_action(event.error)
        self._accounts.restarts += event.is_new
        self._accounts.hangs += isinstance(event.error, WorkerHungError)
        _LOG.info("an environment failed: %s", event.error)

    def resynchronize(self, to_reset: Collection[int] = ()) -> None:
        """Make transport and scheduler consistent after an interrupted call.

        Results about to be received have failed; other environments are restored, those in `to_reset` reset instead.
        """
        self._scheduler.resynchronize()
        lost = self._transport.interrupted(self._scheduler.waiting)
        self._accounts.restarts += sum(event.is_new for event in lost)
        self.carry_out(self._scheduler.recover(lost, self._due, to_reset))
        self._transport.in_critical_section = False

    def request(self, env_ids: list[int], kind: str, name: str, arguments: list[Any]) -> list[Any]:
        """Carry out a request other than a step, and record it if it may change environments.

        If a worker is lost meanwhile, its restored environments carry it out.
        """
        argument_of = dict(zip(env_ids, arguments, strict=True))
        values: dict[int, Any] = {}
        left, attempt = env_ids, 1
        while left:
            lost: WorkerError | None = None
            self._transport.in_critical_section = True  # until requests with possible effects are recorded
            try:
                answered = dict(zip(left, self._transport.request(left, kind, name, arguments), strict=True))
            except UnansweredError as unanswered:
                answered, lost = unanswered.values, unanswered.error
            except Exception as error:
                self._keep(kind, name, argument_of, self._transport.tried, {})
                self._transport.in_critical_section = False
                if isinstance(error, RolloutError):
                    count_loss(error, self._scheduler.losses)
                raise
            self._keep(kind, name, argument_of, dict.fromkeys(answered, False), answered)
            self._transport.in_critical_section = False
            values |= answered
            if lost is not None:
                self.receive(0)  # records the loss, and raises it with on_failure="raise"
                if self._on_failure != "restore" or attempt == _ATTEMPTS:
                    raise lost from None
            left, attempt = [env_id for env_id in env_ids if env_id not in values], attempt + 1
            arguments = [argument_of[env_id] for env_id in left]
        return [values[env_id] for env_id in env_ids]

    def _keep(
        self, kind: str, name: str, argument_of: Mapping[int, Any], tried: Mapping[int, bool], values: Mapping[int, Any]
    ) -> None:
        """Record a request, to repeat it on replacements; `tried` has the environments it reached, and if it raised."""
        if kind not in ("call", "set"):
            return
        for env_id, raised in tried.items():
            digest = digest_of_result(values.get(env_id))
            request = PastRequest(BEFORE, kind, name, argument_of[env_id], raised, digest)
            if self._episodes.keep_request(env_id, request) and self._on_failure == "restore":
                _LOG.warning("environment %d cannot be restored from now on: %s", env_id, TOO_MANY)

    def return_steps(self, env_ids: list[int]) -> Steps:
        abnormal = self._episodes.abnormal(env_ids)  # first, since it calls the user's function, which may raise
        self._scheduler.received, self._transport.in_critical_section = env_ids, True
        steps = self._episodes.make_steps(env_ids, abnormal)
        self._scheduler.received, self._transport.in_critical_section = (), False
        self._accounts.take_results(steps.timesteps, steps.ended, steps.failed)
        return steps

    def reset(self, resets: Mapping[int, tuple[int | None, dict[str, Any] | None]]) -> None:
        """Reset environments, each with its seed and options, None where unchanged; see `EnvScheduler.reset`."""
        for env_id, (seed, options) in resets.items():
            earlier = self._due.get(env_id, (None, None))
            self._due[env_id] = (
                earlier[0] if seed is None else seed,
                earlier[1] if options is None else options,
            )
        self.carry_out(self._scheduler.reset(resets))


def _warn_of_other(env_id: int, why: object) -> None:
    _LOG.warning("environment %d was made again, but could not be restored: %s", env_id, why)
