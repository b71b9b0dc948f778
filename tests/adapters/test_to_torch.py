"""Batches as tensors, and tensors in infos."""

import dataclasses
import sys

import gymnasium
import numpy as np
import pytest

from streamsampler import LocalSampler, VecWorker
from tests.data.test_batch import INFOS
from tests.data.test_recorder import batch_of, tickets

torch = pytest.importorskip("torch")


@pytest.fixture
def batch():
    return dataclasses.replace(batch_of(tickets([2, 1, 3], [])), env_infos=INFOS)


def test_tensors_share_the_memory_of_the_batch(batch):
    tensors = batch.to_torch()
    for name in ("observations", "last_observations", "actions", "rewards", "terminated", "lengths"):
        array = getattr(batch, name)
        assert np.array_equal(tensors[name].numpy(), array)
        assert tensors[name].numpy().dtype == array.dtype
        assert np.shares_memory(tensors[name].numpy(), array)
    assert tensors["env_infos"]["in"]["x"].dtype == torch.float32
    assert tensors["env_infos"]["_odd"].dtype == torch.bool
    assert tensors["env_infos"]["word"] is batch.env_infos["word"]
    assert tensors["worker_numbers"].tolist() == [0, 0, 0]
    assert set(tensors) == {field.name for field in dataclasses.fields(batch)} - {
        "observation_space", "action_space", "seeds", "seed", "stats", "fingerprints", "raw", "fragments",
        "agents",
    }  # fmt: skip


@pytest.mark.filterwarnings("error")
def test_what_cannot_be_shared_is_copied(batch):
    rewards = np.arange(6.0)
    rewards.flags.writeable = False
    odd = dataclasses.replace(
        batch,
        rewards=rewards,
        observations=batch.observations[::-1],
        agent_infos={
            "big": np.arange(6, dtype=">f4"),
            "when": np.zeros(6, "M8[s]"),
            "long": np.zeros(6, np.longdouble),
        },
    )
    tensors = odd.to_torch()
    assert tensors["rewards"].tolist() == rewards.tolist()
    assert np.array_equal(tensors["observations"].numpy(), odd.observations)
    assert tensors["agent_infos"]["big"].tolist() == list(range(6))
    assert isinstance(tensors["agent_infos"]["when"], np.ndarray)
    assert isinstance(tensors["agent_infos"]["long"], np.ndarray)
    assert batch.to_torch(device="meta")["rewards"].device.type == "meta"


def test_without_torch_the_error_names_the_extra(batch, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install torch"):
        batch.to_torch()


class Tensors:
    """Tells what a network returned as it came."""

    def get_action(self, observation):
        value = torch.tensor(observation[0], requires_grad=True)
        infos = {"log_prob": np.float32(-0.5), "value": value * 2, "hidden": torch.ones(2, dtype=torch.float16)}
        return 0, infos

    def get_actions(self, observations):
        n = len(observations)
        value = torch.tensor(observations[:, 0], requires_grad=True)
        hidden = torch.ones((n, 2), dtype=torch.float16)
        return np.zeros(n, np.int64), {"log_prob": [np.float32(-0.5)] * n, "value": value * 2, "hidden": hidden}


class TensorsAlone:
    get_action = Tensors.get_action


@pytest.mark.parametrize("agent", [Tensors(), TensorsAlone()], ids=["batched", "one by one"])
@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker}], ids=["default", "vec"])
def test_log_probabilities_and_values_keep_their_dtypes(agent, options):
    with LocalSampler(agent, "CartPole-v1", seed=1, **options) as sampler:
        batch = sampler.obtain_trajectories(3)
    infos = batch.agent_infos
    assert [infos[key].dtype for key in ("log_prob", "value", "hidden")] == [np.float32, np.float32, np.float16]
    np.testing.assert_array_equal(infos["value"], 2 * batch.observations[:, 0])
    assert infos["hidden"].shape == (batch.n_timesteps, 2)


@pytest.mark.slow
def test_worker_numbers_tell_who_ran_what():
    with LocalSampler(lambda _: 0, lambda: gymnasium.make("CartPole-v1"), seed=1, n_workers=3) as sampler:
        batch = sampler.obtain_exact_trajectories(4)
        assert set(batch.worker_numbers.tolist()) <= {0, 1, 2}
        assert next(iter(sampler.stream())).worker_numbers.shape == (1,)
    with LocalSampler([lambda _: 0, lambda _: 1], "CartPole-v1", seed=1) as sampler:
        assert sampler.obtain_trajectories(6).worker_numbers.tolist() == [0, 1] * 3
