"""The examples in PyTorch (PPO, also with a memory and with several agents, and TRPO) learn on what they sampled."""

import functools
import inspect
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker, evaluate  # noqa: E402
from streamsampler.agents.torch import TorchAgent  # noqa: E402
from streamsampler.examples import ppo, ppo_multiagent, ppo_recurrent, trpo  # noqa: E402
from streamsampler.examples.ppo import ActorCritic, Settings, improve, load, main, save, train  # noqa: E402
from streamsampler.filters import RunningNorm, RunningReturnNorm  # noqa: E402

pytestmark = pytest.mark.extras

PARTLY = functools.partial(ppo_recurrent.make, "CartPole-v1", "1,3")
BOTH = pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])


def run(command: Any, *arguments: str) -> list[str]:
    outcome = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout.splitlines()


def made(env_id: str = "CartPole-v1", learning_rate: float = 1e-3) -> tuple[ActorCritic, TorchAgent, Any]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with gymnasium.make(env_id) as env:
        policy, space = ActorCritic(env.observation_space, env.action_space), env.action_space
    return policy, TorchAgent(policy, space), torch.optim.Adam(policy.parameters(), learning_rate)


def remembering(state_every: int = ppo_recurrent.LENGTH) -> tuple[ppo_recurrent.RecurrentActorCritic, TorchAgent, Any]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy, space = ppo_recurrent.RecurrentActorCritic(env := PARTLY()), env.action_space
    return policy, TorchAgent(policy, space, state_every=state_every), torch.optim.Adam(policy.parameters(), 2e-3)


@BOTH
@pytest.mark.parametrize("norm", [None, RunningNorm()])
def test_the_first_ratios_are_one(env_id: str, norm: RunningNorm | None) -> None:
    """In each iteration: parameters, filter and values are those that the batch was sampled with."""
    policy, agent, adam = made(env_id)
    with LocalSampler(agent, env_id, seed=1, observation_filter=norm) as sampler:
        for iteration in range(3):
            batch = sampler.obtain_fragments(60, 3, agent_update=policy)
            assert improve(policy, adam, batch, iteration, Settings(minibatch=64)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "options"),
    [
        (ppo, ("--normalize-observations", "--normalize-rewards", "--iterations", "3", "--timesteps", "30")),
        (trpo, ("--iterations", "6")),
    ],
)
def test_the_number_of_workers_changes_nothing(example: Any, options: tuple[str, ...]) -> None:
    lines = run(example.main, "CartPole-v1", *options, "--workers", "1")
    assert run(example.main, "CartPole-v1", *options, "--workers", "3") == lines
    if example is trpo:
        assert float(lines[-1].split()[3]) > 100, "it learns"


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", [False, True])
def test_workers_that_are_killed_change_nothing(recurrent: bool) -> None:
    """The parameters after some updates are the same bits as those of one worker in this process."""
    found, settings = [], Settings(iterations=4, timesteps=40, minibatch=64)
    lanes: Any = {"worker_class": VecWorker, "worker_args": {"n_envs": 4}}
    lanes |= {"observation_filter": RunningNorm(), "reward_filter": RunningReturnNorm()}

    def remember(sampler: Any, policy: ppo_recurrent.RecurrentActorCritic, adam: Any) -> Iterator[None]:
        for iteration in range(3):
            batch = sampler.obtain_fragments(40, 4, agent_update=policy)
            ppo_recurrent.improve(policy, adam, batch, iteration)
            yield

    for make, n_workers in ((LocalSampler, 1), (MultiprocessingSampler, 2)):
        learner: Any
        learner, agent, adam = remembering() if recurrent else made()
        with make(
            agent, PARTLY if recurrent else "CartPole-v1", n_workers=n_workers, seed=1, **({} if recurrent else lanes)
        ) as sampler:
            for _ in remember(sampler, learner, adam) if recurrent else train(sampler, learner, settings):
                if n_workers > 1:
                    os.kill(sampler.worker_pids()[sampler.agent_version % 2], signal.SIGKILL)
            assert bool(sampler.stats.restarts) == (n_workers > 1)
        found.append(torch.nn.utils.parameters_to_vector(learner.parameters()))
    assert torch.equal(found[1], found[0])


