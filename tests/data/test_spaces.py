"""Values of spaces become rows, or errors that say both shapes, dtypes or values; trees of rows are cut and joined."""

import itertools
import pickle
import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as S
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.data import leaf_rows, trees
from streamsampler.data.copying import make_recorder
from streamsampler.data.digests import digest
from streamsampler.data.spaces import check_actions, row_spec, same_space, same_spaces, validate
from streamsampler.errors import ActionError, DataError, ObservationError

IMAGES = S.Box(0, 255, (70, 80), np.uint8)
FLOATS: Any = S.Box(-1, 1, (2,), np.float32)
BYTES: Any = S.Box(0, 255, (2,), np.uint8)
GRID = np.arange(6, dtype=np.float32).reshape(2, 3)
HALF: Any = S.Box(-np.inf, np.inf, (), np.float16)
DOUBLE: Any = S.Box(-np.inf, np.inf, (), np.float64)
LEAVES = st.sampled_from([
    S.Box(-1, 1, (3,), np.float32), S.Box(-np.inf, np.inf, (), np.float64), S.Box(0, 255, (2, 3), np.uint8),
    S.Discrete(5), S.Discrete(4, start=-2), S.Discrete(3, dtype=np.int8), S.MultiDiscrete([3, 4]),
    S.MultiBinary((2, 2)), S.Text(5), IMAGES,
])  # fmt: skip


def nested_spaces():
    def deeper(children):
        dicts = st.dictionaries(st.sampled_from(["a", "b", "c/d"]), children, max_size=3)
        return dicts.map(S.Dict) | st.lists(children, max_size=3).map(S.Tuple)

    return st.recursive(LEAVES, deeper, max_leaves=5)


def make(space, *options) -> Any:
    return make_recorder(space, "observation", *options)


def rows_of(space, values):
    recorder = make(space)
    for value in values:
        recorder.record(value)
    return recorder.view(0, len(values))


def row(tree, index):
    if isinstance(tree, dict):
        return {key: row(child, index) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(row(child, index) for child in tree)
    # Gymnasium warns of scalars where a Box has the shape ().
    return tree[index] if tree.dtype == object else np.asarray(tree[index])


@given(space=nested_spaces(), seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 6), max_size=3))
def test_what_is_recorded_is_what_is_seen_and_slices_of_it_join_to_the_whole(space, seed, cuts):
    space.seed(seed)
    values = [space.sample() for _ in range(6)]
    tree = rows_of(space, values)
    validate(space, tree, 6, "observation")
    assert check_actions(space, tree) is None
    for index, value in enumerate(values):
        assert space.contains(row(tree, index))
        assert trees.same(rows_of(space, [value]), trees.take(tree, slice(index, index + 1)))
    joined = trees.concatenate([trees.take(tree, slice(a, b)) for a, b in itertools.pairwise([0, *sorted(cuts), 6])])
    assert trees.same(joined, tree)
    for (_, ours), (_, theirs) in zip(trees.leaves(joined), trees.leaves(tree), strict=True):
        assert not np.shares_memory(ours, theirs)


@pytest.mark.parametrize("shape", [(2,), (3, 1000)])
def test_a_reused_buffer_is_copied(shape):
    recorder = make(S.Box(-9, 9, shape, np.float32))
    buffer = np.zeros(shape, np.float32)
    for number in range(1000):
        buffer[:] = number
        recorder.record(buffer)
    rows = recorder.view(0, 1000)
    assert rows.reshape(1000, -1)[:, -1].tolist() == list(range(1000))
    assert rows.flags.writeable
    value, objects = [1, 2], make(S.Sequence(S.Discrete(3)))
    objects.record(value)
    value.append(3)
    assert objects.view(0, 1)[0] == [1, 2]


@pytest.mark.parametrize("shape", [(3,), (3_000,)])
def test_an_array_made_from_an_unpickled_one_takes_the_quick_way(monkeypatch, shape):
    """Its dtype equals its space's, and is not the same object; that of an unpickled space is."""
    unpickled = pickle.loads(pickle.dumps(np.ones(shape, np.float32), protocol=5))
    value, space = unpickled + unpickled, S.Box(0, 5, shape, np.float32)
    assert value.dtype == space.dtype
    assert value.dtype is not space.dtype
    monkeypatch.setattr(leaf_rows.Leaf, "convert", None)
    assert np.array_equal(rows_of(space, [value])[0], value)
    for each in (space, S.Discrete(3), S.MultiBinary(2)):
        assert row_spec(pickle.loads(pickle.dumps(each)))[1] is row_spec(each)[1]


