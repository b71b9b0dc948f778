"""Returns, advantages and minibatches are those of plain loops over each trajectory."""

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import TrajectoryBatch
from streamsampler.errors import DataError, UsageError
from tests.data.test_recorder import batch_of, tickets


def batch_with(lengths, terminated, rewards=None):
    batch = batch_of(tickets(list(lengths), []))
    terminated = np.array(terminated, dtype=bool)
    rewards = batch.rewards if rewards is None else rewards
    return dataclasses.replace(batch, rewards=rewards, terminated=terminated, truncated=~terminated)


@st.composite
def problems(draw):
    """Draw a batch with random rewards and ends, values, last values and the logarithms of importance weights."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=40))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rewards, values, log_ratios = generator.normal(size=(3, sum(lengths)))
    batch = batch_with(lengths, generator.random(len(lengths)) < 0.5, rewards)
    return batch, values, generator.normal(size=len(lengths)), log_ratios


def trajectories(batch, values, last_values):
    """Return of each trajectory its rows, its rewards, its values, and the value of what follows."""
    for number, start in enumerate(batch.starts):
        rows = range(start, start + batch.lengths[number])
        last = 0.0 if batch.terminated[number] else last_values[number]
        yield rows, batch.rewards, np.concatenate([values[start : rows.stop], [last]]), last


SHARES = st.sampled_from([0.0, 0.5, 0.97, 1.0])


@given(problem=problems(), gamma=SHARES, lambda_=SHARES)
def test_advantages_are_sums_of_discounted_errors(problem, gamma, lambda_):
    batch, values, last_values, _ = problem
    found = batch.advantages(values, last_values, gamma, lambda_)
    for rows, rewards, known, _ in trajectories(batch, values, last_values):
        errors = [rewards[row] + gamma * known[k + 1] - known[k] for k, row in enumerate(rows)]
        for k, row in enumerate(rows):
            expected = sum((gamma * lambda_) ** i * error for i, error in enumerate(errors[k:]))
            assert found[row] == pytest.approx(expected, rel=0, abs=1e-12)
    np.testing.assert_array_equal(batch.td_lambda(values, last_values, gamma, lambda_), found + values)


@given(problem=problems(), gamma=SHARES)
def test_returns_to_go_count_what_follows_a_truncated_trajectory(problem, gamma):
    batch, values, last_values, _ = problem
    found = batch.returns_to_go(gamma, last_values)
    for rows, rewards, _, last in trajectories(batch, values, last_values):
        for row in rows:
            rest = [*rewards[row : rows.stop], last]
            assert found[row] == pytest.approx(sum(gamma**i * each for i, each in enumerate(rest)), rel=0, abs=1e-12)
    monte_carlo = batch.advantages(values, last_values, gamma, 1.0)
    np.testing.assert_allclose(found - values, monte_carlo, rtol=0, atol=1e-12)


@given(problem=problems(), gamma=SHARES, lambda_=SHARES, clips=st.sampled_from([(1.0, 1.0), (2.0, 0.5)]))
def test_vtrace_is_its_definition(problem, gamma, lambda_, clips):
    batch, values, last_values, log_ratios = problem
    clip_rho, clip_c = clips
    settings = {"gamma": gamma, "lambda_": lambda_, "clip_rho": clip_rho, "clip_c": clip_c}
    targets, advantages = batch.vtrace(values, last_values, log_ratios=log_ratios, **settings)
    rho, c = np.minimum(np.exp(log_ratios), clip_rho), lambda_ * np.minimum(np.exp(log_ratios), clip_c)
    for rows, rewards, known, last in trajectories(batch, values, last_values):
        errors = [rho[row] * (rewards[row] + gamma * known[k + 1] - known[k]) for k, row in enumerate(rows)]
        for k, row in enumerate(rows):
            weights = [gamma**i * np.prod(c[row : row + i]) for i in range(len(errors) - k)]
            assert targets[row] == pytest.approx(known[k] + np.dot(weights, errors[k:]), rel=0, abs=1e-11)
            following = targets[row + 1] if row + 1 < rows.stop else last
            expected = rho[row] * (rewards[row] + gamma * following - known[k])
            assert advantages[row] == pytest.approx(expected, rel=0, abs=1e-11)


@given(problem=problems())
def test_vtrace_of_the_policy_that_sampled_has_the_targets_of_td_lambda(problem):
    batch, values, last_values, _ = problem
    targets, _ = batch.vtrace(values, last_values, log_ratios=np.zeros(len(values)), gamma=0.9, lambda_=0.8)
    np.testing.assert_allclose(targets, batch.td_lambda(values, last_values, 0.9, 0.8), rtol=0, atol=1e-12)


def test_weights_beyond_all_numbers_are_clipped():
    batch = batch_with([2], [True])
    targets, _ = batch.vtrace(np.zeros(2), log_ratios=np.array([1e9, -1e9]))
    assert np.isfinite(targets).all()


def test_what_terminated_needs_no_last_values():
    batch = batch_with([2, 1], [True, True])
    values = np.array([1.0, 2.0, 3.0])
    assert batch.advantages(values).tolist() == batch.advantages(values, np.array([np.nan, np.inf])).tolist()
    assert batch.returns_to_go(1.0).tolist() == batch.discounted_returns(1.0).tolist()


@pytest.mark.slow
def test_a_million_advantages_take_no_longer_than_some_cumulative_sums():
    """Eight of them by CPU time, and a loop in Python some hundreds; of trajectories of lengths that differ a lot."""
    generator = np.random.default_rng(0)
    shares = generator.exponential(size=1_000)
    episodes = [
        {"observations": np.zeros(n + 1), "actions": np.zeros(n, np.int64), "rewards": generator.normal(size=n)}
        | {"terminated": n % 2 == 0, "truncated": n % 2 == 1}
        for n in np.ceil(1e6 * shares / shares.sum()).astype(int)
    ]
    batch = TrajectoryBatch.from_list(episodes, spaces.Box(-1.0, 1.0, (), np.float64), spaces.Discrete(2))
    values, last_values = generator.normal(size=batch.n_timesteps), generator.normal(size=1_000)

    def seconds(function, *arguments):
        began = time.process_time()
        function(*arguments)
        return time.process_time() - began

    pairs = [
        (seconds(np.cumsum, batch.rewards), seconds(batch.advantages, values, last_values, 0.99, 0.95))
        for _ in range(5)
    ]
    least_sum, least_advantages = np.min(pairs, axis=0)
    assert least_advantages < 60 * least_sum


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((np.zeros(4), np.zeros(2)), r"values have the shape \(4,\), but the batch has 3 timesteps: \(3,\) is needed"),
        ((np.zeros((3, 1)), np.zeros(2)), r"values have the shape \(3, 1\)"),
        ((np.zeros(3), np.zeros(3)), r"last_values have the shape \(3,\), but the batch has 2 trajectories"),
        ((np.zeros(3), 0.0), r"last_values have the shape \(\)"),
        ((np.zeros(3),), "1 of 2 trajectories did not terminate, at first the one at 1: give last_values"),
    ],
)
def test_values_of_another_shape_are_refused(arguments, said):
    batch = batch_with([2, 1], [True, False])
    for method in (batch.advantages, batch.td_lambda, lambda *given: batch.vtrace(*given, log_ratios=np.zeros(3))):
        with pytest.raises(DataError, match=said):
            method(*arguments)


def test_numbers_out_of_their_ranges_are_refused():
    batch = batch_with([2, 1], [True, True])
    values = np.zeros(3)
    with pytest.raises(UsageError, match=r"gamma must be between 0 and 1, not 1\.5"):
        batch.advantages(values, gamma=1.5)
    with pytest.raises(UsageError, match="lambda_ must be between 0 and 1, not nan"):
        batch.td_lambda(values, lambda_=float("nan"))
    with pytest.raises(UsageError, match="gamma must be between 0 and 1, not -1"):
        batch.returns_to_go(-1)
    with pytest.raises(UsageError, match=r"clip_rho and clip_c must be above 0, not 0.0 and 1.0"):
        batch.vtrace(values, log_ratios=values, clip_rho=0, clip_c=1)
    with pytest.raises(DataError, match="log_ratios have the shape"):
        batch.vtrace(values, log_ratios=np.zeros(2))


@pytest.mark.parametrize(("by", "n"), [("timestep", 10), ("trajectory", 4)])
def test_each_epoch_has_each_of_them_once_in_another_order(by, n):
    batch = batch_with([3, 2, 4, 1], [True] * 4)
    found = list(batch.minibatches(3, seed=1, by=by, epochs=2))
    assert [len(each) for each in found] == 2 * ([3] * (n // 3) + [n % 3])
    first, second = np.split(np.concatenate(found), 2)
    assert sorted(first) == sorted(second) == list(range(n))
    assert first.tolist() != second.tolist()
    again = list(batch.minibatches(3, seed=1, by=by, epochs=2))
    assert all(map(np.array_equal, found, again))
    other = np.concatenate(list(batch.minibatches(3, seed=2, by=by, epochs=2)))
    assert other.tolist() != np.concatenate(found).tolist()


def test_minibatches_of_nothing_are_refused_before_the_first():
    batch = batch_with([3], [True])
    with pytest.raises(UsageError, match="size must be at least 1, got 0"):
        batch.minibatches(0, seed=0)
    with pytest.raises(UsageError, match="epochs must be at least 1, got 0"):
        batch.minibatches(1, seed=0, epochs=0)
    with pytest.raises(UsageError, match="by must be 'timestep' or 'trajectory', not 'row'"):
        batch.minibatches(1, seed=0, by="row")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"size": 2.5}, "size must be an integer, got 2.5"),
        ({"size": "5"}, "size must be an integer, got '5'"),
        ({"epochs": 1.5}, "epochs must be an integer, got 1.5"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": None}, "seed must be an integer, got None"),
        ({"seed": "x"}, "seed must be an integer, got 'x'"),
    ],
)
def test_minibatches_take_integers(wrong: dict[str, Any], said):
    with pytest.raises(UsageError, match=said):
        batch_with([3], [True]).minibatches(**{"size": 2, "seed": 1, **wrong})


@pytest.mark.parametrize("wrong", ["0.9", None, np.full(3, 0.9)], ids=["text", "none", "array"])
def test_a_discount_is_a_number(wrong: Any):
    batch, values = batch_with([2, 1], [True, True]), np.zeros(3)
    for call in (
        lambda: batch.advantages(values, gamma=wrong),
        lambda: batch.returns_to_go(wrong),
        lambda: batch.discounted_returns(wrong),
    ):
        with pytest.raises(UsageError, match="gamma must be a number, got"):
            call()
    with pytest.raises(UsageError, match="clip_rho must be a number, got"):
        batch.vtrace(values, log_ratios=values, clip_rho=wrong)


@pytest.mark.parametrize("wrong", [["a", "b", "c"], [None] * 3, np.zeros(3) + 1j], ids=["texts", "nones", "complex"])
def test_values_are_real_numbers(wrong: Any):
    with pytest.raises(DataError, match=r"values should be (real )?numbers"):
        batch_with([2, 1], [True, True]).advantages(wrong)
