"""Agents with torch in samplers: the same everywhere, on so many threads, with the values that estimates need."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.adapters.torch import TorchAgent
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.errors import DataError, RolloutError
from streamsampler.filters import RunningNorm
from streamsampler.workers.generators import seed_generators

pytestmark = [pytest.mark.extras, pytest.mark.core]


class Policy(nn.Module):
    """Says how many threads there are and what an observation is worth, beside its logits or means."""

    def __init__(self, n_inputs, n_outputs, name):
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Linear(n_inputs, 32), nn.Tanh(), nn.Linear(32, n_outputs))
        self.critic = nn.Linear(n_inputs, 1)
        self.name = name
        self.log_std = nn.Parameter(torch.full((n_outputs,), 0.5))

    def forward(self, inputs):
        threads = torch.full((len(inputs),), torch.get_num_threads())
        return {self.name: self.body(inputs), "threads": threads, "value": self.critic(inputs)}


def agent_for(env_id):
    policy = Policy(4, 2, "logits") if env_id == "CartPole-v1" else Policy(3, 1, "mean")
    return TorchAgent(policy, gymnasium.make(env_id).action_space)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_the_same_in_this_process_and_in_others_with_the_parameters_of_the_call(env_id):
    agent, threads = agent_for(env_id), torch.get_num_threads()
    other = {name: array * 0.5 for name, array in agent.get_param_values().items()}
    batches = []
    for make, n_workers in ((LocalSampler, 1), (MultiprocessingSampler, 2)):
        with make(agent, env_id, seed=3, n_workers=n_workers) as sampler:
            batches.append([sampler.obtain_samples(600), sampler.obtain_samples(600, agent_update=other)])
    assert batches[0] == batches[1]
    assert torch.get_num_threads() == threads
    for batch, scale in zip(batches[0], (1.0, 0.5), strict=True):
        infos = batch.agent_infos
        assert (infos["threads"] == 1).all()
        assert infos["value"].shape == infos["log_prob"].shape == (batch.n_timesteps,)
        np.testing.assert_allclose(infos["log_prob"], log_prob_of(env_id, batch, scale), atol=1e-4)


def log_prob_of(env_id, batch, scale):
    """Computed anew by torch from the batch, as a learner does."""
    module = agent_for(env_id).module
    module.load_state_dict({name: tensor * scale for name, tensor in module.state_dict().items()})
    with torch.no_grad():
        output = module(torch.from_numpy(batch.observations))
        if module.name == "logits":
            distribution = torch.distributions.Categorical(logits=output["logits"])
            return distribution.log_prob(torch.from_numpy(batch.actions)).numpy()
        raw = batch.agent_infos["raw_action"]
        assert np.array_equal(batch.actions, raw.clip(-2.0, 2.0))
        return torch.distributions.Normal(output["mean"], module.log_std.exp()).log_prob(torch.from_numpy(raw)).sum(1)


# --- Values


OPTIONS: dict[str, Any] = {"seed": 1, "max_episode_length": 15}


@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker}], ids=["default", "vec"])
def test_values_of_timesteps_and_of_what_would_follow(options):
    agent = agent_for("CartPole-v1")
    with LocalSampler(agent, "CartPole-v1", observation_filter=RunningNorm(), **OPTIONS, **options) as sampler:
        sampler.warm_up(100)
        batch = sampler.obtain_trajectories(12)
        batches = batch, sampler.obtain_fragments(9, n_envs=3)
    assert 0 < batch.terminated.sum() < 12
    for each in batches:
        with torch.no_grad():
            critic = agent.module.critic
            values = critic(torch.from_numpy(each.observations)).numpy()[:, 0]
            last = critic(torch.from_numpy(each.last_observations)).numpy()[:, 0]
        np.testing.assert_allclose(each.values, values, atol=1e-5)
        np.testing.assert_allclose(each.last_values, np.where(each.terminated, 0.0, last), atol=1e-5)
        assert (each.last_values[~each.terminated] != 0.0).all()
    given = batch.advantages(batch.values, batch.last_values, 0.9, 0.8)
    assert batch.advantages(gamma=0.9, lambda_=0.8).tolist() == given.tolist()
    assert batch.td_lambda().tolist() == batch.td_lambda(batch.values, batch.last_values).tolist()


def test_agents_without_values():
    with LocalSampler("random", "CartPole-v1", **OPTIONS) as sampler:
        batch = sampler.obtain_trajectories(12)
    with pytest.raises(DataError, match="did not record a value in each timestep"):
        batch.advantages()
    with pytest.raises(DataError, match="did not terminate, and the agent recorded no value"):
        _ = batch.last_values


# --- Torch itself


class Plain:
    """An agent with torch in it that knows nothing of threads."""

    def get_action(self, observation):
        return 0, {"threads": torch.get_num_threads()}


@pytest.mark.parametrize("number", [1, 3, None])
def test_every_agent_computes_on_as_many_threads(number):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with LocalSampler(Plain(), "CartPole-v1", worker_threads=number) as sampler:
            assert set(sampler.obtain_trajectories(1).agent_infos["threads"].tolist()) == {number or 2}
            assert torch.get_num_threads() == 2
            next(sampler.stream())
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    if number == 3:
        with MultiprocessingSampler(Plain(), "CartPole-v1", n_workers=1, worker_threads=number) as sampler:
            assert set(sampler.obtain_trajectories(1).agent_infos["threads"].tolist()) == {number}


def test_a_module_that_fails_is_told_with_its_traceback():
    agent = TorchAgent(nn.Linear(5, 2), gymnasium.spaces.Discrete(2))
    with (
        LocalSampler(agent, "CartPole-v1") as sampler,
        pytest.raises(RolloutError, match=r"action(.|\n)*mat1 and mat2 shapes cannot be multiplied"),
    ):
        sampler.obtain_samples(10)


def test_seeding_torch_is_torchs_own_seeding():
    """The way past `torch.manual_seed`, where it is taken, draws the same numbers."""
    seed_generators(7)
    drawn = torch.rand(3)
    torch.manual_seed(derived_seed(7, SeedUse.TORCH))
    assert torch.equal(torch.rand(3), drawn)


MODULE_OF_MAIN = """
import gymnasium, torch
from torch import nn
from streamsampler import MultiprocessingSampler
from streamsampler.adapters.torch import TorchAgent

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 2)
    def forward(self, x):
        return self.body(x)

agent = TorchAgent(Mine(), gymnasium.spaces.Discrete(2))
with MultiprocessingSampler(agent, "CartPole-v1", n_workers=1, seed=1) as sampler:
    print(len(sampler.obtain_trajectories(3, agent_update=agent.get_param_values())))
"""
# Torch marks a process that has looked for devices in certain ways; the mark says so only to those forked from it.
DEVICES_AFTER_A_FORK = """
import os, sys, torch
from streamsampler.workers.generators import seed_generators
seed_generators(7)
process = os.fork() or os._exit(torch.cuda._is_in_bad_fork())
print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


@pytest.mark.parametrize(("script", "says"), [(MODULE_OF_MAIN, "3\n"), (DEVICES_AFTER_A_FORK, "0\n")])
def test_modules_of_the_main_script_and_processes_that_are_forked_later(tmp_path, script, says):
    (tmp_path / "mine.py").write_text(script)
    command = [sys.executable, str(tmp_path / "mine.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == (says, 0), done.stderr
