"""Check the arguments of managers of environments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import numpy as np
from gymnasium.vector import AutoresetMode

from streamsampler.agents.policies import PolicyNames, PolicyOf
from streamsampler.core.errors import UsageError, positive, positive_seconds
from streamsampler.core.serialization import dumps, loads
from streamsampler.environments.updates import EnvUpdate, NewEnvUpdate, SpecEnvUpdate, as_env_update
from streamsampler.protocol.hangs import HangWatch
from streamsampler.protocol.losses import LEAST_CONSTRUCTION_SECONDS, Policy
from streamsampler.protocol.messages import Phase
from streamsampler.samplers.per_worker import items_by_worker
from streamsampler.stepping.env_states import Autoreset, OnEnvFailure

Verify = Literal["last", "steps"]
Updates = Mapping[int, EnvUpdate]

RESTORE_LIMIT: Final = 100_000
"""The default of the most timesteps recorded of an episode."""

_GYMNASIUMS = frozenset(mode.value for mode in AutoresetMode)


def mode_of(autoreset: Autoreset | AutoresetMode) -> Autoreset:
    """Return a mode's name; Gymnasium's enum and its values, such as "NextStep", work too."""
    if isinstance(autoreset, str) and autoreset in _GYMNASIUMS:
        autoreset = AutoresetMode(autoreset)
    return cast("Autoreset", autoreset.name.lower()) if isinstance(autoreset, AutoresetMode) else autoreset


def is_abnormal(info: Mapping[str, Any]) -> bool:
    """Return a true `info["abnormal"]`, the default sign of a failed environment."""
    return bool(info.get("abnormal", False))


@dataclass(frozen=True)
class ManagerOptions:
    """The options of all managers, checked; see `EnvManager`."""

    n_envs: int
    autoreset: Autoreset
    max_episodes: int | None
    min_envs: int
    recv_timeout: float | None
    on_failure: OnEnvFailure
    abnormal: Callable[[Mapping[str, Any]], bool]
    verify: Verify = "last"
    restore_limit: int = RESTORE_LIMIT
    copy: bool = True
    restart_wait: float = 0.0
    own_generators: bool = False
    renew: bool = True
    policy_of: PolicyOf | None = None

    def __post_init__(self) -> None:
        positive("n_envs", self.n_envs)
        PolicyNames(self.policy_of)  # raises if it is invalid
        if self.autoreset not in ("next_step", "same_step", "disabled"):
            raise UsageError(f'autoreset must be "next_step", "same_step" or "disabled", got {self.autoreset!r}')
        if self.max_episodes is not None:
            positive("max_episodes", self.max_episodes)
        if positive("min_envs", self.min_envs) > self.n_envs:
            raise UsageError(f"min_envs is {self.min_envs}, but there are {self.n_envs} environments")
        if self.recv_timeout is not None:
            positive_seconds("recv_timeout", self.recv_timeout)
        self._check_failures()
        switches = {"copy": self.copy, "own_generators": self.own_generators, "renew": self.renew}
        for name, value in switches.items():
            if not isinstance(value, bool):
                raise UsageError(f"{name} must be True or False, got {value!r}")
        if not callable(self.abnormal):
            raise UsageError(f"abnormal must be a function of an info, got {self.abnormal!r}")

    def _check_failures(self) -> None:
        if self.on_failure not in ("raise", "reset", "restore"):
            raise UsageError(f'on_failure must be "raise", "reset" or "restore", got {self.on_failure!r}')
        if self.verify not in ("last", "steps"):
            raise UsageError(f'verify must be "last" or "steps", got {self.verify!r}')
        positive("restore_limit", self.restore_limit, least=0)
        if self.restart_wait != 0:
            positive_seconds("restart_wait", self.restart_wait)

    def policy(self, **fields: Any) -> Policy:
        """Return the quotas: unless failures end the call, exceptions count like deaths."""
        return Policy(restart_on=() if self.on_failure == "raise" else (BaseException,), **fields)


def watch_of(
    step_timeout: float | None, reset_timeout: float | None, construction_timeout: float | None
) -> HangWatch | None:
    """Return the watch for hung workers; None without a time limit.

    Timeouts are seconds without progress. By default a reset has the `step_timeout`; the construction, counted from a
    worker's start, 60 or the longest of the others.
    """
    given = {"step_timeout": step_timeout, "reset_timeout": reset_timeout, "construction_timeout": construction_timeout}
    for name, seconds in given.items():
        if seconds is not None:
            positive_seconds(name, seconds)
    if not any(given.values()):
        return None
    reset = step_timeout if reset_timeout is None else reset_timeout
    longest = max(filter(None, (step_timeout, reset)), default=math.inf)
    construction = max(LEAST_CONSTRUCTION_SECONDS, longest) if construction_timeout is None else construction_timeout
    limits = {Phase.STEP: step_timeout, Phase.RESET: reset, Phase.ENV_CONSTRUCTION: construction}
    return HangWatch({phase: math.inf if seconds is None else seconds for phase, seconds in limits.items()})


def n_envs_of(envs: Any, n_envs: int | None) -> int:
    if n_envs is not None:
        return n_envs
    items = items_by_worker(envs)
    if not items:
        raise UsageError(f"the number of environments is unknown: pass n_envs, or a list of environments, got {envs!r}")
    return len(items)


def updates_of(envs: Any, n_envs: int, env_kwargs: Mapping[str, Any] | None) -> Updates:
    """Return each environment's `EnvUpdate`, from the `envs` of a sampler, or a list or `PerWorker`."""
    items = items_by_worker(envs)
    if items is None:
        update = as_env_update(envs, env_kwargs=env_kwargs)
        if isinstance(update, SpecEnvUpdate | NewEnvUpdate):
            return dict.fromkeys(range(n_envs), update)
        payload = dumps(update, "the environment")  # it has an environment; each gets a copy
        return {env_id: loads(payload) for env_id in range(n_envs)}
    if len(items) != n_envs:
        raise UsageError(f"envs has {len(items)} items, but there are {n_envs} environments")
    updates = {env_id: as_env_update(item, env_kwargs=env_kwargs) for env_id, item in enumerate(items)}
    first_of = {id(item): env_id for env_id, item in reversed(list(enumerate(items)))}
    for env_id, item in enumerate(items):
        if first_of[id(item)] != env_id and not isinstance(updates[env_id], SpecEnvUpdate | NewEnvUpdate):
            updates[env_id] = loads(dumps(updates[env_id], "the environment"))  # the same object twice: copy it
    return updates


