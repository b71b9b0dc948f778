"""Adapters' agents: a row of a batch is a function of itself alone, or else that is found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO
from torch import nn

from streamsampler.adapters.mlp import MlpAgent
from streamsampler.adapters.sb3 import SB3Agent
from streamsampler.adapters.torch import TorchAgent
from streamsampler.agents.base import is_row_independent
from streamsampler.agents.draws import Draws
from streamsampler.agents.heads import CategoricalHead, GaussianHead
from streamsampler.agents.independence import probe
from streamsampler.core.serialization import dumps, loads
from streamsampler.errors import UsageError

pytestmark = [pytest.mark.extras, pytest.mark.core]
DISCRETE, BOX = spaces.Discrete(3), spaces.Box(-1.0, 1.0, (3,))
OBSERVATIONS = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
DEPENDS = "came out otherwise when other rows had other observations"


@pytest.fixture(autouse=True)
def one_thread():
    """As in workers."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


class Gaussian(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.log_std = body, nn.Parameter(torch.tensor([-1.0, 0.3, 0.0]))

    def forward(self, x):
        return self.body(x)


class WithBatchNorm(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16, **options), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x):
        return self.body(x)


class Normalising(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer((x - x.mean(0)) / (x.std(0) + 1e-5))


class Recurrent(nn.Module):
    """A policy with `predict`, whose state has its rows on the second axis, as those of sb3-contrib."""

    def __init__(self, shift=0):
        super().__init__()
        self.cell, self.shift = nn.GRUCell(4, 8), shift

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        n = len(observation)
        state = torch.zeros(n, 8) if state is None else torch.as_tensor(state[0][0])
        state = state * (1.0 - torch.as_tensor(episode_start).float()[:, None])
        with torch.no_grad():
            state = self.cell(torch.as_tensor(observation), state)
        return state.argmax(1).numpy(), (np.roll(state.numpy(), self.shift, axis=0)[None],)


def network(width=64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))


def in_worker(agent):
    return loads(dumps(agent, "the agent"))


def agents(width=64):
    return [
        in_worker(agent)
        for agent in (
            TorchAgent(network(width), DISCRETE),
            TorchAgent(Gaussian(network(width)), BOX),
            TorchAgent(Gaussian(network(width)), GaussianHead(BOX, squash=True)),
            MlpAgent(network(width), DISCRETE),
            MlpAgent(network(width), BOX, log_std=nn.Parameter(torch.tensor([-1.0, 0.3, 0.0]))),
        )
    ]


@pytest.mark.parametrize("n_rows", [3, 32])
def test_a_trajectory_sees_neither_other_observations_nor_other_draws(n_rows):
    rng = np.random.default_rng(1)
    for agent in agents():
        assert is_row_independent(agent)
        probe(agent, OBSERVATIONS, n_rows)
        seeds = list(range(n_rows))
        actions, infos = agent.get_actions(OBSERVATIONS[:n_rows], draws=Draws.of(seeds))
        for row in range(n_rows):
            others = rng.standard_normal((n_rows, 4)).astype(np.float32)
            others[row] = OBSERVATIONS[row]
            draws = Draws.of([seed if seed == row else 1000 + seed for seed in seeds])
            again, infos_again = agent.get_actions(others, draws=draws)
            np.testing.assert_array_equal(actions[row], again[row])
            for key, rows in infos.items():
                assert rows[row].tobytes() == infos_again[key][row].tobytes()


@pytest.mark.parametrize("width", [1, 63, 127])
@pytest.mark.parametrize("n_rows", [2, 5, 32])
def test_odd_widths_are_judged_as_they_turn_out_on_this_machine(width, n_rows):
    rng = np.random.default_rng(1)
    for agent in agents(width):

        def bits(observations, agent=agent):
            actions, infos = agent.get_actions(observations, draws=Draws.of(range(n_rows)))
            return [(actions[row].tobytes(), infos["log_prob"][row].tobytes()) for row in range(n_rows)]

        expected, depends = bits(OBSERVATIONS[:n_rows].copy()), False
        for row in range(n_rows):
            others = rng.standard_normal((n_rows, 4)).astype(np.float32)
            others[row] = OBSERVATIONS[row]
            depends = depends or bits(others)[row] != expected[row]
        if depends:
            with pytest.raises(UsageError, match=rf"no multiples of 8 \(.*{width}"):
                probe(agent, OBSERVATIONS, n_rows)
        else:
            probe(agent, OBSERVATIONS, n_rows)


def test_batch_normalisation_in_training_mode_is_found():
    agent = TorchAgent(WithBatchNorm(), DISCRETE)  # the user's own
    assert not is_row_independent(agent)
    with pytest.raises(UsageError, match=rf"{DEPENDS}.*batch normalisation in training mode"):
        probe(agent, OBSERVATIONS, 8)


def test_in_workers_it_is_in_evaluation_mode():
    agent = in_worker(TorchAgent(WithBatchNorm(), DISCRETE))
    assert is_row_independent(agent)
    probe(agent, OBSERVATIONS, 8)


@pytest.mark.parametrize("module", [WithBatchNorm(track_running_stats=False), Normalising()])
def test_normalisation_over_the_batch_is_found_in_evaluation_mode_too(module):
    with pytest.raises(UsageError, match=DEPENDS):
        probe(in_worker(TorchAgent(module, DISCRETE)), OBSERVATIONS, 8)


def test_a_module_that_draws_is_found():
    class Noisy(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x, training=True)[:, :3]

    with pytest.raises(UsageError, match=r"the same batch was asked for again.*a global one"):
        probe(in_worker(TorchAgent(Noisy(), DISCRETE)), OBSERVATIONS, 8)


def test_a_head_that_knows_nothing_of_draws_gets_the_agents_generator():
    class Own(CategoricalHead):
        row_independent = False

        def batch(self, outputs, random, deterministic):
            return super().batch(outputs, np.random.RandomState(random.randint(10)), deterministic)

    for agent in (TorchAgent(network(), Own(DISCRETE)), MlpAgent(network(), Own(DISCRETE))):
        worker = in_worker(agent)
        assert not is_row_independent(worker)
        worker.get_actions(OBSERVATIONS, draws=Draws(32))


@pytest.mark.parametrize("algorithm", [PPO, DQN])
def test_models_that_draw_nothing_are_row_independent(algorithm):
    agent = in_worker(SB3Agent(algorithm("MlpPolicy", "CartPole-v1", device="cpu"), deterministic=True))
    assert is_row_independent(agent)
    for n_rows in (1, 8):
        probe(agent, OBSERVATIONS, n_rows)


def test_models_that_draw_from_the_global_generators_are_not():
    agent = in_worker(SB3Agent(PPO("MlpPolicy", "CartPole-v1", device="cpu")))
    assert not is_row_independent(agent)
    with pytest.raises(UsageError, match="the same batch was asked for again"):
        probe(agent, OBSERVATIONS, 8)


def test_recurrent_policies_have_a_state_for_each_row():
    agent = in_worker(SB3Agent(Recurrent(), deterministic=True))
    assert is_row_independent(agent)
    probe(agent, OBSERVATIONS, 8)
    mixing = in_worker(SB3Agent(Recurrent(shift=1), deterministic=True))
    probe(mixing, OBSERVATIONS, 1)
    with pytest.raises(UsageError, match=DEPENDS):
        probe(mixing, OBSERVATIONS, 8)
