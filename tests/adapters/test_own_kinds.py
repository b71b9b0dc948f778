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


class Acting(nn.Sequential):
    """A module that would be an agent by itself."""

    def get_action(self, observation):
        raise AssertionError("it is the adapter's kind, and no agent of its own")


@pytest.mark.parametrize("adapter", [TorchAgent, MlpAgent])
@pytest.mark.parametrize("engine", [LocalSampler, MultiprocessingSampler])
def test_a_module_and_its_state_dict_are_parameters(adapter, engine):
    other = network(2)
    updates = [adapter(other, DISCRETE).get_param_values(), other, other.state_dict(), PerWorker([other, other])]
    batches = []
    for update in updates:
        with engine(adapter(network(1), DISCRETE), "CartPole-v1", n_workers=2, seed=3) as sampler:
            first = sampler.obtain_trajectories(4)
            batches.append(sampler.obtain_trajectories(4, agent_update=update))
    assert all(batch == batches[0] for batch in batches[1:])
    with LocalSampler(adapter(other, DISCRETE), "CartPole-v1", n_workers=2, seed=3) as sampler:
        sampler.obtain_trajectories(4)
        assert sampler.obtain_trajectories(4) == batches[0] != first


@pytest.mark.parametrize("adapter", [TorchAgent, MlpAgent])
def test_what_does_not_fit_is_refused_before_it_is_sent(adapter):
    with LocalSampler(adapter(network(1), DISCRETE), "CartPole-v1", seed=3) as sampler:
        for update, message in [
            (network(1, hidden=8), "0.bias has the shape (8,), and should have (16,), and 2 more"),
            (network(1, hidden=8).state_dict(), "0.bias has the shape (8,)"),
            ({"0.weight": np.zeros((16, 4))}, "is missing"),
            ((network(1),), "a tuple"),
            (np.zeros(3), "a ndarray"),
        ]:
            with pytest.raises(UsageError, match=re.escape(message)):
                sampler.obtain_trajectories(1, agent_update=update)
        assert sampler.agent_version == 0
        sampler.obtain_trajectories(1, agent_update=Acting(*network(2)))
        sampler.obtain_trajectories(1, agent_update=adapter(network(1, hidden=8), DISCRETE))  # a whole agent
        sampler.obtain_trajectories(1, agent_update=network(3, hidden=8))


def test_a_gaussian_mlp_says_that_it_needs_deviations():
    agent = MlpAgent(network(1), BOX, log_std=nn.Parameter(torch.zeros(2)))
    with LocalSampler(agent, "CartPole-v1") as sampler, pytest.raises(UsageError, match=r"log_std.*get_param_values"):
        sampler.obtain_trajectories(1, agent_update=network(2))


def test_changes_after_the_call_are_not_seen():
    other = network(2)
    with MultiprocessingSampler(TorchAgent(network(1), DISCRETE), "CartPole-v1", n_workers=1, seed=3) as sampler:
        before = sampler.obtain_trajectories(4, agent_update=other)
        with torch.no_grad():
            other[0].weight.zero_()
        with MultiprocessingSampler(TorchAgent(network(2), DISCRETE), "CartPole-v1", n_workers=1, seed=3) as twin:
            assert twin.obtain_trajectories(4) == before
            assert twin.obtain_trajectories(4) == sampler.obtain_trajectories(4)


def test_a_model_and_its_policy_are_parameters():
    models = [stable_baselines3.PPO("MlpPolicy", "CartPole-v1", seed=seed, device="cpu") for seed in (1, 2)]
    batches = []
    for update in (models[1], models[1].policy, models[1].policy.state_dict(), SB3Agent(models[1])):
        with LocalSampler(SB3Agent(models[0]), "CartPole-v1", seed=3) as sampler:
            batches.append(sampler.obtain_trajectories(4, agent_update=update))
    assert all(batch == batches[0] for batch in batches[1:])
    other = stable_baselines3.PPO("MlpPolicy", "Pendulum-v1", device="cpu")
    with LocalSampler(SB3Agent(models[0]), "CartPole-v1", seed=3) as sampler:
        for update in (other, other.policy, {}, (1,), network(1)):
            with pytest.raises(UsageError, match=r"do not fit|takes"):
                sampler.obtain_trajectories(1, agent_update=update)


LAZY = "has lazy parameters, which have no values before the first call: 0.weight, 0.bias, 1.weight, "


def lazy_network():
    return nn.Sequential(nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.Tanh(), nn.Linear(16, 2))


def test_lazy_parameters_are_refused_by_name_until_the_module_was_called():
    """Each worker would draw its own, so that batches would differ with the number of workers."""
    module = lazy_network()
    with pytest.raises(UsageError, match=f"the module {LAZY}.*Call the module once before"):
        TorchAgent(module, DISCRETE)
    module(torch.ones(2, 4))
    with LocalSampler(TorchAgent(module, DISCRETE), "CartPole-v1", seed=3) as sampler:
        for update in (lazy_network(), lazy_network().state_dict()):
            with pytest.raises(UsageError, match=f"agent_update {LAZY}"):
                sampler.obtain_trajectories(1, agent_update=update)
        assert len(sampler.obtain_trajectories(2)) == 2


def test_a_lazy_policy_of_another_kind_is_refused():
    class Policy(nn.LazyLinear):
        def predict(self, observation, state=None, episode_start=None, deterministic=False):
            raise AssertionError("it is refused before it is asked")

    with pytest.raises(UsageError, match="the policy has lazy parameters"):
        SB3Agent(Policy(2))


@pytest.mark.parametrize("engine", [LocalSampler, MultiprocessingSampler])
def test_a_bare_policy_as_an_agent_is_refused_with_the_line_to_write(engine):
    model = stable_baselines3.PPO("MlpPolicy", "CartPole-v1", device="cpu")
    module, policy = (
        r"pass TorchAgent\(module, env\.action_space\), from streamsampler",
        r"pass SB3Agent\(model\), from",
    )
    for agent, line in ((network(1), module), (model, policy), (model.policy, policy)):
        for given in (agent, PerWorker([agent, agent])):
            with pytest.raises(UsageError, match=rf"the agent \({type(agent).__name__}\) has no get_action: {line}"):
                engine(given, "CartPole-v1", n_workers=2)
    assert isinstance(as_agent(Acting(*network(1))), Acting)
    with LocalSampler("random", "CartPole-v1") as sampler, pytest.raises(UsageError, match=policy):
        sampler.obtain_trajectories(1, agent_update=model)


def test_a_function_that_calls_a_module_is_an_agent():
    module = network(1)

    def act(observation):
        return int(module(torch.as_tensor(observation)).argmax())

    with LocalSampler(act, "CartPole-v1", seed=3) as sampler:
        assert sampler.obtain_trajectories(2).n_timesteps > 2
