import itertools
import pickle
import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as S
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.data import copying, trees
from streamsampler.data.copying import empty, make_recorder
from streamsampler.data.spaces import check_actions, row_spec, validate
from streamsampler.errors import ActionError, DataError, ObservationError

IMAGES = S.Box(0, 255, (70, 80), np.uint8)
LEAVES = st.sampled_from(
    [
        S.Box(-1, 1, (3,), np.float32),
        S.Box(-np.inf, np.inf, (), np.float64),
        S.Box(0, 255, (2, 3), np.uint8),
        S.Discrete(5),
        S.Discrete(4, start=-2),
        S.Discrete(3, dtype=np.int8),
        S.MultiDiscrete([3, 4]),
        S.MultiBinary((2, 2)),
        S.Text(5),
        IMAGES,
    ]
)


def nested_spaces():
    def deeper(children):
        dicts = st.dictionaries(st.sampled_from(["a", "b", "c/d"]), children, max_size=3)
        return dicts.map(S.Dict) | st.lists(children, max_size=3).map(S.Tuple)

    return st.recursive(LEAVES, deeper, max_leaves=5)


def rows_of(space, values):
    recorder: Any = make_recorder(space, "observation")
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


@given(space=nested_spaces(), seed=st.integers(0, 1000), n=st.integers(0, 5))
def test_what_is_recorded_is_what_is_seen(space, seed, n):
    space.seed(seed)
    values = [space.sample() for _ in range(n)]
    tree = rows_of(space, values)
    validate(space, tree, n, "observation")
    assert check_actions(space, tree) is None
    for index, value in enumerate(values):
        assert space.contains(row(tree, index))
        assert trees.same(rows_of(space, [value]), trees.take(tree, slice(index, index + 1)))


@given(space=nested_spaces(), cuts=st.lists(st.integers(0, 6), max_size=3))
def test_joining_slices_gives_the_whole(space, cuts):
    tree = rows_of(space, [space.sample() for _ in range(6)])
    bounds = [0, *sorted(cuts), 6]
    parts = [trees.take(tree, slice(a, b)) for a, b in itertools.pairwise(bounds)]
    joined = trees.concatenate(parts)
    assert trees.same(joined, tree)
    for (_, ours), (_, theirs) in zip(trees.leaves(joined), trees.leaves(tree), strict=True):
        assert not np.shares_memory(ours, theirs)


@pytest.mark.parametrize("shape", [(2,), (3, 1000)])
def test_a_reused_buffer_is_copied(shape):
    recorder: Any = make_recorder(S.Box(-9, 9, shape, np.float32), "observation")
    buffer = np.zeros(shape, np.float32)
    for number in range(1000):
        buffer[:] = number
        recorder.record(buffer)
    rows = recorder.view(0, 1000)
    assert rows.reshape(1000, -1)[:, -1].tolist() == list(range(1000))
    assert rows.flags.writeable


def test_rows_in_another_memory_order():
    value = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    recorder: Any = make_recorder(S.Box(-9, 9, (2, 3), np.float32), "observation")
    recorder.record(value)
    recorder.record(value[::-1])
    assert recorder.view(0, 2).tolist() == [value.tolist(), value[::-1].tolist()]


def test_object_spaces_copy_too():
    recorder: Any = make_recorder(S.Sequence(S.Discrete(3)), "observation")
    value = [1, 2]
    recorder.record(value)
    value.append(3)
    assert recorder.view(0, 1)[0] == [1, 2]


