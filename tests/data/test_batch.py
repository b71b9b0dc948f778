import copy
import dataclasses
import pickle

import numpy as np
import pytest
from gymnasium import spaces as S
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.data import trees
from streamsampler.data.batch import StepType, TrajectoryBatch
from streamsampler.errors import DataError
from tests.data.test_recorder import batch_of, tickets
from tests.data.test_spaces import nested_spaces


@st.composite
def batches(draw, min_size=0):
    observation_space, action_space = draw(nested_spaces()), draw(nested_spaces())
    lengths = draw(st.lists(st.integers(1, 4), min_size=min_size, max_size=6))
    return batch_of(tickets(lengths, [], observation_space, action_space), observation_space, action_space)


@pytest.fixture
def batch():
    return batch_of(tickets([2, 1, 3], []))


@given(batch=batches(min_size=1), data=st.data())
def test_splitting_and_joining_are_inverses(batch, data):
    parts = batch.split()
    assert [part.n_timesteps for part in parts] == batch.lengths.tolist()
    assert TrajectoryBatch.concatenate(parts) == batch
    assert TrajectoryBatch.concatenate(*parts) == batch
    cut = data.draw(st.integers(0, len(batch)))
    assert TrajectoryBatch.concatenate(batch[:cut], batch[cut:]) == batch
    assert batch[np.arange(len(batch))] == batch
    assert list(batch)[-1] == batch[-1] == batch[len(batch) - 1]
    assert pickle.loads(pickle.dumps(batch)) == batch


@given(batch=batches())
def test_parts_are_what_checked_batches_are(batch):
    for number, part in enumerate(batch.split()):
        checked = batch[number]
        assert part == dataclasses.replace(part) == checked
        assert vars(part).keys() == vars(checked).keys()
        assert part.worker_numbers.tolist() == checked.worker_numbers.tolist()
        assert part.stats is None
        assert all(map(np.shares_memory, arrays_of(part), arrays_of(checked)))


def arrays_of(batch):
    trees_of = (batch.observations, batch.last_observations, batch.actions, batch.rewards, batch.lengths)
    return [leaf for tree in trees_of for _, leaf in trees.leaves(tree) if leaf.size]


def test_what_was_changed_since_is_checked_before_a_batch_is_split(batch):
    batch.env_infos["too_long"] = np.zeros(7)
    with pytest.raises(DataError, match=r"env_infos\['too_long'\].* 6 rows.*\(7,\)"):
        batch.split()


def test_selection(batch):
    assert batch[1].indices.tolist() == [1]
    assert batch[-1].rewards.tolist() == [2, 3, 4]
    assert batch[np.array([2, 0])].rewards.tolist() == [2, 3, 4, 0, 1]
    assert batch[[2, 0]].seeds == (2**100 + 2, 2**100)
    assert batch[np.array([True, False, True])].lengths.tolist() == [2, 3]
    assert batch[::-1].lengths.tolist() == [3, 1, 2]
    assert len(batch[1:1]) == 0
    assert np.shares_memory(batch[1:].rewards, batch.rewards)
    assert not np.shares_memory(batch[[1, 2]].rewards, batch.rewards)
    for wrong in (3, -4, np.array([3])):
        with pytest.raises(IndexError):
            batch[wrong]
    with pytest.raises(IndexError, match="one axis"):
        batch[np.zeros((1, 1), int)]


def test_derived(batch):
    assert batch.starts.tolist() == [0, 2, 3]
    assert batch.returns.tolist() == [1, 1, 9]
    assert batch.discounted_returns(0.5).tolist() == [0.5, 1, 1, 2 + 0.5 * (3 + 0.5 * 4), 5, 4]
    assert batch.agent_version == 1
    first, only, last = batch.split()
    np.testing.assert_array_equal(batch.next_observations[0], batch.observations[1])
    np.testing.assert_array_equal(batch.next_observations[1], first.last_observations[0])
    np.testing.assert_array_equal(batch.next_observations[2], only.last_observations[0])
    np.testing.assert_array_equal(batch.next_observations[-1], last.last_observations[0])
    first, mid, terminal, timeout = StepType
    assert batch.step_types.tolist() == [first, terminal, timeout, first, mid, terminal]


