"""Make different environments for the rows of a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamsampler.core.errors import UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.environments.updates import AnyEnv, EnvUpdate, as_env_update, describe


class PerEnv(EnvUpdate):
    """Makes different environments for the `n_envs` rows of a `VecWorker`.

    Trajectory i runs in environment i % n_envs, whatever the number of workers: each worker has all of them. For
    example::

        envs = PerEnv(["Maze-v0", "Maze-v1", lambda: Maze(size=9)])
        sampler = MultiprocessingSampler(agent, envs, worker_class=VecWorker, worker_args={"n_envs": 3})

    In a list for each worker, the worker's k-th trajectory runs in its environment k % n_envs. Environment e of
    fragments is environment e % n_envs. All environments must have the same spaces.

    Args:
        envs: The environments, in any form that samplers accept.
        env_kwargs: Keyword arguments for each of them.

    Attributes:
        items: An update for each environment.

    Raises:
        UsageError: `envs` is not a list, is empty, or is nested.
        TypeError: An item is not an environment.
    """

    @suggesting()
    def __init__(self, envs: Sequence[Any], env_kwargs: Mapping[str, Any] | None = None) -> None:
        if not isinstance(envs, list | tuple) or not envs:
            raise UsageError(f"PerEnv needs a list of environments, at least one, not {envs!r:.80}")
        self.items = tuple(as_env_update(env, env_kwargs=env_kwargs) for env in envs)
        if any(item.n_slots is not None for item in self.items):
            raise UsageError("PerEnv needs single environments, not a PerEnv within its list")
        self.n_slots = len(self.items)
        self.environment_name = ", ".join(dict.fromkeys(map(describe, self.items)))

    def of_slot(self, slot: int) -> EnvUpdate:
        """Return the update of an environment by its number."""
        return self.items[slot]

    def __call__(self, old_env: AnyEnv | None) -> AnyEnv:  # noqa: ARG002 - it makes none
        """Raise, because this update makes several environments."""
        raise UsageError(
            f"this PerEnv has {self.n_slots} environments for one worker, but a single environment is needed here: "
            f'pass a sampler worker_class=VecWorker, worker_args={{"n_envs": {self.n_slots}}}, or a manager the list'
        )
