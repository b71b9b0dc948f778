"""Files of batches: what is saved comes back, as the format's description says, whatever the spaces are."""

import base64
import copy
import dataclasses
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from gymnasium import spaces as S
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamsampler import LocalSampler, RandomAgent
from streamsampler.data import trees
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.codec import decode, encode
from streamsampler.data.npz import read, read_trees, save
from streamsampler.data.shards import Manifest, Shard, _as_json, load
from streamsampler.data.space_codec import OpaqueSpace, Unwritten, check_writable, decode_space, encode_space
from streamsampler.errors import StorageError, UsageError
from tests.data.test_batch import batches
from tests.data.test_recorder import batch_of, tickets
from tests.documentation.blocks import DOCS
from tests.scripted.envs import Nested

NAMES = S.Dict({"a/b": S.Discrete(2), "a_b": S.Discrete(3), "a": S.Dict({"b": S.Discrete(4)}), "a.b": S.Text(3)})
"""Keys that would share a name in a file."""


@pytest.fixture
def batch():
    return batch_of(tickets([2, 1, 3, 2, 2, 4], []))


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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(batch=batches(), compress=st.booleans())
@example(batch=batch_of(tickets([3], [], NAMES), NAMES), compress=True)
def test_what_is_saved_comes_back_and_the_format_is_what_its_description_says(batch, compress, tmp_path):
    """Also to a reader made after the module's text, of nothing but zip, JSON and NumPy's arrays."""
    path = save(batch, tmp_path / "a.npz", compress=compress)
    assert load(path) == batch
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
    manifest = Manifest(seed=1, shard_size=2, wanted={"timesteps": 3}, provenance={}, shards=(Shard(0, 1, 1, 1),))
    facts = json.loads(_as_json(manifest))
    described = (DOCS / "storage-and-formats.md").read_text()
    for word in (*header, *header["structure"], *facts, *facts["shards"][0], "unwritten"):
        assert f"`{word}`" in described or f'"{word}"' in described


def test_names_provenance_and_single_arrays(batch, tmp_path):
    path = batch.save(tmp_path / "run.1", provenance={"env": "X"})
    assert path == tmp_path / "run.1.npz"
    assert os.listdir(tmp_path) == ["run.1.npz"]
    assert TrajectoryBatch.load(tmp_path / "run.1") == TrajectoryBatch.load(str(path)) == batch
    arrays, header = read(path, "lengths", "rewards")
    assert header["provenance"] == {"env": "X"}
    assert sorted(arrays) == ["lengths", "rewards"]
    np.testing.assert_array_equal(arrays["rewards"], batch.rewards)


def test_a_wrong_name_of_an_array_is_told_from_damage(tmp_path):
    with LocalSampler("random", Nested, seed=1) as sampler:
        path = sampler.obtain_trajectories(1).save(tmp_path / "nested.npz")
    for name, words in (
        ("nothing", "there is no array 'nothing' in .*nested.npz; it has rewards, terminated, "),
        ("reward", "there is no array 'reward' in .*nested.npz: did you mean 'rewards'"),
        ("observations", "; there are observations.image, .*: name these, or use read_trees"),
        ("agent_infos", "it is empty; read_trees"),
        ("seeds", "it is in the header, the second result"),
    ):
        with pytest.raises(StorageError, match=words):
            read(path, name)
    with pytest.raises(StorageError, match=r"no tree 'rewards' in .*, only observations, .*; read returns arrays"):
        read_trees(path, "rewards")
    with pytest.raises(StorageError, match=r"no tree 'infos' in .*, only observations, .*episode_infos$"):
        read_trees(path, "infos")


def test_equal_batches_make_equal_files(batch, tmp_path, monkeypatch):
    one = save(batch, tmp_path / "one.npz").read_bytes()
    monkeypatch.setattr("time.time", lambda: 2e9)
    other = dataclasses.replace(batch, rewards=np.repeat(batch.rewards, 2)[::2])  # not contiguous
    assert save(other, tmp_path / "other.npz").read_bytes() == one


