"""Decide which of a sampler's remote environments are requested, restored and abandoned. Pure: no I/O.

An environment's exception is a result here, for the sampler to judge. Lost processes are replaced and their
environments restored until a quota is exhausted. After a failed restore, an error follows, and the sampler runs the
trajectory again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from streamsampler.protocol.losses import Losses
from streamsampler.stepping.env_messages import (
    IT_RAISED,
    CountLoss,
    CountRestored,
    CountUnrestored,
    EnvsFailed,
    KeepError,
    OrdersMade,
    RaiseFailure,
    ReleaseEnvs,
    Restored,
)  # fmt: skip
from streamsampler.stepping.env_states import EnvEvent, EnvState
from streamsampler.stepping.loss_scheduler import LossScheduler

_RESETTING, _STEPPED = EnvState.RESETTING, EnvEvent.STEPPED


class RolloutScheduler(LossScheduler):
    """Decides about a sampler's environments. `over` has those without a current trajectory."""

    def __init__(self, n_envs: int, losses: Losses | None = None) -> None:
        super().__init__(n_envs, losses)
        self._unwanted: set[int] = set()  # environments with an unwanted open request
        self._lost: list[EnvsFailed] = []

    def start_trajectory(self, env_id: int) -> None:
        self.request([env_id], EnvEvent.RESET)
        self.over.discard(env_id)
        self._unwanted.discard(env_id)

    def receive(self, env_ids: Collection[int] | None = None) -> list[int]:
        """Close the requests with arrived results, and return their environments in order."""
        # A lost environment's last result is received once it is restored.
        if env_ids is None:
            arrived = sorted(self.arrived.keys() - self.restoring if self.restoring else self.arrived)
        else:
            arrived = [env_id for env_id in env_ids if env_id in self.arrived]
        begun = [env_id for env_id in arrived if self.states[env_id] is _RESETTING] if _RESETTING in self.states else []
        stepped = arrived
        if begun:
            self._close_requests(begun, EnvEvent.BEGAN)
            stepped = [env_id for env_id in arrived if env_id not in begun]
        if stepped:
            self._close_requests(stepped, _STEPPED)
        return arrived

    def is_open(self, env_id: int) -> bool:
        """Whether a request has no result, or the environment is being restored."""
        return env_id not in self.over and (env_id in self.waiting or env_id in self.restoring)

    def is_idle(self, env_id: int) -> bool:
        """Whether every result has been received."""
        return env_id not in self.waiting and env_id not in self.arrived and env_id not in self.restoring

    def has_news(self, env_id: int) -> bool:
        """Whether a result is outstanding or not yet received."""
        return env_id in self.arrived or (env_id in self.waiting and env_id not in self.over)

    def end(self, env_id: int) -> None:
        self.over.add(env_id)

    def discard(self, env_ids: Iterable[int]) -> None:
        """Discard results of open requests, and restore these environments no more."""
        self._unwanted.update(env_ids)

    def forget(self) -> None:
        """End all trajectories; only open requests remain."""
        self.discard(range(len(self.states)))
        self.over.update(env_id for env_id in range(len(self.states)) if not self.is_open(env_id))

    def _handle_failure(self, event: EnvsFailed, *, is_outdated: bool) -> None:  # noqa: ARG002 - a result all the same
        quota, history = self._count(event.loss)
        if event.is_final or quota is not None:
            self._give_up(event.env_ids)
            self._instructions.append(RaiseFailure(event.error, quota, history))
        elif event.is_new:
            self._instructions.append(CountLoss(event.error))
            self._lost.append(event)
        elif (env_id := event.env_ids[0]) in self.restoring:
            self._end_unrestored(env_id, IT_RAISED)
        else:
            self.answer([env_id])
            self.over.add(env_id)
            self._instructions.append(KeepError(env_id, event.error))

    def _give_up(self, env_ids: Iterable[int]) -> None:
        self.over.update(env_ids)
        self.fail(self.waiting.intersection(env_ids))
        self.restoring.difference_update(env_ids)

    def _decide(self) -> None:
        lost, self._lost = self._lost, []
        for event in lost:
            self.restoring.difference_update(event.env_ids)
            self._give_up(self._unwanted.intersection(event.env_ids))
            to_restore = [env_id for env_id in event.env_ids if env_id not in self.over]
            resets = [env_id for env_id in to_restore if env_id in self.waiting and self.states[env_id] is _RESETTING]
            steps = [env_id for env_id in to_restore if env_id in self.waiting and env_id not in resets]
            self._retry(event, to_restore, (), resets, steps)

    def _handle_orders(self, event: OrdersMade) -> None:
        self._give_up(event.unkept)
        super()._handle_orders(event)

    def _handle_restored(self, event: Restored, *, is_outdated: bool) -> None:  # noqa: ARG002 - its timesteps count
        self._instructions.append(CountRestored(event))
        self.restoring.discard(event.env_id)
        if event.why_not:
            self._end_unrestored(event.env_id, event.why_not)

    def _end_unrestored(self, env_id: int, why: str) -> None:
        if env_id in self.waiting:
            self._instructions.append(ReleaseEnvs([env_id]))  # until then it ignores requests
        self._give_up([env_id])
        if env_id not in self._unwanted:
            self._instructions.append(CountUnrestored(env_id, why))
