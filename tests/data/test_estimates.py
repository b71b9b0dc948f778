"""Estimates of all trajectories at once are, bit for bit, those of each by itself."""

import warnings

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.data.estimates import discounted_returns


def one_by_one(rewards, lengths, gamma):
    returns = []
    for stop in np.cumsum(lengths):
        following, backwards = 0.0, []
        for reward in rewards[stop - lengths[len(returns)] : stop][::-1].tolist():
            following = reward + gamma * following
            backwards.append(following)
        returns.append(backwards[::-1])
    return np.array([value for values in returns for value in values])


@given(
    lengths=st.lists(st.integers(1, 12), max_size=60).flatmap(
        lambda short: st.lists(st.integers(13, 80), max_size=4).flatmap(lambda long: st.permutations(short + long))
    ),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0, np.float32(0.9)]),
    seed=st.integers(0, 2**32 - 1),
)
def test_discounted_returns_are_those_of_the_recursion(lengths, gamma, seed):
    rewards = np.random.default_rng(seed).normal(size=sum(lengths))
    n = np.array(lengths, dtype=np.int64)
    found = discounted_returns(rewards, n, gamma)
    assert found.dtype == np.float64
    assert found.tobytes() == one_by_one(rewards, n, float(gamma)).tobytes()


def test_infinite_rewards_are_data():
    rewards = np.array([np.inf, 1.0, -np.inf, np.nan] * 30)
    lengths = np.full(60, 2, dtype=np.int64)
    with warnings.catch_warnings(action="error"):
        found = discounted_returns(rewards, lengths, 0.0)
    np.testing.assert_array_equal(found, one_by_one(rewards, lengths, 0.0))
