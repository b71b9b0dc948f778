"""A manager of environments as a `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from streamsampler.data.infos import Infos
from streamsampler.data.trees import map_tree, object_array
from streamsampler.errors import UsageError, positive

if TYPE_CHECKING:
    from streamsampler.stepping.manager import BaseEnvManager
    from streamsampler.stepping.steps import Steps

__all__ = ["ManagedVectorEnv"]


class ManagedVectorEnv(VectorEnv[Any, Any, Any]):
    """Steps all environments of a manager at once; for scripts that are written against Gymnasium.

    An integer seed s gives environment e the seed s + e, as Gymnasium does; later episodes get seeds derived from it.

    Args:
        manager: The manager, which `close` closes.

    Attributes:
        manager: As above.
    """

    def __init__(self, manager: BaseEnvManager) -> None:
        self.manager = manager
        self.num_envs = manager.n_envs
        self.metadata = {"autoreset_mode": AutoresetMode[manager.autoreset.upper()]}
        self.single_observation_space = manager.observation_space
        self.single_action_space = manager.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._observations: Any = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments, or those of the boolean array `options["reset_mask"]`.

        Raises:
            UsageError: There are more or fewer seeds than environments, or the mask is no such array.
        """
        options = dict(options) if options is not None else {}
        env_ids = _masked(options.pop("reset_mask", None), self.num_envs)
        seeds = _seeds(seed, self.num_envs)
        chosen = None if seeds is None else {e: s for e, s in seeds.items() if e in env_ids}
        steps = self.manager.reset(env_ids, seed=chosen, options=options or None)
        if self._observations is None or len(env_ids) == self.num_envs:
            self._observations = steps.observations
            return self._observations, steps.infos
        self._observations = map_tree(np.copy, self._observations)
        _put(self._observations, env_ids, steps.observations)
        return self._observations, _spread(steps.infos, env_ids, self.num_envs)

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step all environments with one action each."""
        steps = self.manager.step(actions)
        self._observations = steps.observations
        infos = steps.infos
        if self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP and steps.ended.any():
            infos = _with_final(steps)
        return steps.observations, steps.rewards, steps.terminated, steps.truncated, infos

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment, and return the results."""
        return tuple(self.manager.call(name, *args, **kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment."""
        return tuple(self.manager.get_attr(name))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment: to the same value, or to those of a list."""
        self.manager.set_attr(name, list(values) if isinstance(values, list | tuple) else values)

    def render(self) -> tuple[Any, ...] | None:
        """Return what each environment renders."""
        return tuple(self.manager.render())

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002 - Gymnasium's arguments
        """Close the manager."""
        self.manager.close()


def _masked(mask: Any, n_envs: int) -> list[int]:
    if mask is None:
        return list(range(n_envs))
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (n_envs,) or not mask.any():
        raise UsageError(f'options["reset_mask"] must be a boolean array of {n_envs}, not all False, got {mask!r}')
    chosen: list[int] = np.flatnonzero(mask).tolist()
    return chosen


def _seeds(seed: Any, n_envs: int) -> dict[int, int] | None:
    if seed is None:
        return None
    if not isinstance(seed, Sequence | np.ndarray):
        first = positive("seed", seed, least=0)
        return {env_id: first + env_id for env_id in range(n_envs)}
    if len(seed) != n_envs:
        raise UsageError(f"seed has {len(seed)} items, but there are {n_envs} environments")
    return {env_id: value for env_id, value in enumerate(seed) if value is not None}


def _with_final(steps: Steps) -> Infos:
    """Return the infos with the last observation and the last info of each episode that ended."""
    ended = steps.ended
    last = object_array([_row(steps.last_observations, row) if ended[row] else None for row in range(len(ended))])
    final_info = steps.infos.get("final_info", {})
    return {**steps.infos, "final_obs": last, "_final_obs": ended, "final_info": final_info, "_final_info": ended}


def _put(observations: Any, env_ids: list[int], values: Any) -> None:
    if isinstance(observations, dict):
        for key, child in observations.items():
            _put(child, env_ids, values[key])
    elif isinstance(observations, tuple):
        for child, value in zip(observations, values, strict=True):
            _put(child, env_ids, value)
    else:
        observations[env_ids] = values


def _spread(infos: Infos, env_ids: list[int], n_envs: int) -> Infos:
    """Return infos of some environments as infos of all."""
    spread: Infos = {}
    for key, value in infos.items():
        if isinstance(value, dict):
            spread[key] = _spread(value, env_ids, n_envs)
            continue
        rows = np.zeros((n_envs, *value.shape[1:]), value.dtype)
        rows[env_ids] = value
        spread[key] = rows
        if not key.startswith("_") and f"_{key}" not in infos:
            mask = spread[f"_{key}"] = np.zeros(n_envs, np.bool_)
            mask[env_ids] = True
    return spread


def _row(observations: Any, row: int) -> Any:
    def of_leaf(leaf: Any) -> Any:
        return leaf[row]

    return map_tree(of_leaf, observations)
