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
from streamsampler.data.npz import read, save
from streamsampler.data.shards import MANIFEST, load
from streamsampler.errors import StorageError
from tests.data.damage import damaged_bytes, damaged_json, entry, header_of, nested, npy, with_entry, with_header
from tests.data.test_recorder import batch_of, tickets
from tests.data.test_shards import LENGTHS, write_all

SPACE = S.Dict({"a": S.Box(-1, 1, (2,), np.float32), "b": S.Text(4), "c": S.Tuple([S.Discrete(3), S.MultiBinary(2)])})
FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(scope="module")
def batch():
    return batch_of(tickets([2, 1, 3], [], SPACE), SPACE)


@pytest.fixture(scope="module", params=[False, True], ids=["stored", "compressed"])
def saved(request, batch, tmp_path_factory):
    """A file's bytes."""
    return save(batch, tmp_path_factory.mktemp("saved") / "a.npz", compress=request.param).read_bytes()


@pytest.fixture
def plain(batch, tmp_path):
    """The bytes of a file without compression."""
    return save(batch, tmp_path / "a.npz").read_bytes()


def loaded(path, data):
    """What a file of these bytes holds; None where that is an error."""
    path.write_bytes(data)
    with contextlib.suppress(StorageError):
        read(path)  # reads less, and need not see what `load` sees
    try:
        return load(path)
    except StorageError:
        return None


ARRAYS = st.sampled_from(["rewards", "lengths", "indices", "observations.a", "observations.b"])


@FUZZ
@given(seed=st.integers(0, 10**9), name=ARRAYS)
def test_a_file_that_changes_is_an_error_or_the_same_batch_or_with_checksums_that_fit_another_one(
    batch, saved, tmp_path, seed, name
):
    def chance():
        return random.Random(seed)

    there = loaded(tmp_path / "a.npz", damaged_bytes(saved, chance()))
    assert there is None or there == batch
    assert loaded(tmp_path / "a.npz", saved[: seed % len(saved)]) is None, "cut short"
    for changed in (
        with_header(saved, damaged_json(header_of(saved), chance())),
        with_entry(saved, name, damaged_bytes(entry(saved, name), chance())),
    ):
        there = loaded(tmp_path / "a.npz", changed)
        assert there is None or isinstance(there, TrajectoryBatch)


def test_files_that_are_none(tmp_path):
    path = tmp_path / "a.npz"
    with pytest.raises(FileNotFoundError):
        load(path)
    for write, words in (
        (lambda: path.write_bytes(b""), r"not an \.npz file"),
        (lambda: np.savez(path, x=np.zeros(3)), "no array `header`"),
        (lambda: np.savez(path, header=np.array([object()])), "pickles"),
        (lambda: np.savez(path, header=np.frombuffer(b'{"format": "other"}', np.uint8)), "other"),
    ):
        write()
        with pytest.raises(StorageError, match=words):
            load(path)
    np.save(tmp_path / "b.npy", np.zeros(3))
    with pytest.raises(StorageError, match=r"not an \.npz file"):
        load(tmp_path / "b.npy")


def test_headers_with_other_contents(plain, tmp_path):
    for change, words in (
        (lambda header: header.update(format_version=2), "format version 2.* up to 1"),
        (lambda header: header.pop("seeds"), "damaged"),
        (lambda header: header["structure"].update(actions={"array": "nowhere"}), "damaged.*nowhere"),
        (lambda header: header["structure"].update(actions={"array": "rewards"}), "damaged.*float64"),
        (lambda header: header["spaces"].update(action_space={"space": "Odd"}), "damaged.*Odd"),
        (lambda header: header["structure"].update(env_infos=[]), "damaged"),
        (lambda header: header.update(seed="7"), "the seed should be an integer"),
        (lambda header: header.update(seed=True), "the seed should be an integer"),
    ):
        header = header_of(plain)
        change(header)
        (tmp_path / "a.npz").write_bytes(with_header(plain, header))
        with pytest.raises(StorageError, match=words):
            load(tmp_path / "a.npz")


def test_arrays_that_claim_what_is_not_there_are_damaged_before_memory_is_taken_for_it(saved, tmp_path):
    eight = b"\0" * 8
    for claims in (
        npy((16 * 10**9,), "<f8"), npy((4,), "<f8", eight), npy((10**15,), "V0"), npy((1,), "|O", b"\x80\x04N."),
        npy("(" * 5_000), npy("-" * 9_000 + "1"), npy((1,), "<f8", eight, version=9), b"\x93NUMPY", b"",
        npy((10**400,), "<f8"), npy((-1,), "<f8"), npy((3.5,), "<f8"),
    ):  # fmt: skip
        (tmp_path / "a.npz").write_bytes(with_entry(saved, "rewards", claims))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(StorageError, match=r"a\.npz (cannot be read: rewards )?is damaged"):
            load(tmp_path / "a.npz")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_entries_with_more_than_their_headers_say_or_of_another_name_are_damaged(saved, tmp_path):
    """No checksum covers the names in a zip's directory."""
    more = with_entry(saved, "rewards", entry(saved, "rewards") + b"\0")
    for data, words in (
        (more, r"a\.npz cannot be read: rewards is damaged.* according to its header"),
        (saved.replace(b"actions.npy", b"aktions.npy"), r"a\.npz"),
    ):
        (tmp_path / "a.npz").write_bytes(data)
        with pytest.raises(StorageError, match=words):
            load(tmp_path / "a.npz")


def test_headers_and_manifests_that_are_no_such_json(plain, tmp_path):
    for data in (b"[" * 100_000, b"\xff", b"", b"null", json.dumps(nested(900)).encode()):
        (tmp_path / "a.npz").write_bytes(with_entry(plain, "header", npy((len(data),), data=data)))
        with pytest.raises(StorageError, match=r"a\.npz is no trajectory batch"):
            load(tmp_path / "a.npz")
        (tmp_path / MANIFEST).write_bytes(data)
        with pytest.raises(StorageError, match=r"manifest\.json is no manifest of trajectories"):
            streamsampler.load(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("folders") / "folder"
    write_all(path, batch_of(tickets(LENGTHS, [])))
    return path


@FUZZ
@given(seed=st.integers(0, 10**9))
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
