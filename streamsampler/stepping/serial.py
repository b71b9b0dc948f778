"""Environments stepped in this process: for debugging, and where processes do not pay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from streamsampler.errors import RemoteTraceback, RolloutError
from streamsampler.stepping.manager import BaseEnvManager
from streamsampler.stepping.options import ManagerOptions, OnEnvFailure, Updates, is_abnormal, updates_of
from streamsampler.stepping.rows import Rows
from streamsampler.stepping.stepper import Autoreset, Stepper
from streamsampler.stepping.transport import Broken, Done, Transport, common_spaces
from streamsampler.workers.explain import summary_of

__all__ = ["SerialEnvManager", "raised_error"]


def raised_error(
    env_id: int, phase: str, worker_number: int, summary: str, cause: BaseException | None
) -> RolloutError:
    """Return the error of an environment that raised."""
    error = RolloutError(
        f"environment {env_id} raised in {phase}, in worker {worker_number}: {summary}",
        worker_number=worker_number,
        phase=phase,
        trajectory=None,
        original=None if isinstance(cause, RemoteTraceback) else cause,
    )
    error.__cause__ = cause
    return error


class _InThisProcess(Transport):
    def __init__(self, updates: Updates, autoreset: Autoreset) -> None:
        self._stepper = Stepper(updates, 0, autoreset)
        self._n_envs = len(updates)
        self._events: list[Done | Broken] = []

    def start(self) -> None:
        observation_space, action_space = common_spaces(self._stepper.make())
        self.rows = self._stepper.rows = Rows(observation_space, action_space, self._n_envs, np.zeros)

    def step(self, env_ids: Sequence[int]) -> None:
        for env_id in env_ids:
            self._run(env_id, "step", self._stepper.step)

    def reset(self, env_ids: Sequence[int], options: Mapping[int, dict[str, Any] | None]) -> None:
        for env_id in env_ids:
            if env_id in options:
                self._stepper.set_options(env_id, options[env_id])
            self._run(env_id, "reset", self._stepper.reset)

    def _run(self, env_id: int, phase: str, carry_out: Callable[[int], dict[str, Any]]) -> None:
        try:
            info = carry_out(env_id)
        except Exception as error:
            self._events.append(Broken([env_id], raised_error(env_id, phase, 0, summary_of(error), error), 0))
            return
        self._events.append(Done([env_id], {env_id: dict(info)} if info else {}))

    def collect(self, timeout: float | None) -> Sequence[Done | Broken]:  # noqa: ARG002 - all has happened
        events, self._events = self._events, []
        return events

    def request(self, env_ids: Sequence[int], kind: str, name: str, arguments: Sequence[Any]) -> list[Any]:
        return [
            self._stepper.request(env_id, kind, name, argument)
            for env_id, argument in zip(env_ids, arguments, strict=True)
        ]

    def close(self) -> None:
        self._stepper.close()


class SerialEnvManager(BaseEnvManager):
    """Steps environments one after the other in this process, with the calls of `EnvManager`.

    A step is taken when its action is sent. The data are those of `EnvManager` with the same seed and actions.

    Args:
        envs: An id for `gymnasium.make`, a callable that makes an environment, an environment, an `EnvSpec` or an
            `EnvUpdate`; or a list with one for each environment. All have the same spaces.
        n_envs: How many environments there are.
        seed: A non-negative integer from which the seeds of episodes are derived: episode k of environment e has that
            of index e + k * n_envs. None draws one, which is in `seed`.
        autoreset: What becomes of an environment whose episode has ended. "next_step": its next action is ignored, and
            resets it. "same_step": it is reset in the same step; `Steps.last_observations` has the last observation,
            `infos["final_info"]` the last info. "disabled": the caller resets it.
        max_episodes: How many episodes each environment runs after a reset by the caller; None for any number.
        min_envs: How many results `recv` waits for.
        recv_timeout: Seconds that `recv` waits at most; None for any time.
        on_failure: What becomes of an environment that raises. "raise": the error is raised, and the environment is to
            be reset. "reset": its episode ends, marked in `Steps.failed`.
        abnormal: A function of an info that says whether its environment failed without raising.
        env_kwargs: Arguments for making the environments.

    Raises:
        UsageError: An argument cannot work.
    """

    def __init__(
        self,
        envs: Any,
        *,
        n_envs: int,
        seed: int | None = None,
        autoreset: Autoreset = "next_step",
        max_episodes: int | None = None,
        min_envs: int = 1,
        recv_timeout: float | None = None,
        on_failure: OnEnvFailure = "raise",
        abnormal: Callable[[Mapping[str, Any]], bool] = is_abnormal,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        options = ManagerOptions(n_envs, autoreset, max_episodes, min_envs, recv_timeout, on_failure, abnormal)
        super().__init__(updates_of(envs, n_envs, env_kwargs), options, seed)

    def _new_transport(self) -> Transport:
        return _InThisProcess(self._updates, self._options.autoreset)
