"""Decide which environments of a manager are requested, restored, retried and ended. Pure: no I/O, no clock.

`handle(event, now)` receives a transport's reports and returns instructions; `send`, `reset` and `receive` are the
caller's acts. The scheduler knows each environment's open request; actions, seeds and results are elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from streamsampler.protocol.losses import Losses
from streamsampler.stepping.env_messages import (
    CountRestored,
    CountUnrestored,
    EnvInstruction,
    EnvsFailed,
    Place,
    RaiseFailure,
    ReleaseEnvs,
    RequestResets,
    RequestSteps,
    Restored,
    Rewind,
    StartEpisodes,
)  # fmt: skip
from streamsampler.stepping.env_states import Autoreset, EnvEvent, EnvState, OnEnvFailure
from streamsampler.stepping.loss_scheduler import LossScheduler

_RESETTING, _STEPPED = EnvState.RESETTING, EnvEvent.STEPPED  # an enum's member costs 100 ns to look up on Python 3.11

_ATTEMPTS, _ATTEMPTS_AFTER_DEATHS = 1, 9
"""Retries of an environment that keeps failing at a step. Processes that kill workers may strike again."""


class EnvScheduler(LossScheduler):
    """Decides about a manager's environments; arguments are the manager's."""

    def __init__(
        self, n_envs: int, on_failure: OnEnvFailure = "restore", autoreset: Autoreset = "next_step",
        max_episodes: int | None = None, *, renew: bool = True, restart_wait: float = 0.0, losses: Losses | None = None,
    ) -> None:  # fmt: skip
        super().__init__(n_envs, losses, renew=renew, restart_wait=restart_wait)
        # `failed`: a failure ends their episode with the open step. `lost`: they failed between steps, the next one
        # ends it.
        self.failed, self.lost = set[int](), set[int]()
        self.received: Sequence[int] = ()  # environments about to return results; an interruption makes these fail
        self.in_round = False  # whether all environments are in a step not shown in `states`
        self._everyone = list(range(n_envs))
        self._all_ready = [EnvState.READY] * n_envs
        self._on_failure, self._autoreset, self._max_episodes = on_failure, autoreset, max_episodes
        self._n_ended = [0] * n_envs  # episodes since the caller's last reset
        self._to_reset: dict[int, None] = {}  # resets waiting for open requests; an ordered set

    def has_episode(self, env_id: int) -> bool:
        """Whether the caller has received an episode's start and not its end."""
        return env_id not in self.over

    def send(self, env_ids: Sequence[int], *, together: bool = False) -> Sequence[EnvInstruction]:
        self.request(env_ids, EnvEvent.SENT)
        if not self.lost:
            return (RequestSteps(env_ids, together),)
        lost = [env_id for env_id in env_ids if env_id in self.lost and env_id not in self.over]
        self.lost.difference_update(env_ids)
        self._end_episodes(lost)
        self._instructions.append(RequestSteps([env_id for env_id in env_ids if env_id not in lost], together))
        return self._pop_instructions()

    @property
    def can_start_round(self) -> bool:
        """Whether `in_round` may be set: all environments wait for actions, and no other work is open.

        A round without a failure, by far the most frequent, changes no states: before and after it all are ready. After
        a failure, or for another call in between, `open_round` sets them.
        """
        is_free = not (self.in_round or self._to_reset or self._retries or self.lost)
        goes_on = self._autoreset != "disabled" and self._max_episodes is None
        return is_free and goes_on and self.states == self._all_ready

    def open_round(self) -> None:
        """Set the states as if each environment had received its action by itself."""
        if self.in_round:  # stays set until the states are complete: after an interruption, all of this runs again
            self.states[:] = [EnvState.STEPPING] * len(self.states)
            self.waiting.update(self._everyone)
            self.in_round = False

    def close(self) -> None:
        super().close()
        self.in_round = False

    def start_episodes(self, env_ids: Iterable[int]) -> set[int]:
        """Return the environments that start an episode with the result received now."""
        begun = self.over.intersection(env_ids)
        if _RESETTING in self.states:
            begun.update(env_id for env_id in env_ids if self.states[env_id] is _RESETTING)
        self.over -= begun
        return begun

    def receive(self, env_ids: Sequence[int], ended: Collection[int], abnormal: Collection[int]) -> list[int]:
        """Close requests, as the caller receives their results; raise ProtocolError if a result has not arrived.

        Infos of `abnormal` environments, among `ended`, report a failure. Returns environments reset in the same step.
        """
        if not ended and _RESETTING not in self.states:
            self.close_requests(env_ids, _STEPPED)
            return []
        events: dict[EnvEvent, list[int]] = {}
        over = set(ended)
        for env_id in env_ids:
            event = EnvEvent.BEGAN if self.states[env_id] is _RESETTING else _STEPPED
            if env_id in over:
                event = self._end(env_id, is_abnormal=env_id in abnormal)
            events.setdefault(event, []).append(env_id)
        for event, of_these in events.items():
            self.close_requests(of_these, event)
        return [env_id for env_id in ended if env_id not in self.over]

    def end_round(self, ended: Sequence[int]) -> list[int]:
        for env_id in ended:
            self._end(env_id, is_abnormal=False)
        return [env_id for env_id in ended if env_id not in self.over]

    def _end(self, env_id: int, *, is_abnormal: bool) -> EnvEvent:
        self._n_ended[env_id] += 1
        self.over.add(env_id)
        # After "same_step" started another episode, a reset before its first step starts it again.
        if is_abnormal:
            return EnvEvent.BROKE
        if self._max_episodes is not None and self._n_ended[env_id] >= self._max_episodes:
            return EnvEvent.REACHED_LIMIT
        if self._autoreset == "same_step":
            self.over.discard(env_id)
        return EnvEvent.ENDED if self._autoreset == "disabled" else _STEPPED

    def reset(self, env_ids: Iterable[int]) -> list[EnvInstruction]:
        """Reset environments, each as soon as its open request is closed; discard results until then."""
        self._to_reset.update(dict.fromkeys(env_ids))
        self._decide()
        return self._pop_instructions()

    def _decide(self) -> None:
        env_ids = [env_id for env_id in self._to_reset if env_id not in self.waiting]
        if not env_ids:
            return
        # `max_episodes` counts the reset after an episode's end.
        counted = {env_id for env_id in env_ids if self.states[env_id] is EnvState.NEEDS_RESET}
        discarded = [env_id for env_id in env_ids if env_id in self.arrived]
        n_discarded = sum(self.states[env_id] is EnvState.STEPPING for env_id in discarded)
        self.close_requests(discarded, EnvEvent.DISCARDED)
        cut_short = [env_id for env_id in env_ids if env_id not in self.over]
        n_failed = sum(self.states[env_id] is EnvState.FAILED for env_id in cut_short)
        for env_id in env_ids:
            if env_id not in counted:
                self._n_ended[env_id] = 0
        self.lost.difference_update(env_ids)
        self.failed.difference_update(env_ids)
        self._to_reset = {env_id: None for env_id in self._to_reset if env_id in self.waiting}
        self.request(env_ids, EnvEvent.RESET)
        self._instructions.append(StartEpisodes(env_ids, n_discarded, n_failed, len(cut_short) - n_failed))

    def _handle_failure(self, event: EnvsFailed, *, is_outdated: bool) -> None:
        quota, history = self._count(event.loss)
        is_final = event.is_final or quota is not None
        open_steps = self.waiting.intersection(event.env_ids)
        # The caller's reset discards the failed steps.
        is_discarded = bool(open_steps) and self._to_reset.keys() >= open_steps and not is_final
        is_hopeless = self._is_hopeless(event)
        env_id = event.env_ids[0]
        # The caller has requested a reset after the restore was requested; the worker has yet to carry it out.
        is_replaced = not event.is_new and env_id in self.restoring and self._is_resetting(env_id)
        self.restoring.difference_update(event.env_ids)
        if is_outdated or is_replaced:
            is_raised = is_final or self._on_failure == "raise"
        else:
            is_raised = self._recover_envs(event, is_final=is_final, is_hopeless=is_hopeless)
        if is_raised and not is_discarded:
            self._instructions.append(RaiseFailure(event.error, quota, history))

    def _is_hopeless(self, event: EnvsFailed) -> bool:
        """Count the culprit's failure; return whether it fails each time at the same step.

        Resets, which lose nothing of an episode, are retried as long as the quotas allow.
        """
        if event.culprit is None or event.is_of_reset:
            return False
        key = event.culprit, event.has_died
        failed = self._attempts[key] = self._attempts.get(key, 0) + 1
        return failed > (_ATTEMPTS_AFTER_DEATHS if event.has_died else _ATTEMPTS)

    def _recover_envs(
        self, event: EnvsFailed, *, is_final: bool = False, is_hopeless: bool = False, to_reset: Collection[int] = ()
    ) -> bool:
        """Restore, reset or fail environments, by the policy; return whether to raise the error."""
        lost = [env_id for env_id in event.env_ids if env_id in self.waiting]
        # The new orders include the waiting retries: these, carried out as well, would act twice.
        self._retries = [it for it in self._retries if set(it.env_ids).isdisjoint(event.env_ids)]
        self._instructions.append(Rewind(lost))
        if self._on_failure == "raise" or is_final:
            unknown = [env_id for env_id in event.env_ids if env_id not in self.arrived]
            if event.is_new:
                self._retry(event, to_remake=event.env_ids)
            self.lost.update(self.arrived.keys() & event.env_ids)  # the caller receives the last result, then the loss
            self.fail(unknown)
            return True
        if self._on_failure == "reset":
            self._reset_failed(event, lost)
            return False
        if is_hopeless and event.culprit is not None and self._is_kept(event.culprit):
            self._forget_attempts([event.culprit])
            self.fail([event.culprit])
        self._restore(event, to_reset)
        return is_hopeless

    def _is_resetting(self, env_id: int) -> bool:
        """Whether the open request is a reset, by the caller or after an episode's end."""
        return env_id in self.waiting and (self.states[env_id] is _RESETTING or env_id in self.failed)

    def _is_kept(self, env_id: int) -> bool:
        """Whether an environment has an episode, and no open reset."""
        return self.states[env_id] not in (EnvState.VOID, EnvState.FAILED) and not self._is_resetting(env_id)

    def _reset_failed(self, event: EnvsFailed, lost: Sequence[int]) -> None:
        """End the episodes of failed environments; retry resets, and steps at an episode's start."""
        ended, resets, steps = list[int](), list[int](), list[int]()
        for env_id in lost:
            is_step = self.states[env_id] is EnvState.STEPPING and env_id not in self.failed
            is_over = env_id in self.over  # then a step is a reset
            (ended if is_step and not is_over else steps if is_step else resets).append(env_id)
        to_remake = event.env_ids if event.is_new else [*resets, *steps] if self._renew else ()
        self._retry(event, to_remake=to_remake, resets=resets, steps=steps)
        self._end_episodes(ended)
        self.lost.update(env_id for env_id in event.env_ids if env_id not in lost)

    def _restore(self, event: EnvsFailed, to_reset: Collection[int]) -> None:
        to_restore = [env_id for env_id in event.env_ids if env_id not in to_reset and self._is_kept(env_id)]
        is_same = self._place_of(event) is Place.SAME
        to_remake = [] if is_same else [env_id for env_id in event.env_ids if env_id not in to_restore]
        lost = [env_id for env_id in event.env_ids if env_id in self.waiting]
        resets = [env_id for env_id in lost if self._is_resetting(env_id)]
        steps = [env_id for env_id in lost if env_id not in resets]
        self._retry(event, to_restore, to_remake, resets, steps)

    def _handle_restored(self, event: Restored, *, is_outdated: bool) -> None:
        if is_outdated:
            return
        self.restoring.discard(event.env_id)
        self._instructions.append(CountRestored(event))
        if event.why_not and event.n_timesteps is not None:
            if not self._is_resetting(event.env_id):
                self._instructions.append(ReleaseEnvs([event.env_id]))
            self._end_unrestored(event.env_id, event.why_not)
        elif event.env_id not in self.waiting:
            self._forget_attempts([event.env_id])

    def _end_unrestored(self, env_id: int, why: str) -> None:
        if env_id not in self.waiting:
            self.lost.add(env_id)
        elif not self._is_resetting(env_id):
            self._end_episodes([env_id])
        self._instructions.append(CountUnrestored(env_id, why))

    def _end_episodes(self, env_ids: list[int]) -> None:
        self._forget_attempts(env_ids)
        self.failed.update(env_ids)
        if self._autoreset != "same_step":
            self.answer(env_ids)
        elif env_ids:
            self._instructions.append(RequestResets(env_ids))

    def resynchronize(self) -> None:
        """Make the states consistent after an interrupted call; `recover` must follow.

        Results about to be received count as failed: the caller did not get them.
        """
        self._instructions.clear()
        self.open_round()
        super().resynchronize()
        self.fail(self.received)
        self.received = ()

    def recover(
        self, events: Sequence[EnvsFailed], due: Collection[int], to_reset: Collection[int]
    ) -> list[EnvInstruction]:
        """Restore environments lost by an interruption, which counts as no failure.

        Resets in `due` may not have been requested yet. The caller resets `to_reset` now: their interrupted steps are
        not repeated.
        """
        self._to_reset = dict.fromkeys(due)
        to_reset = {*to_reset, *due}.difference(self.arrived)
        # For the reset, which discards them, results of lost environments count as arrived. Results of the other
        # environments arrive by themselves, and the reset waits for them.
        unanswered = self.waiting.intersection(env_id for event in events for env_id in event.env_ids)
        self.answer(sorted(unanswered & to_reset))
        if self._autoreset != "same_step":
            self.answer(sorted(self.waiting & self.failed))
        self.restoring.difference_update(*(event.env_ids for event in events))
        self._retries.clear()  # waiting retries are lost too: the loop below makes them again
        for event in events:
            self._recover_envs(event, to_reset=to_reset)
        self._decide()
        return self._pop_instructions()