@BOTH
def test_the_entropy_bonus_keeps_the_policy_random(env_id: str) -> None:
    """From one batch, the policy that learns with the bonus is the more random one."""
    entropies = []
    for entropy in (0.0, 1.0):
        policy, agent, adam = made(env_id, learning_rate=1e-2)
        with LocalSampler(agent, env_id, seed=1) as sampler:
            batch = sampler.obtain_samples(500)
        improve(policy, adam, batch, 0, Settings(minibatch=250, entropy=entropy))
        with torch.no_grad():
            entropies.append(float(policy.distribution(torch.as_tensor(batch.observations)).entropy().mean()))
    assert entropies[1] > entropies[0] + 0.01


def test_one_iteration_makes_better_actions_likelier() -> None:
    """The mean log-probability, weighted by the advantages, of what was sampled."""
    policy, agent, adam = made()
    with LocalSampler(agent, "CartPole-v1", seed=1) as sampler:
        batch = sampler.obtain_samples(500)
    advantages = batch.advantages(batch.agent_infos["value"], np.zeros(len(batch)))
    observations, actions = torch.as_tensor(batch.observations), torch.as_tensor(batch.actions)
    improve(policy, adam, batch, 0, Settings(minibatch=250))
    with torch.no_grad():
        change = policy.log_prob(observations, actions).numpy() - batch.agent_infos["log_prob"]
    assert np.mean(change * (advantages - advantages.mean())) > 0.01


def test_returns_of_episodes_that_go_on() -> None:
    """They are those of whole episodes, here of a policy that learns nothing."""
    found = []
    for iterations, timesteps in ((5, 30), (1, 150)):
        policy, agent, _ = made()
        with LocalSampler(agent, "CartPole-v1", seed=1) as sampler:
            settings = Settings(iterations=iterations, timesteps=timesteps, learning_rate=0.0, minibatch=200)
            calls = list(train(sampler, policy, settings))
        assert len(calls) == iterations
        found.append(sorted(np.concatenate(calls)))
    assert found[0] == found[1]
    assert len(found[0]) > 30
    assert 8 * 150 - 500 < sum(found[0]) < 8 * 150


def test_each_setting_is_an_option_with_its_default_and_the_example_can_be_read_in_one_sitting() -> None:
    defaults = {parameter.name: parameter.default for parameter in main.params}
    assert {setting.name: defaults[setting.name] for setting in fields(Settings)} == {
        setting.name: setting.default for setting in fields(Settings)
    }
    assert len(inspect.getsource(ppo).splitlines()) <= 200


def test_what_is_saved_acts_as_in_training(tmp_path: Path) -> None:
    """The policy, on observations that are filtered with the statistics it was trained with last."""
    policy, agent, _ = made()
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
    small = ("CartPole-v1", "--iterations", "1", "--timesteps", "5", "--workers", "1")
    for filters in ([], ["--normalize-observations", "--normalize-rewards"]):
        lines = run(main, *small, *filters, "--out", str(tmp_path / "b.pt"))
        assert lines[0] == "iteration 0: no episode ended"
        agent = load(tmp_path / "b.pt", "CartPole-v1")
        assert len(evaluate(agent, "CartPole-v1", num_trajectories=2, n_workers=0)) == 2


