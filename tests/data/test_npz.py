import base64
import dataclasses
import json
import os
import struct
import zipfile

import numpy as np
import pytest
from gymnasium import spaces as S
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamsampler.data import npz as storage
from streamsampler.data import trees
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.codec import decode, decode_space, encode, encode_space
from streamsampler.data.files import load
from streamsampler.data.manifest import Manifest, Shard, _as_json
from streamsampler.data.npz import read, save
from streamsampler.errors import StorageError
from tests.data.test_batch import batches
from tests.data.test_recorder import batch_of, tickets
from tests.data.test_spaces import nested_spaces


@pytest.fixture
def batch():
    return batch_of(tickets([2, 1, 3, 2, 2, 4], []))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(batch=batches(), compress=st.booleans())
def test_round_trip(batch, compress, tmp_path):
    path = save(batch, tmp_path / "batch.npz", compress=compress)
    assert load(path) == batch
    with np.load(path, allow_pickle=False) as archive:
        assert not any(archive[name].dtype.hasobject for name in archive.files)


def test_methods_and_names(batch, tmp_path):
    path = batch.save(tmp_path / "run.1", provenance={"env": "X"})
    assert path == tmp_path / "run.1.npz"
    assert os.listdir(tmp_path) == ["run.1.npz"]
    assert TrajectoryBatch.load(tmp_path / "run.1") == TrajectoryBatch.load(str(path)) == batch
    header = read(path)[1]
    assert header["provenance"] == {"env": "X"}
    assert header["seeds"] == list(batch.seeds)
    with np.load(path, allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["observations"], batch.observations)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from([np.float32(0.1), np.zeros((0, 2)), np.array(["a", "bc"]), np.int8(3), np.complex64(1j)]),
    lambda children: (
        st.lists(children)
        | st.lists(children).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.just("$"), children)
    ),
    max_leaves=8,
)


@given(value=VALUES)
def test_objects_come_back_exactly(value):
    assert trees.same(decode(json.loads(json.dumps(encode(value, "x")))), value)


@pytest.mark.parametrize("value", [{1, "a"}, frozenset([1]), 1j, np.array([1, None], object), np.zeros(2, "V3")])
def test_what_no_environment_records_is_refused(value):
    with pytest.raises(StorageError, match=r"^x\[0\] holds a .*: only numbers, strings, arrays of them"):
        encode([value], "x")


@given(space=nested_spaces())
def test_spaces_come_back(space):
    assert decode_space(json.loads(json.dumps(encode_space(space, "x")))) == space


@pytest.mark.parametrize(
    "space",
    [
        S.Box(np.array([-np.inf, 0.1], np.float32), np.array([3, np.inf], np.float32)),
        S.Box(0, 255, (2, 2, 3), np.uint8),
        S.Box(0.1, 0.7, (), np.float64),
        S.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 2], [3, 4]])),
        S.MultiDiscrete([2, 3], dtype=np.int32),
        S.MultiBinary(3),
        S.MultiBinary([2, 3]),
        S.Text(max_length=4, min_length=2, charset="ab"),
    ],
)
def test_every_detail_of_a_space(space):
    again = decode_space(json.loads(json.dumps(encode_space(space, "x"))))
    assert again == space
    assert again.dtype == space.dtype
    if isinstance(space, S.Box):
        assert trees.equal(again.low, space.low)  # type: ignore[attr-defined]
        assert trees.equal(again.high, space.high)  # type: ignore[attr-defined]


def test_what_cannot_be_written(batch, tmp_path):
    with pytest.raises(StorageError, match=r"env_infos\['x'\] holds a builtins.object"):
        save(dataclasses.replace(batch, env_infos={"x": trees.object_array([object()] * 14)}), tmp_path / "a")
    with pytest.raises(StorageError, match="provenance"):
        save(batch, tmp_path / "a", provenance={"x": object()})
    assert os.listdir(tmp_path) == []


def test_a_failed_write_leaves_the_old_file(batch, tmp_path, monkeypatch):
    path = save(batch, tmp_path / "a.npz")
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save(batch[0], path)
    assert os.listdir(tmp_path) == ["a.npz"]
    assert path.read_bytes() == before


def test_files_that_are_none(batch, tmp_path):
    path = tmp_path / "a.npz"
    with pytest.raises(FileNotFoundError):
        load(path)
    path.write_bytes(b"")
    with pytest.raises(StorageError, match=r"no \.npz file"):
        load(path)
    np.save(tmp_path / "b.npy", np.zeros(3))
    with pytest.raises(StorageError, match=r"no \.npz file"):
        load(tmp_path / "b.npy")
    np.savez(path, x=np.zeros(3))
    with pytest.raises(StorageError, match="no entry `header`"):
        load(path)
    np.savez(path, header=np.array([object()]))
    with pytest.raises(StorageError, match="pickles"):
        load(path)
    np.savez(path, header=np.frombuffer(b'{"format": "other"}', np.uint8))
    with pytest.raises(StorageError, match="other"):
        load(path)


