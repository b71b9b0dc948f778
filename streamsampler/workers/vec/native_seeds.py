"""Check that a native vector environment uses the seeds of its resets; otherwise make it from a seed each time."""

from __future__ import annotations

import warnings
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorWrapper

from streamsampler.data.trees import map_tree, same, snapshot
from streamsampler.environments.updates import AnyVectorEnv, EnvUpdate, NewEnvUpdate
from streamsampler.errors import UsageError
from streamsampler.workers.explain import name_of_env

__all__ = ["using_seeds"]

if TYPE_CHECKING:
    _Wrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    _Wrapper = VectorWrapper  # which takes no parameters in older versions of Gymnasium


def using_seeds(env: AnyVectorEnv, update: EnvUpdate) -> AnyVectorEnv:
    """Return a vector environment whose beginning is a function of the seeds that it is reset with.

    It is reset twice and compared: some environments, such as EnvPool's, draw from the seed that they are made with,
    and ignore any other. Such an environment is replaced at each reset by one that its factory makes from a seed.

    Args:
        env: The environment.
        update: What made it.

    Returns:
        The environment, or one that is made again for each seed.

    Raises:
        UsageError: It ignores seeds, and nothing takes one to make it; or the update changed one that is made again.
    """
    if isinstance(env, _MadeFromSeeds):
        raise UsageError(
            f"{name_of_env(env)} is made again for each block of trajectories, because it ignores the seeds of resets, "
            "so that a change of it would be lost: pass a function that makes the environment as it is to be"
        )
    seeds = list(range(env.num_envs))
    if _begins_alike(env, seeds):
        return env
    name, seeded = name_of_env(env), None
    if isinstance(update, NewEnvUpdate) and update.with_seed(0) is not None:
        seeded = _MadeFromSeeds(env, update)
        if _begins_alike(seeded, 0):
            return seeded
    why = "reset twice with the same seeds" if seeded is None else "made twice from the same seed"
    raise UsageError(
        f"the vector environment {name} began differently when it was {why}, so that no trajectory could be run again. "
        "Where reset ignores its seed, pass a function that makes the environment from one, which is called for each "
        "block of trajectories: lambda seed=0: envpool.make(…, seed=seed)"
    )


class _MadeFromSeeds(_Wrapper):
    """Makes a new environment at each reset that has a seed."""

    def __init__(self, env: AnyVectorEnv, update: NewEnvUpdate) -> None:
        super().__init__(env)
        self._update, self._context = update, copy_context()  # which has the worker's number

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Make the environment from a seed, if there is one, and reset it."""
        if seed is not None:
            if not isinstance(seed, int):
                raise TypeError(f"one seed makes all environments, got {seed!r}")
            self.env.close()
            make: Any = self._update.with_seed(seed)
            self.env = self._context.run(make, None)
        return self.env.reset() if options is None else self.env.reset(options=options)


def _begins_alike(env: AnyVectorEnv, seeds: Any) -> bool:
    """Return whether an environment begins in the same way from the same seeds."""
    begun = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as EnvPool's, that it ignores the seed
        for _ in range(2):
            try:
                observations, _ = env.reset(seed=seeds)
            except Exception:
                if not isinstance(seeds, list):
                    return True  # no verdict: it is raised again when the first block begins
                return _begins_alike(env, seeds[0])
            begun.append(map_tree(_kept, observations))
    return same(*begun)


def _kept(observation: Any) -> Any:
    return np.array(observation) if hasattr(observation, "__array__") else snapshot(observation)
