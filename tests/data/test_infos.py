import itertools
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.data import trees
from streamsampler.data.info_columns import are_uniform, column_of, join_undecided, merge
from streamsampler.data.infos import InfoRecorder, columns_of, concatenate_infos, infos_of, take_infos, validate_infos
from streamsampler.errors import DataError
from streamsampler.workers.vec.rows import BatchInfos

SCALARS = st.sampled_from(
    [True, 3, -1, 2**70, 0.5, np.nan, "text", None, np.float32(1.5), np.int8(-3), np.uint64(2**63), np.array(2.5), 1j]
)
ARRAYS = st.sampled_from([np.arange(3), np.ones(3, np.float32), np.zeros((2, 2)), np.array(["a"]), [1, "b"], (1, 2)])
VALUES = SCALARS | ARRAYS | st.dictionaries(st.sampled_from(["u", "v"]), SCALARS, max_size=2)
INFO_LISTS = st.lists(st.dictionaries(st.sampled_from(["a", "b", "_c"]), VALUES, max_size=3), min_size=1, max_size=8)
NUMBERS = st.sampled_from(
    [
        2**53 + 1,
        np.uint64(2**64 - 1),
        True,
        3,
        0.5,
        np.float32(1.5),
        np.int8(-3),
        np.uint64(2**63),
        np.float16(2),
        np.array(7),
    ]
)
NUMBER_LISTS = st.lists(st.dictionaries(st.sampled_from(["a", "b"]), NUMBERS, max_size=2), min_size=1, max_size=8)


def record(infos):
    recorder = InfoRecorder("env_infos")
    for step, info in enumerate(infos):
        recorder.record(step, info)
    return recorder.finish(len(infos))


def form(infos):
    return infos_of(merge([(record(infos), 0, len(infos))], "env_infos"))


@given(infos=INFO_LISTS | NUMBER_LISTS, data=st.data())
def test_the_cut_into_chunks_does_not_matter(infos, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(infos)), max_size=4)))
    bounds = [0, *cuts, len(infos)]
    separate, ranges, whole = [], [], record(infos)
    for start, stop in itertools.pairwise(bounds):
        separate.append((record(infos[start:stop]), 0, stop - start))
        ranges.append((whole, start, stop))
    expected = form(infos)
    assert trees.same(infos_of(merge(separate, "env_infos")), expected)
    undecided = join_undecided(ranges)
    assert trees.same(infos_of(merge([(undecided, 0, undecided.length)], "env_infos")), expected)
    assert trees.same(infos_of(merge(ranges, "env_infos")), expected)


@given(infos=INFO_LISTS, data=st.data())
def test_a_range_is_as_if_only_it_had_been_recorded(infos, data):
    start = data.draw(st.integers(0, len(infos)))
    stop = data.draw(st.integers(start, len(infos)))
    assert trees.same(infos_of(merge([(record(infos), start, stop)], "x")), form(infos[start:stop]))


ALIKE = st.sampled_from([1, 0.5, "text", np.float32(2), np.arange(3), np.array(["a"])])
LONELY = st.builds(lambda value: [{"a": value}, {}, {"b": {"u": value}}, {"a": value, "b": {"u": value}}], ALIKE)


@given(infos=INFO_LISTS | NUMBER_LISTS | LONELY, data=st.data())
def test_where_all_is_uniform_a_range_can_be_cut_out_afterwards(infos, data):
    start = data.draw(st.integers(0, len(infos)))
    stop = data.draw(st.integers(start, len(infos)))
    parts = [record(infos[:start]), record(infos[start:])]
    if are_uniform(parts):
        whole = infos_of(merge([(part, 0, part.length) for part in parts], "x"))
        assert trees.same(take_infos(whole, slice(start, stop)), form(infos[start:stop]))


@pytest.mark.parametrize(
    ("infos", "uniform"),
    [
        ([{"a": 1}, {"a": np.int64(2)}, {}], True),
        ([{"a": "one"}, {"a": None}], True),
        ([{"a": {"u": 1}}, {"b": 0.5}], True),
        ([{"a": 1}, {"a": 0.5}], False),
        ([{"a": 1}, {"a": "one"}], False),
        ([{"a": np.zeros(2)}, {"a": np.zeros(3)}], False),
        ([{"a": 1}, {"a": {"u": 1}}], False),
    ],
)
def test_what_is_uniform(infos, uniform):
    assert are_uniform([record(infos)]) is uniform
    assert are_uniform([record([info]) for info in infos]) is uniform


