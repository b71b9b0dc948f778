"""Infos, whose keys come and go, become columns that hold each value exactly, however steps are cut into chunks."""

import itertools
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.data import trees
from streamsampler.data.info_columns import are_uniform, join_undecided, merge
from streamsampler.data.infos import InfoRecorder, columns_of, concatenate_infos, infos_of, take_infos, validate_infos
from streamsampler.errors import DataError
from streamsampler.workers.vec.batch_infos import BatchInfos

SCALARS = st.sampled_from(
    [True, 3, -1, 2**70, 0.5, np.nan, "text", None, np.float32(1.5), np.int8(-3), np.uint64(2**63), np.array(2.5), 1j]
)
ARRAYS = st.sampled_from([np.arange(3), np.ones(3, np.float32), np.zeros((2, 2)), np.array(["a"]), [1, "b"], (1, 2)])
VALUES = SCALARS | ARRAYS | st.dictionaries(st.sampled_from(["u", "v"]), SCALARS, max_size=2)
NUMBERS = st.sampled_from(
    [True, 3, 0.5, 2**53 + 1, np.float32(1.5), np.int8(-3), np.uint64(2**63), np.uint64(2**64 - 1), np.float16(2)]
)
ALIKE = st.sampled_from([1, 0.5, "text", np.float32(2), np.arange(3), np.array(["a"])])
LONELY = st.builds(lambda value: [{"a": value}, {}, {"b": {"u": value}}, {"a": value, "b": {"u": value}}], ALIKE)
INFO_LISTS = (
    st.lists(st.dictionaries(st.sampled_from(["a", "b", "_c"]), VALUES, max_size=3), min_size=1, max_size=8)
    | st.lists(st.dictionaries(st.sampled_from(["a", "b"]), NUMBERS, max_size=2), min_size=1, max_size=8)
    | LONELY
)


def record(infos):
    recorder = InfoRecorder("env_infos")
    for step, info in enumerate(infos):
        recorder.record(step, info)
    return recorder.finish(len(infos))


def merged(*parts):
    return infos_of(merge([(part, 0, part.length) for part in parts], "env_infos"))


def form(infos):
    return merged(record(infos))


@given(infos=INFO_LISTS, cuts=st.lists(st.integers(0, 8), max_size=4))
def test_the_cut_into_chunks_does_not_matter(infos, cuts):
    """Whether chunks are recorded each by itself, are ranges of one recording, or are joined as batches are."""
    bounds = list(itertools.pairwise([0, *sorted(min(cut, len(infos)) for cut in cuts), len(infos)]))
    whole, expected = record(infos), form(infos)
    validate_infos(expected, len(infos), "env_infos")
    chunks = [record(infos[start:stop]) for start, stop in bounds]
    assert trees.same(merged(*chunks), expected)
    ranges = [(whole, start, stop) for start, stop in bounds]
    assert trees.same(infos_of(merge(ranges, "env_infos")), expected)
    assert trees.same(merged(join_undecided(ranges)), expected)
    parts = [(take_infos(expected, slice(start, stop)), stop - start) for start, stop in bounds]
    assert trees.same(concatenate_infos(parts, "env_infos"), expected)
    for (start, stop), chunk in zip(bounds, chunks, strict=True):
        assert trees.same(infos_of(merge([(whole, start, stop)], "x")), merged(chunk))
        if are_uniform(chunks):
            assert trees.same(take_infos(expected, slice(start, stop)), merged(chunk))


def test_what_is_uniform():
    for infos, uniform in (
        ([{"a": {"u": 1}}, {"a": {"u": np.int64(2)}, "b": 0.5}, {}], True),
        ([{"a": 1}, {"a": 0.5}], False),
        ([{"a": np.zeros(2)}, {"a": np.zeros(3)}], False),
        ([{"a": 1}, {"a": {"u": 1}}], False),
    ):
        assert are_uniform([record(infos)]) is are_uniform([record([info]) for info in infos]) is uniform


def test_arrays_of_text_are_objects_however_long_the_text_is():
    def recorded(*batches):
        infos = BatchInfos("x")
        for number, texts in enumerate(batches):
            infos.record(np.arange(2) + 2 * number, {"a": np.array(texts)})
        return infos.select(np.arange(2 * len(batches)), lambda positions: positions)

    expected = merged(recorded(["a", "bc"]))
    assert expected["a"].dtype == object
    assert trees.same(infos_of(merge([(recorded(["a", "bc"], ["def", "g"]), 0, 2)], "x")), expected)


