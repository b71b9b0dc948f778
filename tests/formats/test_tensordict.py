"""TensorDicts with TorchRL's keys."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from streamsampler import LocalSampler
from streamsampler.data import trees
from streamsampler.errors import StorageError
from streamsampler.formats import to_tensordict
from tests.scripted.envs import Echo

pytestmark = [pytest.mark.extras, pytest.mark.core]

torch = pytest.importorskip("torch")
tensordict = pytest.importorskip("tensordict")


def same(tensor, array):
    return trees.same(tensor.numpy(), np.ascontiguousarray(array))


def check(tensors, batch):
    assert tensors.batch_size == (batch.n_timesteps,)
    last = batch.starts + batch.lengths - 1
    following = batch.next_observations
    for key in ("image", "place"):
        assert same(tensors["observation", key], batch.observations[key])
        assert same(tensors["next", "observation", key], following[key])
        assert same(tensors["next", "observation", key][last], batch.last_observations[key])
    assert same(tensors["observation", "task", "1"], batch.observations["task"][1])
    assert same(tensors["action", "push"], batch.actions["push"])
    assert same(tensors["next", "reward"], batch.rewards[:, None])
    for name in ("terminated", "truncated"):
        assert same(tensors["next", name][last, 0], getattr(batch, name))
        assert tensors["next", name].sum() == getattr(batch, name).sum()
        assert not tensors[name].any()
    assert (tensors["next", "done"] == (tensors["next", "terminated"] | tensors["next", "truncated"])).all()
    assert not tensors["done"].any()
    assert tensors["collector", "traj_ids"].bincount().tolist() == batch.lengths.tolist()
    assert same(tensors["policy_version"], np.repeat(batch.agent_versions, batch.lengths))
    infos = tensors["next", "env_infos"]
    assert same(infos["big"], batch.env_infos["big"])
    assert same(infos["_rare"], batch.env_infos["_rare"])
    assert same(infos["rare"], batch.env_infos["rare"])
    assert same(infos["event", "where"], batch.env_infos["event"]["where"])
    assert same(tensors["agent_infos", "nested", "value"], batch.agent_infos["nested"]["value"])
    assert "late" not in infos.keys()  # noqa: SIM118 - a TensorDict has no other way of asking


def test_a_batch_and_a_folder_as_tensors(odd, odd_folder, caplog):
    tensors = to_tensordict(odd)
    check(tensors, odd)
    assert (tensors == to_tensordict(odd_folder)).all()
    left_out = "env_infos['event/name'], env_infos['late'], env_infos['list'], env_infos['nothing'] are omitted"
    assert left_out in caplog.text
    assert np.shares_memory(tensors["observation", "image"].numpy(), odd.observations["image"])
    assert np.shares_memory(tensors["next", "reward"].numpy(), odd.rewards)


def test_what_is_no_number_is_an_error():
    space = gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(3), gymnasium.spaces.Text(4)))
    with LocalSampler("random", lambda: Echo(space), seed=1) as sampler:
        batch = sampler.obtain_trajectories(2)
    with pytest.raises(StorageError, match=r"holds numbers, but observations\.1 is a Text space: omit it"):
        to_tensordict(batch)