def test_arrays_of_text_are_objects_however_long_the_text_is():
    def recorded(*batches):
        infos = BatchInfos("x")
        for number, texts in enumerate(batches):
            infos.record(np.arange(2) + 2 * number, {"a": np.array(texts)})
        return infos.select(np.arange(2 * len(batches)), lambda positions: positions)

    expected = infos_of(merge([(recorded(["a", "bc"]), 0, 2)], "x"))
    assert expected["a"].dtype == object
    assert trees.same(infos_of(merge([(recorded(["a", "bc"], ["def", "g"]), 0, 2)], "x")), expected)


@given(infos=INFO_LISTS, data=st.data())
def test_selecting_and_joining_gives_the_whole(infos, data):
    whole = form(infos)
    validate_infos(whole, len(infos), "env_infos")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(infos)), max_size=4)))
    bounds = [0, *cuts, len(infos)]
    parts = [(take_infos(whole, slice(a, b)), b - a) for a, b in itertools.pairwise(bounds)]
    assert trees.same(concatenate_infos(parts, "env_infos"), whole)


def test_keys_come_and_go():
    infos = form([{"a": 1}, {"a": 2, "b": "x"}, {"a": 3, "c": np.ones(2, np.float32)}])
    assert list(infos) == ["a", "b", "_b", "c", "_c"]
    assert infos["a"].dtype == np.int64
    assert infos["b"].tolist() == [None, "x", None]
    assert infos["_b"].tolist() == [False, True, False]
    assert infos["c"].dtype == np.float32
    assert infos["c"].tolist() == [[0, 0], [0, 0], [1, 1]]
    assert infos["_c"].dtype == np.bool_


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False], np.bool_),
        ([1, 2], np.int64),
        ([1, 0.5], np.float64),
        ([True, 2], np.int64),
        ([np.float32(0.1), np.float32(np.inf)], np.float32),
        ([np.int32(-(2**31)), np.int32(4)], np.int32),
        ([np.float32(1), 2.0], np.float64),
        ([np.int32(1), 2], np.int64),
        ([np.float32(1), np.int8(2)], np.float32),
        ([np.zeros(2), np.ones(2, np.float32)], np.float64),
        ([np.zeros(2), np.ones(3)], object),
        ([1, 2**64], object),
        (["a", "b"], object),
        ([None, 1.0], object),
        ([np.datetime64(1, "s"), np.datetime64(2, "s")], "M8[s]"),
        ([np.datetime64(1, "s"), 2], object),
    ],
)
def test_dtypes(values, dtype):
    assert form([{"a": value} for value in values])["a"].dtype == dtype


def test_objects_hold_python_numbers():
    values = form([{"a": np.float32(1)}, {"a": "x"}, {"a": np.array(3)}])["a"].tolist()
    assert values == [1.0, "x", 3]
    assert [type(value) for value in values] == [float, str, int]


def test_nested_dicts_and_their_masks():
    infos = form([{"a": {"b": 1}}, {"a": {"b": 2, "c": 3.0}}, {}])
    assert set(infos) == {"a"}
    assert infos["a"]["b"].tolist() == [1, 2, 0]
    assert infos["a"]["_b"].tolist() == [True, True, False]
    assert infos["a"]["_c"].tolist() == [False, True, False]


def test_a_dict_here_and_a_number_there_are_objects():
    infos = form([{"a": {"b": 1, "c": {"d": 2}}}, {"a": 5}, {}])
    assert infos["a"].tolist() == [{"b": 1, "c": {"d": 2}}, 5, None]
    assert infos["_a"].tolist() == [True, True, False]