def test_keys_come_and_go_with_masks_in_dicts_as_well():
    second, third = {"a": 2, "b": "x", "d": {"u": 2, "v": 3.0}}, {"a": 3, "c": np.ones(2, np.float32)}
    infos = form([{"a": 1, "d": {"u": 1}}, second, third])
    assert set(infos) == {"a", "d", "b", "_b", "c", "_c"}
    assert infos["a"].dtype == np.int64
    assert (infos["b"].tolist(), infos["_b"].tolist()) == ([None, "x", None], [False, True, False])
    assert infos["c"].dtype == np.float32
    assert infos["c"].tolist() == [[0, 0], [0, 0], [1, 1]]
    assert infos["_c"].dtype == np.bool_
    assert (infos["d"]["u"].tolist(), infos["d"]["_u"].tolist()) == ([1, 2, 0], [True, True, False])
    assert infos["d"]["_v"].tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False], np.bool_),
        ([True, 2], np.int64),
        ([1, 0.5], np.float64),
        ([np.int32(-(2**31)), np.int32(4)], np.int32),
        ([np.float32(1), 2.0], np.float64),
        ([1, 2**64], object),
        ([np.datetime64(1, "s"), 2], object),
        ([np.float32(0.1), np.float32(np.inf)], np.float32),
        ([np.zeros(2), np.ones(3)], object),
        ([np.datetime64(1, "s"), np.datetime64(2, "s")], "M8[s]"),
        # No number changes beside others: what an array cannot hold becomes objects.
        ([2**53 + 1, 0.5], object),
        ([2**53 + 2, 0.5], np.float64),
        ([-1, np.uint64(2**64 - 1)], object),
        ([2**53 + 1, True], np.int64),
        ([np.int32(2**31 - 1), np.float32(0.5)], np.float64),
        ([np.array([2**53 + 1, 1]), np.array([0.5, 1])], object),
    ],
)
def test_dtypes(values, dtype):
    assert form([{"a": value} for value in values])["a"].dtype == dtype


def test_objects_hold_python_numbers_and_dicts_beside_numbers():
    infos = form([{"a": np.float32(1), "b": {"c": 1, "d": {"e": 2}}}, {"a": "x", "b": 5}, {"a": np.array(3)}])
    assert infos["a"].tolist() == [1.0, "x", 3]
    assert [type(value) for value in infos["a"]] == [float, str, int]
    assert infos["b"].tolist() == [{"c": 1, "d": {"e": 2}}, 5, None]
    assert infos["_b"].tolist() == [True, True, False]


def test_what_changes_later_is_copied():
    array, items, inner = np.zeros(2), [1], {1: [2]}
    recorder = InfoRecorder("env_infos")
    for step in range(2):
        recorder.record(step, {"array": array, "items": items, "inner": inner})
    array[:], items[0], inner[1][0] = 9, 9, 9
    infos = merged(recorder.finish(2))
    assert infos["array"].tolist() == [[0, 0], [0, 0]]
    assert infos["items"].tolist() == [[1], [1]]
    assert infos["inner"].tolist() == [{1: [2]}, {1: [2]}]


ROWS = st.lists(
    st.sampled_from(
        [{"a": 1, "b": 0.5}, {"b": 2.5, "a": 3}, {"a": 7, "b": "text"}, {"c": {"u": 1}, "a": 5}, {"b": 4.0}, {}]
    ),
    max_size=12,
)


@given(infos=ROWS, cuts=st.lists(st.integers(0, 12), max_size=2))
def test_whatever_keys_follow_each_other_each_value_goes_to_its_key_and_step(infos, cuts):
    """Also where steps are forgotten and recorded again."""
    expected = {}
    for step, info in enumerate(infos):
        for key, value in info.items():
            path, value = (("c", "u"), value["u"]) if key == "c" else ((key,), value)
            expected.setdefault(path, []).append((step, value))
    recorder, begin = InfoRecorder("env_infos"), 0
    for cut in [*(min(cut, len(infos)) for cut in cuts), len(infos)]:
        recorder.truncate(min(begin, cut))
        for step in range(min(begin, cut), len(infos)):
            recorder.record(step, infos[step])
        begin = cut
    columns = recorder.finish(len(infos)).columns
    assert {path: list(zip(*pairs, strict=True)) for path, pairs in expected.items()} == {
        path: [tuple(range(len(infos)) if it.steps is None else it.steps.tolist()), tuple(it.values.tolist())]
        for path, it in columns.items()
    }
    recorder.clear()
    assert recorder.finish(0).columns == {}