FLOAT_DTYPES = [np.float16, np.float32, np.float64, np.longdouble, ">f4", ">f8"]
NUMBERS = st.sampled_from([0.1, 2048, -np.inf, np.nan, 1 / 3])


@given(
    target=st.sampled_from(FLOAT_DTYPES[:3]),
    rows=st.lists(st.tuples(st.sampled_from(FLOAT_DTYPES), NUMBERS), max_size=6),
    length=st.sampled_from([1, 3, 2_000]),
    data=st.data(),
)
def test_floats_of_other_dtypes_are_rounded_as_numpy_does(target, rows, length, data):
    recorder = make(S.Box(-np.inf, np.inf, (length,), target))
    values = [np.full(length, value, dtype) for dtype, value in rows]
    for value in [*values, *values]:
        recorder.record(value)
    recorder.truncate(len(values))
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    expected = [value.astype(target) for value in values[start:stop]]
    assert trees.same(recorder.view(start, stop), np.array(expected, target).reshape(-1, length))
    recorder.clear()
    for number in range(len(values)):
        recorder.record(np.full(length, number, target))
    assert recorder.view(0, len(values))[:, 0].tolist() == list(range(len(values)))


def test_a_number_that_would_become_another_is_an_error_when_rows_are_looked_at_or_before():
    """Also where NumPy's warnings are errors, as in these tests."""
    cases: list[Any] = [
        (np.float32, -1e300, "-1e[+]300 as float64, which would become -inf in its space's dtype, float32"),
        (np.float32, 2**24 + 1, "16777217 as int64, which would become 16777216.0"),
        (np.float16, np.float32(2049), "2049.0 as float32, which would become 2048.0"),
        (np.float64, np.uint64(2**53 + 1), "9007199254740993 as uint64, which would become 9007199254740992.0"),
    ]
    for (dtype, value, words), length in itertools.product(cases, (3, 3_000)):
        space = S.Dict(speed=S.Box(-np.inf, np.inf, (length,), dtype))
        rows = np.zeros((2, length), np.asarray(value).dtype)
        rows[1, -1] = value
        with pytest.raises(ObservationError, match=rf"observation\['speed'\] holds {words}") as caught:
            rows_of(space, [{"speed": row} for row in rows])
        assert caught.value.row in (None, 1)


def test_truncating_rewinds_and_mends_a_value_that_failed_half_way():
    recorder = make(S.Dict(a=S.Discrete(9), b=S.Text(3)))
    for number in range(6):
        recorder.record({"a": number, "b": str(number)})
    recorder.truncate(2)
    with pytest.raises(ObservationError):
        recorder.record({"a": 5, "b": 5})
    recorder.truncate(2)
    assert recorder.count() == 2
    recorder.record({"a": 8, "b": "8"})
    assert trees.same(recorder.view(0, 3), {"a": np.array([0, 1, 8]), "b": trees.object_array(["0", "1", "8"])})
    recorder.clear()
    assert recorder.count() == 0
    recorder.record({"a": 7, "b": "7"})
    assert recorder.view(0, 1)["a"].tolist() == [7]


def test_large_rows_lie_in_memory_of_the_allocator_that_is_used_again_unless_it_is_renewed():
    made = []

    def allocate(shape, dtype):
        made.append((shape[1:], dtype))
        return np.empty(shape, dtype)

    recorder = make(S.Tuple([IMAGES, S.Discrete(3)]), ObservationError, allocate)
    kept = []
    for number, renews in enumerate([True, True, False]):
        recorder.record((np.full((70, 80), number, np.uint8), number))
        kept.append(recorder.view(0, 1)[0])
        recorder.clear()
        if renews:
            recorder.renew()
    recorder.record((np.full((70, 80), 9, np.uint8), 0))
    assert [rows.max() for rows in kept] == [0, 1, 9]
    assert np.shares_memory(kept[2], recorder.view(0, 1)[0])
    assert made == 3 * [((70, 80), np.uint8)]