ARRAYS = [np.float32(0.1), np.zeros((0, 2)), np.array(["a", "bc"]), np.int8(3), np.complex64(1j)]
TEXT = st.text(max_size=3)
NUMBERS = st.booleans() | st.integers() | st.floats()
SIMPLE = st.none() | NUMBERS | TEXT | st.binary(max_size=3) | st.sampled_from(ARRAYS)
KEYS = TEXT | st.integers() | st.just("$")


@given(
    value=st.recursive(
        SIMPLE, lambda it: st.lists(it) | st.lists(it).map(tuple) | st.dictionaries(KEYS, it), max_leaves=8
    )
)
def test_objects_come_back_exactly(value):
    assert trees.same(decode(json.loads(json.dumps(encode(value, "x")))), value)


def test_what_cannot_be_written_is_an_error_and_leaves_nothing(batch, tmp_path):
    for value in ({1, "a"}, frozenset([1]), 1j, np.array([1, None], object), np.zeros(2, "V3")):
        with pytest.raises(StorageError, match=r"^x\[0\] holds a .*: only numbers, strings, arrays of them"):
            encode([value], "x")
    things = trees.object_array([object()] * 14)
    for wrong, words in (
        (dataclasses.replace(batch, env_infos={"x": things}), r"env_infos\['x'\] holds a builtins.object"),
        (dataclasses.replace(batch, action_space=MISSION, actions=things), r"actions\[0\] holds a builtins\.object"),
    ):
        with pytest.raises(StorageError, match=words):
            save(wrong, tmp_path / "a")
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


def say(colour):
    return f"get the {colour} key"


class Mission(S.Space[str]):
    """Like MiniGrid's: it has a function, which no file can hold."""

    def __init__(self, say, colours):
        self.say, self.colours = say, colours
        super().__init__(dtype=str)

    def sample(self, mask=None, probability=None):
        return self.say(self.colours[self.np_random.integers(len(self.colours))])

    def contains(self, x):
        return x in [self.say(colour) for colour in self.colours]

    def __eq__(self, other):
        return isinstance(other, Mission) and (self.say, self.colours) == (other.say, other.colours)


class Things(Mission):
    def sample(self, mask=None, probability=None):
        return object()


