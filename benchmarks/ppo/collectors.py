"""Collect PPO's data (see `run`) with this library, or with Gymnasium's vector environments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

import streamsampler
from benchmarks.ppo.learner import Experience, Learner, Task
from streamsampler import MultiprocessingSampler
from streamsampler.adapters.mlp import MlpAgent
from streamsampler.adapters.torch import TorchAgent

N_ENVS = 8
"""Environments in a vector; the tuned hyperparameters of Stable-Baselines3's zoo have 8 and 4 for the two tasks."""


def from_streamsampler(
    task: Task, learner: Learner, seed: int, n_workers: int, in_numpy: bool = False, **options: Any
) -> Iterator[Experience]:
    """Whole trajectories, at least `task.batch` timesteps of them, from worker processes."""
    action_space = gymnasium.make(task.env_id).action_space
    log_std = getattr(learner.actor, "log_std", None)
    agent: Any = TorchAgent(learner.actor, action_space)
    if in_numpy:
        agent = MlpAgent(learner.actor.body, action_space, log_std=log_std)
    with MultiprocessingSampler(agent, task.env_id, n_workers=n_workers, seed=seed, **options) as sampler:
        while True:
            batch = sampler.obtain_samples(task.batch, agent_update=agent.get_param_values())
            yield Experience(
                observations=batch.observations,
                actions=batch.agent_infos.get("raw_action", batch.actions),
                log_probs=batch.agent_infos["log_prob"],
                rewards=batch.rewards,
                lengths=batch.lengths,
                terminated=batch.terminated,
                last_observations=batch.last_observations,
                episode_returns=batch.returns.tolist(),
            )


def from_vec_workers(task: Task, learner: Learner, seed: int, n_workers: int, **options: Any) -> Iterator[Experience]:
    """The same, with several environments in each worker, whose actions are computed together."""
    # A batch's whole trajectories, as they are when the task is learned, shared out in one round.
    n_envs = max(1, task.batch // task.trajectory // n_workers)
    worker = {"worker_class": streamsampler.VecWorker, "worker_args": {"n_envs": n_envs, "block_size": n_envs}}
    return from_streamsampler(task, learner, seed, n_workers, **worker, **options)


def from_vector_env(task: Task, learner: Learner, seed: int, mode: str) -> Iterator[Experience]:
    """Fragments of fixed length, from environments that go on from one iteration to the next."""
    envs = gymnasium.make_vec(
        task.env_id, N_ENVS, vectorization_mode=mode, vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}
    )
    agent = TorchAgent(learner.actor, envs.single_action_space)
    agent.reset(seed=seed)
    observations, _ = envs.reset(seed=seed)
    running = np.zeros(N_ENVS)
    try:
        while True:
            fragment = _Fragment(task.batch // N_ENVS, running)
            for _ in range(task.batch // N_ENVS):
                actions, infos = agent.get_actions(observations)
                kept = np.array(observations)
                observations, rewards, terminated, truncated, step_infos = envs.step(actions)
                fragment.add(kept, infos.get("raw_action", actions), infos["log_prob"], rewards)
                if terminated.any() or truncated.any():
                    fragment.end(terminated, truncated, step_infos["final_obs"])
            yield fragment.experience(observations)
    finally:
        envs.close()


class _Fragment:
    """Steps of all environments, and where episodes ended in them.

    Args:
        length: Timesteps of each environment.
        running: Each environment's return so far, carried on.
    """

    def __init__(self, length: int, running: np.ndarray) -> None:
        self._length = length
        self._running = running
        self._steps: list[tuple[np.ndarray, ...]] = []
        self._ends: list[list[tuple[int, bool, np.ndarray]]] = [[] for _ in running]
        self._returns: list[float] = []

    def add(self, *columns: np.ndarray) -> None:
        """One timestep of all environments."""
        self._steps.append(columns)
        self._running += columns[-1]

    def end(self, terminated: np.ndarray, truncated: np.ndarray, final: np.ndarray) -> None:
        """The timestep just added was the last one of some episodes."""
        for env in np.flatnonzero(terminated | truncated):
            self._ends[env].append((len(self._steps), bool(terminated[env]), final[env]))
            self._returns.append(float(self._running[env]))
            self._running[env] = 0.0

    def experience(self, observations: np.ndarray) -> Experience:
        """Environment after environment, cut at the ends of episodes and at the fragment's."""
        lengths, terminated, last = [], [], []
        for env, ends in enumerate(self._ends):
            cuts = list(ends)
            if not cuts or cuts[-1][0] < self._length:
                cuts.append((self._length, False, observations[env]))
            starts = [0, *(stop for stop, _, _ in cuts[:-1])]
            lengths += [stop - start for start, (stop, _, _) in zip(starts, cuts, strict=True)]
            terminated += [ended for _, ended, _ in cuts]
            last += [observation for _, _, observation in cuts]
        columns = [np.stack(column, axis=1) for column in zip(*self._steps, strict=True)]
        flat = [column.reshape(-1, *column.shape[2:]) for column in columns]
        return Experience(*flat, np.array(lengths), np.array(terminated), np.array(last), self._returns)