@pytest.mark.parametrize(
    ("space", "value", "stored"),
    [
        (FLOATS, np.array([np.nan, np.inf], np.float32), [np.nan, np.inf]),
        (FLOATS, np.array([2**24, 2.0**100]), [2**24, 2.0**100]),
        (FLOATS, [16777217.5, 0], [16777218, 0]),
        (S.Box(-9, 9, (2, 3), np.float32), np.asfortranarray(GRID)[::-1], GRID[::-1]),
        (BYTES, np.array([7, 255], np.int64), [7, 255]),
        (DOUBLE, 3, 3),
        (S.Discrete(3), True, 1),
        (S.Discrete(3), np.array(2, np.uint8), 2),
    ],
)
def test_values_that_fit_after_a_cast(space, value, stored):
    tree = rows_of(space, [value])
    np.testing.assert_array_equal(tree[0], stored)
    assert tree.dtype == space.dtype


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (FLOATS, np.zeros(3, np.float32), r"observation .*\(3,\).*\(2,\)"),
        (FLOATS, None, "numbers.*NoneType"),
        (FLOATS, [1, [2, 3]], r"should be an array of shape \(2,\)"),
        (FLOATS, [0, 123456789.0], "holds 123456789.0 as float64, which would become 123456792.0"),
        (FLOATS, [0, 2**24 + 1], "16777217 as int64, which would become 16777216.0"),
        (HALF, np.float32(2049), "2049.0 as float32, which would become 2048.0"),
        (DOUBLE, 2**63 - 1, "9223372036854775807 as int64, which would become 9.223372036854776e[+]18"),
        (DOUBLE, np.uint64(2**53 + 1), "9007199254740993 as uint64, which would become 9007199254740992.0"),
        (FLOATS, 1.0, r"\(\).*\(2,\)"),
        (FLOATS, np.zeros(2, complex), "complex128.*float32"),
        (BYTES, np.zeros(2), "float64.*uint8"),
        (BYTES, [0, 256], "int64.*uint8"),
        (BYTES, [-1, 0], "int64.*uint8"),
        (S.Discrete(3), 1.0, "float64.*int64"),
        (S.Discrete(3), np.uint64(2**63), "uint64.*int64"),
        (S.Text(3), 3, "str"),
        (S.Discrete(3), np.array([1]), r"\(1,\).*\(\)"),
        (S.Discrete(3), 2**70, "numbers of int64"),
        (S.Dict(a=FLOATS, b=BYTES), {"a": [0, 0]}, r"\['a'\].*\['a', 'b'\]"),
        (S.Dict(a=FLOATS), {"b": [0, 0]}, r"\['b'\].*\['a'\]"),
        (S.Dict(a=FLOATS), [[0, 0]], r"1 parts.*\['a'\]"),
        (S.Dict(a=S.Dict(b=FLOATS)), {"a": {"b": [1]}}, r"observation\['a'\]\['b'\] has the shape \(1,\)"),
        (S.Tuple([FLOATS, FLOATS]), ([0, 0],), "1 parts.*2 parts"),
        (S.Tuple([FLOATS, FLOATS]), 5, "no parts"),
        (S.Tuple([FLOATS, BYTES]), ([0, 0], [0.5, 0]), r"observation\[1\].*float64.*uint8"),
    ],
)
def test_values_that_do_not_fit(space, value, words):
    for error in (ObservationError, ActionError):
        with pytest.raises(error, match=words):
            make(space, error).record(value)


@pytest.mark.parametrize(
    ("space", "values", "words"),
    [
        (FLOATS, [[0, 1], [0, 1.5]], r"action is outside its space: .*1\.5.*Box"),
        (FLOATS, [[0, 1], [0, 0], [np.nan, 0]], "nan"),
        (DOUBLE, [np.inf, np.nan], "nan"),
        (S.Discrete(3, start=2), [2, 4, 5], "5"),
        (S.MultiDiscrete([2, 3], start=[1, -1]), [[1, 1], [2, -1], [1, 2]], "1, 2"),
        (S.MultiBinary(2), [[0, 1], [0, 2]], "0, 2"),
        (S.Text(2), ["ab", "abc"], "abc"),
        (S.Dict(a=S.Discrete(2), b=S.Discrete(2)), [{"a": 0, "b": 0}, {"a": 0, "b": 2}], r"action\['b'\].*2.*Discrete"),
        (S.Tuple([S.Discrete(2)]), [(1,), (-1,)], r"action\[0\].*-1"),
    ],
)
def test_the_first_action_outside_its_space_is_found(space, values, words):
    for more in ([], values[-1:]):
        found = check_actions(space, rows_of(space, [*values, *more]))
        assert found is not None
        assert found[0] == len(values) - 1
        assert re.search(words, found[1])
    assert check_actions(space, rows_of(space, values[:-1])) is None