class Steps(S.Space[int]):
    """Has nothing that a file cannot hold."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        self.inner = {"box": S.Box(-1, 1, (2,), np.float32), "parts": (S.Discrete(3), [S.Text(4)])}

    def sample(self, mask=None, probability=None):
        return int(self.sizes[self.np_random.integers(len(self.sizes))])

    def contains(self, x):
        return x in self.sizes

    def __eq__(self, other):
        return isinstance(other, Steps) and trees.same((self.sizes, self.inner), (other.sizes, other.inner))


MISSION = Mission(say, ["red", "blue"])
STEPS = Steps(np.array([1, 2, 4]))
SPACE = S.Dict({"image": S.Box(0, 255, (2, 2), np.uint8), "mission": MISSION, "steps": STEPS})


def through_json(space):
    return decode_space(json.loads(json.dumps(encode_space(space, "x"))))


@pytest.mark.parametrize(
    "space",
    [
        S.Box(np.array([-np.inf, 0.1], np.float32), np.array([3, np.inf], np.float32)),
        S.Box(0.1, 0.7, (), np.float64),
        S.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 2], [3, 4]])),
        S.MultiDiscrete([2, 3], dtype=np.int32),
        S.MultiBinary([2, 3]),
        S.Text(max_length=4, min_length=2, charset="ab"),
        S.Sequence(S.Dict(a=S.Box(-1, 1, (2,), np.float32)), stack=True),
        S.Graph(S.Box(0, 1, (2,), np.float32), S.Discrete(2)),
        S.Graph(S.Discrete(3), None),
        S.OneOf([S.Discrete(2), S.Text(3)]),
    ],
    ids=str,
)
def test_gymnasiums_spaces_come_back_with_their_values(space, tmp_path):
    space = S.Dict(it=space)
    batch = batch_of(tickets([2, 3], [], space), space)
    loaded = load(save(batch, tmp_path / "a.npz"))
    assert loaded == batch
    again = loaded.observation_space["it"]  # type: ignore[index]
    assert (type(again), again.dtype) == (type(space["it"]), space["it"].dtype)
    if isinstance(again, S.Box):  # Gymnasium compares bounds that are close
        assert trees.same((again.low, again.high), (space["it"].low, space["it"].high))


def test_spaces_of_others_are_told_with_their_values_and_taken_where_their_class_is_here(tmp_path):
    batch = batch_of(tickets([2, 1, 3], [], SPACE), SPACE)
    path = save(batch, tmp_path / "a.npz", provenance={"x": 1})
    loaded = load(path)
    assert trees.same(loaded.observations, batch.observations)
    mission, steps = (loaded.observation_space[key] for key in ("mission", "steps"))  # type: ignore[index]
    assert isinstance(mission, OpaqueSpace)
    assert mission.class_name == f"{__name__}.Mission"
    function = Unwritten("builtins.function", f"{__name__}.say")
    assert mission.attributes == {"say": function, "colours": ["red", "blue"]}
    assert mission.dtype == MISSION.dtype
    shown = f"say=<builtins.function {__name__}.say>, colours=['red', 'blue']"
    assert repr(mission) == f"OpaqueSpace({__name__}.Mission, {shown})"
    assert steps == STEPS, "its class is here, and the file has all of it"
    assert pickle.loads(pickle.dumps(loaded)) == copy.deepcopy(loaded) == load(path) == loaded
    assert TrajectoryBatch.concatenate(loaded[0], loaded[1:]) == loaded
    again = save(loaded, tmp_path / "again.npz", provenance=read(path)[1]["provenance"])
    assert again.read_bytes() == path.read_bytes()
    # Where their classes are not there, they are not imported.
    script = (
        f"import sys, streamsampler; space = streamsampler.load({str(path)!r}).observation_space\n"
        f"print(*(type(it).__name__ for it in space.values()), {__name__!r} in sys.modules)\n"
        "print(space['steps'].attributes)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    kinds, attributes = result.stdout.splitlines()
    assert kinds == "Box OpaqueSpace OpaqueSpace False"
    assert attributes.startswith("{'sizes': array([1, 2, 4]), 'inner': {'box': Box(-1.0, 1.0, (2,), float32)")


def test_an_opaque_space_says_that_it_does_not_know():
    space = through_json(MISSION)
    with pytest.raises(UsageError, match=r"cannot sample: it stands for a .*Mission that a file describes"):
        space.sample()
    with pytest.raises(UsageError, match="cannot check membership"):
        "get the red key" in space  # noqa: B015
    with pytest.raises(UsageError, match="cannot sample"):
        RandomAgent(space).get_action(None)
    assert not space.is_np_flattenable
    assert space == through_json(space) == through_json(Mission(say, ["red", "blue"]))
    assert hash(space) == hash(through_json(MISSION))
    for other in (MISSION, through_json(Mission(say, ["red"])), through_json(Mission(len, ["red", "blue"]))):
        assert space != other
    endless = Mission(say, [])
    endless.colours.append(endless.colours)
    assert isinstance(through_json(endless), OpaqueSpace)


def test_a_class_that_has_changed_since_is_not_taken():
    record = encode_space(STEPS, "x")
    for name in (f"{__name__}.say", "os.system", "", "gymnasium.Space.x", "gymnasium.spaces.box.Box"):
        assert isinstance(decode_space({**record, "class": name}), OpaqueSpace)
    assert isinstance(decode_space({**record, "dtype": "<f4", "shape": [2]}), Steps)


def test_values_that_cannot_be_written_are_found_out_by_a_sample():
    before = copy.deepcopy(MISSION.np_random.bit_generator.state)
    check_writable(SPACE, "observation_space")
    assert MISSION.np_random.bit_generator.state == before
    with pytest.raises(StorageError, match=r"observation_space\[0\]\['a'\] holds a builtins\.object"):
        check_writable(S.Tuple([S.Dict(a=Things(say, []))]), "observation_space")
    check_writable(through_json(MISSION), "a space that cannot sample")
