"""An adapter's agent takes its own kind as an update, a module or its state dict, and nothing that does not fit."""

from __future__ import annotations

import re

import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from torch import nn

from streamsampler import LocalSampler, MultiprocessingSampler, PerWorker
from streamsampler.adapters.mlp import MlpAgent
from streamsampler.adapters.sb3 import SB3Agent
from streamsampler.adapters.torch import TorchAgent
from streamsampler.agents.base import as_agent
from streamsampler.errors import UsageError

pytestmark = pytest.mark.extras
DISCRETE, BOX = spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2,))


def network(seed, hidden=16):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 2))


def lazy():
    return nn.Sequential(nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.Tanh(), nn.Linear(16, 2))


def ppo(env="CartPole-v1", seed=1):
    return stable_baselines3.PPO("MlpPolicy", env, seed=seed, device="cpu")


def sampled(agent, *updates, make=LocalSampler):
    """Return a batch before the updates, and one after each."""
    with make(agent, "CartPole-v1", n_workers=2, seed=3) as sampler:
        return [sampler.obtain_trajectories(4, agent_update=update) for update in (None, *updates)]


class Acting(nn.Sequential):
    """A module that would be an agent by itself."""

    def get_action(self, observation):
        raise AssertionError("it is the adapter's kind, and no agent of its own")


@pytest.mark.parametrize("adapter", [TorchAgent, MlpAgent])
def test_a_module_and_its_state_dict_are_parameters(adapter):
    other = network(2)
    first, expected = sampled(adapter(other, DISCRETE), None)
    updates = [adapter(other, DISCRETE).get_param_values(), other, other.state_dict(), PerWorker([other, other])]
    for update in updates:
        found = sampled(adapter(network(1), DISCRETE), update)
        assert found[0] != first
        assert found[1] == expected
    assert sampled(adapter(network(1), DISCRETE), other, make=MultiprocessingSampler)[1] == expected


def test_a_model_and_its_policy_are_parameters():
    model = ppo(seed=2)
    updates = (model, model.policy, model.policy.state_dict(), SB3Agent(model))
    found = [sampled(SB3Agent(ppo()), update)[1] for update in updates]
    assert all(batch == found[0] for batch in found[1:])


LAZY = "has lazy parameters, which have no values before the first call: 0.weight, 0.bias, 1.weight, "
PENDULUM = ppo("Pendulum-v1")
GAUSSIAN = MlpAgent(network(1), BOX, log_std=nn.Parameter(torch.zeros(2)))
OF_MODULES = [
    (network(1, hidden=8), re.escape("0.bias has the shape (8,), but should have (16,), and 2 more")),
    (network(1, hidden=8).state_dict(), re.escape("0.bias has the shape (8,)")),
    ({"0.weight": np.zeros((16, 4))}, "is missing"),
    ((network(1),), "a tuple"),
    (np.zeros(3), "a ndarray"),
]


@pytest.mark.parametrize(
    ("agent", "update", "words"),
    [
        *((TorchAgent(network(1), DISCRETE), *row) for row in OF_MODULES),
        *((MlpAgent(network(1), DISCRETE), *row) for row in OF_MODULES),
        (GAUSSIAN, network(2), r"log_std.*get_param_values"),
        *((SB3Agent(ppo()), it, "do not fit|takes") for it in (PENDULUM, PENDULUM.policy, {}, (1,), network(1))),
        # Each worker would draw its own, so that batches would differ with the number of workers.
        (TorchAgent(network(1), DISCRETE), lazy(), f"agent_update {LAZY}"),
        (TorchAgent(network(1), DISCRETE), lazy().state_dict(), f"agent_update {LAZY}"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_sent(agent, update, words):
    with LocalSampler(agent, "CartPole-v1", seed=3) as sampler:
        with pytest.raises(UsageError, match=words):
            sampler.obtain_trajectories(1, agent_update=update)
        assert sampler.agent_version == 0


def test_a_whole_agent_may_have_another_module():
    with LocalSampler(TorchAgent(network(1), DISCRETE), "CartPole-v1", seed=3) as sampler:
        for update in (Acting(*network(2)), TorchAgent(network(1, hidden=8), DISCRETE), network(3, hidden=8)):
            assert len(sampler.obtain_trajectories(1, agent_update=update)) == 1


def test_changes_after_the_call_are_not_seen():
    agent, other = TorchAgent(network(1), DISCRETE), network(2)
    with MultiprocessingSampler(agent, "CartPole-v1", n_workers=1, seed=3) as sampler:
        found = [sampler.obtain_trajectories(4, agent_update=other)]
        with torch.no_grad():
            other[0].weight.zero_()
        found.append(sampler.obtain_trajectories(4))
    with LocalSampler(TorchAgent(network(2), DISCRETE), "CartPole-v1", seed=3) as twin:
        assert found == [twin.obtain_trajectories(4), twin.obtain_trajectories(4)]


class LazyPolicy(nn.LazyLinear):
    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        raise AssertionError("it is refused before it is asked")


def test_lazy_modules_are_refused_by_name_until_they_were_called():
    with pytest.raises(UsageError, match=f"the module {LAZY}.*Call the module once first"):
        TorchAgent(module := lazy(), DISCRETE)
    with pytest.raises(UsageError, match="the policy has lazy parameters"):
        SB3Agent(LazyPolicy(2))
    module(torch.ones(2, 4))
    assert len(sampled(TorchAgent(module, DISCRETE))[0]) == 4


def test_a_bare_policy_as_an_agent_is_refused_with_the_line_to_write():
    model = ppo()
    policy = r"pass SB3Agent\(model\), or SB3Agent\(model, deterministic=True\), from"
    module = r"pass TorchAgent\(module, env\.action_space\), from streamsampler"
    for agent, line in ((network(1), module), (model, policy), (model.policy, policy)):
        for given in (agent, PerWorker([agent, agent])):
            with pytest.raises(UsageError, match=rf"the agent \({type(agent).__name__}\) has no get_action: {line}"):
                LocalSampler(given, "CartPole-v1", n_workers=2)
    assert isinstance(as_agent(Acting(*network(1))), Acting)
    with LocalSampler("random", "CartPole-v1") as sampler, pytest.raises(UsageError, match=policy):
        sampler.obtain_trajectories(1, agent_update=model)


def test_a_function_that_calls_a_module_is_an_agent():
    module = network(1)
    assert sampled(lambda observation: int(module(torch.as_tensor(observation)).argmax()))[0].n_timesteps > 4
