"""Call a function with an environment in a separate process, which may hang or die."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from streamsampler.checking.limits import CheckSetup, closing
from streamsampler.checking.ordinary_env import ordinary
from streamsampler.core.by_value import dumps_by_value
from streamsampler.environments.updates import EnvUpdate, apply_any_env_update

_RESULT = "result"


class _Apart(EnvUpdate):
    """Makes an environment, and calls a function with it as a timestep."""

    def __init__(self, env: EnvUpdate, function: Callable[[Any], Any]) -> None:
        self.env, self.function = env, function

    def __call__(self, old_env: Any) -> Any:
        del old_env
        began = perf_counter()
        env = ordinary(apply_any_env_update(self.env, None, several=True, waits=True))
        return _Called(env, self.function, perf_counter() - began)


class _Called(gymnasium.Env[Any, Any]):
    observation_space = action_space = spaces.Discrete(1)

    def __init__(self, made: Any, function: Callable[[Any], Any], seconds: float) -> None:
        self._made, self._function, self._seconds = made, function, seconds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        del seed, options
        return 0, {}

    def step(self, action: Any) -> Any:
        del action
        result = dumps_by_value((self._seconds, self._function(self._made)))
        # The result travels as bytes in an array, which samplers do not interpret.
        return 0, 0.0, True, False, {_RESULT: np.frombuffer(result, np.uint8)}

    def close(self) -> None:
        """Close the environment without errors: closing has a check of its own."""
        with contextlib.suppress(Exception, SystemExit):
            self._made.close()


def call_apart(function: Callable[[Any], Any], env: EnvUpdate, limits: CheckSetup) -> tuple[float, Any]:
    """Call a function with an environment, in a separate process.

    Args:
        function: The function, which must be picklable.
        env: The environment.
        limits: The limits of the check.

    Returns:
        The seconds of making the environment, and the function's result.

    Raises:
        TimeIsUpError: The time limit of the check is over.
        WorkerError: Making the environment failed, or the function raised, or its process died or hung.
        SerializationError: The environment cannot be pickled.
    """
    with closing(limits.sampler("random", _Apart(env, function), max_episode_length=None)) as sampler:
        batch = sampler.obtain_trajectories(1, progress=limits.guard())
    seconds, result = pickle.loads(batch.env_infos[_RESULT][0].tobytes())
    return seconds, result


def close_after_use(env: Any) -> None:
    env.reset()
    env.close()