def test_what_changes_later_is_copied():
    array, items, inner = np.zeros(2), [1], {1: [2]}
    recorder = InfoRecorder("env_infos")
    for step in range(2):
        recorder.record(step, {"array": array, "items": items, "inner": inner})
    array[:], items[0], inner[1][0] = 9, 9, 9
    infos = infos_of(merge([(recorder.finish(2), 0, 2)], "env_infos"))
    assert infos["array"].tolist() == [[0, 0], [0, 0]]
    assert infos["items"].tolist() == [[1], [1]]
    assert infos["inner"].tolist() == [{1: [2]}, {1: [2]}]


def test_truncate_and_clear():
    recorder = InfoRecorder("env_infos")
    for step in range(4):
        recorder.record(step, {"a": step, **({"b": 1} if step == 3 else {})})
    recorder.truncate(2)
    recorder.record(2, {"a": 7})
    infos = infos_of(merge([(recorder.finish(3), 0, 3)], "x"))
    assert infos["a"].tolist() == [0, 1, 7]
    assert set(infos) == {"a"}
    recorder.clear()
    assert recorder.finish(0).columns == {}


ROWS = st.lists(
    st.sampled_from(
        [{"a": 1, "b": 0.5}, {"b": 2.5, "a": 3}, {"a": 7, "b": "text"}, {"c": {"u": 1}, "a": 5}, {"b": 4.0}, {}]
    ),
    max_size=12,
)


@given(infos=ROWS, data=st.data())
def test_whatever_keys_follow_each_other_each_value_goes_to_its_key_and_step(infos, data):
    expected = {}
    for step, info in enumerate(infos):
        for key, value in info.items():
            path, value = (("c", "u"), value["u"]) if key == "c" else ((key,), value)
            expected.setdefault(path, []).append((step, value))
    recorder = InfoRecorder("env_infos")
    begin = 0
    for cut in [*data.draw(st.lists(st.integers(0, len(infos)), max_size=2)), len(infos)]:
        recorder.truncate(min(begin, cut))
        for step in range(min(begin, cut), len(infos)):
            recorder.record(step, infos[step])
        begin = cut
    columns = recorder.finish(len(infos)).columns
    assert {path: list(zip(*pairs, strict=True)) for path, pairs in expected.items()} == {
        path: [tuple(range(len(infos)) if it.steps is None else it.steps.tolist()), tuple(it.values.tolist())]
        for path, it in columns.items()
    }


def test_a_key_that_is_another_ones_mask():
    with pytest.raises(DataError, match=r"env_infos\['x'\] and env_infos\['_x'\]"):
        record([{"x": 1}, {"_x": 2}])
    with pytest.raises(DataError, match="mask"):
        merge([(record([{"x": 1}]), 0, 1), (record([{"_x": 1}]), 0, 1)], "env_infos")
    assert form([{"_x": 2}, {}])["__x"].tolist() == [True, False]


def test_keys_are_strings():
    with pytest.raises(DataError, match="strings"):
        record([{1: 2}])


@pytest.mark.parametrize(
    ("infos", "words"),
    [
        ({"a": np.zeros(3)}, r"env_infos\['a'\].*2 rows.*\(3,\)"),
        ({"a": [1, 2]}, "array of 2 rows.*list"),
        ({"a": np.zeros(2), "_a": np.zeros(2)}, "bool.*float64"),
        ({"a": np.zeros(2), "_a": np.zeros(3, bool)}, r"\(2,\).*\(3,\)"),
        ({"a": {"b": np.zeros(())}}, r"env_infos\['a'\]\['b'\]"),
        ({"a": np.empty((2, 2), object)}, "one axis"),
        (None, "dict"),
    ],
)
def test_validation(infos, words):
    with pytest.raises(DataError, match=words):
        columns_of(infos, 2, "env_infos")