def test_terminated_wins_over_truncated(batch):
    both = dataclasses.replace(batch, truncated=np.ones(3, bool))
    assert both.step_types[both.starts + both.lengths - 1].tolist() == [StepType.TERMINAL, StepType.TIMEOUT, 2]


@given(batch=batches(), gamma=st.floats(0, 1))
def test_parts_have_the_derived_values_of_the_whole(batch, gamma):
    parts = batch.split()
    for values in (
        lambda part: part.discounted_returns(gamma),
        lambda part: part.returns,
        lambda part: part.step_types,
    ):
        assert values(batch).tolist() == [value for part in parts for value in values(part).tolist()]


def test_padded(batch):
    assert batch.mask.tolist() == [[True, True, False], [True, False, False], [True, True, True]]
    assert batch.padded("rewards").tolist() == [[0, 1, 0], [1, 0, 0], [2, 3, 4]]
    assert batch.padded("rewards", 4, np.nan).shape == (3, 4)
    assert batch.padded("mask", 4).shape == (3, 4)
    np.testing.assert_array_equal(batch.padded("observations")[batch.mask], batch.observations)
    np.testing.assert_array_equal(batch.padded("next_observations")[batch.mask], batch.next_observations)
    with pytest.raises(DataError, match=r"2 timesteps.* 3"):
        batch.padded("rewards", 2)
    with pytest.raises(DataError, match="'lengths'"):
        batch.padded("lengths")


@given(batch=batches(), longer=st.integers(0, 3), value=st.sampled_from([0, 1, False, True]))
def test_padded_rows_are_the_rows_and_what_was_asked_for(batch, longer, value):
    mask = batch.padded("mask", int(batch.lengths.max(initial=0)) + longer)
    for name in ("observations", "actions"):
        padded = batch.padded(name, mask.shape[1], value)
        for (path, leaf), (_, rows) in zip(trees.leaves(padded), trees.leaves(getattr(batch, name)), strict=True):
            assert leaf.dtype == rows.dtype, path
            assert leaf.shape == (*mask.shape, *rows.shape[1:]), path
            assert trees.equal(leaf[mask], rows), path
            assert (leaf[~mask] == (None if rows.dtype == object else value)).all(), path


@pytest.mark.parametrize("rows", [np.zeros((3, 0)), np.arange(12.0).reshape(2, 6).T[::2], np.array(list("abc"))])
@pytest.mark.parametrize("value", [0, 1])
def test_rows_of_any_form_are_padded_as_numpy_fills_them(rows, value):
    expected = np.full((2, 2, *rows.shape[1:]), value, rows.dtype)
    expected[0], expected[1, 0] = rows[:2], rows[2]
    assert trees.equal(trees.pad(rows, np.array([2, 1]), 2, value), expected)


INFOS = {
    "time": np.arange(6),
    "odd": np.arange(6) * 0.5,
    "_odd": np.array([False, True, True, False, False, True]),
    "word": np.array(list("abcdef"), object),
    "in": {"x": np.ones((6, 2), np.float32), "never": np.zeros(6, np.int8), "_never": np.array([True] + [False] * 5)},
}


