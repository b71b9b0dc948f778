"""The ways in which environments are stepped with actions from the caller's process."""

from __future__ import annotations

import abc
from collections.abc import Callable
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np

from streamsampler.agents.base import as_agent, give_spaces, reset_agent_function
from streamsampler.benchmarking.way import CLOSE_SECONDS, Problem, Round, Tally, TooSlowError, Way
from streamsampler.data.trees import leaves, map_tree
from streamsampler.environments.updates import EnvUpdate
from streamsampler.seeding import Stream, derived_seed
from streamsampler.stepping.manager import BaseEnvManager
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from streamsampler.stepping.steps import Steps


class _Truncated(EnvUpdate):
    """Makes an environment whose episodes are truncated where a sampler's trajectories would be."""

    def __init__(self, env: EnvUpdate, length: int) -> None:
        self.env, self.length = env, length

    def __call__(self, old_env: Any) -> Any:
        if old_env is not None:
            old_env.close()
        return gymnasium.wrappers.TimeLimit(self.env(None), self.length)


class _Stepped(Way):
    """Environments that are stepped as soon as `least` of them are ready."""

    in_parent = True

    def __init__(self, problem: Problem, n_processes: int) -> None:
        super().__init__(problem)
        self.n_processes, self.n_in_turn = n_processes, problem.n_envs
        self.least = self.n_envs
        self._manager: BaseEnvManager | None = None

    @abc.abstractmethod
    def _make(self, env: EnvUpdate) -> BaseEnvManager:
        """Return the manager."""

    def start(self) -> None:
        problem = self.problem
        env = _Truncated(problem.env, problem.max_episode_length) if problem.cuts else problem.env
        self._manager = manager = self._make(env)
        manager.launch()
        self._choose = chooser(self.problem.agent, manager)

    def run(self, measured: Round) -> Tally:
        """Reset all environments, step them, and leave none that is being stepped: others are measured next."""
        manager, choose, tally = self._manager, self._choose, self._new_tally()
        assert manager is not None
        timesteps, began = 0, perf_counter()
        manager.async_reset()
        steps = self._received(manager, self.least, measured)
        while not (ends := measured.ends(tally, perf_counter() - began)):
            manager.send(choose(steps.observations), steps.env_ids)
            steps = self._received(manager, self.least, measured)
            timesteps += int(np.count_nonzero(steps.timesteps))  # others are resets
            tally.add(timesteps, perf_counter() - began)
            measured.watch()
        if ends and len(steps) < self.n_envs:
            self._received(manager, self.n_envs - len(steps), measured)
        return tally

    @staticmethod
    def _received(manager: BaseEnvManager, least: int, measured: Round) -> Steps:
        steps = manager.recv(min_envs=least, timeout=measured.patience)
        if len(steps) < least:
            raise TooSlowError(measured.patience)
        return steps

    def close(self) -> None:
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.close()


class Serial(_Stepped):
    """All environments in this process."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, 0)
        self.name = f"SerialEnvManager of {problem.n_envs}"
        self.call = f"SerialEnvManager({problem.env_code}, n_envs={problem.n_envs}).step(actions)"

    def _make(self, env: EnvUpdate) -> BaseEnvManager:
        return SerialEnvManager(env, n_envs=self.problem.n_envs, seed=0, on_failure="raise")


class Synchronous(_Stepped):
    """Environments in processes, stepped together."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, problem.n_workers)
        self.name = f"EnvManager of {self.n_envs}, synchronous"
        self.call = f"{self._made()}.step(actions)"

    def _made(self) -> str:
        return f"EnvManager({self.problem.env_code}, n_envs={self.n_envs}, n_workers={self.problem.n_workers})"

    def _make(self, env: EnvUpdate) -> BaseEnvManager:
        problem = self.problem
        return EnvManager(
            env, n_envs=self.n_envs, n_workers=problem.n_workers, seed=0, step_timeout=problem.step_timeout,
            construction_timeout=problem.construction_timeout, close_timeout=CLOSE_SECONDS, on_failure="raise",
            max_restarts=0,
        )  # fmt: skip


class Asynchronous(Synchronous):
    """Environments in processes, half of which are waited for."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.least = max(1, self.n_envs // 2)
        self.name = f"EnvManager of {self.n_envs}, asynchronous"
        self.call = f"{self._made()}.recv(min_envs={self.least})"


def ready_agent(agent: Any, observation_space: Any, action_space: Any) -> Any:
    """Return the agent, with its spaces and reset as at a trajectory's start."""
    acting = as_agent(agent)
    give_spaces(acting, observation_space, action_space)
    reset = reset_agent_function(acting)
    if reset is not None:
        reset(derived_seed(0, Stream.AGENT))
    return acting


def chooser(agent: Any, manager: BaseEnvManager) -> Callable[[Any], Any]:
    """Return a function that chooses actions for stacked observations: with one call where the agent can."""
    acting = ready_agent(agent, manager.observation_space, manager.action_space)
    together = getattr(acting, "get_actions", None)

    def choose(observations: Any) -> Any:
        if together is not None:
            return _stacked(together(observations)[0])
        n = len(next(leaves(observations))[1])
        rows = (map_tree(lambda leaf, row=row: leaf[row], observations) for row in range(n))  # type: ignore[misc]
        return _stacked([acting.get_action(row)[0] for row in rows])

    return choose


def _stacked(actions: Any) -> Any:
    """Return actions as arrays of one row each, of what is such arrays or a list of actions."""
    if not isinstance(actions, list):
        return actions
    first = actions[0]
    if isinstance(first, dict):
        return {key: _stacked([action[key] for action in actions]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked([action[i] for action in actions]) for i in range(len(first)))
    return np.array(actions)
