"""Batches as tensors, tensors in infos, and estimates from values that are tensors."""

import dataclasses
import sys

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from streamsampler import LocalSampler, VecWorker
from tests.scripted.envs import Nested, Steps

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.extras, pytest.mark.core]


class Told:
    """Tells what a network returned as it came: floats of half the length, and tensors with a gradient."""

    def get_action(self, observation):
        value = torch.tensor(observation[0], requires_grad=True)
        infos = {"log_prob": np.float32(-0.5), "value": value * 2, "hidden": torch.ones(2, dtype=torch.float16)}
        return 0, infos


class ToldTogether(Told):
    def get_actions(self, observations):
        n = len(observations)
        value = torch.tensor(observations[:, 0], requires_grad=True)
        hidden = torch.ones((n, 2), dtype=torch.float16)
        return np.zeros(n, np.int64), {"log_prob": [np.float32(-0.5)] * n, "value": value * 2, "hidden": hidden}


def sampled(agent="random", env=Steps, **options):
    with LocalSampler(agent, env, seed=1, **options) as sampler:
        return sampler.obtain_trajectories(6)


def of_lengths(lengths, terminated, rewards):
    """Return a batch of trajectories of these lengths."""
    with LocalSampler(["random"] * len(lengths), [lambda n=n: Steps(n) for n in lengths], seed=1) as sampler:
        batch = sampler.obtain_trajectories(len(lengths))
    assert batch.lengths.tolist() == lengths
    terminated = np.array(terminated)
    return dataclasses.replace(batch, rewards=np.array(rewards, float), terminated=terminated, truncated=~terminated)


@pytest.mark.parametrize("agent", [ToldTogether(), Told()], ids=["batched", "one by one"])
@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker}], ids=["default", "vec"])
def test_log_probabilities_and_values_keep_their_dtypes(agent, options):
    batch = sampled(agent, "CartPole-v1", **options)
    infos = batch.agent_infos
    assert [infos[key].dtype for key in ("log_prob", "value", "hidden")] == [np.float32, np.float32, np.float16]
    np.testing.assert_array_equal(infos["value"], 2 * batch.observations[:, 0])
    assert infos["hidden"].shape == (batch.n_timesteps, 2)


def test_tensors_share_the_memory_of_the_batch():
    batch = sampled(env=Nested)
    tensors = batch.to_torch()
    for name in ("actions", "rewards", "terminated", "lengths", "worker_numbers"):
        array, tensor = getattr(batch, name), tensors[name].numpy()
        assert np.array_equal(tensor, array)
        assert tensor.dtype == array.dtype
        assert np.shares_memory(tensor, array)
    for name in ("observations", "last_observations"):
        assert np.shares_memory(tensors[name]["task"][1].numpy(), getattr(batch, name)["task"][1])
    infos = batch.env_infos
    assert tensors["env_infos"]["sum"].dtype == torch.float64
    assert tensors["env_infos"]["event"]["_where"].dtype == torch.bool
    assert tensors["env_infos"]["event"]["where"].tolist() == infos["event"]["where"].tolist()
    assert tensors["env_infos"]["event"]["name"] is infos["event"]["name"]  # texts stay
    assert set(tensors) == {field.name for field in dataclasses.fields(batch)} - {
        "observation_space", "action_space", "seeds", "seed", "stats", "fingerprints", "raw", "fragments", "agents",
    }  # fmt: skip


def test_what_cannot_be_shared_is_copied(monkeypatch):
    batch = sampled()
    n = batch.n_timesteps
    rewards = np.arange(float(n))
    rewards.flags.writeable = False
    infos = {"big": np.arange(n, dtype=">f4"), "when": np.zeros(n, "M8[s]"), "long": np.zeros(n, np.longdouble)}
    odd = dataclasses.replace(batch, rewards=rewards, observations=batch.observations[::-1], agent_infos=infos)
    tensors = odd.to_torch()
    assert tensors["rewards"].tolist() == rewards.tolist()
    assert np.array_equal(tensors["observations"].numpy(), odd.observations)
    assert tensors["agent_infos"]["big"].tolist() == list(range(n))
    assert isinstance(tensors["agent_infos"]["when"], np.ndarray)
    assert isinstance(tensors["agent_infos"]["long"], np.ndarray)
    assert batch.to_torch(device="meta")["rewards"].device.type == "meta"
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install torch"):
        batch.to_torch()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_estimates_of_tensors_are_tensors(dtype):
    """Those of integers are of floats: nothing is cut off."""
    batch = of_lengths([3, 2], [True, False], [0.5, 1.0, 2.5, 0.25, 3.0])
    values, last_values = torch.tensor([1, 2, 0, 3, 1], dtype=dtype), torch.tensor([0, 2], dtype=dtype)
    if dtype.is_floating_point:
        values, last_values = (values / 3).requires_grad_(), (last_values / 3).requires_grad_()
    arrays = values.detach().numpy(), last_values.detach().numpy()
    arrays = arrays if dtype.is_floating_point else (arrays[0].astype(float), arrays[1].astype(float))
    expected = dtype if dtype.is_floating_point else torch.float64
    for found, same in (
        (batch.advantages(values, last_values), batch.advantages(*arrays)),
        (batch.td_lambda(values, last_values), batch.td_lambda(*arrays)),
        (batch.returns_to_go(0.9, last_values), batch.returns_to_go(0.9, arrays[1])),
    ):
        assert (found.dtype, found.requires_grad) == (expected, False)
        np.testing.assert_array_equal(found.numpy(), same.astype(found.numpy().dtype))
    targets, advantages = batch.vtrace(values, last_values, log_ratios=torch.zeros(5))
    assert targets.dtype == advantages.dtype == expected
    assert values[next(batch.minibatches(4, seed=0))].shape == (4,)


def test_advantages_are_those_of_stable_baselines3():
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    rewards, values = np.random.default_rng(0).normal(size=(2, 60)).astype(np.float32)
    batch = of_lengths([7, 13, 1, 19, 20], [True, True, True, True, False], rewards)
    buffer = buffers.RolloutBuffer(60, Box(-1, 1, (1,)), Discrete(2), device="cpu", gae_lambda=0.9, gamma=0.97)
    starts = np.isin(np.arange(60), batch.starts)
    for row in range(60):
        value = torch.tensor([values[row]])
        buffer.add(np.zeros((1, 1)), np.zeros((1, 1)), rewards[[row]], starts[[row]], value, torch.zeros(1))
    last_values = np.full(5, np.float32(0.7))
    buffer.compute_returns_and_advantage(torch.tensor([last_values[-1]]), np.array([False]))
    found = batch.advantages(values, last_values, 0.97, 0.9)
    np.testing.assert_allclose(found, buffer.advantages[:, 0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(batch.td_lambda(values, last_values, 0.97, 0.9), buffer.returns[:, 0], rtol=0, atol=1e-4)