def test_infos_are_padded_with_their_masks(batch):
    batch = dataclasses.replace(batch, env_infos=INFOS, agent_infos={"p": np.arange(6, dtype=np.float32)})
    padded = batch.padded("env_infos", 4, -1)
    assert padded["time"].tolist() == [[0, 1, -1, -1], [2, -1, -1, -1], [3, 4, 5, -1]]
    assert padded["_odd"].tolist() == [[False, True, False, False], [True] + [False] * 3, [False, False, True, False]]
    assert padded["_odd"].dtype == np.bool_
    assert padded["word"].tolist() == [["a", "b", None, None], ["c", None, None, None], ["d", "e", "f", None]]
    assert padded["in"]["x"].shape == (3, 4, 2)
    assert padded["in"]["x"].dtype == np.float32
    assert not padded["in"]["_never"][~batch.padded("mask", 4)].any()
    assert batch.padded("agent_infos")["p"].dtype == np.float32
    empty = batch_of([])
    assert empty.padded("env_infos") == {}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("env_infos", np.nan, r"env_infos\['time'\] has the dtype int64, which cannot hold nan"),
        ("actions", 0.5, "actions has the dtype int64, which cannot hold 0.5"),
        ("actions", "x", "actions has the dtype int64, which cannot hold 'x'"),
        ("step_types", 300, "step_types has the dtype int8, which cannot hold 300"),
        ("agent_infos", 2, r"agent_infos\['flag'\] has the dtype bool, which cannot hold 2"),
    ],
)
def test_what_an_array_cannot_hold_does_not_pad_it(batch, name, value, words):
    batch = dataclasses.replace(batch, env_infos={"time": np.arange(6)}, agent_infos={"flag": np.zeros(6, bool)})
    with pytest.raises(DataError, match=words):
        batch.padded(name, value=value)
    assert np.isnan(batch.padded("rewards", value=np.nan)[0, 2])
    assert batch.padded("actions", value=-1).min() == -1


def test_final_infos_are_those_of_the_last_timesteps(batch):
    final = dataclasses.replace(batch, env_infos=INFOS).final_infos
    assert final["time"].tolist() == [1, 2, 5]
    assert final["odd"].tolist() == [0.5, 1.0, 2.5]
    assert "_odd" not in final
    assert final["word"].tolist() == ["b", "c", "f"]
    assert final["in"].keys() == {"x"}
    some = dataclasses.replace(batch, env_infos={"a": np.arange(6), "_a": np.arange(6) == 2}).final_infos
    assert some["_a"].tolist() == [False, True, False]
    assert batch_of([]).final_infos == {}


@given(batch=batches())
def test_parts_have_the_final_infos_of_the_whole(batch):
    parts = [part.final_infos for part in batch]
    whole = batch.final_infos
    for number, part in enumerate(parts):
        for key in part:
            assert np.array_equal(part[key][0], whole[key][number]), key
        assert {key for key in whole if not key.startswith("_")} - part.keys() == {
            key[1:] for key in whole if key.startswith("_") and not whole[key][number]
        }


def test_worker_numbers_go_along_and_are_no_data(batch, tmp_path):
    batch = dataclasses.replace(batch, worker_numbers=None)
    assert batch.worker_numbers.tolist() == [-1, -1, -1]
    known = dataclasses.replace(batch, worker_numbers=np.array([2, 0, 1]))
    assert known == batch
    assert known[1:].worker_numbers.tolist() == [0, 1]
    assert known[[2, 0]].worker_numbers.tolist() == [1, 2]
    assert TrajectoryBatch.concatenate(batch, *known).worker_numbers.tolist() == [-1, -1, -1, 2, 0, 1]
    assert pickle.loads(pickle.dumps(known)).worker_numbers.tolist() == [2, 0, 1]
    files = [each.save(tmp_path / name) for name, each in (("known", known), ("unknown", batch))]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert TrajectoryBatch.load(files[0]).worker_numbers.tolist() == [-1, -1, -1]


def test_no_trajectories():
    batch = batch_of([])
    assert batch.returns.shape == batch.discounted_returns(0.9).shape == batch.step_types.shape == (0,)
    assert batch.next_observations.shape == (0, 2)
    assert batch.mask.shape == (0, 0)
    assert batch.agent_version is None
    assert batch == batch_of([])
    assert repr(batch) == "TrajectoryBatch(0 trajectories, 0 timesteps)"


def test_repr(batch):
    assert (
        repr(batch)
        == "TrajectoryBatch(3 trajectories, 6 timesteps, return 3.667 ± 2.67 standard error, agent version 1)"
    )
    assert repr(batch[0]) == "TrajectoryBatch(1 trajectory, 2 timesteps, return 1, agent version 1)"
    versions = dataclasses.replace(batch, agent_versions=np.array([1, 3, 2]))
    assert "agent versions 1 to 3" in repr(versions)
    assert versions.agent_version is None


