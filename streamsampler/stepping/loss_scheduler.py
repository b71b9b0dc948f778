"""Count failures of environments and restore lost ones, for all schedulers of environments. Pure: no I/O.

*All events of a wait are handled before any request.* To act on a process's reports before its loss would send requests
twice: to the new process, and again after the loss.

*The scheduler looks up nothing.* Whether an episode's actions are recorded is an event, after `MakeOrders`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from streamsampler.core.errors import SpentQuota
from streamsampler.protocol.losses import Loss, Losses, Policy
from streamsampler.stepping.env_messages import (
    EnvInstruction,
    EnvReport,
    EnvsFailed,
    MakeOrders,
    OrdersMade,
    Place,
    RequestResets,
    RequestsDone,
    RequestSteps,
    Restored,
    RestoreEnvs,
)  # fmt: skip
from streamsampler.stepping.open_requests import OpenRequests


def subject_of(env_id: int) -> str:
    """Return the common subject of equal losses of an environment."""
    return f"environment {env_id}"


@dataclass(slots=True)
class _Retry:
    """Requests to retry for failed environments, at a time, once the orders with this number are made."""

    number: int
    env_ids: Sequence[int]
    resets: list[int]
    steps: list[int]
    at: float
    is_restored: bool
    is_ready: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_ready = not self.is_restored


class LossScheduler(OpenRequests):
    """Decides about failed environments."""

    def __init__(
        self, n_envs: int, losses: Losses | None = None, *, renew: bool = True, restart_wait: float = 0.0
    ) -> None:
        super().__init__(n_envs)
        # `over`: their next result starts an episode. `restoring`: they are being restored, which may still fail.
        self.over, self.restoring = set(range(n_envs)), set[int]()
        self.losses = losses or Losses(Policy())
        self._renew, self._restart_wait = renew, restart_wait
        # By environment, and whether its process died: the failures of its open request.
        self._attempts: dict[tuple[int, bool], int] = {}
        self._retries: list[_Retry] = []
        self._n_orders = 0
        self._now = 0.0
        self._instructions: list[EnvInstruction] = []

    def _pop_instructions(self) -> list[EnvInstruction]:
        instructions, self._instructions = self._instructions, []
        return instructions

    def seconds_to_wait(self, limit: float | None, now: float) -> float | None:
        """Return how long to wait for events, at most `limit`."""
        if not self._retries:
            return limit
        left = max(0.0, min(retry.at for retry in self._retries) - now)
        return left if limit is None else min(left, limit)

    def handle(self, events: Sequence[EnvReport | OrdersMade], now: float = 0.0) -> list[EnvInstruction]:
        """Handle the events of a wait, in order of arrival; return instructions. Without events, time has passed."""
        self._now = now
        for place, event in enumerate(events):
            if isinstance(event, RequestsDone):
                self.answer(event.env_ids)
                if self._attempts or self.losses.has_equal:
                    self.record_success(event.env_ids)
            elif isinstance(event, EnvsFailed):
                self._handle_failure(event, is_outdated=_is_lost(event.env_ids[0], events[place + 1 :]))
            elif isinstance(event, OrdersMade):
                self._handle_orders(event)
            else:
                self._handle_restored(event, is_outdated=_is_lost(event.env_id, events[place + 1 :]))
        self._retry_due()
        self._decide()
        return self._pop_instructions()

    @abstractmethod
    def _handle_failure(self, event: EnvsFailed, *, is_outdated: bool) -> None:
        """Decide about failed environments; if outdated, their process was lost afterwards."""

    @abstractmethod
    def _handle_restored(self, event: Restored, *, is_outdated: bool) -> None: ...

    @abstractmethod
    def _end_unrestored(self, env_id: int, why: str) -> None: ...

    @abstractmethod
    def _decide(self) -> None:
        """Decide what is left to do after all events."""

    def record_success(self, env_ids: Sequence[int]) -> None:
        self._forget_attempts(env_ids)
        if self.losses.has_equal:
            for env_id in env_ids:
                self.losses.forget(subject_of(env_id))

    def _forget_attempts(self, env_ids: Sequence[int]) -> None:
        if self._attempts:
            for env_id in env_ids:
                self._attempts.pop((env_id, True), None)
                self._attempts.pop((env_id, False), None)

    def _count(self, loss: Loss | None) -> tuple[SpentQuota | None, tuple[Loss, ...]]:
        quota = None if loss is None else self.losses.count(loss)
        return quota, () if quota is None else self.losses.history()

    def _place_of(self, event: EnvsFailed) -> Place:
        return Place.NEW if event.is_new else Place.REMADE if self._renew else Place.SAME

    def _retry(
        self, event: EnvsFailed, to_restore: Sequence[int] = (), to_remake: Sequence[int] = (),
        resets: Sequence[int] = (), steps: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Retry requests of failed environments: now, or after `restart_wait` if an environment raised.

        It waits only with an open request, when its caller can send nothing. For a lost process, the transport waits.
        """
        if not (to_restore or to_remake or resets or steps):
            return
        waits = not event.is_new and not self.waiting.isdisjoint(event.env_ids)
        self._n_orders = number = self._n_orders + 1
        at = self._now + self._restart_wait if waits and self._restart_wait else -math.inf
        is_restored = bool(to_restore or to_remake)
        retry = _Retry(number, event.env_ids, list(resets), list(steps), at, is_restored)
        self._retries.append(retry)
        if is_restored:
            self._instructions.append(MakeOrders(number, to_restore, to_remake, self._place_of(event)))
        else:
            self._retry_due()

    def _handle_orders(self, event: OrdersMade) -> None:
        self.restoring.update(event.restored)
        for retry in self._retries:
            if retry.number == event.number:
                retry.is_ready = True
                retry.resets = [env_id for env_id in retry.resets if env_id not in event.unkept]
                retry.steps = [env_id for env_id in retry.steps if env_id not in event.unkept]
                if event.unkept:
                    retry.at = -math.inf  # the environment's request is closed
        self._retry_due()
        for env_id, why in event.unkept.items():
            self._end_unrestored(env_id, why)

    def _retry_due(self) -> None:
        if not self._retries:
            return
        due = [it for it in self._retries if it.is_ready and it.at <= self._now]
        self._retries = [it for it in self._retries if it not in due]
        for retry in due:
            if retry.is_restored:
                self._instructions.append(RestoreEnvs(retry.env_ids))
            if retry.resets:
                self._instructions.append(RequestResets(retry.resets))
            if retry.steps:
                self._instructions.append(RequestSteps(retry.steps))


def _is_lost(env_id: int, events: Sequence[EnvReport | OrdersMade]) -> bool:
    """Whether an environment's process is lost in a later event, which outdates earlier ones."""
    return any(isinstance(it, EnvsFailed) and it.is_new and env_id in it.env_ids for it in events)
