"""The example of PPO learns, on what it sampled, and learns the same whatever the number of workers."""

import os
import signal

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker  # noqa: E402
from streamsampler.adapters.torch import TorchAgent  # noqa: E402
from streamsampler.examples.ppo import ActorCritic, improve, main, train  # noqa: E402
from streamsampler.filters import RunningNorm, RunningReturnNorm  # noqa: E402

pytestmark = pytest.mark.extras


def run(*arguments: str) -> list[str]:
    outcome = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout.splitlines()


def made(env_id: str) -> tuple[ActorCritic, TorchAgent]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
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
            assert improve(policy, adam, batch, iteration, gamma=0.99, minibatch=64) < 1e-5


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing() -> None:
    small = ("CartPole-v1", "--normalize", "--iterations", "3", "--timesteps", "30")
    lines = run(*small, "--workers", "1")
    assert len(lines) == 4
    assert run(*small, "--workers", "3") == lines


@pytest.mark.slow
def test_killed_workers_change_nothing() -> None:
    """The parameters after four updates are the same bits as those of one worker, and of workers left in peace."""
    found = []
    for n_workers, killed in ((1, False), (2, False), (2, True)):
        policy, agent = made("CartPole-v1")
        with MultiprocessingSampler(
            agent, "CartPole-v1", n_workers=n_workers, seed=1, worker_class=VecWorker, worker_args={"n_envs": 4},
            observation_filter=RunningNorm(), reward_filter=RunningReturnNorm(),
        ) as sampler:  # fmt: skip
            for number, _ in enumerate(train(sampler, policy, 4, 40, learning_rate=1e-3, gamma=0.99, minibatch=64)):
                if killed:
                    os.kill(sampler.worker_pids()[number % 2], signal.SIGKILL)
            assert bool(sampler.stats.restarts) == killed
        found.append(torch.nn.utils.parameters_to_vector(policy.parameters()))
    assert torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])


def test_one_iteration_makes_better_actions_likelier() -> None:
    """The mean log-probability, weighted by the advantages, of what was sampled."""
    policy, agent = made("CartPole-v1")
    with LocalSampler(agent, "CartPole-v1", seed=1) as sampler:
        batch = sampler.obtain_samples(500)
    advantages = batch.advantages(batch.agent_infos["value"], np.zeros(len(batch)))
    observations, actions = torch.as_tensor(batch.observations), torch.as_tensor(batch.actions)
    improve(policy, torch.optim.Adam(policy.parameters(), 1e-3), batch, seed=0, gamma=0.99, minibatch=250)
    with torch.no_grad():
        change = policy.log_prob(observations, actions).numpy() - batch.agent_infos["log_prob"]
    assert np.mean(change * (advantages - advantages.mean())) > 0.01


def test_returns_of_episodes_that_go_on() -> None:
    """They are those of whole episodes, here of a policy that learns nothing."""
    found = []
    for iterations, timesteps in ((5, 30), (1, 150)):
        policy, agent = made("CartPole-v1")
        with LocalSampler(agent, "CartPole-v1", seed=1) as sampler:
            calls = list(train(sampler, policy, iterations, timesteps, learning_rate=0.0, gamma=0.99, minibatch=200))
        assert len(calls) == iterations
        found.append(sorted(np.concatenate(calls)))
    assert found[0] == found[1]
    assert len(found[0]) > 30
    assert 8 * 150 - 500 < sum(found[0]) < 8 * 150
