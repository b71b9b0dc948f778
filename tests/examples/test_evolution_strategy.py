"""The evolution strategy learns, and learns the same whatever the number of workers."""

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner, Result

from streamsampler import LocalSampler
from streamsampler.core.seeding import Stream, derived_seed
from streamsampler.examples.evolution_strategy import PerturbedPolicy, improve, main, noise_of

FEW = ("--iterations", "4", "--pairs", "8", "--seed", "1")


def run(*arguments: str) -> Result:
    outcome = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome


def evaluated(outcome: Result) -> float:
    return float(outcome.stdout.splitlines()[-1].split()[3])


@pytest.mark.slow
def test_it_learns_and_the_number_of_workers_changes_nothing():
    first, other = (run("CartPole-v1", *FEW, "--workers", workers) for workers in ("1", "3"))
    assert first.stdout == other.stdout
    assert len(first.stdout.splitlines()) == 5
    assert evaluated(first) > 2 * evaluated(run("CartPole-v1", "--iterations", "0", "--workers", "1"))


def test_pairs_start_alike_and_differ_by_the_sign_of_their_noise():
    with gymnasium.make("CartPole-v1") as env:
        policy = PerturbedPolicy(env.observation_space, env.action_space)
    policy.set_param_values((np.ones((5, 2)), 0.5))
    policy.reset(7)
    np.testing.assert_array_equal(policy.perturbed, 1 + 0.5 * noise_of(7, (5, 2)))
    with LocalSampler(policy, "CartPole-v1", seed=3) as sampler:
        seeds = sampler.seeds(1, range(6))
        weights, returns = improve(sampler, np.zeros((5, 2)), 0.1, 6, learning_rate=1.0)
        noises = [noise_of(derived_seed(seed, Stream.AGENT), (5, 2)) for seed in seeds]
        replayed = [sampler.obtain_trajectories(seeds=seeds, agent_update=(0.1 * s * noises[2], 0.0)) for s in (1, -1)]
    assert [batch.returns[2] for batch in replayed] == returns[:, 2].tolist()
    columns = np.stack([noise.ravel() for noise in noises], axis=1)
    coefficients, *_ = np.linalg.lstsq(columns, weights.ravel(), rcond=None)
    assert (np.sign(coefficients.round(9)) == np.sign(returns[0] - returns[1])).all()


def test_actions_in_a_box():
    with gymnasium.make("Pendulum-v1") as env:
        policy = PerturbedPolicy(env.observation_space, env.action_space)
    with LocalSampler(policy, "Pendulum-v1", seed=3) as sampler:
        weights, returns = improve(sampler, np.zeros((4, 1)), 0.1, 1, learning_rate=1.0)
    assert weights.any()
    assert (returns < 0).all()


@pytest.mark.slow
def test_it_solves_cartpole():
    assert evaluated(run("CartPole-v1", "--target", "480", "--seed", "1")) >= 475
