"""The example of TRPO takes steps of the length it was told to, and learns the same whatever the number of workers."""

import gymnasium
import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402
from torch.nn.utils import parameters_to_vector  # noqa: E402

from streamsampler import LocalSampler  # noqa: E402
from streamsampler.agents.torch import TorchAgent  # noqa: E402
from streamsampler.examples.ppo import ActorCritic  # noqa: E402
from streamsampler.examples.trpo import conjugate_gradient, improve, main  # noqa: E402

pytestmark = pytest.mark.extras


def run(*arguments: str) -> list[str]:
    outcome = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout.splitlines()


def test_conjugate_gradients_solve_linear_equations() -> None:
    torch.manual_seed(0)
    root = torch.randn(8, 8, dtype=torch.float64)
    matrix, target = root @ root.T + torch.eye(8), torch.randn(8, dtype=torch.float64)
    found = conjugate_gradient(lambda vector: matrix @ vector, target)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, target))
    assert not conjugate_gradient(lambda vector: matrix @ vector, torch.zeros_like(target)).any()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_step_is_as_long_as_the_radius_allows(env_id: str) -> None:
    torch.manual_seed(0)
    with gymnasium.make(env_id) as env:
        policy = ActorCritic(env.observation_space, env.action_space)
        agent = TorchAgent(policy, env.action_space)
    adam = torch.optim.Adam(policy.critic.parameters(), 1e-3)
    with LocalSampler(agent, env_id, seed=1) as sampler:
        batch = sampler.obtain_samples(400)
    observations = torch.as_tensor(batch.observations)
    with torch.no_grad():
        before = policy.distribution(observations)
    actions = torch.as_tensor(batch.agent_infos.get("raw_action", batch.actions))
    torch.testing.assert_close(
        before.log_prob(actions), torch.as_tensor(batch.agent_infos["log_prob"]), check_dtype=False
    )
    found = improve(policy, adam, batch, gamma=0.99, radius=0.01)
    with torch.no_grad():
        away = torch.distributions.kl_divergence(before, policy.distribution(observations)).mean()
        change = policy.distribution(observations).log_prob(actions) - before.log_prob(actions)
    assert float(away) == pytest.approx(found, rel=1e-4)
    assert 0.003 < found <= 0.015
    advantages = torch.as_tensor(batch.advantages(gamma=0.99, lambda_=0.97))
    assert ((change.exp() - 1) * (advantages - advantages.mean())).mean() > 0


def test_no_step_is_taken_where_none_is_better() -> None:
    """With a radius that no step keeps, the policy stays what it is."""
    torch.manual_seed(0)
    with gymnasium.make("CartPole-v1") as env:
        policy = ActorCritic(env.observation_space, env.action_space)
        agent = TorchAgent(policy, env.action_space)
    with LocalSampler(agent, "CartPole-v1", seed=1) as sampler:
        batch = sampler.obtain_samples(100)
    before = parameters_to_vector(policy.actor.parameters())
    assert improve(policy, torch.optim.Adam(policy.critic.parameters()), batch, gamma=0.99, radius=0.0) == 0.0
    assert torch.equal(parameters_to_vector(policy.actor.parameters()), before)


@pytest.mark.slow
def test_it_learns_and_the_number_of_workers_changes_nothing() -> None:
    lines = run("CartPole-v1", "--iterations", "6", "--workers", "1")
    assert run("CartPole-v1", "--iterations", "6", "--workers", "3") == lines
    assert len(lines) == 7
    assert float(lines[-1].split()[3]) > 100