def test_every_way_of_cutting_a_file_short(batch, tmp_path):
    path = save(batch, tmp_path / "a.npz")
    whole = path.read_bytes()
    for size in range(0, len(whole) - 1, 97):
        path.write_bytes(whole[:size])
        with pytest.raises(StorageError):
            load(path)


def rewritten(path, change):
    with np.load(path) as archive:
        entries = {name: archive[name] for name in archive.files}
    header = json.loads(entries["header"].tobytes())
    change(header, entries)
    entries["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, **entries)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda header, entries: header.update(format_version=2), "format version 2.* up to 1"),
        (lambda header, entries: header.pop("seeds"), "damaged"),
        (lambda header, entries: entries.pop("rewards"), "damaged.*rewards"),
        (lambda header, entries: entries.update(rewards=np.zeros(3)), r"damaged.*\(3,\)"),
        (lambda header, entries: header["spaces"].update(action_space={"space": "Odd"}), "damaged.*Odd"),
        (lambda header, entries: header["structure"].update(env_infos=[]), "damaged"),
    ],
)
def test_damaged_parts(batch, tmp_path, change, words):
    path = save(batch, tmp_path / "a.npz")
    rewritten(path, change)
    with pytest.raises(StorageError, match=words):
        load(path)


def test_keys_that_would_share_a_name(tmp_path):
    space = S.Dict({"a/b": S.Discrete(2), "a_b": S.Discrete(3), "a": S.Dict({"b": S.Discrete(4)}), "a.b": S.Text(3)})
    batch = batch_of(tickets([3], [], space), space)
    assert load(save(batch, tmp_path / "a")) == batch


def test_single_arrays_are_read_without_the_others(batch, tmp_path):
    path = save(batch, tmp_path / "batch.npz")
    arrays, _ = read(path, "lengths", "rewards")
    assert sorted(arrays) == ["lengths", "rewards"]
    np.testing.assert_array_equal(arrays["rewards"], batch.rewards)
    with pytest.raises(StorageError, match="nothing"):
        read(path, "nothing")


def test_equal_batches_make_equal_files(batch, tmp_path, monkeypatch):
    one = save(batch, tmp_path / "one.npz").read_bytes()
    monkeypatch.setattr("time.time", lambda: 2e9)
    other = dataclasses.replace(batch, rewards=np.repeat(batch.rewards, 2)[::2])  # not contiguous
    assert save(other, tmp_path / "other.npz").read_bytes() == one


def plain_value(value):
    """A value as the documented format says, without this package."""
    if not isinstance(value, dict):
        return [plain_value(item) for item in value] if isinstance(value, list) else value
    data = base64.b64decode(value.get("base64", ""))
    match value["$"]:
        case "float":
            return struct.unpack(">d", bytes.fromhex(value["bits"]))[0]
        case "tuple":
            return tuple(plain_value(item) for item in value["items"])
        case "dict":
            return {plain_value(key): plain_value(item) for key, item in value["items"]}
        case "array" | "scalar":
            return np.frombuffer(data, value["dtype"]).reshape(value["shape"])
    raise AssertionError(value)


def plain_tree(structure, entry):
    (kind, inner), *rest = structure.items()
    match kind:
        case "dict":
            return {key: plain_tree(child, entry) for key, child in inner.items()}
        case "tuple":
            return tuple(plain_tree(child, entry) for child in inner)
        case "objects":
            lines = entry(inner).tobytes().split(b"\n") if structure["length"] else []
            return trees.object_array([plain_value(json.loads(line)) for line in lines])
    assert (kind, rest) == ("array", [])
    return entry(inner)


@given(batch=batches())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_the_format_is_what_its_description_says(batch, tmp_path):
    """A reader made after the module's text, of nothing but zip, JSON and NumPy's arrays."""
    path = save(batch, tmp_path / "a.npz")
    with zipfile.ZipFile(path) as archive:

        def entry(name):
            with archive.open(f"{name}.npy") as member:
                return np.lib.format.read_array(member, allow_pickle=False)

        header = json.loads(entry("header").tobytes().decode("ascii"))
        assert (header["format"], header["format_version"]) == ("streamsampler.TrajectoryBatch", 1)
        assert (header["seed"], header["seeds"]) == (batch.seed, list(batch.seeds))
        for name in ("rewards", "lengths", "terminated", "truncated", "indices", "agent_versions"):
            assert trees.equal(entry(name), getattr(batch, name))
        for name, structure in header["structure"].items():
            assert trees.same(plain_tree(structure, entry), getattr(batch, name))
    for word in (*header, *header["structure"], *manifest_keys(), "unwritten"):
        assert f"`{word}`" in storage.__doc__ or f'"{word}"' in storage.__doc__


def manifest_keys():
    text = _as_json(Manifest(seed=1, shard_size=2, wanted={"timesteps": 3}, provenance={}, shards=(Shard(0, 1, 1, 1),)))
    facts = json.loads(text)
    return [*facts, *facts["shards"][0]]