def chosen_envs(env_ids: Any, n_envs: int) -> list[int]:
    if env_ids is None:
        return list(range(n_envs))
    if isinstance(env_ids, str | bytes | Mapping) or not isinstance(env_ids, Iterable):
        raise UsageError(
            "env_ids must be a sequence of the numbers of environments, or None for all, got "
            f"{env_ids!r}{_hint(env_ids)}"
        )
    if isinstance(env_ids, np.ndarray) and (env_ids.ndim != 1 or env_ids.dtype == np.bool_):
        raise UsageError(
            "env_ids must be a one-dimensional array of numbers (for a mask, np.flatnonzero(mask)), got an array of "
            f"{env_ids.dtype} of shape {env_ids.shape}"
        )
    if isinstance(env_ids, np.ndarray) and env_ids.dtype == np.int64 and (not len(env_ids) or env_ids.min() >= 0):
        chosen: list[int] = env_ids.tolist()  # the type in `Steps`
    elif isinstance(env_ids, list) and set(map(type, env_ids)) == {int} and min(env_ids) >= 0:
        chosen = list(env_ids)  # quicker
    else:
        chosen = [positive("an environment's number", env_id, least=0) for env_id in env_ids]
    if chosen and (most := max(chosen)) >= n_envs:
        raise UsageError(f"there is no environment {most}: the {n_envs} environments are numbered from 0")
    if len(set(chosen)) < len(chosen):
        raise UsageError(f"env_ids has an environment twice: {chosen}")
    return chosen


def _hint(env_ids: Any) -> str:
    return f"; pass options by name: reset({list(env_ids)}, options=…)" if isinstance(env_ids, Mapping) else ""


def copied_options(options: Any) -> dict[str, Any] | None:
    if options is None:
        return None
    if not isinstance(options, Mapping):
        raise UsageError(f"options must be a dict, got {type(options).__name__}")
    if wrong := [key for key in options if not isinstance(key, str)]:
        raise UsageError(f"the keys of options must be strings, got {wrong[0]!r}")
    copied: dict[str, Any] = loads(dumps(dict(options), "the options of a reset"))
    return copied


def timeout_seconds(timeout: Any) -> float | None:
    if timeout is None:
        return None
    try:
        seconds = float(timeout) if not isinstance(timeout, bool | str) else math.nan
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(f"timeout must be a number of seconds, 0 or more, or None for any time, got {timeout!r}")
    return seconds


def values_for(values: Any, n: int) -> list[Any]:
    if not isinstance(values, list):
        return [values] * n
    if len(values) != n:
        raise UsageError(f"values has {len(values)} items, but there are {n} environments")
    return values
