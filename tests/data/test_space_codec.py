"""Spaces that are not Gymnasium's: written with their values, and read where their classes are not there."""

import copy
import dataclasses
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces as S

from streamsampler import RandomAgent, TrajectoryBatch
from streamsampler.data import trees
from streamsampler.data.codec import OpaqueSpace, Unwritten, check_writable, decode_space, encode_space
from streamsampler.data.files import load
from streamsampler.data.npz import read, save
from streamsampler.errors import StorageError, UsageError
from tests.data.test_recorder import batch_of, tickets


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


@pytest.fixture(scope="module")
def batch():
    return batch_of(tickets([2, 1, 3], [], SPACE), SPACE)


def through_json(space):
    return decode_space(json.loads(json.dumps(encode_space(space, "x"))))


def test_values_come_back_and_what_the_space_was_is_told(batch, tmp_path):
    path = save(batch, tmp_path / "a.npz", provenance={"x": 1})
    loaded = load(path)
    assert trees.same(loaded.observations, batch.observations)
    assert set(loaded.observations["mission"]) <= {"get the red key", "get the blue key"}
    mission = loaded.observation_space["mission"]  # type: ignore[index]
    assert isinstance(mission, OpaqueSpace)
    assert mission.class_name == f"{__name__}.Mission"
    assert mission.attributes == {
        "say": Unwritten("builtins.function", f"{__name__}.say"), "colours": ["red", "blue"]
    }  # fmt: skip
    assert mission.dtype == MISSION.dtype
    assert repr(mission) == (
        f"OpaqueSpace({__name__}.Mission, say=<builtins.function {__name__}.say>, colours=['red', 'blue'])"
    )
    assert loaded.observation_space["steps"] == STEPS, "its class is here, and the file has all of it"  # type: ignore[index]

    assert load(path) == loaded
    assert pickle.loads(pickle.dumps(loaded)) == copy.deepcopy(loaded) == loaded
    assert TrajectoryBatch.concatenate(loaded[0], loaded[1:]) == loaded
    again = save(loaded, tmp_path / "again.npz", provenance=read(path)[1]["provenance"])
    assert again.read_bytes() == path.read_bytes()


def test_an_opaque_space_says_that_it_does_not_know():
    space = through_json(MISSION)
    with pytest.raises(UsageError, match=r"cannot sample: it stands for a .*Mission that a file describes"):
        space.sample()
    with pytest.raises(UsageError, match="cannot tell what belongs to it"):
        "get the red key" in space  # noqa: B015
    assert not space.is_np_flattenable
    assert space == through_json(Mission(say, ["red", "blue"]))
    assert hash(space) == hash(through_json(MISSION))
    for other in (Mission(say, ["red"]), Mission(len, ["red", "blue"])):
        assert space != through_json(other)
    assert space != MISSION
    assert through_json(space) == space
    with pytest.raises(UsageError, match="cannot sample"):
        RandomAgent(space).get_action(None)


def test_a_class_that_is_not_there_is_not_imported(batch, tmp_path):
    path = save(batch, tmp_path / "a.npz")
    script = (
        "import sys, streamsampler\n"
        f"batch = streamsampler.load({str(path)!r})\n"
        "print(*(type(space).__name__ for space in batch.observation_space.values()))\n"
        "print(batch.observation_space['steps'].attributes['sizes'], batch.observation_space['steps'].attributes)\n"
        f"assert {__name__!r} not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    kinds, attributes = result.stdout.splitlines()
    assert kinds == "Box OpaqueSpace OpaqueSpace"
    assert attributes.startswith("[1 2 4] {'sizes': array([1, 2, 4]), 'inner': {'box': Box(-1.0, 1.0, (2,), float32)")


def test_a_class_that_has_changed_since_is_not_taken():
    record = encode_space(STEPS, "x")
    for change in ({"class": f"{__name__}.say"}, {"class": "os.system"}, {"class": ""}, {"class": "gymnasium.Space.x"}):
        assert isinstance(decode_space({**record, **change}), OpaqueSpace)
    assert isinstance(decode_space({**record, "dtype": "<f4", "shape": [2]}), Steps)
    assert isinstance(decode_space({**record, "class": "gymnasium.spaces.box.Box"}), OpaqueSpace)


def test_what_a_space_has_of_itself_ends():
    space = Mission(say, [])
    space.colours.append(space.colours)
    assert isinstance(through_json(space), OpaqueSpace)


@pytest.mark.parametrize(
    "space",
    [
        S.Sequence(S.Discrete(3)),
        S.Sequence(S.Dict(a=S.Box(-1, 1, (2,), np.float32)), stack=True),
        S.Graph(S.Box(0, 1, (2,), np.float32), S.Discrete(2)),
        S.Graph(S.Discrete(3), None),
        S.OneOf([S.Discrete(2), S.Text(3)]),
    ],
    ids=str,
)
def test_gymnasiums_spaces_of_objects(space, tmp_path):
    space = S.Dict(it=space)
    batch = batch_of(tickets([2, 3], [], space), space)
    loaded = load(save(batch, tmp_path / "a.npz"))
    assert loaded == batch
    assert type(loaded.observation_space["it"]) is type(space["it"])  # type: ignore[index]


class Things(Mission):
    def sample(self, mask=None, probability=None):
        return object()


def test_values_that_cannot_be_written_are_found_out_by_a_sample():
    before = copy.deepcopy(MISSION.np_random.bit_generator.state)
    check_writable(SPACE, "observation_space")
    assert MISSION.np_random.bit_generator.state == before
    space = S.Tuple([S.Dict(a=Things(say, []))])
    with pytest.raises(StorageError, match=r"observation_space\[0\]\['a'\] holds a builtins\.object"):
        check_writable(space, "observation_space")
    check_writable(through_json(MISSION), "a space that cannot sample")


def test_an_object_that_cannot_be_written_is_still_an_error(batch, tmp_path):
    things = dataclasses.replace(
        batch, action_space=MISSION, actions=trees.object_array([object()] * batch.n_timesteps)
    )
    with pytest.raises(StorageError, match=r"actions\[0\] holds a builtins\.object"):
        save(things, tmp_path / "a")
