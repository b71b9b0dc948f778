"""Sequences for PyTorch: every timestep once, shared among loader workers, in an order that the seed decides."""

from __future__ import annotations

import collections
import pickle
import sys

import numpy as np
import pytest

from streamsampler import LocalSampler, TrajectoryFolder, sample_to_folder
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
    ends = zip(batch.indices, batch.lengths, strict=True)
    return [(int(index), first) for index, length in ends for first in range(0, int(length), size)]


@pytest.mark.parametrize("size", [1, 3, 10, 50])
@pytest.mark.core
def test_each_timestep_is_in_one_sequence(folder, batch, size):
    dataset = folder.torch_dataset(size, fields=("observations", "next_observations", "rewards", "terminated"))
    items = list(dataset)
    assert places(items) == expected(batch, size)
    assert dataset.n_sequences == len(items)
    where, last = 0, set(batch.starts + batch.lengths - 1)
    for item in items:
        n = int(item["mask"].sum())
        rows = slice(where, where := where + n)
        assert item["mask"].tolist() == [True] * n + [False] * (size - n)
        for name in ("observations", "next_observations"):
            assert np.array_equal(item[name][:n].numpy(), getattr(batch, name)[rows])
            assert item[name].shape == (size, 1)
            assert not item[name][n:].any()
        assert item["rewards"].numpy()[:n].tolist() == batch.rewards[rows].tolist()
        trajectory = np.flatnonzero(batch.indices == int(item["index"]))[0]
        ends = where - 1 in last and batch.terminated[trajectory]
        assert item["terminated"].tolist() == [t == n - 1 and bool(ends) for t in range(size)]
        item["observations"].fill_(-1)
    assert where == batch.n_timesteps
    assert np.array_equal(folder.to_batch().observations, batch.observations), "what is yielded is the reader's own"
    whole = list(folder.torch_dataset())
    assert [(len(item["rewards"]), bool(item["mask"].all())) for item in whole] == [(n, True) for n in batch.lengths]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than this machine has cores
@pytest.mark.parametrize(("n_workers", "shuffle"), [(0, False), (1, False), (3, False), (9, False), (2, True)])
def test_loader_workers_share_the_sequences(folder, batch, n_workers, shuffle):
    assert 3 < len(folder.shards) < 9, "fewer shards than loader workers, too"
    dataset = folder.torch_dataset(4, shuffle=shuffle, seed=5)
    stay = {"persistent_workers": True} if n_workers else {}
    loader = DataLoader(dataset, batch_size=None, num_workers=n_workers, **stay)
    orders = [places(loader), places(loader)]
    assert orders[0] == orders[1], "the same seed and number of loader workers"
    assert collections.Counter(orders[0]) == collections.Counter(expected(batch, 4))
    assert shuffle or n_workers > 1 or orders[0] == expected(batch, 4)
    dataset.set_epoch(1)
    assert (places(loader) != orders[0]) == shuffle, "loader workers that stay see the next epoch"
    del loader


def test_a_sequence_names_its_trajectory_also_among_those_of_several_folders(folder, tmp_path):
    with LocalSampler("random", Counting, seed=2) as sampler:
        sample_to_folder(sampler, tmp_path / "other", n_trajectories=20, shard_size=60)
    both = TrajectoryFolder(folder.path, tmp_path / "other")
    items = list(both.torch_dataset(shuffle=True))
    assert sorted(int(item["trajectory"]) for item in items) == list(range(80))
    for item in items:
        trajectory = both[int(item["trajectory"])]
        assert trajectory.indices.tolist() == [int(item["index"])]
        assert trajectory.rewards.tolist() == item["rewards"].tolist()


def test_the_shuffle_depends_on_seed_and_epoch(folder, batch):
    def order(seed, epoch):
        dataset = pickle.loads(pickle.dumps(folder.torch_dataset(4, shuffle=True, seed=seed)))
        dataset.set_epoch(epoch)
        return tuple(places(dataset))

    orders = {order(seed, epoch) for seed in (1, 2) for epoch in (0, 1)}
    assert len(orders | {tuple(expected(batch, 4))}) == 5
    assert order(1, 1) == order(1, 1)
    assert all(sorted(each) == sorted(expected(batch, 4)) for each in orders)


@pytest.mark.core
def test_nested_spaces_and_batches(folder, tmp_path):
    first = next(iter(DataLoader(folder.torch_dataset(5), batch_size=8)))
    assert (first["observations"].shape, first["mask"].shape) == ((8, 5, 1), (8, 5))
    assert first["rewards"].dtype == torch.float64
    with LocalSampler("random", Nested, seed=1) as sampler:
        nested = sample_to_folder(sampler, tmp_path / "f", n_timesteps=60, shard_size=30)
    items = list(nested.torch_dataset(4, fields=("observations", "next_observations", "actions", "step_types")))
    assert np.array_equal(items[0]["observations"]["image"][:1].numpy(), nested[0].observations["image"][:1])
    assert items[0]["next_observations"]["task"][1].shape == (4, 2)
    assert int(items[0]["step_types"][0]) == 0
    with pytest.raises(DataError, match=r"env_infos.event.name has the dtype object, .* omit it with without"):
        list(nested.torch_dataset(4, fields=("env_infos",)))


def test_what_cannot_work_is_an_error(folder, monkeypatch):
    for arguments, words in (
        ({"sequence_length": 0}, "sequence_length"),
        ({"fields": ("observation",)}, "sequences cannot hold observation, only observations"),
        ({"seed": -1}, "seed should be an integer of at least 0"),
    ):
        with pytest.raises(UsageError, match=words):
            folder.torch_dataset(**arguments)
    monkeypatch.delitem(sys.modules, "streamsampler.data.sequences", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"torch_dataset needs PyTorch: pip install torch \(in a clone"):
        folder.torch_dataset(4)
