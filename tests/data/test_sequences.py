"""Sequences for PyTorch: every timestep once, shared among loader workers, in an order that the seed decides."""

from __future__ import annotations

import collections
import pickle

import numpy as np
import pytest

from streamsampler import LocalSampler, sample_to_folder
from streamsampler.errors import DataError, UsageError
from tests.scripted.envs import Counting, Nested

pytestmark = pytest.mark.extras

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with LocalSampler("random", Counting, seed=1) as sampler:
        return sample_to_folder(sampler, tmp_path_factory.mktemp("sequences") / "f", n_trajectories=60, shard_size=60)


@pytest.fixture(scope="module")
def batch(folder):
    return folder.to_batch()


def places(items):
    return [(int(item["index"]), int(item["timestep"])) for item in items]


def expected(batch, size):
    return [
        (int(index), first)
        for index, length in zip(batch.indices, batch.lengths, strict=True)
        for first in range(0, int(length), size)
    ]


@pytest.mark.parametrize("size", [1, 3, 4, 10, 50])
@pytest.mark.core
def test_each_timestep_is_in_one_sequence(folder, batch, size):
    dataset = folder.torch_dataset(size, fields=("observations", "next_observations", "rewards", "terminated"))
    items = list(dataset)
    assert places(items) == expected(batch, size)
    assert dataset.n_sequences == len(items)
    following, where = batch.next_observations, 0
    for item in items:
        n = int(item["mask"].sum())
        assert item["mask"].tolist() == [True] * n + [False] * (size - n)
        rows = slice(where, where + n)
        for name, whole in (("observations", batch.observations), ("next_observations", following)):
            assert np.array_equal(item[name][:n].numpy(), whole[rows])
            assert item[name].shape == (size, 1)
            assert not item[name][n:].any()
        assert item["rewards"].numpy()[:n].tolist() == batch.rewards[rows].tolist()
        trajectory = np.flatnonzero(batch.indices == int(item["index"]))[0]
        ends = where + n == batch.starts[trajectory] + batch.lengths[trajectory]
        assert bool(item["terminated"].any()) == (ends and bool(batch.terminated[trajectory]))
        assert not item["terminated"][: n - 1].any()
        where += n
    assert where == batch.n_timesteps


def test_without_a_length_each_is_a_whole_trajectory(folder, batch):
    items = list(folder.torch_dataset())
    assert [len(item["rewards"]) for item in items] == batch.lengths.tolist()
    assert all(item["mask"].all() for item in items)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than this machine has cores
@pytest.mark.parametrize("n_workers", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("shuffle", [False, True])
def test_loader_workers_share_the_sequences(folder, batch, n_workers, shuffle):
    assert 3 < len(folder.shards) < 9, "fewer shards than loader workers, too"
    dataset = folder.torch_dataset(4, shuffle=shuffle, seed=5)
    orders = [places(DataLoader(dataset, batch_size=None, num_workers=n_workers)) for _ in range(2)]
    assert orders[0] == orders[1], "the same seed and number of loader workers"
    assert collections.Counter(orders[0]) == collections.Counter(expected(batch, 4))
    assert shuffle or n_workers > 1 or orders[0] == expected(batch, 4)


def test_the_shuffle_depends_on_seed_and_epoch(folder, batch):
    def order(seed, epoch):
        dataset = folder.torch_dataset(4, shuffle=True, seed=seed)
        dataset.set_epoch(epoch)
        return tuple(places(dataset))

    orders = {order(seed, epoch) for seed in (1, 2) for epoch in (0, 1)}
    assert len(orders) == 4
    assert order(1, 1) == order(1, 1)
    assert all(sorted(each) == sorted(expected(batch, 4)) for each in orders)
    assert tuple(expected(batch, 4)) not in orders


def test_loader_workers_that_stay_see_the_next_epoch(folder):
    dataset = folder.torch_dataset(4, shuffle=True)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    first = places(loader)
    dataset.set_epoch(1)
    second = places(loader)
    assert first != second
    assert sorted(first) == sorted(second)
    del loader


def test_batches_are_collated(folder):
    loader = DataLoader(folder.torch_dataset(5), batch_size=8)
    first = next(iter(loader))
    assert first["observations"].shape == (8, 5, 1)
    assert first["mask"].shape == (8, 5)
    assert first["rewards"].dtype == torch.float64


@pytest.mark.core
def test_nested_spaces_and_infos(tmp_path):
    with LocalSampler("random", Nested, seed=1) as sampler:
        folder = sample_to_folder(sampler, tmp_path / "f", num_samples=60, shard_size=30)
    batch = folder.to_batch()
    items = list(folder.torch_dataset(4, fields=("observations", "next_observations", "actions", "step_types")))
    assert np.array_equal(items[0]["observations"]["image"][:1].numpy(), batch.observations["image"][:1])
    assert items[0]["next_observations"]["task"][1].shape == (4, 2)
    assert int(items[0]["step_types"][0]) == 0
    with pytest.raises(DataError, match=r"env_infos hold values of object, which no tensor holds: leave env_infos out"):
        list(folder.torch_dataset(4, fields=("env_infos",)))


def test_what_is_yielded_is_the_readers_own(folder, batch):
    dataset = folder.torch_dataset()
    for item in dataset:
        item["observations"].fill_(-1)
    assert np.array_equal(folder.to_batch().observations, batch.observations)


def test_a_dataset_pickles(folder, batch):
    again = pickle.loads(pickle.dumps(folder.torch_dataset(4, shuffle=True, seed=2)))
    assert places(again) == places(folder.torch_dataset(4, shuffle=True, seed=2))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sequence_length": 0}, "sequence_length"),
        ({"sequence_length": 2.5}, "sequence_length"),
        ({"fields": ("observation",)}, "sequences hold no observation, only observations"),
        ({"seed": -1}, "seed should be an integer of at least 0"),
    ],
)
def test_what_cannot_work_is_an_error(folder, arguments, words):
    with pytest.raises(UsageError, match=words):
        folder.torch_dataset(**arguments)


def test_without_torch_the_error_says_how_to_install_it(folder, monkeypatch):
    import sys

    monkeypatch.delitem(sys.modules, "streamsampler.data.sequences", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"torch_dataset needs PyTorch: pip install torch \(in a clone"):
        folder.torch_dataset(4)
