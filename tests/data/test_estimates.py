"""Estimates of all trajectories at once are, bit for bit, those of each by itself."""

import warnings

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.data.batch_estimates import accumulate_backwards


def one_by_one(rewards, lengths, gamma, last=None):
    factors = np.broadcast_to(gamma, rewards.shape)
    results = np.zeros(len(rewards))
    for number, stop in enumerate(np.cumsum(lengths)):
        following = 0.0 if last is None else last[number]
        for row in range(stop - 1, stop - lengths[number] - 1, -1):
            following = results[row] = rewards[row] + factors[row] * following
    return results


# Most of them short and many, so that they are walked through together, and a few long ones, one by one.
LENGTHS = st.lists(st.integers(1, 12), max_size=60).flatmap(
    lambda short: st.lists(st.integers(13, 80), max_size=4).flatmap(lambda long: st.permutations(short + long))
)
SEEDS = st.integers(0, 2**32 - 1)


@given(
    lengths=LENGTHS,
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0, np.float32(0.9)]),
    seed=SEEDS,
)
def test_discounted_returns_are_those_of_the_recursion(lengths, gamma, seed):
    rewards = np.random.default_rng(seed).normal(size=sum(lengths))
    n = np.array(lengths, dtype=np.int64)
    found = accumulate_backwards(rewards, n, float(gamma))
    assert found.dtype == np.float64
    assert found.tobytes() == one_by_one(rewards, n, float(gamma)).tobytes()


@given(lengths=LENGTHS, seed=SEEDS)
def test_each_timestep_may_have_a_factor_and_each_end_something_that_follows(lengths, seed):
    generator = np.random.default_rng(seed)
    terms, factors = generator.normal(size=(2, sum(lengths)))
    n, last = np.array(lengths, dtype=np.int64), generator.normal(size=len(lengths))
    found = accumulate_backwards(terms, n, factors, last)
    assert found.tobytes() == one_by_one(terms, n, factors, last).tobytes()


def test_infinite_rewards_are_data():
    rewards = np.array([np.inf, 1.0, -np.inf, np.nan] * 30)
    lengths = np.full(60, 2, dtype=np.int64)
    with warnings.catch_warnings(action="error"):
        found = accumulate_backwards(rewards, lengths, 0.0)
    np.testing.assert_array_equal(found, one_by_one(rewards, lengths, 0.0))
