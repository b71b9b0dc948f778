"""Whatever is wrong with a file is a `StorageError`, or it does not matter."""

import contextlib
import json
import random
import resource

import numpy as np
import pytest
from gymnasium import spaces as S
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamsampler
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.files import load
from streamsampler.data.manifest import MANIFEST, shard_name
from streamsampler.data.npz import read, save
from streamsampler.errors import DamagedShardError, StorageError
from tests.data.damage import damaged_bytes, damaged_json, entry, header_of, nested, npy, with_entry, with_header
from tests.data.test_recorder import batch_of, tickets
from tests.data.test_shards import LENGTHS, write_all

SPACE = S.Dict({"a": S.Box(-1, 1, (2,), np.float32), "b": S.Text(4), "c": S.Tuple([S.Discrete(3), S.MultiBinary(2)])})
SEEDS = st.integers(0, 10**9)
FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(scope="module")
def batch():
    return batch_of(tickets([2, 1, 3], [], SPACE), SPACE)


@pytest.fixture(scope="module", params=[False, True], ids=["stored", "compressed"])
def saved(request, batch, tmp_path_factory):
    """A file's bytes."""
    return save(batch, tmp_path_factory.mktemp("saved") / "a.npz", compress=request.param).read_bytes()


def loaded(path, data):
    """What a file of these bytes holds; None where that is an error."""
    path.write_bytes(data)
    with contextlib.suppress(StorageError):
        read(path)  # reads less, and need not see what `load` sees
    try:
        return load(path)
    except StorageError:
        return None


@FUZZ
@given(seed=SEEDS)
def test_bytes_that_change(batch, saved, tmp_path, seed):
    there = loaded(tmp_path / "a.npz", damaged_bytes(saved, random.Random(seed)))
    assert there is None or there == batch


@FUZZ
@given(seed=SEEDS)
def test_headers_that_change(batch, saved, tmp_path, seed):
    """With checksums that fit: what comes back may be another batch, and is one."""
    there = loaded(tmp_path / "a.npz", with_header(saved, damaged_json(header_of(saved), random.Random(seed))))
    assert there is None or isinstance(there, TrajectoryBatch)


@FUZZ
@given(seed=SEEDS, name=st.sampled_from(["rewards", "lengths", "indices", "observations.a", "observations.b"]))
def test_arrays_that_change(batch, saved, tmp_path, seed, name):
    """With checksums that fit."""
    there = loaded(tmp_path / "a.npz", with_entry(saved, name, damaged_bytes(entry(saved, name), random.Random(seed))))
    assert there is None or isinstance(there, TrajectoryBatch)


@pytest.mark.parametrize(
    "claims",
    [
        npy((16 * 10**9,), "<f8"),
        npy((10**400,), "<f8"),
        npy((-1,), "<f8"),
        npy((4,), "<f8", b"\0" * 31),
        npy((4,), "<f8", b"\0" * 33),
        npy((10**15,), "V0"),
        npy((1,), "|O", b"\x80\x04N."),
        npy("(" * 5_000),
        npy("-" * 9_000 + "1"),
        npy((3.5,), "<f8"),
        npy((4,), "<f8", b"\0" * 32, version=9),
        b"\x93NUMPY",
        b"",
    ],
    ids=lambda claims: repr(claims[:70]),
)
def test_arrays_that_claim_what_is_not_there(saved, tmp_path, claims):
    """Before memory is taken for it."""
    (tmp_path / "a.npz").write_bytes(with_entry(saved, "rewards", claims))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StorageError, match=r"a\.npz (cannot be read: rewards )?is damaged"):
        load(tmp_path / "a.npz")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_an_array_with_more_than_its_header_says_is_damaged(saved, tmp_path):
    (tmp_path / "a.npz").write_bytes(with_entry(saved, "rewards", entry(saved, "rewards") + b"\0"))
    with pytest.raises(StorageError, match=r"a\.npz cannot be read: rewards is damaged.* more than its header says"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"", b"null", b"7", json.dumps(nested(900)).encode()]
)
def test_headers_and_manifests_that_are_no_such_json(saved, tmp_path, data):
    (tmp_path / "a.npz").write_bytes(with_entry(saved, "header", npy((len(data),), data=data)))
    with pytest.raises(StorageError, match=r"a\.npz is no trajectory batch"):
        load(tmp_path / "a.npz")
    (tmp_path / MANIFEST).write_bytes(data)
    with pytest.raises(StorageError, match=r"manifest\.json is no manifest of trajectories"):
        streamsampler.load(tmp_path)


@pytest.mark.parametrize("value", ["7", 7.0, True, [7]])
def test_a_seed_of_another_type(saved, tmp_path, value):
    (tmp_path / "a.npz").write_bytes(with_header(saved, {**header_of(saved), "seed": value}))
    with pytest.raises(StorageError, match="the seed is"):
        load(tmp_path / "a.npz")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("folders") / "folder"
    write_all(path, batch_of(tickets(LENGTHS, [])))
    return path


@FUZZ
@given(seed=SEEDS)
def test_manifests_that_change(folder, seed):
    """What comes back is the right data, or a `StorageError` when it is opened or read."""
    chance = random.Random(seed)
    whole = streamsampler.TrajectoryFolder(folder).to_batch()
    manifest = (folder / MANIFEST).read_bytes()
    facts = damaged_json(json.loads(manifest), chance)
    changed = damaged_bytes(manifest, chance) if chance.random() < 0.5 else json.dumps(facts).encode()
    try:
        (folder / MANIFEST).write_bytes(changed)
        with contextlib.suppress(StorageError):
            opened = streamsampler.TrajectoryFolder(folder)
            assert opened.to_batch() == whole
            assert (len(opened), opened.n_timesteps) == (len(whole), whole.n_timesteps)
    finally:
        (folder / MANIFEST).write_bytes(manifest)


def test_a_shard_with_an_entry_of_another_name_is_damaged(folder, tmp_path):
    """No checksum covers the names in a zip's directory."""
    expected = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name, data in expected.items():
        (tmp_path / name).write_bytes(data)
    path = tmp_path / shard_name(1)
    path.write_bytes(path.read_bytes().replace(b"actions.npy", b"aktions.npy"))
    with pytest.raises(DamagedShardError, match=shard_name(1)):
        streamsampler.TrajectoryFolder(tmp_path).to_batch()
