"""Adapters' agents: a row of a batch is a function of itself alone, or else that is found; so lanes may run them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO
from torch import nn

from streamsampler import LocalSampler, VecWorker
from streamsampler.adapters.mlp import MlpAgent
from streamsampler.adapters.sb3 import SB3Agent
from streamsampler.adapters.torch import TorchAgent
from streamsampler.agents.base import is_row_independent
from streamsampler.agents.draws import Draws
from streamsampler.agents.heads import CategoricalHead, GaussianHead
from streamsampler.agents.independence import probe
from streamsampler.core.serialization import dumps, loads
from streamsampler.errors import RolloutError, UsageError

pytestmark = [pytest.mark.extras, pytest.mark.core]
DISCRETE, BOX = spaces.Discrete(3), spaces.Box(-1.0, 1.0, (3,))
OBSERVATIONS = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)


@pytest.fixture(autouse=True)
def one_thread():
    """As in workers."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def network(width=64, n_outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_outputs)
    )


class Gaussian(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.log_std = body, nn.Parameter(torch.tensor([-1.0, 0.3, 0.0]))

    def forward(self, x):
        return self.body(x)


class Normalising(nn.Module):
    """Looks at all rows, in every mode."""

    def __init__(self, n_outputs=3):
        super().__init__()
        self.body = network(n_outputs=n_outputs)

    def forward(self, x):
        return self.body((x - x.mean(0)) / (x.std(0) + 1e-5))


class Noisy(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, training=True)[:, :3]


def with_batch_norm(**options):
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16, **options), nn.Tanh(), nn.Linear(16, 3))


class Counting(nn.Module):
    """A recurrent policy: its state, whose rows are on the second axis, counts what it has seen.

    Args:
        shift: How far rows get into each other's places.
    """

    def __init__(self, shift=0):
        super().__init__()
        self.shift = shift

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        count = np.zeros((1, len(observation)), np.int64) if state is None else state[0]
        count = np.where(episode_start, 0, count) + (observation[:, 0] > 0)[None]
        return count[0] % 2, (np.roll(count, self.shift, axis=1),)


class OwnHead(CategoricalHead):
    """Knows nothing of draws: it gets the agent's generator."""

    row_independent = False

    def batch(self, outputs, random, deterministic):
        return super().batch(outputs, np.random.RandomState(random.randint(10)), deterministic)


def in_worker(agent):
    return loads(dumps(agent, "the agent"))


def agents(width=64):
    log_std = nn.Parameter(torch.tensor([-1.0, 0.3, 0.0]))
    yield TorchAgent(network(width), DISCRETE)
    yield TorchAgent(Gaussian(network(width)), BOX)
    yield TorchAgent(Gaussian(network(width)), GaussianHead(BOX, squash=True))
    yield MlpAgent(network(width), DISCRETE)
    yield MlpAgent(network(width), BOX, log_std=log_std)


@pytest.mark.parametrize(("width", "n_rows"), [(64, 3), (64, 32), (1, 5), (63, 2), (127, 32)])
def test_a_trajectory_sees_neither_other_observations_nor_other_draws(width, n_rows):
    """Odd widths are judged as they turn out on this machine."""
    rng, seeds = np.random.default_rng(1), list(range(n_rows))
    for agent in map(in_worker, agents(width)):
        assert is_row_independent(agent)
        actions, infos = agent.get_actions(OBSERVATIONS[:n_rows], draws=Draws.of(seeds))
        depends = False
        for row in range(n_rows):
            others = rng.standard_normal((n_rows, 4)).astype(np.float32)
            others[row] = OBSERVATIONS[row]
            draws = Draws.of([seed if seed == row else 1000 + seed for seed in seeds])
            again, infos_again = agent.get_actions(others, draws=draws)
            depends |= actions[row].tobytes() != again[row].tobytes()
            depends |= any(rows[row].tobytes() != infos_again[key][row].tobytes() for key, rows in infos.items())
        if depends:
            assert width != 64
            with pytest.raises(UsageError, match=rf"not multiples of 8 \(.*{width}"):
                probe(agent, OBSERVATIONS, n_rows)
        else:
            probe(agent, OBSERVATIONS, n_rows)


