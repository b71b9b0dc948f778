"""Columns keep what recorders keep, refuse what recorders refuse, and gather it in any order."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from streamsampler.data.copying import make_recorder
from streamsampler.data.trees import same
from streamsampler.errors import DataError, ObservationError
from streamsampler.workers.vec.columns import Column, Columns

BOX = spaces.Box(-9, 9, (2,), np.float32)
NESTED = spaces.Dict(box=BOX, pair=spaces.Tuple((spaces.Discrete(3), spaces.Text(5))), none=spaces.Tuple(()))
EVERY = [
    spaces.Box(-9, 9, (), np.float64), spaces.Box(0, 255, (0,), np.uint8), spaces.Discrete(5, start=-2),
    spaces.MultiBinary(3), spaces.Sequence(BOX), spaces.Tuple((NESTED, BOX)),
]  # fmt: skip


def recorded(space, values):
    recorder = make_recorder(space, "value")
    for value in values:
        recorder.record(value)
    return recorder.view(0, len(values))


def batched(space, values):
    """Values as a vector environment gives them: arrays nested as the space."""
    if isinstance(space, spaces.Dict):
        return {key: batched(child, [value[key] for value in values]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(batched(child, [value[i] for value in values]) for i, child in enumerate(space.spaces))
    return np.array(values) if space.shape is not None and space.dtype is not None else tuple(values)


@pytest.mark.parametrize("form", ["batches", "lists", "single values"])
@pytest.mark.parametrize("space", EVERY, ids=str)
def test_they_gather_what_was_written_in_any_order(space, form):
    n_steps, n_rows = 40, 3
    space.seed(3)
    values = [space.sample() for _ in range(n_steps * n_rows)]
    columns = Columns(space, n_rows, "value")
    for step in range(n_steps):
        rows = values[step * n_rows : (step + 1) * n_rows]
        if form == "single values":
            for row, value in enumerate(rows):
                columns.put(step, row, value)
            columns.n_steps = step + 1
        else:
            columns.append(batched(space, rows) if form == "batches" else rows)
            assert same(columns.row_batch(step), recorded(space, rows))
    order = np.random.default_rng(1).permutation(len(values))[:50]
    assert same(columns.gather(order), recorded(space, [values[number] for number in order]))


@pytest.mark.parametrize(("forgotten", "more"), [(0, 5), (7, 0), (12, 40), (30, 3), (30, 0)])
def test_forgetting_renumbers_what_is_left(forgotten, more):
    columns, column = Columns(BOX, 2, "value"), Column(2, np.dtype(np.int64))

    def write(steps, shift):
        for step in steps:
            columns.append(np.full((2, 2), (step + shift) % 9, np.float32))
            column.at(step)[:] = step + shift

    write(range(30), 0)
    columns.forget_before(forgotten)
    column.forget_before(forgotten, 30)
    n_steps = 30 - forgotten + more
    write(range(30 - forgotten, n_steps), forgotten)
    numbers = np.arange(2 * n_steps)
    expected = numbers // 2 + forgotten
    assert columns.n_steps == n_steps
    assert column.gather(numbers).tolist() == expected.tolist()
    values: Any = columns.gather(numbers)
    assert values[:, 1].tolist() == (expected % 9).tolist()
    columns.clear()
    assert columns.n_steps == 0


def test_what_was_written_is_a_copy():
    columns, batch = Columns(BOX, 2, "value"), np.zeros((2, 2), np.float32)
    columns.append(batch)
    batch[:] = 7
    lists, value = Columns(spaces.Sequence(BOX), 1, "value"), [np.zeros(2, np.float32)]
    lists.append([value])
    value[0][:] = 7
    kept: tuple[Any, Any] = columns.gather(np.arange(2)), lists.gather(np.arange(1))
    assert not kept[0].any()
    assert not kept[1][0][0].any()


LOST = np.array([[0, 0], [0, 123456789.0]])


@pytest.mark.parametrize(
    ("space", "batch", "words", "row"),
    [
        (BOX, np.zeros((2, 3)), r"a batch of 2 has the shape \(2, 3\), and should have \(2, 2\)", None),
        (BOX, [[1, 2], [3]], "is no array", None),
        (BOX, LOST, "holds 123456789.0 as float64", 1),
        (BOX, LOST.astype(np.int64), "holds 123456789 as int64", 1),
        (spaces.Discrete(3), np.array([0, 1.5]), "value has the dtype float64", 0),
        (spaces.Discrete(3), np.array([0, 2**63], np.uint64), "value has the dtype uint64", 1),
        (spaces.Text(3), ["a", 1], "value should be a str", 1),
        (spaces.Text(3), ["a"], "should be a sequence of 2 values", None),
        (spaces.Dict(a=BOX), {"b": np.zeros((2, 2))}, r"value has the keys \['b'\]", None),
        (spaces.Dict(a=BOX), [{"a": [0, 0]}, {"a": [0]}], r"value\['a'\] has the shape \(1,\)", 1),
        (spaces.Dict(a=BOX), [{"a": [0, 0]}, {}], r"value has the keys \[\]", 1),
        (spaces.Dict(a=BOX), [{}], "should be a sequence of 2 values", None),
        (spaces.Tuple((BOX,)), (LOST, LOST), "value has 2 parts", None),
        (spaces.Tuple((BOX,)), (LOST,), r"value\[0\] holds", 1),
    ],
    ids=str,
)
def test_what_does_not_fit_says_whose_it_is(space, batch, words, row):
    columns = Columns(space, 2, "value", ObservationError)
    with pytest.raises(ObservationError, match=words) as caught:
        columns.append(batch)
    assert caught.value.row == row
    assert columns.n_steps == 0


@pytest.mark.parametrize(
    ("space", "value"),
    [(BOX, np.zeros(3)), (BOX, LOST[1]), (BOX, "a"), (spaces.Discrete(3), 1.5), (spaces.Discrete(3), 2**63),
     (spaces.Text(3), 1), (NESTED, {}), (spaces.Tuple((BOX,)), ([0, 0], 1))],
)  # fmt: skip
def test_single_values_are_refused_as_recorders_refuse_them(space, value):
    with pytest.raises(DataError) as expected:
        recorded(space, [value])
    with pytest.raises(DataError) as caught:
        Columns(space, 1, "value").put(0, 0, value)
    assert str(caught.value) == str(expected.value)