def test_trees_with_other_keys_than_their_space_are_refused():
    with pytest.raises(DataError, match=r"\['b'\].*\['a'\]"):
        validate(S.Dict(a=FLOATS), {"b": 1}, 2, "x")


def test_of_several_parts_of_actions_the_first_wrong_timestep_is_found():
    found = check_actions(
        S.Dict(a=S.Discrete(2), b=S.Discrete(2)), {"a": np.array([0, 0, 2]), "b": np.array([0, 2, 0])}
    )
    assert found is not None
    assert found[0] == 1


def test_equality_is_bit_for_bit():
    nan, objects = np.array([np.nan]), trees.object_array
    nested = objects([[np.nan, {"a": nan}], None, "x"])
    assert trees.same(nan, nan.copy())
    assert trees.same(nested, objects([[np.nan, {"a": nan.copy()}], None, "x"]))
    for one, other in (
        (np.array([0.0]), np.array([-0.0])),
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros((2, 1)), np.zeros((1, 2))),
        (objects([1]), objects([1.0])),
        (objects([(1,)]), objects([[1]])),
    ):
        assert not trees.same(one, other)


class Slots:
    __slots__ = ("number",)

    def __init__(self, number):
        self.number = number


class Holder(Slots):
    """Has attributes besides, one of which may be itself."""

    def __init__(self, number, array=()):
        super().__init__(number)
        self.array, self.itself = np.array(array, np.float32), self


OBJECTS: list[Any] = [
    None, 0, 1, 1.0, -0.0, 0.0, float("nan"), 2 + 1j, "a", "b", b"a", [], (), [1], (1,), [1, 2], [2, 1], [[1], 2],
    {"a": 1}, {"a": 2}, {"a": {"a": 1}}, {1, 2}, {1, 3}, np.int64(1), np.float32(1), np.zeros(2), np.zeros((2, 1)),
    np.zeros(2, bool), trees.object_array([np.zeros(2), "a"]), trees.object_array([np.ones(2), "a"]), Slots(1),
    Slots(2), Holder(1), Holder(1, [1]), len, max, Slots, np.zeros(3000), np.arange(3000) == 1500,
    *(S.GraphInstance(np.full((1, 2), value), None, None) for value in (0.0, 1.0)),
]  # fmt: skip


def test_objects_are_told_apart_by_what_they_hold():
    """And are the same when they have come through a pickle, which they do."""
    digests = [digest((value,)) for value in OBJECTS]
    assert len(set(digests)) == len(OBJECTS)
    copies = [pickle.loads(pickle.dumps(value)) for value in OBJECTS]
    assert [digest((value,)) for value in copies] == digests
    assert digest(({"a": 1, "b": 2},)) == digest(({"b": 2, "a": 1},))
    assert digest(("a", "b")) == digest(("a", "b"), 0) != digest(("a", "b"), 1)
    for i, j in itertools.product(range(len(OBJECTS)), repeat=2):
        if Holder not in (type(OBJECTS[i]), type(OBJECTS[j])):
            assert trees.same(OBJECTS[i], copies[j]) == (i == j)


def test_what_cannot_be_taken_apart_is_told_by_its_name():
    """And not by its place in memory, which is another one in each process."""
    one, other = ((each for each in range(3)) for _ in range(2))
    assert digest((one,)) == digest((other,))


class Own(S.Space[Any]):
    """A custom space without an `==`."""

    def __init__(self, number, space):
        super().__init__()
        self.number, self.space = number, space


def test_custom_spaces_are_compared_by_their_attributes():
    def of(number=1, size=2):
        own = Own(number, S.Box(0, 1, (size,)))
        own.seed(number)
        return own

    for make in (
        lambda each: each, lambda each: S.Dict(a=S.Discrete(2), b=each), lambda each: S.Tuple([each]), S.Sequence,
        lambda each: S.OneOf([S.Discrete(2), each]),
    ):  # fmt: skip
        one = make(of())
        assert same_space(one, pickle.loads(pickle.dumps(one)))
        assert same_space(one, make(of()))
        assert not same_space(one, make(of(2)))
        assert not same_space(one, make(of(size=3)))
        assert not same_space(one, of(3))
    assert same_spaces((of(), S.Discrete(2)), (of(), S.Discrete(2)))
    assert not same_spaces((of(), S.Discrete(2)), (of(), S.Discrete(3)))
    assert not same_space(S.Sequence(of(), stack=False), S.Sequence(of(), stack=True))
