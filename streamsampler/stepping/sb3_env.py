"""Give a manager's environments the interface `VecEnv` of Stable-Baselines3; needs `pip install stable-baselines3`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import UsageError
from streamsampler.core.extras import missing
from streamsampler.stepping.server import name_of_class
from streamsampler.stepping.vector_env import receive_on, send_on
from streamsampler.workers.vec.rows import row_of

try:
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise missing("sb3_env()", "sb3", error) from error

if TYPE_CHECKING:
    from streamsampler.stepping.base_manager import BaseEnvManager
    from streamsampler.stepping.episodes import RoundResults
    from streamsampler.stepping.steps import Steps


class ManagedVecEnv(VecEnv):  # type: ignore[misc]
    """Steps all environments of a manager at once; for Stable-Baselines3's algorithms and wrappers.

    `seed(s)` gives environment e the seed s + e at the next reset. Later episodes get seeds derived from it, the same
    for any number of workers; Stable-Baselines3's own environments go on drawing instead.

    An episode that ended because its environment failed is truncated, and marked with `info["env_failed"]`.

    Args:
        manager: The manager, in autoreset mode "same_step"; `close` closes it.

    Raises:
        UsageError: The manager has another autoreset mode.
    """

    def __init__(self, manager: BaseEnvManager) -> None:
        if manager.autoreset != "same_step":
            raise UsageError(
                "Stable-Baselines3 needs environments that reset themselves at an episode's end: make the manager with "
                f'autoreset="same_step", not "{manager.autoreset}"'
            )
        self.manager = manager
        super().__init__(manager.n_envs, manager.observation_space, manager.action_space)
        self.metadata = manager.get_attr("metadata", [0])[0]
        dtype = self.action_space.dtype
        self._whole = dtype if dtype is not None and dtype.kind in "iu" else None

    def reset(self) -> Any:
        seeds = {env_id: seed for env_id, seed in enumerate(self._seeds) if seed is not None}
        steps = self._reset(seeds, self._options)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = [steps.info_by_row.get(row, {}) for row in range(self.num_envs)]
        return steps.observations

    def _reset(self, seeds: dict[int, int], options: Sequence[dict[str, Any]]) -> Steps:
        if len(options) != self.num_envs:
            raise UsageError(f"options has {len(options)} items, but there are {self.num_envs} environments")
        if not any(options):
            return self.manager.reset(seed=seeds or None)
        for env_id, of_one in enumerate(options):
            seed = {env_id: seeds[env_id]} if env_id in seeds else None
            self.manager.async_reset([env_id], seed=seed, options=of_one or None)
        steps = self.manager.recv_from()
        self.manager.forget_options()
        return steps

    def step_async(self, actions: Any) -> None:
        """Send an action to each environment. Integers may be floats, as policies for `MultiBinary` return them.

        Raises:
            ActionError: The actions are of another shape, kind or number.
        """
        if self._whole is not None and isinstance(actions, np.ndarray) and actions.dtype.kind == "f":
            actions = _whole(actions, self._whole)
        send_on(self.manager, actions)

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        if (results := self.manager._end_round()) is not None:
            return self._of_round(results)
        steps = receive_on(self.manager)
        ended = steps.ended
        infos = [dict(steps.info_by_row.get(row, {})) for row in range(self.num_envs)]
        for row in np.flatnonzero(ended).tolist():
            of_reset = infos[row]
            infos[row] = dict(of_reset.pop("final_info", {}))
            infos[row]["terminal_observation"] = row_of(steps.last_observations, row)
            self.reset_infos[row] = of_reset
        for info, is_cut in zip(infos, (steps.truncated & ~steps.terminated).tolist(), strict=True):
            info["TimeLimit.truncated"] = is_cut
        for row in np.flatnonzero(steps.failed).tolist():
            infos[row]["env_failed"] = True
        return steps.observations, steps.rewards.astype(np.float32), ended, infos

    def _of_round(
        self, results: RoundResults
    ) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        observations, rewards, terminated, truncated, by_env, ended, last_observations = results
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        for env_id, info in by_env.items():
            infos[env_id] = {**info, "TimeLimit.truncated": False}
        for row, env_id in enumerate(ended):
            of_reset = infos[env_id]
            del of_reset["TimeLimit.truncated"]
            infos[env_id] = info = dict(of_reset.pop("final_info"))
            info["terminal_observation"] = row_of(last_observations, row)
            info["TimeLimit.truncated"] = bool(truncated[env_id] and not terminated[env_id])
            self.reset_infos[env_id] = of_reset
        return observations, rewards.astype(np.float32), terminated | truncated, infos

    def close(self) -> None:
        self.manager.close()

    def get_images(self) -> list[Any]:
        if self.render_mode != "rgb_array":
            warnings.warn(f'the render mode is {self.render_mode!r}, but images need "rgb_array"', stacklevel=2)
            return [None] * self.num_envs
        return self.manager.render()

    def has_attr(self, attr_name: str) -> bool:
        """Return whether all environments have an attribute, without sending it here."""
        return all(self.env_method("has_wrapper_attr", attr_name))

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return self.manager.get_attr(attr_name, self._chosen(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of environments to the same value, which may be a list."""
        chosen = self._chosen(indices)
        self.manager.set_attr(attr_name, [value] * len(chosen), chosen)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        return self.manager.call(method_name, *method_args, env_ids=self._chosen(indices), **method_kwargs)

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        name = name_of_class(wrapper_class)
        return [name in names for names in self.manager.wrappers(self._chosen(indices))]

    def _chosen(self, indices: int | Iterable[int] | None) -> list[int]:
        everything = range(self.num_envs)
        return [everything[index] for index in self._get_indices(indices)]


def _whole(actions: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Cast actions to integers if no value changes; others raise later."""
    with np.errstate(invalid="ignore"):
        cast = actions.astype(dtype)
    return cast if np.array_equal(cast, actions) else actions
