"""The ways stepped with actions from the caller's process: Gymnasium's vector environments, and managers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler.agents.base import as_agent, takes_masks
from streamsampler.agents.random import RandomAgent
from streamsampler.checking.choosers import chooser
from streamsampler.checking.sampler_ways import of_processes
from streamsampler.checking.way import Problem, Round, TooSlowError, Way
from streamsampler.environments.updates import EnvUpdate
from streamsampler.stepping.base_manager import BaseEnvManager
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from streamsampler.stepping.steps import Steps


class _Truncated(EnvUpdate):
    """Makes an environment with the truncation of a sampler's `max_episode_length`."""

    def __init__(self, env: EnvUpdate, length: int) -> None:
        self.env, self.length = env, length

    def __call__(self, old_env: Any) -> Any:
        if old_env is not None:
            old_env.close()
        return gymnasium.wrappers.TimeLimit(self.env(None), self.length)


def manager_ways(problem: Problem) -> list[Way]:
    """Return the ways stepped from this process: Gymnasium's and managers' environments, here or in processes."""
    env = _Truncated(problem.env, problem.max_episode_length) if problem.cuts else problem.env
    n_workers, n_each, code = problem.n_workers, problem.n_envs, problem.env_code
    n_envs = n_workers * n_each
    half = max(1, n_envs // 2)
    made = f"EnvManager({code}, n_envs={n_envs}, n_workers={n_workers})"

    def serial() -> BaseEnvManager:
        return _launched(SerialEnvManager(env, n_envs=n_each, seed=0, on_failure="raise"))

    def in_processes() -> BaseEnvManager:
        return _launched(EnvManager(env, n_envs=n_envs, seed=0, on_failure="raise", **of_processes(problem)))

    acting = as_agent(problem.agent)
    takes = takes_masks(acting, together=callable(getattr(acting, "get_actions", None)))
    lacking = "managers pass no masks of actions to agents" if takes and not isinstance(acting, RandomAgent) else ""

    def way(name: str, call: str, make: Callable[[], Any], least: int, n_processes: int) -> Way:
        n = max(1, n_processes) * n_each
        return Way(
            name, call, make, lambda manager, measured: _step(manager, problem.agent, least, n, measured),
            in_parent=True, n_processes=n_processes, n_in_turn=n_each, lacking=lacking,
        )  # fmt: skip

    here = f"SerialEnvManager({code}, n_envs={n_each})"
    return [
        Way(
            f"SyncVectorEnv of {n_each}",
            f"{_made_by_gymnasium(code, n_each)}.step(actions)",
            lambda: SyncVectorEnv([partial(env, None)] * n_each, autoreset_mode=AutoresetMode.SAME_STEP),
            lambda vector, measured: _step_vector(vector, problem.agent, measured),
            in_parent=True,
            n_in_turn=n_each,
            lacking=lacking.replace("managers give", "vector environments give"),
            steps_only=True,
        ),
        way(f"SerialEnvManager of {n_each}", f"{here}.step(actions)", serial, n_each, 0),
        way(f"EnvManager of {n_envs}, synchronous", f"{made}.step(actions)", in_processes, n_envs, n_workers),
        way(f"EnvManager of {n_envs}, asynchronous", f"{made}.recv(min_envs={half})", in_processes, half, n_workers),
    ]


def _made_by_gymnasium(code: str, n_envs: int) -> str:
    """Return the Python code of a `SyncVectorEnv`."""
    env_id, _, kwargs = code.partition(", env_kwargs=")
    if env_id == "env":
        return f"SyncVectorEnv([env{kwargs and f'(**{kwargs})'}] * {n_envs})"
    return f'gymnasium.make_vec({env_id}, {n_envs}, "sync"{kwargs and f", **{kwargs}"})'


def _step_vector(vector: SyncVectorEnv, agent: Any, measured: Round) -> None:
    """Reset and step Gymnasium's vector environment until a round ends."""
    choose = chooser(agent, vector.single_observation_space, vector.single_action_space)
    timesteps, began = 0, perf_counter()
    observations, _ = vector.reset(seed=0)
    while not measured.ends(perf_counter() - began):
        observations, *_ = vector.step(choose(observations))
        timesteps += vector.num_envs
        measured.tally.note(timesteps, perf_counter() - began)
        measured.watch()


def _launched(manager: BaseEnvManager) -> BaseEnvManager:
    manager.launch()
    return manager


def _step(manager: BaseEnvManager, agent: Any, least: int, n_envs: int, measured: Round) -> None:
    """Reset and step a manager's environments until a round ends, and leave no step pending for the next way."""
    choose = chooser(agent, manager.observation_space, manager.action_space)
    timesteps, began = 0, perf_counter()
    manager.async_reset()
    steps = _received(manager, least, measured)
    while not measured.ends(perf_counter() - began):
        manager.send(choose(steps.observations), steps.env_ids)
        steps = _received(manager, least, measured)
        timesteps += int(np.count_nonzero(steps.timesteps))  # the others are resets
        measured.tally.note(timesteps, perf_counter() - began)
        measured.watch()
    if len(steps) < n_envs:
        _received(manager, n_envs - len(steps), measured)


def _received(manager: BaseEnvManager, least: int, measured: Round) -> Steps:
    steps = manager.recv(min_envs=least, timeout=measured.patience)
    if len(steps) < least:
        raise TooSlowError(measured.patience)
    return steps
