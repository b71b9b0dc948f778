"""Estimates from values that are tensors, and those of Stable-Baselines3's buffer."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from tests.data.test_batch_estimates import batch_with

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.extras, pytest.mark.core]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_tensors_they_are_tensors(dtype):
    batch = batch_with([3, 2], [True, False])
    values = torch.randn(5, dtype=dtype, requires_grad=True)
    last_values = torch.randn(2, dtype=dtype, requires_grad=True)
    arrays = values.detach().numpy(), last_values.detach().numpy()
    for name in ("advantages", "td_lambda"):
        found = getattr(batch, name)(values, last_values)
        assert (found.dtype, found.requires_grad) == (dtype, False)
        np.testing.assert_array_equal(found.numpy(), getattr(batch, name)(*arrays).astype(found.numpy().dtype))
    assert batch.returns_to_go(0.9, last_values).dtype == dtype
    targets, advantages = batch.vtrace(values, last_values, log_ratios=torch.zeros(5))
    assert targets.dtype == advantages.dtype == dtype
    rows = next(batch.minibatches(4, seed=0))
    assert values[rows].shape == (4,)


def test_tensors_of_integers_cut_nothing_off():
    batch = batch_with([3, 2], [True, False], np.array([0.5, 1.0, 2.5, 0.25, 3.0]))
    values, last_values = torch.tensor([1, 2, 0, 3, 1]), torch.tensor([0, 2])
    arrays = values.numpy().astype(float), last_values.numpy().astype(float)
    for found, expected in (
        (batch.advantages(values, last_values), batch.advantages(*arrays)),
        (batch.returns_to_go(0.9, last_values), batch.returns_to_go(0.9, arrays[1])),
    ):
        assert found.dtype == torch.float64
        assert found.tolist() == expected.tolist()


def test_advantages_are_those_of_stable_baselines3():
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    generator = np.random.default_rng(0)
    rewards, values = generator.normal(size=(2, 60)).astype(np.float32)
    lengths = [7, 13, 1, 19, 20]
    batch = batch_with(lengths, [True, True, True, True, False], rewards.astype(np.float64))
    last_value = np.float32(0.7)
    buffer = buffers.RolloutBuffer(60, Box(-1, 1, (1,)), Discrete(2), device="cpu", gae_lambda=0.9, gamma=0.97)
    starts = np.isin(np.arange(60), batch.starts)
    for row in range(60):
        value = torch.tensor([values[row]])
        buffer.add(np.zeros((1, 1)), np.zeros((1, 1)), rewards[[row]], starts[[row]], value, torch.zeros(1))
    buffer.compute_returns_and_advantage(torch.tensor([last_value]), np.array([False]))
    last_values = np.full(5, last_value)
    found = batch.advantages(values, last_values, 0.97, 0.9)
    np.testing.assert_allclose(found, buffer.advantages[:, 0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(batch.td_lambda(values, last_values, 0.97, 0.9), buffer.returns[:, 0], rtol=0, atol=1e-4)