@pytest.mark.parametrize("shape", [(3,), (3_000,)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_an_array_made_from_an_unpickled_one_takes_the_quick_way(monkeypatch, shape, dtype):
    """Its dtype equals its space's, and is not the same object."""
    unpickled = pickle.loads(pickle.dumps(np.ones(shape, dtype), protocol=5))
    value = unpickled + unpickled
    space = S.Box(0, 5, shape, dtype)
    assert value.dtype == space.dtype
    assert value.dtype is not space.dtype
    recorder: Any = make_recorder(space, "observation")
    monkeypatch.setattr(copying.Leaf, "convert", None)
    recorder.record(value)
    assert np.array_equal(recorder.view(0, 1)[0], value)


FLOAT_DTYPES = [np.float16, np.float32, np.float64, np.longdouble, ">f4", ">f8"]


@given(
    target=st.sampled_from(FLOAT_DTYPES[:3]),
    rows=st.lists(
        st.tuples(st.sampled_from(FLOAT_DTYPES), st.sampled_from([0.1, 2048, -np.inf, np.nan, 1 / 3])), max_size=6
    ),
    length=st.sampled_from([1, 3, 2_000]),
    data=st.data(),
)
def test_floats_of_other_dtypes_are_rounded_as_numpy_does(target, rows, length, data):
    recorder: Any = make_recorder(S.Box(-np.inf, np.inf, (length,), target), "observation")
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


OTHERS = [
    (np.float32, 123456789.0, "123456789.0 as float64, which would become 123456792.0"),
    (np.float32, 1e39, "1e[+]39 as float64, which would become inf"),
    (np.float32, -1e300, "-1e[+]300 as float64, which would become -inf"),
    (np.float32, 2**24 + 1, "16777217 as int64, which would become 16777216.0"),
    (np.float32, np.uint32(2**32 - 1), "4294967295 as uint32, which would become 4294967296.0"),
    (np.float16, np.float32(2049), "2049.0 as float32, which would become 2048.0"),
    (np.float16, 65520.5, "65520.5 as float64, which would become inf"),
    (np.float64, 2**63 - 1, "9223372036854775807 as int64, which would become 9.223372036854776e[+]18"),
    (np.float64, np.uint64(2**53 + 1), "9007199254740993 as uint64, which would become 9007199254740992.0"),
]


@pytest.mark.parametrize("shape", [(3,), (3_000,)], ids=["small", "large"])
@pytest.mark.parametrize(("dtype", "value", "words"), OTHERS, ids=lambda case: str(case)[:20])
def test_a_number_that_would_become_another_is_an_error_that_says_both(shape, dtype, value, words):
    """Also where NumPy's warnings are errors, as in these tests."""
    recorder: Any = make_recorder(S.Dict(speed=S.Box(-np.inf, np.inf, shape, dtype)), "observation")
    row = np.zeros(shape, np.asarray(value).dtype)

    def record_both():
        recorder.record({"speed": row})
        row[-1] = value
        recorder.record({"speed": row})
        recorder.view(0, 2)

    with pytest.raises(ObservationError, match=rf"observation\['speed'\] holds {words}") as caught:
        record_both()
    assert caught.value.row in (None, 1)
    with pytest.raises(ObservationError, match=words):
        make_recorder(S.Box(-np.inf, np.inf, (1,), dtype), "observation").record([value])


def test_numbers_that_fit_are_converted():
    for dtype, value in ((np.float32, 2**24), (np.float32, 2.0**100), (np.float64, 2**63), (np.float32, 16777217.5)):
        recorder: Any = make_recorder(S.Box(-np.inf, np.inf, (2,), dtype), "observation")
        recorder.record(np.array([value, 0.5]))
        recorder.record([value, 0.5])
        expected = np.array([[value, 0.5]] * 2).astype(dtype)
        assert trees.same(recorder.view(0, 2), expected)


def test_truncate_rewinds_and_clear_keeps_the_memory():
    recorder: Any = make_recorder(S.Dict(a=S.Discrete(9), b=S.Text(3)), "observation")
    for number in range(6):
        recorder.record({"a": number, "b": str(number)})
    recorder.truncate(2)
    assert recorder.count() == 2
    recorder.record({"a": 8, "b": "8"})
    assert recorder.view(0, 3)["a"].tolist() == [0, 1, 8]
    assert recorder.view(0, 3)["b"].tolist() == ["0", "1", "8"]
    recorder.clear()
    assert recorder.count() == 0
    recorder.record({"a": 7, "b": "7"})
    assert recorder.view(0, 1)["a"].tolist() == [7]


def test_large_rows_are_views_of_memory_that_is_used_again():
    recorder: Any = make_recorder(IMAGES, "observation")
    recorder.record(np.full((70, 80), 3, np.uint8))
    first = recorder.view(0, 1)
    recorder.clear()
    recorder.record(np.full((70, 80), 4, np.uint8))
    assert np.shares_memory(first, recorder.view(0, 1))
    assert first.min() == first.max() == 4


def test_truncate_mends_a_value_that_failed_half_way():
    recorder: Any = make_recorder(S.Tuple([S.Discrete(3), S.Discrete(3)]), "observation")
    recorder.record((1, 1))
    with pytest.raises(ObservationError):
        recorder.record((2, "x"))
    recorder.truncate(1)
    recorder.record((0, 2))
    assert trees.same(recorder.view(0, 2), (np.array([1, 0]), np.array([1, 2])))


def test_buffers_come_from_the_allocator():
    made = []

    def allocate(shape, dtype):
        made.append((shape, dtype))
        return np.empty(shape, dtype)

    recorder: Any = make_recorder(S.Tuple([IMAGES, S.Discrete(3)]), "observation", ObservationError, allocate)
    for ticket in range(2):
        recorder.record((np.full((70, 80), ticket, np.uint8), ticket))
        rows = recorder.view(0, 1)[0]
        recorder.clear()
        recorder.renew()
        assert rows.min() == rows.max() == ticket
    # A new one for each ticket: the last one may be on its way.
    assert [(shape[1:], dtype) for shape, dtype in made] == 2 * [((70, 80), np.uint8)]


FLOATS: Any = S.Box(-1, 1, (2,), np.float32)
BYTES: Any = S.Box(0, 255, (2,), np.uint8)


@pytest.mark.parametrize(
    ("space", "value", "stored"),
    [
        (FLOATS, np.array([0.5, 2.0]), [0.5, 2.0]),
        (FLOATS, [1, 0.25], [1, 0.25]),
        (FLOATS, (np.True_, 3), [1, 3]),
        (FLOATS, np.array([np.nan, np.inf], np.float32), [np.nan, np.inf]),
        (FLOATS, np.array([1, 2], np.int64), [1, 2]),
        (BYTES, [0, 255], [0, 255]),
        (BYTES, np.array([7, 8], np.int64), [7, 8]),
        (S.Box(-9, 9, (), np.float64), 3, 3),
        (S.Discrete(3), True, 1),
        (S.Discrete(3), np.array(2, np.uint8), 2),
        (S.Discrete(3), np.int32(1), 1),
        (S.MultiBinary(2), [True, False], [1, 0]),
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
        (FLOATS, np.zeros((), np.float32), r"\(\).*\(2,\)"),
        (FLOATS, np.zeros((1, 2), np.float32), r"\(1, 2\).*\(2,\)"),
        (FLOATS, 1.0, r"\(\).*\(2,\)"),
        (FLOATS, np.zeros(2, complex), "complex128.*float32"),
        (FLOATS, ["a", "b"], "numbers"),
        (FLOATS, None, "numbers.*NoneType"),
        (FLOATS, [1, [2, 3]], r"no array of shape \(2,\)"),
        (BYTES, np.zeros(2), "float64.*uint8"),
        (BYTES, [0, 256], "int64.*uint8"),
        (BYTES, [-1, 0], "int64.*uint8"),
        (S.Discrete(3), 1.0, "float64.*int64"),
        (S.Discrete(3), np.array([1]), r"\(1,\).*\(\)"),
        (S.Discrete(3), 2**70, "numbers of int64"),
        (S.Discrete(3, dtype=np.int8), 200, "int64.*int8"),
        (S.Discrete(3), np.uint64(2**63), "uint64.*int64"),
        (S.Discrete(3), "1", "numbers"),
        (S.Text(3), 3, "str"),
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
    recorder: Any = make_recorder(space, "observation")
    with pytest.raises(ObservationError, match=words):
        recorder.record(value)


def test_the_error_is_the_one_asked_for():
    with pytest.raises(ActionError, match=r"float64.*int64"):
        make_recorder(S.Discrete(3), "action", ActionError).record(0.0)


@pytest.mark.parametrize(
    ("space", "values", "index"),
    [
        (S.Box(-1, 1, (2,), np.float32), [[0, 1], [0, 1.5]], 1),
        (S.Box(-1, 1, (2,), np.float32), [[0, 1], [0, 0], [np.nan, 0]], 2),
        (S.Box(-np.inf, np.inf, (1,), np.float32), [[np.inf], [np.nan]], 1),
        (S.Discrete(3, start=2), [2, 4, 5], 2),
        (S.Discrete(3, start=2), [1], 0),
        (S.MultiDiscrete([2, 3]), [[1, 2], [2, 0]], 1),
        (S.MultiDiscrete([2, 3], start=[1, -1]), [[1, 1], [2, -1], [1, 2]], 2),
        (S.MultiBinary(2), [[0, 1], [0, 2]], 1),
        (S.Text(2), ["ab", "abc"], 1),
        (S.Dict(a=S.Discrete(2), b=S.Discrete(2)), [{"a": 0, "b": 0}, {"a": 0, "b": 2}, {"a": 2, "b": 0}], 1),
        (S.Tuple([S.Discrete(2)]), [(1,), (-1,)], 1),
    ],
)
def test_the_first_action_outside_its_space_is_found(space, values, index):
    found = check_actions(space, rows_of(space, values))
    assert found is not None
    assert found[0] == index
    assert check_actions(space, rows_of(space, values[:index])) is None


def test_the_message_names_leaf_value_and_space():
    space = S.Dict(a=S.Discrete(2))
    found = check_actions(space, {"a": np.array([5])})
    assert found is not None
    assert re.search(r"action\['a'\].*5.*Discrete\(2\)", found[1])


def test_validate_prints_both():
    with pytest.raises(DataError, match=r"x has the shape \(2, 2\).*\(3, 2\)"):
        validate(FLOATS, np.zeros((2, 2), np.float32), 3, "x")
    with pytest.raises(DataError, match=r"float64.*float32"):
        validate(FLOATS, np.zeros((2, 2)), 2, "x")
    with pytest.raises(DataError, match="array"):
        validate(FLOATS, {"a": 1}, 2, "x")
    with pytest.raises(DataError, match=r"\['b'\].*\['a'\]"):
        validate(S.Dict(a=FLOATS), {"b": 1}, 2, "x")


def test_empty_has_the_shapes():
    tree: Any = empty(S.Dict(a=FLOATS, b=S.Text(3)))
    assert tree["a"].shape == (0, 2)
    assert tree["b"].dtype == object


def test_equality_is_bit_for_bit():
    nan = np.array([np.nan])
    assert trees.same(nan, nan.copy())
    assert not trees.same(np.array([0.0]), np.array([-0.0]))
    assert not trees.same(np.zeros(2), np.zeros(2, np.float32))
    assert not trees.same(np.zeros((2, 1)), np.zeros((1, 2)))
    nested = trees.object_array([[np.nan, {"a": nan}], None, "x"])
    assert trees.same(nested, trees.object_array([[np.nan, {"a": nan.copy()}], None, "x"]))
    assert not trees.same(trees.object_array([1]), trees.object_array([1.0]))
    assert not trees.same(trees.object_array([(1,)]), trees.object_array([[1]]))


def test_padding():
    padded = trees.pad(np.array([1, 2, 3]), np.array([1, 2]), 3, -1)
    assert padded.tolist() == [[1, -1, -1], [2, 3, -1]]
    assert trees.pad(np.zeros((0, 2)), np.zeros(0, np.int64), 3).shape == (0, 3, 2)  # type: ignore[comparison-overlap]


def test_dtypes_of_spaces_that_were_unpickled_are_numpys_own():
    """Loops that copy what has just the dtype of a space compare the objects."""
    for space in (S.Box(0, 1, (2,)), S.Discrete(3), S.MultiBinary(2)):
        assert row_spec(pickle.loads(pickle.dumps(space)))[1] is row_spec(space)[1]
