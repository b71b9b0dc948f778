"""Returns, advantages and minibatches are those of plain loops over each trajectory."""

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.data.batch_estimates import accumulate_backwards
from streamsampler.errors import DataError, UsageError
from tests.data.test_recorder import batch_of, tickets


def batch_with(lengths, terminated, rewards=None):
    batch = batch_of(tickets(list(lengths), []))
    terminated = np.array(terminated, dtype=bool)
    rewards = batch.rewards if rewards is None else rewards
    return dataclasses.replace(batch, rewards=rewards, terminated=terminated, truncated=~terminated)


def one_by_one(terms, lengths, factors, last):
    factors = np.broadcast_to(factors, terms.shape)
    results = np.zeros(len(terms))
    for number, stop in enumerate(np.cumsum(lengths)):
        following = last[number]
        for row in range(stop - 1, stop - lengths[number] - 1, -1):
            following = results[row] = terms[row] + factors[row] * following
    return results


# Most of them short and many, so that they are walked through together, and a few long ones, one by one.
LENGTHS = st.lists(st.integers(1, 12), max_size=60).flatmap(
    lambda short: st.lists(st.integers(13, 80), max_size=4).flatmap(lambda long: st.permutations(short + long))
)


@given(lengths=LENGTHS, gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0, None]), seed=st.integers(0, 2**32 - 1))
def test_sums_of_all_trajectories_at_once_are_those_of_each(lengths, gamma, seed):
    """With one factor for all timesteps, or, for None, one for each and something that follows each end."""
    generator, n = np.random.default_rng(seed), np.array(lengths, dtype=np.int64)
    terms, factors = generator.normal(size=(2, sum(lengths)))
    last = np.zeros(len(n)) if gamma is not None else generator.normal(size=len(n))
    found = accumulate_backwards(terms, n, *((factors, last) if gamma is None else (gamma,)))
    assert found.tobytes() == one_by_one(terms, n, factors if gamma is None else gamma, last).tobytes()


def test_infinite_rewards_are_data():
    rewards, lengths = np.array([np.inf, 1.0, -np.inf, np.nan] * 30), np.full(60, 2, dtype=np.int64)
    with warnings.catch_warnings(action="error"):
        found = accumulate_backwards(rewards, lengths, 0.0)
    np.testing.assert_array_equal(found, one_by_one(rewards, lengths, 0.0, np.zeros(60)))


SHARES = st.sampled_from([0.0, 0.5, 0.97, 1.0])


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    seed=st.integers(0, 2**32 - 1),
    gamma=SHARES,
    lambda_=SHARES,
    clips=st.sampled_from([(1.0, 1.0), (2.0, 0.5)]),
)
def test_estimates_are_their_definitions(lengths, seed, gamma, lambda_, clips):
    generator = np.random.default_rng(seed)
    rewards, values, log_ratios = generator.normal(size=(3, sum(lengths)))
    last_values = generator.normal(size=len(lengths))
    batch = batch_with(lengths, generator.random(len(lengths)) < 0.5, rewards)
    found = batch.advantages(values, last_values, gamma, lambda_)
    to_go = batch.returns_to_go(gamma, last_values)
    np.testing.assert_array_equal(batch.td_lambda(values, last_values, gamma, lambda_), found + values)
    np.testing.assert_allclose(to_go - values, batch.advantages(values, last_values, gamma, 1.0), rtol=0, atol=1e-12)

    settings = {"gamma": gamma, "lambda_": lambda_, "clip_rho": clips[0], "clip_c": clips[1]}
    targets, advantages = batch.vtrace(values, last_values, log_ratios=log_ratios, **settings)
    rho, c = np.minimum(np.exp(log_ratios), clips[0]), lambda_ * np.minimum(np.exp(log_ratios), clips[1])
    expected = np.zeros((4, len(rewards)))
    for number, start in enumerate(batch.starts):
        stop = start + batch.lengths[number]
        last = 0.0 if batch.terminated[number] else last_values[number]
        known = np.array([*values[start:stop], last])
        errors = rewards[start:stop] + gamma * known[1:] - known[:-1]
        for row in range(start, stop):
            k, powers = row - start, np.arange(stop - row)
            weights = [gamma**i * np.prod(c[row : row + i]) for i in powers]
            expected[0, row] = ((gamma * lambda_) ** powers) @ errors[k:]
            expected[1, row] = gamma**powers @ rewards[row:stop] + gamma ** (stop - row) * last
            expected[2, row] = known[k] + np.dot(weights, (rho[start:stop] * errors)[k:])
            following = targets[row + 1] if row + 1 < stop else last
            expected[3, row] = rho[row] * (rewards[row] + gamma * following - known[k])
    np.testing.assert_allclose([found, to_go], expected[:2], rtol=0, atol=1e-12)
    np.testing.assert_allclose([targets, advantages], expected[2:], rtol=0, atol=1e-11)