def test_keys_that_are_masks_of_others_and_keys_and_infos_of_other_types_are_errors():
    assert form([{"_x": 2}, {}])["__x"].tolist() == [True, False]
    with pytest.raises(DataError, match="mask"):
        merged(record([{"x": 1}]), record([{"_x": 1}]))
    for infos, words in (
        ([{"x": 1}, {"_x": 2}], r"env_infos\['x'\] and env_infos\['_x'\]"),
        ([{1: 2}], "strings"),
        ([[1]], "must be a dict, got list"),
    ):
        with pytest.raises(DataError, match=words):
            record(infos)


def test_infos_of_other_shapes_and_masks_of_other_dtypes_are_errors():
    cases: list[Any] = [
        ({"a": np.zeros(3)}, r"env_infos\['a'\].*2 rows.*\(3,\)"),
        ({"a": [1, 2]}, "array of 2 rows.*list"),
        ({"a": np.zeros(2), "_a": np.zeros(2)}, "bool.*float64"),
        ({"a": np.zeros(2), "_a": np.zeros(3, bool)}, r"\(2,\).*\(3,\)"),
        ({"a": {"b": np.zeros(())}}, r"env_infos\['a'\]\['b'\]"),
        ({"a": np.empty((2, 2), object)}, "one axis"),
        (None, "dict"),
    ]
    for infos, words in cases:
        with pytest.raises(DataError, match=words):
            columns_of(infos, 2, "env_infos")


INTEGERS = st.sampled_from([0, 3, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**63 + 1]) | st.sampled_from(
    [np.int64(2**62 + 1), np.uint64(2**53 + 1), np.uint64(2**63), np.uint64(2**64 - 1), np.uint64(1)]
)
FRACTIONS = st.sampled_from([0.5, np.float32(0.25), np.float16(2), 1.0, np.nan, np.inf, 2j, np.complex64(1j)])
MIXED = st.lists(INTEGERS | FRACTIONS | st.sampled_from([True, np.int8(-3)]), min_size=2, max_size=5)


def exactly(one, other):
    return one == other or (one != one and other != other)


@given(values=MIXED, as_arrays=st.booleans(), cut=st.integers(0, 5))
def test_no_number_changes_beside_others(values, as_arrays, cut):
    """Whatever dtypes come together, in one ticket, in several, or in batches that are joined."""
    infos = [{"a": np.array([value, value]) if as_arrays else value} for value in values]
    whole, halves = form(infos), (infos[:cut], infos[cut:])
    assert trees.same(merged(*map(record, halves)), whole)
    joined = concatenate_infos([(form(part), len(part)) for part in halves], "x")
    for column in (whole["a"], joined["a"]):
        found = [row[0] if as_arrays else row for row in column.tolist()]
        plain = [int(value) if isinstance(value, np.integer) else value for value in values]
        assert all(map(exactly, found, plain))


@pytest.mark.slow
def test_ever_new_keys_cost_time_in_proportion():
    """Compared with each other, these would take a quarter of a minute."""
    infos: list[dict[str, Any]] = [{"all": {f"{step}.{n}": 0.5 for n in range(200)}} for step in range(20)]
    began = time.process_time()
    joined = concatenate_infos([(form(infos), 20), (form(infos), 20)], "x")
    assert len(joined["all"]) == 8_000
    # Keys that are masks of others, in other trajectories.
    recorder = InfoRecorder("x")
    for step in range(10_000):
        recorder.record(step, {f"{'_' * (step % 2)}{step // 2}": 0.5})
    assert len(recorder.finish(10_000, lambda steps: steps).columns) == 10_000
    assert time.process_time() - began < 13


# Infos of constant form are kept as columns from the beginning: the same bits as of those that are not.

FORMS = st.sampled_from(
    [
        {"log_prob": 0.5},
        {"log_prob": 0.5, "raw": np.arange(3, dtype=np.float32)},
        {"raw": np.arange(3, dtype=np.float32)},
        {"raw": np.arange(3, dtype=">f4"), "log_prob": 1},
        {"raw": np.arange(6.0).reshape(2, 3), "log_prob": np.float32(1)},
        {"raw": np.zeros((0,)), "at": np.array("2020-01-01", "M8[D]")},
        {"raw": b"bytes", "log_prob": None},
        {"raw": {"u": 1}, "log_prob": [1]},
        {},
    ]
)