DEPENDS = "changed when other rows had other observations"


@pytest.mark.parametrize(
    ("agent", "is_independent", "words"),
    [
        (TorchAgent(with_batch_norm(), DISCRETE), False, rf"{DEPENDS}.*batch normalisation in training mode"),
        (in_worker(TorchAgent(with_batch_norm(), DISCRETE)), True, None),  # which evaluates
        (in_worker(TorchAgent(with_batch_norm(track_running_stats=False), DISCRETE)), None, DEPENDS),
        (in_worker(TorchAgent(Normalising(), DISCRETE)), None, DEPENDS),
        (in_worker(TorchAgent(Noisy(), DISCRETE)), None, r"the same batch was passed again.*a global one"),
        (in_worker(SB3Agent(PPO("MlpPolicy", "CartPole-v1", device="cpu"), deterministic=True)), True, None),
        (in_worker(SB3Agent(DQN("MlpPolicy", "CartPole-v1", device="cpu"), deterministic=True)), True, None),
        (
            in_worker(SB3Agent(PPO("MlpPolicy", "CartPole-v1", device="cpu"))),
            False,
            "the same batch was passed again",
        ),
        (in_worker(SB3Agent(Counting(), deterministic=True)), True, None),
        (in_worker(SB3Agent(Counting(shift=1), deterministic=True)), True, DEPENDS),
    ],
)
def test_agents_whose_rows_depend_on_each_other_are_found(agent, is_independent, words):
    assert is_independent in (None, is_row_independent(agent))
    if words is None:
        probe(agent, OBSERVATIONS, 1)
        probe(agent, OBSERVATIONS, 8)
    else:
        with pytest.raises(UsageError, match=words):
            probe(agent, OBSERVATIONS, 8)


@pytest.mark.parametrize("adapter", [TorchAgent, MlpAgent])
def test_a_head_that_knows_nothing_of_draws_gets_the_agents_generator(adapter):
    agent = in_worker(adapter(network(), OwnHead(DISCRETE)))
    assert not is_row_independent(agent)
    assert agent.get_actions(OBSERVATIONS, draws=Draws(32))[0].shape == (32,)


# --- In samplers: each trajectory is its own, whatever runs next to it


CARTPOLE = gymnasium.make("CartPole-v1").action_space
OPTIONS: dict[str, Any] = {"worker_class": VecWorker, "seed": 3, "max_episode_length": 30}


def sampled(agent, n, **options):
    with LocalSampler(agent, "CartPole-v1", **{"worker_args": {"n_envs": 4}, **OPTIONS, **options}) as sampler:
        return sampler.obtain_trajectories(n).split()


@pytest.mark.parametrize(
    "agent",
    [
        TorchAgent(network(24, 2), CARTPOLE),
        MlpAgent(network(24, 2), CARTPOLE),
        SB3Agent(Counting(), deterministic=True),
    ],
    ids=["torch", "mlp", "recurrent"],
)
def test_a_trajectory_depends_neither_on_workers_nor_on_how_many_others_there_are(agent):
    expected = sampled(agent, 30)
    assert sampled(agent, 30, n_workers=3) == expected
    assert sampled(agent, 7) == expected[:7]
    if isinstance(agent, SB3Agent):  # each begins with a fresh state
        for each in expected:
            assert each.actions.tolist() == (np.cumsum(each.observations[:, 0] > 0) % 2).tolist()


def test_rows_that_depend_on_each_other_are_an_error_or_run_in_blocks():
    agent = TorchAgent(Normalising(2), CARTPOLE)
    with pytest.raises(
        RolloutError, match=r'when other rows had other observations(.|\n)*worker_args={"block_size": n}'
    ):
        sampled(agent, 1)
    blocks: dict[str, Any] = {"worker_args": {"n_envs": 4, "block_size": 4}}
    assert sampled(agent, 30, n_workers=2, **blocks) == sampled(agent, 30, **blocks)
