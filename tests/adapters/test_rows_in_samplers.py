"""Adapters' agents with several environments in a worker: each trajectory is its own, whatever runs next to it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.adapters.mlp import MlpAgent
from streamsampler.adapters.sb3 import SB3Agent
from streamsampler.adapters.torch import TorchAgent
from streamsampler.errors import RolloutError
from tests.proofs.digests import digest_of

pytestmark = pytest.mark.extras
CARTPOLE, PENDULUM = gymnasium.make("CartPole-v1"), gymnasium.make("Pendulum-v1")


class Counting(nn.Module):
    """A recurrent policy whose state is how many steps its trajectory has had, and whose action is its last bit."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        count = np.zeros((1, len(observation)), np.int64) if state is None else state[0]
        count = np.where(episode_start, 0, count)
        return count[0] % 2, (count + 1,)


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.log_std = nn.Linear(3, 1), nn.Parameter(torch.tensor([0.5]))

    def forward(self, x):
        return self.body(x)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 2))


AGENTS: dict[str, Any] = {
    "torch": lambda: (TorchAgent(network(), CARTPOLE.action_space), "CartPole-v1"),
    "mlp": lambda: (MlpAgent(network(), CARTPOLE.action_space), "CartPole-v1"),
    "gaussian": lambda: (TorchAgent(Gaussian(), PENDULUM.action_space), "Pendulum-v1"),
    "recurrent": lambda: (SB3Agent(Counting(), deterministic=True), "CartPole-v1"),
}
OPTIONS: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 4}, "seed": 3, "max_episode_length": 30}


@pytest.mark.parametrize("name", ["mlp", "gaussian", "recurrent"])
def test_batches_are_the_same_for_any_number_of_workers(name):
    agent, env = AGENTS[name]()
    with LocalSampler(agent, env, **OPTIONS) as sampler:
        expected = digest_of([sampler.obtain_trajectories(30), sampler.obtain_samples(300)])
    with MultiprocessingSampler(agent, env, n_workers=3, **OPTIONS) as sampler:
        assert digest_of([sampler.obtain_trajectories(30), sampler.obtain_samples(300)]) == expected


@pytest.mark.parametrize("name", AGENTS)
def test_a_trajectory_does_not_depend_on_how_many_others_there_are(name):
    agent, env = AGENTS[name]()
    with LocalSampler(agent, env, **OPTIONS) as one, LocalSampler(agent, env, **OPTIONS) as many:
        few, all_of_them = one.obtain_trajectories(7), many.obtain_trajectories(30)
    assert digest_of(few.split()) == digest_of(all_of_them.split()[:7])


def test_each_trajectory_of_a_recurrent_policy_begins_with_a_fresh_state():
    agent, env = AGENTS["recurrent"]()
    with LocalSampler(agent, env, **OPTIONS) as sampler:
        for trajectory in sampler.obtain_trajectories(30):
            assert trajectory.actions.tolist() == [step % 2 for step in range(len(trajectory.actions))]


class Normalising(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = network()

    def forward(self, x):
        return self.body((x - x.mean(0)) / (x.std(0) + 1e-5))


def test_rows_that_depend_on_each_other_are_an_error_or_run_in_blocks():
    agent = TorchAgent(Normalising(), CARTPOLE.action_space)
    with LocalSampler(agent, "CartPole-v1", **OPTIONS) as sampler:
        with pytest.raises(RolloutError, match="when other rows had other observations") as caught:
            sampler.obtain_trajectories(1)
        assert 'worker_args={"block_size": n}' in str(caught.value)
    options = OPTIONS | {"worker_args": {"n_envs": 4, "block_size": 4}}
    with LocalSampler(agent, "CartPole-v1", **options) as sampler:
        expected = digest_of([sampler.obtain_trajectories(30)])
    with MultiprocessingSampler(agent, "CartPole-v1", n_workers=2, **options) as sampler:
        assert digest_of([sampler.obtain_trajectories(30)]) == expected
