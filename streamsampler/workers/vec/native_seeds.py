"""Check that a native vector environment uses the seeds of its resets; otherwise make it from a seed at each reset."""

from __future__ import annotations

import warnings
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorWrapper

from streamsampler.core.errors import UsageError
from streamsampler.data.trees import map_tree, same, snapshot
from streamsampler.environments.updates import AnyVectorEnv, EnvUpdate, NewEnvUpdate
from streamsampler.workers.explain import name_of_env

if TYPE_CHECKING:
    _Wrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    _Wrapper = VectorWrapper  # older versions of Gymnasium allow no parameters


def using_seeds(env: AnyVectorEnv, update: EnvUpdate) -> AnyVectorEnv:
    """Return a vector environment with equal starts for equal reset seeds.

    The check resets it twice: some environments, such as EnvPool's, draw from the seed of their construction and ignore
    any other. Their factory then makes a new environment from a seed at each reset.

    Raises:
        UsageError: The environment ignores seeds, and no factory takes a seed; or the update would change an
            environment that each reset makes again.
    """
    if isinstance(env, _MadeFromSeeds):
        raise UsageError(
            f"{name_of_env(env)} ignores the seeds of resets, so it is made again for each block of trajectories, and "
            "this update would be lost: pass a function that makes the updated environment"
        )
    if _begins_alike(env):
        return env
    name, seeded = name_of_env(env), None
    if isinstance(update, NewEnvUpdate) and update.with_seed(0) is not None:
        seeded = _MadeFromSeeds(env, update)
        if _begins_alike(seeded):
            return seeded
    why = "reset twice with the same seeds" if seeded is None else "made twice from the same seed"
    raise UsageError(
        f"the vector environment {name} began differently when it was {why}, so no trajectory could be reproduced. If "
        "its reset ignores the seed, pass a function that makes the environment from a seed, and is called for each "
        "block of trajectories: lambda seed=0: envpool.make(…, seed=seed)"
    )


class _MadeFromSeeds(_Wrapper):
    """Makes a new environment at each reset with a seed."""

    def __init__(self, env: AnyVectorEnv, update: NewEnvUpdate) -> None:
        super().__init__(env)
        self._update, self._context = update, copy_context()  # the context has the worker's number

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            if not isinstance(seed, int):
                raise TypeError(f"a vector environment that is made from a seed takes a single int, got {seed!r}")
            self.env.close()
            make: Any = self._update.with_seed(seed)
            self.env = self._context.run(make, None)
        return self.env.reset() if options is None else self.env.reset(options=options)


def _begins_alike(env: AnyVectorEnv) -> bool:
    """Return whether an environment starts in the same way from the same seeds."""
    begun = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as EnvPool's about the ignored seed
        for _ in range(2):
            try:
                (observations, _), _ = reset_from(env, list(range(env.num_envs)))
            except Exception:
                return True  # no verdict: the first block's reset raises again
            begun.append(map_tree(_kept, observations))
    return same(*begun)


def reset_from(env: Any, seeds: list[int], *, takes_list: bool = True, **options: Any) -> tuple[Any, bool]:
    """Reset an environment; return the result, and whether it takes a list of seeds."""
    if not takes_list:
        return env.reset(seed=seeds[0], **options), False
    try:
        return env.reset(seed=seeds, **options), True
    except Exception as refused:
        # Many native environments share a generator among slots, and refuse a list.
        try:
            return env.reset(seed=seeds[0], **options), False
        except Exception as error:
            raise error from refused


def _kept(observation: Any) -> Any:
    return np.array(observation) if hasattr(observation, "__array__") else snapshot(observation)
