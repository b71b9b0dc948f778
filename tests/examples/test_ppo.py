"""The example of PPO learns, on what it sampled, and learns the same whatever the number of workers."""

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

from streamsampler import LocalSampler  # noqa: E402
from streamsampler.adapters.torch import TorchAgent  # noqa: E402
from streamsampler.examples.ppo import ActorCritic, episode_returns, improve, main  # noqa: E402
from streamsampler.filters import RunningNorm  # noqa: E402

pytestmark = pytest.mark.extras


def run(*arguments: str) -> list[str]:
    outcome = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout.splitlines()


def made(env_id: str) -> tuple[ActorCritic, TorchAgent]:
    torch.manual_seed(0)
    with gymnasium.make(env_id) as env:
        policy, space = ActorCritic(env.observation_space, env.action_space), env.action_space
    return policy, TorchAgent(policy, space)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("norm", [None, RunningNorm()])
def test_the_first_ratios_are_one(env_id: str, norm: RunningNorm | None) -> None:
    """In each iteration: parameters, filter and values are those that the batch was sampled with."""
    policy, agent = made(env_id)
    adam = torch.optim.Adam(policy.parameters(), 1e-3)
    with LocalSampler(agent, env_id, seed=1, observation_filter=norm) as sampler:
        for iteration in range(3):
            batch = sampler.obtain_fragments(60, 3, agent_update=policy)
            assert improve(policy, adam, batch, seed=iteration, gamma=0.99) < 1e-5


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing() -> None:
    small = ("CartPole-v1", "--normalize", "--iterations", "3", "--timesteps", "30")
    lines = run(*small, "--workers", "1")
    assert len(lines) == 4
    assert run(*small, "--workers", "3") == lines


def test_one_iteration_makes_better_actions_likelier() -> None:
    """The mean log-probability, weighted by the advantages, of what was sampled."""
    policy, agent = made("CartPole-v1")
    with LocalSampler(agent, "CartPole-v1", seed=1) as sampler:
        batch = sampler.obtain_samples(500)
    advantages = batch.advantages(batch.agent_infos["value"], np.zeros(len(batch)))
    observations, actions = torch.as_tensor(batch.observations), torch.as_tensor(batch.actions)
    improve(policy, torch.optim.Adam(policy.parameters(), 1e-3), batch, seed=0, gamma=0.99)
    with torch.no_grad():
        change = policy.log_prob(observations, actions).numpy() - batch.agent_infos["log_prob"]
    assert np.mean(change * (advantages - advantages.mean())) > 0.01


def test_returns_of_episodes_that_go_on() -> None:
    """They are those of whole episodes, whose lengths are CartPole's rewards."""
    running: dict[int, float] = {}
    found = []
    with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
        for _ in range(5):
            found += episode_returns(sampler.obtain_fragments(15, 2), running)
    with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
        at_once: dict[int, float] = {}
        expected = episode_returns(sampler.obtain_fragments(75, 2), at_once)
    assert sorted(found) == sorted(expected)
    assert running == at_once
    assert sum(found) + sum(running.values()) == 150