@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}], ids=str)
def test_the_learners_memory_is_that_of_the_agent(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where episodes go on, in the middle of episodes, and in each iteration."""
    monkeypatch.setattr(ppo_recurrent, "LENGTH", 6)
    policy, agent, adam = remembering(state_every=3)
    with LocalSampler(agent, PARTLY, seed=1, observation_filter=RunningNorm(), **options) as sampler:
        for iteration in range(3):
            batch = sampler.obtain_fragments(15, 3, agent_update=policy)
            assert batch.continued.any() == (iteration > 0)
            assert ppo_recurrent.improve(policy, adam, batch, iteration) < 1e-5
    assert not batch.raw_observations[:, [1, 3]].any()
    assert batch.raw_observations[:, [0, 2]].all()


def test_values_of_last_observations_are_those_of_the_memory() -> None:
    policy, agent, _ = remembering()
    with LocalSampler(agent, PARTLY, seed=1) as sampler:
        batch = sampler.obtain_fragments(30, 2)
    for one in batch:
        rows = np.concatenate([one.observations, one.last_observations])
        with torch.no_grad():
            _, values, _ = policy.along(rows[None], one.agent_infos["state"][:1])
        expected = np.append(one.values, one.last_values) if not one.terminated[0] else one.values
        np.testing.assert_allclose(values[0, : len(expected)].numpy(), expected, atol=1e-5)


@pytest.mark.core
def test_several_agents_learn_the_same_for_any_number_of_workers() -> None:
    game = "tests.scripted.zoo:parallel_env"
    small = (game, "--n-envs", "8", "--timesteps", "32", "--minibatch", "64", "--iterations", "2", "--seed", "1")
    one, two = ("\n".join(run(ppo_multiagent.main, *small, "--workers", n)) for n in ("1", "2"))
    assert one == two
    assert len(re.findall(r"iteration \d: mean return [\d.]+ of \d+ episodes?\n", one)) == 2
    assert "evaluation: mean return" in one


@pytest.mark.slow
def test_several_agents_learn() -> None:
    more = ("--n-envs", "16", "--timesteps", "64", "--minibatch", "128", "--iterations", "25", "--workers", "1")
    lines = "\n".join(run(ppo_multiagent.main, "tests.scripted.zoo:parallel_env", *more))
    first, *_, last = [float(value) for value in re.findall(r"iteration \d+: mean return ([\d.]+)", lines)]
    assert last > 1.3 * first


def test_conjugate_gradients_solve_linear_equations() -> None:
    torch.manual_seed(0)
    root = torch.randn(8, 8, dtype=torch.float64)
    matrix, target = root @ root.T + torch.eye(8), torch.randn(8, dtype=torch.float64)
    found = trpo.conjugate_gradient(lambda vector: matrix @ vector, target)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, target))
    assert not trpo.conjugate_gradient(lambda vector: matrix @ vector, torch.zeros_like(target)).any()


@BOTH
def test_a_step_of_trpo_is_as_long_as_the_radius_allows(env_id: str) -> None:
    policy, agent, _ = made(env_id)
    adam = torch.optim.Adam(policy.critic.parameters(), 1e-3)
    with LocalSampler(agent, env_id, seed=1) as sampler:
        batch = sampler.obtain_samples(400)
    observations = torch.as_tensor(batch.observations)
    with torch.no_grad():
        before = policy.distribution(observations)
    weights = torch.nn.utils.parameters_to_vector(policy.actor.parameters())
    assert trpo.improve(policy, adam, batch, gamma=0.99, radius=0.0) == 0.0, "no step is taken where none is better"
    assert torch.equal(torch.nn.utils.parameters_to_vector(policy.actor.parameters()), weights)
    found = trpo.improve(policy, adam, batch, gamma=0.99, radius=0.01)
    actions = torch.as_tensor(batch.agent_infos.get("raw_action", batch.actions))
    with torch.no_grad():
        away = torch.distributions.kl_divergence(before, policy.distribution(observations)).mean()
        change = policy.distribution(observations).log_prob(actions) - before.log_prob(actions)
    assert float(away) == pytest.approx(found, rel=1e-4)
    assert 0.003 < found <= 0.015
    advantages = torch.as_tensor(batch.advantages(gamma=0.99, lambda_=0.97))
    assert ((change.exp() - 1) * (advantages - advantages.mean())).mean() > 0
