"""The example of PPO learns, on what it sampled, and learns the same whatever the number of workers."""

import inspect
import os
import signal
from dataclasses import fields
from pathlib import Path

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker, evaluate  # noqa: E402
from streamsampler.agents.torch import TorchAgent  # noqa: E402
from streamsampler.examples import ppo  # noqa: E402
from streamsampler.examples.ppo import ActorCritic, Settings, improve, load, main, save, train  # noqa: E402
from streamsampler.filters import RunningNorm, RunningReturnNorm  # noqa: E402

pytestmark = pytest.mark.extras
NORMALIZED = ("--normalize-observations", "--normalize-rewards")


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
            assert improve(policy, adam, batch, iteration, Settings(minibatch=64)) < 1e-5


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing() -> None:
    small = ("CartPole-v1", *NORMALIZED, "--iterations", "3", "--timesteps", "30")
    lines = run(*small, "--workers", "1")
    assert len(lines) == 4
    assert run(*small, "--workers", "3") == lines


@pytest.mark.slow
def test_killed_workers_change_nothing() -> None:
    """The parameters after four updates are the same bits as those of one worker, and of workers left in peace."""
    found, settings = [], Settings(iterations=4, timesteps=40, minibatch=64)
    for n_workers, killed in ((1, False), (2, False), (2, True)):
        policy, agent = made("CartPole-v1")
        with MultiprocessingSampler(
            agent, "CartPole-v1", n_workers=n_workers, seed=1, worker_class=VecWorker, worker_args={"n_envs": 4},
            observation_filter=RunningNorm(), reward_filter=RunningReturnNorm(),
        ) as sampler:  # fmt: skip
            for number, _ in enumerate(train(sampler, policy, settings)):
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
    improve(policy, torch.optim.Adam(policy.parameters(), 1e-3), batch, 0, Settings(minibatch=250))
    with torch.no_grad():
        change = policy.log_prob(observations, actions).numpy() - batch.agent_infos["log_prob"]
    assert np.mean(change * (advantages - advantages.mean())) > 0.01


def test_returns_of_episodes_that_go_on() -> None:
    """They are those of whole episodes, here of a policy that learns nothing."""
    found = []
    for iterations, timesteps in ((5, 30), (1, 150)):
        policy, agent = made("CartPole-v1")
        with LocalSampler(agent, "CartPole-v1", seed=1) as sampler:
            settings = Settings(iterations=iterations, timesteps=timesteps, learning_rate=0.0, minibatch=200)
            calls = list(train(sampler, policy, settings))
        assert len(calls) == iterations
        found.append(sorted(np.concatenate(calls)))
    assert found[0] == found[1]
    assert len(found[0]) > 30
    assert 8 * 150 - 500 < sum(found[0]) < 8 * 150


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_the_entropy_bonus_keeps_the_policy_random(env_id: str) -> None:
    """From one batch, the policy that learns with the bonus is the more random one."""
    entropies = []
    for entropy in (0.0, 1.0):
        policy, agent = made(env_id)
        with LocalSampler(agent, env_id, seed=1) as sampler:
            batch = sampler.obtain_samples(500)
        improve(policy, torch.optim.Adam(policy.parameters(), 1e-2), batch, 0, Settings(minibatch=250, entropy=entropy))
        with torch.no_grad():
            entropies.append(float(policy.distribution(torch.as_tensor(batch.observations)).entropy().mean()))
    assert entropies[1] > entropies[0] + 0.01


def test_each_setting_is_an_option_with_its_default() -> None:
    defaults = {parameter.name: parameter.default for parameter in main.params}
    assert len(fields(Settings)) > 10
    for setting in fields(Settings):
        assert defaults[setting.name] == setting.default
    outcome = CliRunner().invoke(main, ["--help"])
    for option in ("--entropy", "--lambda", "--normalize-rewards", "--n-envs"):
        assert option in outcome.stdout


def test_what_is_saved_acts_as_in_training(tmp_path: Path) -> None:
    """The policy, on observations that are filtered with the statistics it was trained with last."""
    policy, agent = made("CartPole-v1")
    with LocalSampler(agent, "CartPole-v1", seed=1, observation_filter=RunningNorm()) as sampler:
        for _ in train(sampler, policy, Settings(iterations=2, timesteps=30)):
            pass
        save(tmp_path / "a.pt", policy, sampler.filters)
        best = TorchAgent(policy, gymnasium.make("CartPole-v1").action_space, deterministic=True)
        expected = sampler.obtain_trajectories(seeds=[4, 5, 6], agent_update=best)
    with LocalSampler(load(tmp_path / "a.pt", "CartPole-v1"), "CartPole-v1") as sampler:
        found = sampler.obtain_trajectories(seeds=[4, 5, 6])
    np.testing.assert_array_equal(found.actions, expected.actions)
    np.testing.assert_array_equal(found.observations, expected.raw_observations)
    assert os.listdir(tmp_path) == ["a.pt"]


@pytest.mark.parametrize("filters", [(), NORMALIZED])
def test_a_run_saves_what_can_be_evaluated(tmp_path: Path, filters: tuple[str, ...]) -> None:
    small = ("CartPole-v1", "--iterations", "1", "--timesteps", "5", "--workers", "1", *filters)
    lines = run(*small, "--out", str(tmp_path / "policy.pt"))
    assert lines[0] == "iteration 0: no episode ended"
    assert lines == run(*small)
    found = evaluate(load(tmp_path / "policy.pt", "CartPole-v1"), "CartPole-v1", num_trajectories=2, n_workers=0)
    assert len(found) == 2


def test_a_folder_that_is_not_there_is_told_before_the_training(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(main, ["--out", str(tmp_path / "missing" / "policy.pt")])
    assert outcome.exit_code == 2
    assert "there is no folder" in outcome.stderr


def test_it_can_be_read_in_one_sitting() -> None:
    assert len(inspect.getsource(ppo).splitlines()) <= 200
