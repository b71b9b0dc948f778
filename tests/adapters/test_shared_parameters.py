"""Agents of networks share them among trajectories in flight, and act as their copies do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.agents.base import shared_agent
from streamsampler.agents.mlp import MlpAgent
from streamsampler.agents.torch import CategoricalHead, RecurrentTorchAgent, TorchAgent
from streamsampler.filters import RunningNorm
from tests.workers.waiting.envs import Game, Waits

pytestmark = pytest.mark.extras
SPACE = spaces.Discrete(3)
BOX = spaces.Box(-1, 1, (2,), np.float32)


class Remembers(nn.Module):
    """Remembers what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(3, 8), nn.Linear(8, 4)

    def initial_state(self, n: int) -> torch.Tensor:
        return torch.zeros(n, 8)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> Any:
        state = self.cell(x, state)
        outputs = self.out(state)
        return {"logits": outputs[:, :3], "value": outputs[:, 3]}, state


class Moves(Game):
    """Takes two numbers for an action."""

    action_space = BOX  # type: ignore[assignment]

    def step(self, action: Any) -> Any:
        return super().step(int(abs(action[0]) > 0.5))


class MovesLater(Waits, Moves):
    """Waits besides."""

    action_space = BOX


def plain(n: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, n))


def gaussian() -> nn.Sequential:
    module = plain(2)
    module.register_parameter("log_std", nn.Parameter(torch.zeros(2)))
    return module


def mlp() -> MlpAgent:
    return MlpAgent(plain(2), BOX, log_std=np.zeros(2, np.float32))


AGENTS: dict[str, Any] = {
    "plain": lambda: TorchAgent(plain(), SPACE),
    "gaussian": lambda: TorchAgent(gaussian(), BOX),
    "remembers": lambda: TorchAgent(Remembers(), SPACE, state_every=4),
    "mlp": mlp,
}


def moved(agent: Any, by: int) -> Any:
    """Return parameters that differ from the agent's."""
    return {name: value + np.float32(0.3 * by) for name, value in agent.get_param_values().items()}


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("in_flight", [pytest.param(1, marks=pytest.mark.slow), 7, 20])
@pytest.mark.parametrize("given", [{}, {"observation_filter": RunningNorm()}], ids=["", "filtered"])
@pytest.mark.parametrize(
    ("kind", "n_workers"), [(LocalSampler, 1), pytest.param(MultiprocessingSampler, 2, marks=pytest.mark.slow)]
)
def test_batches_are_those_of_the_default_worker(
    kind: Any, n_workers: int, given: Any, in_flight: int, name: str
) -> None:
    torch.manual_seed(1)
    agent = AGENTS[name]()
    waits, plays = (MovesLater, Moves) if agent.head.names[-1] == "log_std" else (Waits, Game)
    options: dict[str, Any] = {"seed": 3, **given}
    arguments = {"in_flight": in_flight}
    with (
        kind(agent, waits, n_workers=n_workers, worker_args=arguments, **options) as sampler,
        LocalSampler(agent, plays, **options) as expected,
    ):
        for call in range(3):
            update = moved(agent, call) if call else None
            assert sampler.obtain_trajectories(25, agent_update=update) == expected.obtain_trajectories(
                25, agent_update=update
            )
            assert sampler.obtain_samples(60) == expected.obtain_samples(60)


@pytest.mark.parametrize("name", AGENTS)
def test_they_have_one_network(name: str) -> None:
    agent = AGENTS[name]()
    shared: Any = shared_agent(agent)
    assert type(shared) is type(agent)
    assert shared.head is agent.head
    assert shared._random is not agent._random
    if name == "mlp":
        assert shared._steps is agent._steps
        return
    assert shared.module is agent.module
    assert shared._inputs is not agent._inputs
    rows = np.zeros(3, np.float32)
    for each in (agent, shared):
        each.reset(seed=4)
    first, second = agent.get_action(rows), shared.get_action(rows)
    assert np.array_equal(first[0], second[0])
    agent.set_param_values(moved(agent, 2))
    for each in (agent, shared):
        each.reset(seed=4)
    first, second = agent.get_action(rows), shared.get_action(rows)
    assert np.array_equal(first[0], second[0])
    assert first[1]["log_prob"] == second[1]["log_prob"]


def test_states_are_their_own() -> None:
    agent: Any = TorchAgent(Remembers(), SPACE)
    agent.reset(seed=1)
    agent.get_action(np.ones(3, np.float32))
    shared: Any = shared_agent(agent)
    assert isinstance(shared, RecurrentTorchAgent)
    assert shared._state is None
    shared.reset(seed=2)
    before = agent._state.clone()
    shared.get_action(-np.ones(3, np.float32))
    assert torch.equal(agent._state, before)


def test_a_subclass_is_copied() -> None:
    class Noisy(TorchAgent):
        def reset(self, seed: int) -> None:
            super().reset(seed)
            with torch.no_grad():
                self.module.bias.add_(1.0)

    class OwnMlp(MlpAgent):
        pass

    assert shared_agent(Noisy(nn.Linear(3, 3), CategoricalHead(SPACE))) is None
    assert shared_agent(OwnMlp(plain(), SPACE)) is None


def test_nothing_is_said_of_copies(caplog: pytest.LogCaptureFixture) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3, 3), nn.Embedding(1, 4_000_000))
    with LocalSampler(TorchAgent(module, SPACE), Waits, worker_args={"in_flight": 200}):
        assert "copy of the agent" not in caplog.text
