"""Folders of shards, read lazily."""

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import streamsampler
from streamsampler import TrajectoryBatch, TrajectoryFolder
from streamsampler.data import files
from streamsampler.data import npz as storage
from streamsampler.data.manifest import MANIFEST, shard_name
from streamsampler.data.shards import ShardWriter
from streamsampler.errors import DataError, StorageError, UsageError
from tests.data.test_recorder import batch_of, tickets
from tests.data.test_shards import LENGTHS, SHARDS, WANTED, write_all


@pytest.fixture(scope="module")
def batch():
    return batch_of(tickets(LENGTHS, []))


@pytest.fixture
def path(batch, tmp_path):
    write_all(tmp_path / "folder", batch)
    return tmp_path / "folder"


def test_a_folder_is_the_batch(batch, path):
    folder = streamsampler.load(path)
    assert isinstance(folder, TrajectoryFolder)
    assert (len(folder), folder.n_trajectories, folder.n_timesteps) == (9, 9, sum(LENGTHS))
    assert (folder.complete, folder.seed, folder.provenance) == (True, 7, {"environment": "X"})
    assert repr(folder) == f"TrajectoryFolder('{path}', 9 trajectories, {sum(LENGTHS)} timesteps, 3 shards)"
    assert folder.to_batch() == TrajectoryBatch.concatenate(folder) == batch
    assert folder.to_batch().seed == batch.seed
    assert [len(shard) for shard in folder.shards] == [stop - start for start, stop in SHARDS]
    assert folder.shards[-1] == batch[6:]
    assert pickle.loads(pickle.dumps(folder))[8] == folder[8]
    assert streamsampler.load(path / shard_name(1)) == batch[3:6]
    some = np.array([True, False, True] * 3)
    indices: list[Any] = [0, 5, -1, slice(None), slice(2, 7), slice(7, 2, -2), slice(4, 4), [8, 0, 4, 4], some]
    for index in indices:
        assert folder[index] == batch[index]
    indices = [9, -10, [9], [True], np.zeros((1, 1), int)]
    for beyond in indices:
        with pytest.raises(IndexError):
            folder[beyond]


def test_one_shard_is_loaded_at_a_time_and_only_when_it_is_needed(path, monkeypatch):
    loaded = []

    def load(path):
        loaded.append(path.name)
        if len(loaded) > 4:
            assert folder.shards._last is None, "the shard before is let go of first"  # type: ignore[attr-defined]
        return original(path)

    original = files.load_with_header
    monkeypatch.setattr("streamsampler.data.shards.load_with_header", load)
    folder = TrajectoryFolder(path)
    assert len(folder) == 9
    assert loaded == []
    one = folder[4]
    assert folder[3].indices == 3
    assert loaded == [shard_name(1)]
    assert not np.shares_memory(one.observations, folder.shards[1].observations), "one trajectory keeps no shard"
    assert [int(trajectory.indices[0]) for trajectory in folder] == list(range(9))
    assert loaded == [shard_name(number) for number in (1, 0, 1, 2)]
    assert folder.shards[0] is folder.shards[0]
    assert len(pickle.dumps(folder)) < len(pickle.dumps(folder.shards[0]))


def test_what_is_incomplete_is_as_far_as_it_got(batch, tmp_path):
    with ShardWriter(tmp_path / "folder") as writer:
        writer.begin(WANTED)
        empty = TrajectoryFolder(tmp_path / "folder")
        assert len(empty) == 0
        for nothing in (empty.to_batch, lambda: empty[:]):
            with pytest.raises(DataError, match="folder holds no trajectories yet"):
                nothing()
        writer.write(batch[:3])
    # One that the manifest does not list yet does not count.
    storage.save(batch[3:6], tmp_path / "folder" / shard_name(1), provenance=WANTED.provenance)
    folder = TrajectoryFolder(tmp_path / "folder")
    assert not folder.complete
    assert "incomplete" in repr(folder)
    assert folder.to_batch() == batch[:3]


def test_a_manifest_that_is_damaged(path):
    manifest = (path / MANIFEST).read_text()
    for change, words in (
        (lambda facts: facts.update(format="something"), "it holds dict {'format': 'something'"),
        (lambda facts: facts.update(format_version=2), r"has format version 2, .* reads up to 1"),
        (lambda facts: facts.pop("seed"), r"manifest\.json is damaged: KeyError: 'seed'"),
        (lambda facts: facts["shards"].pop(0), "damaged.*shard 0 is called 'shard-000001.npz'"),
        (lambda facts: facts["shards"][1].update(first_trajectory=4), "shard 1 begins with 4, and not with 3"),
        (lambda facts: facts["shards"][1].update(surprise=4), "surprise"),
    ):
        facts = json.loads(manifest)
        change(facts)
        (path / MANIFEST).write_text(json.dumps(facts))
        with pytest.raises(StorageError, match=words):
            streamsampler.load(path)


def test_shards_that_are_missing_or_others_are_named(path):
    folder = TrajectoryFolder(path)
    (path / shard_name(1)).unlink()
    assert folder[0].indices == 0
    with pytest.raises(StorageError, match=r"shard-000001\.npz is missing"):
        folder.to_batch()
    (path / shard_name(2)).write_bytes((path / shard_name(0)).read_bytes())
    with pytest.raises(StorageError, match=r"shard-000002\.npz should hold trajectories 6 to 8"):
        folder[-1]


def test_what_is_no_folder_of_shards(tmp_path):
    readers: list[Any] = [streamsampler.load, TrajectoryFolder]
    for read in readers:
        with pytest.raises(StorageError, match=r"no folder of trajectories: it has no manifest\.json"):
            read(tmp_path)
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "nothing")
    with pytest.raises(StorageError, match=r"is a folder, .* streamsampler\.load reads all"):
        TrajectoryBatch.load(tmp_path)


def test_several_folders_are_one(batch, path, tmp_path):
    other = replace(batch_of(tickets(LENGTHS[:3], [])), seed=8)
    with ShardWriter(tmp_path / "other") as writer:
        writer.begin(replace(WANTED, seed=8, provenance={"environment": "X", "agent": "a"}))
        writer.write(other)
    folder = streamsampler.load(path, tmp_path / "other")
    assert isinstance(folder, TrajectoryFolder)
    assert (len(folder), folder.seed, folder.complete) == (12, None, False)
    assert folder.provenance == {"environment": "X"}
    assert folder.files == [*(path / shard_name(number) for number in range(3)), tmp_path / "other" / shard_name(0)]
    whole = TrajectoryBatch.concatenate(batch, other)
    assert folder.to_batch() == whole
    assert folder[[10, 2]] == whole[[10, 2]]
    assert repr(folder).startswith(f"TrajectoryFolder('{path}', '{tmp_path / 'other'}', 12 trajectories")
    with pytest.raises(UsageError, match="takes one folder, and there are 2"):
        print(folder.path)
    with pytest.raises(StorageError, match=r"shard-000000\.npz is no folder of trajectories"):
        streamsampler.load(path, path / shard_name(0))