@pytest.mark.parametrize("info", [[1], "text", 3])
def test_an_info_that_is_no_dict_is_an_error_that_says_so(info):
    with pytest.raises(DataError, match=f"must be a dict, got {type(info).__name__}"):
        InfoRecorder("env_infos").record(0, info)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1.5, np.float64(2)], np.float64),
        ([3, np.int64(4), -(2**63)], np.int64),
        ([True, False], np.bool_),
        ([np.float32(0.1), np.float32(np.inf)], np.float32),
        ([np.int32(-(2**31)), np.int32(4)], np.int32),
        ([np.float32(1), 2.0], None),
        ([np.int32(1), 2], None),
        ([1, 2**63], None),
        ([1, 2.0], None),
        ([1, True], None),
        ([1.0, "one"], None),
    ],
    ids=str,
)
def test_common_numbers_are_packed_as_they_are(values, dtype):
    column = column_of(None, values)
    assert column.raw == (dtype is None)
    assert column.values.dtype == (object if dtype is None else dtype)
    assert column.values.tolist() == [getattr(value, "item", lambda value=value: value)() for value in values]
    column.values[0] = values[-1]  # writable, and its own


INTEGERS = st.sampled_from([0, 3, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**63 + 1]) | st.sampled_from(
    [np.int64(2**62 + 1), np.uint64(2**53 + 1), np.uint64(2**63), np.uint64(2**64 - 1), np.uint64(1)]
)
FRACTIONS = st.sampled_from([0.5, np.float32(0.25), np.float16(2), 1.0, np.nan, np.inf, 2j, np.complex64(1j)])
MIXED = st.lists(INTEGERS | FRACTIONS | st.sampled_from([True, np.int8(-3)]), min_size=2, max_size=5)


def exactly(one, other):
    return one == other or (one != one and other != other)


@given(values=MIXED, as_arrays=st.booleans(), data=st.data())
def test_no_number_changes_beside_others(values, as_arrays, data):
    """Whatever dtypes come together, in one ticket, in several, or in batches that are joined."""
    cut = data.draw(st.integers(0, len(values)))
    infos = [{"a": np.array([value, value]) if as_arrays else value} for value in values]
    whole = form(infos)
    halves = [(record(part), 0, len(part)) for part in (infos[:cut], infos[cut:])]
    assert trees.same(infos_of(merge(halves, "x")), whole)
    joined = concatenate_infos([(form(part), len(part)) for part in (infos[:cut], infos[cut:])], "x")
    for column in (whole["a"], joined["a"]):
        found = [list(row) if as_arrays else [row] for row in column.tolist()]
        assert all(
            exactly(row[0], int(value) if isinstance(value, np.integer) else value)
            for row, value in zip(found, values, strict=True)
        )


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([2**53, 0.5], np.float64),
        ([2**53 + 1, 0.5], object),
        ([2**53 + 2, 0.5], np.float64),
        ([-(2**63), 0.5], np.float64),
        ([2**63 - 1, 0.5], object),
        ([-1, np.uint64(2**63)], np.float64),
        ([-1, np.uint64(2**64 - 1)], object),
        ([2**53 + 1, True], np.int64),
        ([2**53 + 1, np.complex64(1)], object),
        ([np.int32(2**31 - 1), np.float32(0.5)], np.float64),
        ([np.array([2**53 + 1, 1]), np.array([0.5, 1])], object),
        ([np.array([2**53, 1]), np.array([0.5, 1])], np.float64),
    ],
)
def test_only_what_an_array_cannot_hold_becomes_objects(values, dtype):
    assert form([{"a": value} for value in values])["a"].dtype == dtype


@pytest.mark.slow
@pytest.mark.parametrize("nested", [False, True])
def test_ever_new_keys_cost_time_in_proportion(nested):
    """Compared with each other, these would take a quarter of a minute."""
    infos: list[dict[str, Any]] = [{f"{step}.{number}": 0.5 for number in range(200)} for step in range(20)]
    infos = [{"all": info} for info in infos] if nested else infos
    began = time.process_time()
    joined = concatenate_infos([(form(infos), 20), (form(infos), 20)], "x")
    assert len(joined["all"] if nested else joined) == 8_000
    assert time.process_time() - began < 8


@pytest.mark.slow
def test_many_keys_that_are_masks_of_others_in_other_trajectories_cost_time_in_proportion():
    recorder = InfoRecorder("x")
    for step in range(10_000):
        recorder.record(step, {f"{'_' * (step % 2)}{step // 2}": 0.5})
    began = time.process_time()
    assert len(recorder.finish(10_000, lambda steps: steps).columns) == 10_000
    assert time.process_time() - began < 5
