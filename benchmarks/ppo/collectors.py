"""Collect PPO's data (see `run`) with this library, or with Gymnasium's vector environments.

Each collector yields a function that returns the next batch: of so many timesteps of so many environments, at least,
under the policy's parameters of that moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from benchmarks.ppo.tasks import N_ENVS, Task
from streamsampler import MultiprocessingSampler, TrajectoryBatch, VecWorker
from streamsampler.adapters.mlp import MlpAgent
from streamsampler.adapters.torch import TorchAgent
from streamsampler.examples.ppo import ActorCritic
from streamsampler.filters import RunningNorm, RunningReturnNorm

Collect = Callable[[int, int, ActorCritic], TrajectoryBatch]


@contextlib.contextmanager
def fragments(task: Task, policy: ActorCritic, seed: int, n_workers: int, **options: Any) -> Iterator[Collect]:
    """Fragments, as the example takes them."""
    options |= {"worker_class": VecWorker, "worker_args": {"n_envs": 4}}
    with _sampler(task, TorchAgent(policy, _action_space(task)), seed, n_workers, **options) as sampler:
        yield lambda n_timesteps, n_envs, policy: sampler.obtain_fragments(n_timesteps, n_envs, agent_update=policy)


@contextlib.contextmanager
def trajectories(
    task: Task, policy: ActorCritic, seed: int, n_workers: int, in_numpy: bool = False, **options: Any
) -> Iterator[Collect]:
    """Whole trajectories; with `in_numpy` the actor alone runs in the workers, and values are computed afterwards."""
    agent: Any = TorchAgent(policy, _action_space(task))
    if in_numpy:
        agent = MlpAgent(policy.actor, _action_space(task), log_std=None if policy.discrete else policy.log_std)
    with _sampler(task, agent, seed, n_workers, **options) as sampler:

        def collect(n_timesteps: int, n_envs: int, policy: ActorCritic) -> TrajectoryBatch:
            batch = sampler.obtain_samples(n_timesteps * n_envs, agent_update=agent.get_param_values())
            return with_values(batch, policy) if in_numpy else batch

        yield collect


def batched(task: Task, policy: ActorCritic, seed: int, n_workers: int, **options: Any) -> Any:
    """Whole trajectories of several environments in each worker, whose actions are computed together."""
    # A batch's whole trajectories, as they are when the task is learned, shared out in one round.
    n_envs = max(1, task.batch // task.trajectory // n_workers)
    options |= {"worker_class": VecWorker, "worker_args": {"n_envs": n_envs, "block_size": n_envs}}
    return trajectories(task, policy, seed, n_workers, **options)


def _action_space(task: Task) -> Any:
    return gymnasium.spec(task.env_id).make().action_space


def _sampler(task: Task, agent: Any, seed: int, n_workers: int, **options: Any) -> MultiprocessingSampler:
    if task.normalize:
        options |= {"observation_filter": RunningNorm(), "reward_filter": RunningReturnNorm(task.gamma)}
    return MultiprocessingSampler(agent, task.env_id, n_workers=n_workers, seed=seed, **options)


def with_values(batch: TrajectoryBatch, policy: ActorCritic) -> TrajectoryBatch:
    """Return the batch with the values that its agent did not record."""
    with torch.no_grad():
        values, last = (
            policy.critic(torch.as_tensor(rows, dtype=torch.float32))[:, 0].numpy()
            for rows in (batch.observations, batch.last_observations)
        )
    return dataclasses.replace(
        batch,
        agent_infos={**batch.agent_infos, "value": values},
        episode_infos={**batch.episode_infos, "last_value": last},
    )


@contextlib.contextmanager
def vector_env(task: Task, policy: ActorCritic, seed: int, mode: str) -> Iterator[Collect]:
    """Fragments from Gymnasium's vector environments, which go on from one iteration to the next."""
    envs = gymnasium.make_vec(
        task.env_id, N_ENVS, vectorization_mode=mode, vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}
    )
    agent = TorchAgent(policy, envs.single_action_space)
    agent.reset(seed=seed)
    following, _ = envs.reset(seed=seed)
    so_far = {"earlier_lengths": np.zeros(N_ENVS, np.int64), "earlier_returns": np.zeros(N_ENVS)}

    def collect(n_timesteps: int, n_envs: int, policy: ActorCritic) -> TrajectoryBatch:
        nonlocal following
        steps: list[tuple[Any, ...]] = []
        parts: list[list[tuple[int, bool, Any]]] = [[] for _ in range(n_envs)]  # of episodes, in each environment
        for step in range(1, n_timesteps + 1):
            observations = following.copy()
            actions, infos = agent.get_actions(observations)
            following, rewards, terminated, truncated, step_infos = envs.step(actions)
            steps.append((observations, actions, infos.get("raw_action", actions), infos["log_prob"], rewards))
            for env in np.flatnonzero(terminated | truncated):
                parts[env].append((step, bool(terminated[env]), step_infos["final_obs"][env]))
        grids = [np.stack(column, axis=1) for column in zip(*steps, strict=True)]
        episodes, cut = [], []
        for env, ends in enumerate(parts):
            cut += [False] * len(ends)
            start = 0
            if not ends or ends[-1][0] < n_timesteps:
                ends.append((n_timesteps, False, following[env].copy()))
                cut.append(True)
            for stop, terminated_, last in ends:
                episodes.append(_episode(*(grid[env, start:stop] for grid in grids), terminated_, last))
                start = stop
        batch = TrajectoryBatch.from_list(episodes, envs.single_observation_space, envs.single_action_space)
        n_parts = np.array([len(ends) for ends in parts])
        earlier = {"earlier_lengths": np.zeros(len(cut), np.int64), "earlier_returns": np.zeros(len(cut))}
        last_of_env = n_parts.cumsum() - 1
        for name, values in (("earlier_lengths", batch.lengths), ("earlier_returns", batch.returns)):
            earlier[name][last_of_env + 1 - n_parts] = so_far[name]
            so_far[name] = np.where(np.array(cut)[last_of_env], (earlier[name] + values)[last_of_env], 0)
        said = {
            "continued": earlier["earlier_lengths"] > 0,
            "cut": np.array(cut),
            "env_numbers": np.repeat(np.arange(n_envs), n_parts),
            **earlier,
        }
        truncated = ~batch.terminated & ~said["cut"]
        return with_values(dataclasses.replace(batch, fragments=said, truncated=truncated), policy)

    with contextlib.closing(envs):
        yield collect


def _episode(
    observations: Any, actions: Any, drawn: Any, log_probs: Any, rewards: Any, terminated: bool, last: Any
) -> dict[str, Any]:
    """Return the part of an episode as `TrajectoryBatch.from_list` takes it; it is no whole one if it is cut."""
    return {
        "observations": observations, "last_observation": last, "actions": actions, "rewards": rewards,
        "terminated": terminated, "truncated": not terminated,
        "agent_infos": {"log_prob": log_probs, "raw_action": drawn},
    }  # fmt: skip
