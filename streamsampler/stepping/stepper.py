"""Run environments: make them, reset them and take their steps; write what they return into their rows."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium

from streamsampler.environments.updates import EnvUpdate, apply_env_update
from streamsampler.environments.worker_numbers import for_worker
from streamsampler.errors import UsageError
from streamsampler.stepping.rows import Rows, put, row_at
from streamsampler.workers.explain import begin_of, step_error

__all__ = ["Autoreset", "Stepper", "member_of"]

Autoreset = Literal["next_step", "same_step", "disabled"]


class Stepper:
    """Runs the environments of one process.

    Args:
        updates: What makes each environment, by its number.
        worker_number: The number of the worker that these environments are in.
        autoreset: What becomes of an environment whose episode has ended.

    Attributes:
        envs: The environments.
        rows: The rows; set before the first reset.
    """

    rows: Rows

    def __init__(self, updates: Mapping[int, EnvUpdate], worker_number: int, autoreset: Autoreset) -> None:
        self._updates = dict(updates)
        self._worker_number = worker_number
        self._autoreset = autoreset
        self._options: dict[int, dict[str, Any] | None] = {}
        self._is_over = dict.fromkeys(updates, True)  # the next step begins an episode
        self.envs: dict[int, gymnasium.Env[Any, Any]] = {}

    def make(self) -> list[tuple[Any, Any]]:
        """Make the environments; return the observation space and the action space of each."""
        with for_worker(self._worker_number):
            for env_id, update in self._updates.items():
                self.envs[env_id] = apply_env_update(update, self.envs.pop(env_id, None))
        return [(env.observation_space, env.action_space) for env in self.envs.values()]

    def set_options(self, env_id: int, options: dict[str, Any] | None) -> None:
        """Remember the options of an environment's resets from now on."""
        self._options[env_id] = options

    def reset(self, env_id: int) -> dict[str, Any]:
        """Reset an environment with the seed in its row, and the options remembered; return the info."""
        info = self._begin(env_id)
        self._write_step(env_id, 0.0, False, False)
        return info

    def _begin(self, env_id: int) -> dict[str, Any]:
        rows = self.rows
        self._is_over[env_id] = True  # until it has begun
        options = copy.deepcopy(self._options.get(env_id))
        result = self.envs[env_id].reset(seed=int(rows.seeds[env_id]), options=options)
        observation, info = begin_of(result)
        self._observe(env_id, observation)
        self._is_over[env_id] = False
        return dict(info)

    def step(self, env_id: int) -> dict[str, Any]:
        """Take a step with the action in the environment's row; return the info.

        Where the episode has ended before, with autoreset "next_step", the environment is reset instead.
        """
        if self._is_over[env_id]:
            return self.reset(env_id)
        rows = self.rows
        action = row_at(rows.action_space, rows.actions, env_id)
        try:
            observation, reward, terminated, truncated, info = self.envs[env_id].step(action)
        except BaseException as error:
            self._is_over[env_id] = True
            better = step_error(error, action, rows.action_space, Stepper.step)
            if better is not None:
                raise better from error
            raise
        over = self._is_over[env_id] = bool(terminated or truncated)
        if over and self._autoreset == "same_step":
            put(rows.last_observations, env_id, observation, "observation")
            final_info = dict(info)
            info = self._begin(env_id)
            info["final_info"] = final_info
        else:
            self._observe(env_id, observation)
        self._write_step(env_id, reward, terminated, truncated)
        return info

    def _observe(self, env_id: int, observation: Any) -> None:
        slot = 1 - int(self.rows.slots[env_id])
        put(self.rows.observations, (slot, env_id), observation, "observation")
        self.rows.slots[env_id] = slot

    def _write_step(self, env_id: int, reward: Any, terminated: Any, truncated: Any) -> None:
        rows = self.rows
        rows.rewards[env_id] = reward
        rows.terminated[env_id] = terminated
        rows.truncated[env_id] = truncated

    def request(self, env_id: int, kind: str, name: str, arguments: Any) -> Any:
        """Carry out what is no step: "call", "get", "set" or "render"; return its result."""
        env = self.envs[env_id]
        if kind == "render":
            return env.render()
        if kind == "set":
            env.set_wrapper_attr(name, arguments)
            return None
        member = member_of(env, env_id, name)
        if kind == "get":
            return member
        if not callable(member):
            raise UsageError(f"{name} of environment {env_id} is no method: use get_attr({name!r})")
        positional, named = arguments
        return member(*positional, **named)

    def close(self) -> None:
        """Close the environments; the first exception is raised when all are closed."""
        first: Exception | None = None
        while self.envs:
            _, env = self.envs.popitem()
            try:
                env.close()
            except Exception as error:
                first = first or error
        if first is not None:
            raise first


def member_of(env: Any, env_id: int, name: str) -> Any:
    """Return an attribute of an environment or of one of its wrappers.

    Raises:
        AttributeError: There is none; the message names the environment.
    """
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        raise AttributeError(
            f"environment {env_id} ({type(env.unwrapped).__qualname__}) has no attribute {name!r}, and neither have "
            "its wrappers"
        ) from None