def test_equality(batch):
    assert batch == copy.deepcopy(batch)
    assert batch == dataclasses.replace(batch, stats="others")
    assert batch != "batch"
    with pytest.raises(TypeError, match="hash"):
        hash(batch)
    for name, value in {
        "rewards": batch.rewards + 1e-12,
        "seeds": (1, 2, 3),
        "seed": None,
        "indices": batch.indices + 1,
        "observation_space": S.Box(-101, 100, (2,), np.float32),
        "env_infos": {},
    }.items():
        assert batch != dataclasses.replace(batch, **{name: value}), name
    nan = dataclasses.replace(batch, rewards=np.full(6, np.nan))
    assert nan == dataclasses.replace(batch, rewards=np.full(6, np.nan))


def test_frozen(batch):
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.rewards = None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rewards": np.zeros(5)}, r"rewards .*\(5,\).*\(6,\)"),
        ({"rewards": np.zeros(6, np.float32)}, "rewards .*float32.*float64"),
        ({"rewards": [0.0] * 6}, "rewards should be an array"),
        ({"lengths": np.array([2, 1])}, r"\(3,\).*\(2,\)"),
        ({"lengths": np.array([3, 0, 3])}, r"lengths\[1\] is 0"),
        ({"lengths": [2, 1, 3]}, "lengths should be an array"),
        ({"terminated": np.zeros(3, int)}, "terminated .*int64.*bool"),
        ({"terminated": np.zeros(3, bool), "truncated": np.zeros(3, bool)}, "trajectory 0 of 3 is neither"),
        ({"seeds": (1, 2)}, "seeds has 2 entries.* 3 trajectories"),
        ({"seeds": np.arange(3)}, "seeds should be a tuple"),
        ({"observations": np.zeros((6, 3), np.float32)}, r"observations .*\(6, 3\).*\(6, 2\)"),
        ({"last_observations": np.zeros((6, 2), np.float32)}, r"last_observations .*\(6, 2\).*\(3, 2\)"),
        ({"actions": np.zeros(6)}, "actions .*float64.*int64"),
        ({"env_infos": {"a": np.zeros(3)}}, r"env_infos\['a'\].* 6 rows.*\(3,\)"),
        ({"episode_infos": {"a": np.zeros(6)}}, r"episode_infos\['a'\].* 3 rows.*\(6,\)"),
        ({"agent_versions": np.ones(2, int)}, r"agent_versions .*\(2,\).*\(3,\)"),
        ({"worker_numbers": np.ones(2, int)}, r"worker_numbers .*\(2,\).*\(3,\)"),
    ],
)
def test_fields_that_do_not_fit(batch, changes, words):
    with pytest.raises(DataError, match=words):
        dataclasses.replace(batch, **changes)


def test_joining_what_cannot_be_joined(batch):
    with pytest.raises(DataError, match="0 batches"):
        TrajectoryBatch.concatenate([])
    other = dataclasses.replace(batch, action_space=S.Discrete(4))
    with pytest.raises(DataError, match=r"action_space.*Discrete\(3\) in batch 0, Discrete\(4\) in batch 2"):
        TrajectoryBatch.concatenate(batch, copy.deepcopy(batch), other, other)
    with pytest.raises(DataError, match=r"action_space.*Discrete\(3\).*Discrete\(4\)"):
        TrajectoryBatch.concatenate(batch, other)


def test_a_space_that_many_batches_share_is_compared_once(batch):
    class Counting(S.Discrete):
        compared = 0

        def __eq__(self, other):
            Counting.compared += 1
            return super().__eq__(other)

    ours, others = (dataclasses.replace(batch, action_space=Counting(3)).split() for _ in range(2))
    assert len(TrajectoryBatch.concatenate(ours, others)) == 6
    assert Counting.compared == 1


def test_joining_batches_of_two_samplers(batch):
    other = dataclasses.replace(batch, seed=8, stats="something", agent_versions=np.full(3, 2))
    joined = TrajectoryBatch.concatenate(batch, other)
    assert (joined.seed, joined.stats, joined.agent_version) == (None, None, None)
    assert joined[3:].rewards.tolist() == batch.rewards.tolist()