def test_weights_beyond_all_numbers_are_clipped_and_what_terminated_needs_no_last_values():
    batch, values = batch_with([2, 1], [True, True]), np.array([1.0, 2.0, 3.0])
    targets, _ = batch.vtrace(values, log_ratios=np.array([1e9, -1e9, 0]))
    assert np.isfinite(targets).all()
    assert batch.advantages(values).tolist() == batch.advantages(values, np.array([np.nan, np.inf])).tolist()
    assert batch.returns_to_go(1.0).tolist() == batch.discounted_returns(1.0).tolist()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((np.zeros(4), np.zeros(2)), r"values have the shape \(4,\), but should have \(3,\)"),
        ((np.zeros((3, 1)), np.zeros(2)), r"values have the shape \(3, 1\)"),
        ((np.zeros(3), 0.0), r"last_values have the shape \(\)"),
        ((np.zeros(3), np.zeros(3)), r"last_values have the shape \(3,\), but should have \(2,\)"),
        ((np.zeros(3),), "1 of 2 trajectories did not terminate, the first at position 1: pass last_values"),
        ((["a", "b", "c"], np.zeros(2)), "values should be real numbers"),
        ((np.zeros(3) + 1j, np.zeros(2)), "values should be real numbers"),
    ],
    ids=range(7),
)
def test_values_that_do_not_fit_are_refused(arguments, said):
    batch = batch_with([2, 1], [True, False])
    for method in (batch.advantages, batch.td_lambda, lambda *given: batch.vtrace(*given, log_ratios=np.zeros(3))):
        with pytest.raises(DataError, match=said):
            method(*arguments)


@pytest.mark.parametrize(
    ("method", "arguments", "said"),
    [
        ("advantages", {"gamma": 1.5}, r"gamma must be between 0 and 1, not 1\.5"),
        ("td_lambda", {"lambda_": float("nan")}, "lambda_ must be between 0 and 1, not nan"),
        ("returns_to_go", {"gamma": -1}, "gamma must be between 0 and 1, not -1"),
        ("discounted_returns", {"gamma": np.full(3, 0.9)}, "gamma must be a number, got"),
        ("vtrace", {"clip_rho": 0, "clip_c": 1}, r"clip_rho and clip_c must be above 0, not 0.0 and 1.0"),
        ("advantages", {"gamma": "0.9"}, "gamma must be a number, got"),
        ("vtrace", {"clip_rho": None}, "clip_rho must be a number, got"),
        ("vtrace", {"log_ratios": np.zeros(2)}, "log_ratios have the shape"),
        ("minibatches", {"size": 0}, "size must be at least 1, got 0"),
        ("minibatches", {"size": 2.5}, "size must be an integer, got 2.5"),
        ("minibatches", {"epochs": 0}, "epochs must be at least 1, got 0"),
        ("minibatches", {"seed": None}, "seed must be an integer, got None"),
        ("minibatches", {"seed": -1}, "seed must be at least 0, got -1"),
        ("minibatches", {"by": "row"}, "by must be 'timestep', 'trajectory' or 'sequence', not 'row'"),
    ],
    ids=str,
)
def test_arguments_out_of_their_ranges_are_refused(method, arguments, said):
    """Those of minibatches before the first one is asked for."""
    values = np.zeros(3)
    others: dict[str, Any] = {"vtrace": {"log_ratios": values}, "minibatches": {"size": 2, "seed": 1}}
    given = () if method in ("returns_to_go", "discounted_returns", "minibatches") else (values,)
    with pytest.raises(DataError if "log_ratios" in arguments else UsageError, match=said):
        getattr(batch_with([2, 1], [True, True]), method)(*given, **others.get(method, {}) | arguments)


@pytest.mark.parametrize(("by", "n"), [("timestep", 10), ("trajectory", 4)])
def test_each_epoch_has_each_of_them_once_in_another_order(by, n):
    batch = batch_with([3, 2, 4, 1], [True] * 4)
    found, again, other = (list(batch.minibatches(3, seed=seed, by=by, epochs=2)) for seed in (1, 1, 2))
    assert [len(each) for each in found] == 2 * ([3] * (n // 3) + [n % 3])
    first, second = np.split(np.concatenate(found), 2)
    assert sorted(first) == sorted(second) == list(range(n))
    assert first.tolist() != second.tolist()
    assert all(map(np.array_equal, found, again))
    assert np.concatenate(other).tolist() != np.concatenate(found).tolist()
