"""The examples in NumPy learn, and learn the same whatever the number of workers."""

import re

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner

from streamsampler import LocalSampler
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.examples import evolution_strategy, reinforce
from streamsampler.examples.evolution_strategy import PerturbedPolicy, improve, noise_of


def printed(main, *arguments: str, exit_code: int = 0) -> str:
    outcome = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert outcome.exit_code == exit_code, outcome.output
    return outcome.stdout


def evaluated(text: str) -> float:
    return float(re.findall(r"(?:evaluation: mean return|mean return) ([\d.]+)", text)[-1])


@pytest.mark.slow
def test_reinforce_solves_cartpole_and_the_number_of_workers_changes_nothing():
    """The curve, the evaluation and the digest of the parameters: all of what is on stdout."""
    text = printed(reinforce.main, "--workers", "1", "--seed", "11")
    assert evaluated(text) >= 475
    assert "of 100 trajectories" in text
    assert re.fullmatch(r"parameters: [0-9a-f]{64}", text.splitlines()[-1])
    assert printed(reinforce.main, "--workers", "5", "--seed", "11") == text
    other = printed(reinforce.main, "--seed", "12", "--iterations", "1", exit_code=1)  # not solved
    assert other.splitlines()[0] != text.splitlines()[0]


@pytest.mark.slow
def test_the_evolution_strategy_learns_and_the_number_of_workers_changes_nothing():
    few = ("CartPole-v1", "--iterations", "4", "--pairs", "8", "--seed", "1")
    first, other = (printed(evolution_strategy.main, *few, "--workers", workers) for workers in ("1", "3"))
    assert first == other
    assert len(first.splitlines()) == 5
    untrained = printed(evolution_strategy.main, "CartPole-v1", "--iterations", "0", "--workers", "1")
    assert evaluated(first) > 2 * evaluated(untrained)
    assert evaluated(printed(evolution_strategy.main, "CartPole-v1", "--target", "480", "--seed", "1")) >= 475


def policy_for(env_id: str) -> PerturbedPolicy:
    env = gymnasium.make(env_id)
    return PerturbedPolicy(env.observation_space, env.action_space)


def test_pairs_start_alike_and_differ_by_the_sign_of_their_noise():
    policy = policy_for("CartPole-v1")
    policy.set_param_values((np.ones((5, 2)), 0.5))
    policy.reset(7)
    np.testing.assert_array_equal(policy.perturbed, 1 + 0.5 * noise_of(7, (5, 2)))
    with LocalSampler(policy, "CartPole-v1", seed=3) as sampler:
        seeds = sampler.seeds(1, range(6))
        weights, returns = improve(sampler, np.zeros((5, 2)), 0.1, 6, learning_rate=1.0)
        noises = [noise_of(derived_seed(seed, SeedUse.AGENT), (5, 2)) for seed in seeds]
        replayed = [sampler.obtain_trajectories(seeds=seeds, agent_update=(0.1 * s * noises[2], 0.0)) for s in (1, -1)]
    assert [batch.returns[2] for batch in replayed] == returns[:, 2].tolist()
    columns = np.stack([noise.ravel() for noise in noises], axis=1)
    coefficients, *_ = np.linalg.lstsq(columns, weights.ravel(), rcond=None)
    assert (np.sign(coefficients.round(9)) == np.sign(returns[0] - returns[1])).all()


def test_actions_in_a_box():
    with LocalSampler(policy_for("Pendulum-v1"), "Pendulum-v1", seed=3) as sampler:
        weights, returns = improve(sampler, np.zeros((4, 1)), 0.1, 1, learning_rate=1.0)
    assert weights.any()
    assert (returns < 0).all()