def changed_number(value, by):
    """Return another value of the same kind, to tell steps from each other."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return np.add(value, by).astype(value.dtype)
    return type(value)(value + by) if isinstance(value, float | np.floating) else value


def of_steps(forms):
    return [{key: changed_number(value, step) for key, value in info.items()} for step, info in enumerate(forms)]


@given(forms=st.lists(FORMS, max_size=8), cut=st.integers(0, 8), repeat=st.integers(1, 3))
def test_infos_of_constant_form_are_recorded_as_those_of_any_form(forms, cut, repeat):
    infos = of_steps([info for info in forms for _ in range(repeat)])
    recorder, length = InfoRecorder("x"), len(infos)
    for step, info in enumerate(infos):
        mutable = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in info.items()}
        recorder.record(step, mutable)
        for value in mutable.values():
            if isinstance(value, np.ndarray) and value.size and value.dtype.kind == "f":
                value[...] = -1
    # Each info in a recorder of its own has no form to be compared with.
    alone = merged(*(record([info]) for info in infos))
    assert trees.same(merged(recorder.finish(length)), alone)
    numbers = np.arange(length)[::-1]
    selected = merged(recorder.select(numbers, lambda positions: positions))
    assert trees.same(selected, merged(*(record([info]) for info in infos[::-1])))
    recorder.discard_before(min(cut, length))
    assert trees.same(
        merged(recorder.finish(length - min(cut, length))), merged(*map(record, [[i] for i in infos[cut:]]))
    )
    recorder.truncate(1)
    assert recorder.finish(length).columns.keys() <= {(key,) for info in infos for key in info} | {("raw", "u")}


BATCHES = st.sampled_from(
    [
        {"log_prob": np.arange(4.0)},
        {"log_prob": np.arange(4.0), "raw": np.arange(12, dtype=np.float32).reshape(4, 3)},
        {"log_prob": np.arange(4.0), "raw": np.arange(8, dtype=np.float32).reshape(4, 2)},
        {"log_prob": np.arange(4, dtype=">f8"), "raw": np.arange(12, dtype=np.float64).reshape(4, 3)},
        {"log_prob": [1, 2.0, "x", None], "raw": np.array(["a", "b", "c", "d"])},
        {"log_prob": np.arange(4.0), "_log_prob": np.array([True, False, True, True])},
        {"log_prob": {"inner": np.arange(4.0)}},
    ]
)


@given(
    batches=st.lists(BATCHES, min_size=1, max_size=6),
    repeat=st.integers(1, 3),
    rows=st.sampled_from([None, (0, 2), (3,)]),
    gap=st.integers(0, 6),
    cut=st.integers(0, 20),
)
def test_infos_of_batches_of_constant_form_are_recorded_as_those_of_any_form(batches, repeat, rows, gap, cut):
    infos = of_steps([batch for batch in batches for _ in range(repeat)])
    columns, pieces, number = BatchInfos("x"), BatchInfos("x"), 0
    index, n = (None, 4) if rows is None else (np.array(rows), len(rows))
    for step, info in enumerate(infos):
        number += n * (step == gap)  # the agent says nothing in a call
        mutable = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in info.items()}
        columns.record_next(number, n, mutable, index, 4)
        for value in mutable.values():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                value[...] = -1
        pieces.record(np.arange(number, number + n), info, index)
        number += n
    numbers = np.random.default_rng(cut).permutation(number)

    def selected(recorder):
        return merged(recorder.select(numbers, lambda positions: positions))

    assert trees.same(selected(columns), selected(pieces))
    for recorder in (columns, pieces):
        recorder.discard_before(min(cut, number))
    numbers = np.arange(number - min(cut, number))
    assert trees.same(selected(columns), selected(pieces))
    for recorder in (columns, pieces):
        recorder.clear()
        recorder.record(np.arange(4), batches[0])
    numbers = np.arange(4)
    assert trees.same(selected(columns), selected(pieces))


@pytest.mark.parametrize("rows", [None, np.array([0, 1])])
@pytest.mark.parametrize(
    ("infos", "said"),
    [
        ({"a": np.zeros(3)}, "one row for each"),
        ({"a": np.array(1.0)}, "one row for each"),
        ({1: np.zeros(2)}, "are strings"),
        ([1], "must be a dict"),
    ],
)
def test_infos_of_batches_that_do_not_fit_are_refused_after_others_that_do(infos, said, rows):
    recorder = BatchInfos("x")
    for number in range(0, 6, 2):
        recorder.record_next(number, 2, {"a": np.zeros(2)}, rows, 2)
    with pytest.raises(DataError, match=said):
        recorder.record_next(6, 2, infos, rows, 2)


def test_an_array_that_comes_where_a_number_was_is_copied():
    recorder, array = InfoRecorder("x"), np.zeros(2)
    for step, value in enumerate([0.5, 0.5, array]):
        recorder.record(step, {"a": value})
    array[:] = 1
    assert merged(recorder.finish(3))["a"][2].tolist() == [0, 0]
