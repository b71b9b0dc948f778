"""Batches of trajectories: their parts, what is derived from them, their equality, and lists of episodes."""

import copy
import dataclasses
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as S
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import LocalSampler
from streamsampler.data import trees
from streamsampler.data.batch import StepType, TrajectoryBatch
from streamsampler.errors import DataError, UsageError
from streamsampler.filters import RunningNorm, RunningReturnNorm
from tests.data.test_recorder import batch_of, tickets
from tests.data.test_spaces import nested_spaces
from tests.scripted.envs import Nested


@st.composite
def batches(draw, min_size=0):
    spaces = draw(nested_spaces()), draw(nested_spaces())
    lengths = draw(st.lists(st.integers(1, 4), min_size=min_size, max_size=6))
    return batch_of(tickets(lengths, [], *spaces), *spaces)


@pytest.fixture
def batch():
    return batch_of(tickets([2, 1, 3], []))


def arrays_of(batch):
    trees_of = (batch.observations, batch.last_observations, batch.actions, batch.rewards, batch.lengths)
    return [leaf for tree in trees_of for _, leaf in trees.leaves(tree) if leaf.size]


@given(batch=batches(), cut=st.integers(0, 6), gamma=st.floats(0, 1))
def test_parts_are_views_join_to_the_whole_and_have_its_derived_values(batch, cut, gamma):
    parts = batch.split()
    assert pickle.loads(pickle.dumps(batch)) == batch
    assert TrajectoryBatch.concatenate(batch[:cut], batch[cut:]) == batch[np.arange(len(batch))] == batch
    for number, part in enumerate(parts):
        checked = batch[number]
        assert part == dataclasses.replace(part) == checked == batch[number - len(batch)]
        assert vars(part).keys() == vars(checked).keys()
        assert part.worker_numbers.tolist() == checked.worker_numbers.tolist()
        assert part.stats is None
        assert all(map(np.shares_memory, arrays_of(part), arrays_of(checked)))
    if parts:
        assert TrajectoryBatch.concatenate(parts) == TrajectoryBatch.concatenate(*parts) == batch
    assert batch.discounted_returns(gamma).tolist() == [x for it in parts for x in it.discounted_returns(gamma)]
    assert batch.returns.tolist() == [x for it in parts for x in it.returns]
    assert batch.step_types.tolist() == [x for it in parts for x in it.step_types]
    whole = batch.final_infos
    for number, final in enumerate(part.final_infos for part in parts):
        assert all(np.array_equal(final[key][0], whole[key][number]) for key in final)
        missing = {key[1:] for key in whole if key.startswith("_") and not whole[key][number]}
        assert {key for key in whole if not key.startswith("_")} - final.keys() == missing


def test_what_was_changed_since_is_checked_before_a_batch_is_split(batch):
    batch.env_infos["too_long"] = np.zeros(7)
    with pytest.raises(DataError, match=r"env_infos\['too_long'\].* 6 rows.*\(7,\)"):
        batch.split()


def test_selection(batch):
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
    for name, way in (("observations", ": use batch.observations"), ("nothing", "$")):
        with pytest.raises(IndexError, match=f"by positions of trajectories, not by '{name}'{way}"):
            batch[name]
    with_info = dataclasses.replace(batch, agent_infos={"log_prob": np.zeros(batch.n_timesteps)})
    with pytest.raises(IndexError, match=r"use batch.agent_infos\['log_prob'\]"):
        with_info["log_prob"]


def test_derived(batch):
    assert batch.starts.tolist() == [0, 2, 3]
    assert batch.returns.tolist() == [1, 1, 9]
    assert batch.discounted_returns(0.5).tolist() == [0.5, 1, 1, 2 + 0.5 * (3 + 0.5 * 4), 5, 4]
    observations, last = batch.observations, batch.last_observations
    assert np.array_equal(batch.next_observations, np.stack([observations[1], *last[:2], *observations[4:], last[2]]))
    first, mid, terminal, timeout = StepType
    assert batch.step_types.tolist() == [first, terminal, timeout, first, mid, terminal]
    both = dataclasses.replace(batch, truncated=np.ones(3, bool))
    assert both.step_types.tolist() == batch.step_types.tolist(), "terminated wins over truncated"
    assert batch.agent_version == batch[0].agent_version == 1
    versions = dataclasses.replace(batch, agent_versions=np.array([1, 3, 2]))
    assert versions.agent_version is None
    assert "agent versions 1 to 3" in repr(versions)
    assert repr(batch) == (
        "TrajectoryBatch(3 trajectories, 6 timesteps, return 3.667 ± 2.67 standard error, agent version 1)"
    )
    assert repr(batch[0]) == "TrajectoryBatch(1 trajectory, 2 timesteps, return 1, agent version 1)"


@given(batch=batches(), longer=st.integers(0, 3), value=st.sampled_from([0, 1, False, True]))
def test_padded_rows_are_the_rows_and_what_was_asked_for(batch, longer, value):
    mask = batch.padded("mask", int(batch.lengths.max(initial=0)) + longer)
    assert np.array_equal(mask, np.arange(mask.shape[1]) < batch.lengths[:, None])
    for name in ("observations", "actions", "next_observations"):
        padded = batch.padded(name, mask.shape[1], value)
        for (path, leaf), (_, rows) in zip(trees.leaves(padded), trees.leaves(getattr(batch, name)), strict=True):
            assert leaf.dtype == rows.dtype, path
            assert leaf.shape == (*mask.shape, *rows.shape[1:]), path
            assert trees.equal(leaf[mask], rows), path
            assert (leaf[~mask] == (None if rows.dtype == object else value)).all(), path
    for rows in (np.zeros((3, 0)), np.arange(12.0).reshape(2, 6).T[::2], np.array(list("abc"))):  # as NumPy fills them
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


def test_infos_are_padded_with_their_masks_and_final_infos_are_those_of_the_last_timesteps(batch):
    batch = dataclasses.replace(batch, env_infos=INFOS)
    padded = batch.padded("env_infos", 4, -1)
    assert padded["time"].tolist() == [[0, 1, -1, -1], [2, -1, -1, -1], [3, 4, 5, -1]]
    assert padded["_odd"].tolist() == [[False, True, False, False], [True] + [False] * 3, [False, False, True, False]]
    assert padded["word"].tolist() == [["a", "b", None, None], ["c", None, None, None], ["d", "e", "f", None]]
    assert (padded["in"]["x"].shape, padded["in"]["x"].dtype) == ((3, 4, 2), np.float32)
    assert not padded["in"]["_never"][~batch.padded("mask", 4)].any()
    final = batch.final_infos
    assert {name: final[name].tolist() for name in ("time", "odd", "word")} == {
        "time": [1, 2, 5], "odd": [0.5, 1.0, 2.5], "word": ["b", "c", "f"]
    }  # fmt: skip
    assert ("_odd" in final, final["in"].keys()) == (False, {"x"})
    some = dataclasses.replace(batch, env_infos={"a": np.arange(6), "_a": np.arange(6) == 2}).final_infos
    assert some["_a"].tolist() == [False, True, False]


def test_what_cannot_be_padded(batch):
    batch = dataclasses.replace(batch, env_infos={"time": np.arange(6)}, agent_infos={"flag": np.zeros(6, bool)})
    cases: list[Any] = [
        (
            "env_infos",
            {"value": np.nan},
            r"env_infos\['time'\] has the dtype int64, which cannot hold the padding value nan",
        ),
        ("actions", {"value": 0.5}, "actions has the dtype int64, which cannot hold the padding value 0.5"),
        ("actions", {"value": "x"}, "actions has the dtype int64, which cannot hold the padding value 'x'"),
        ("step_types", {"value": 300}, "step_types has the dtype int8, which cannot hold the padding value 300"),
        (
            "agent_infos",
            {"value": 2},
            r"agent_infos\['flag'\] has the dtype bool, which cannot hold the padding value 2",
        ),
        ("rewards", {"length": 2}, r"2 timesteps.* 3"),
        ("lengths", {}, "'lengths'"),
    ]
    for name, arguments, words in cases:
        with pytest.raises(DataError, match=words):
            batch.padded(name, **arguments)
    assert np.isnan(batch.padded("rewards", value=np.nan)[0, 2])
    assert batch.padded("actions", value=-1).min() == -1


def test_worker_numbers_go_along_and_are_no_data(batch, tmp_path):
    known, unknown = (dataclasses.replace(batch, worker_numbers=it) for it in (np.array([2, 0, 1]), None))
    assert known == unknown
    assert TrajectoryBatch.concatenate(unknown, *known[[2, 0]]).worker_numbers.tolist() == [-1, -1, -1, 1, 2]
    assert pickle.loads(pickle.dumps(known)).worker_numbers.tolist() == [2, 0, 1]
    files = [each.save(tmp_path / name) for name, each in (("known", known), ("unknown", unknown))]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert TrajectoryBatch.load(files[0]).worker_numbers.tolist() == [-1, -1, -1]


def test_no_trajectories():
    batch = batch_of([])
    assert batch.returns.shape == batch.discounted_returns(0.9).shape == batch.step_types.shape == (0,)
    assert batch.observations.shape == batch.next_observations.shape == (0, 2)
    assert batch.mask.shape == (0, 0)
    assert batch.final_infos == batch.padded("env_infos") == {}
    assert batch.agent_version is None
    assert repr(batch) == "TrajectoryBatch(0 trajectories, 0 timesteps)"


def test_equality(batch):
    assert batch == copy.deepcopy(batch) == dataclasses.replace(batch, stats="others")
    assert batch != "batch"
    with pytest.raises(TypeError, match="hash"):
        hash(batch)
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.rewards = None
    space = S.Box(-101, 100, (2,), np.float32)
    for name, value in (
        ("rewards", batch.rewards + 1e-12), ("seeds", (1, 2, 3)), ("seed", None), ("indices", batch.indices + 1),
        ("observation_space", space), ("env_infos", {}),
    ):  # fmt: skip
        assert batch != dataclasses.replace(batch, **{name: value}), name
    nan, again = (dataclasses.replace(batch, rewards=np.full(6, np.nan)) for _ in range(2))
    assert nan == again


def test_fields_that_do_not_fit(batch):
    cases: list[Any] = [
        ({"rewards": np.zeros(5)}, r"rewards .*\(5,\).*\(6,\)"),
        ({"rewards": np.zeros(6, np.float32)}, "rewards .*float32.*float64"),
        ({"rewards": [0.0] * 6}, "rewards should be an array"),
        ({"lengths": np.array([2, 1])}, r"\(3,\).*\(2,\)"),
        ({"lengths": np.array([3, 0, 3])}, r"lengths\[1\] is 0"),
        ({"terminated": np.zeros(3, bool), "truncated": np.zeros(3, bool)}, "trajectory 0 of 3 is neither"),
        ({"terminated": np.zeros(3, int)}, "terminated .*int64.*bool"),
        ({"seeds": np.arange(3)}, "seeds should be a tuple"),
        ({"seeds": (1, 2)}, "seeds has 2 entries.* 3 trajectories"),
        ({"observations": np.zeros((6, 3), np.float32)}, r"observations .*\(6, 3\).*\(6, 2\)"),
        ({"observations": {"a": 1}}, "observations should be an array"),
        ({"last_observations": np.zeros((6, 2), np.float32)}, r"last_observations .*\(6, 2\).*\(3, 2\)"),
        ({"actions": np.zeros(6)}, "actions .*float64.*int64"),
        ({"env_infos": {"a": np.zeros(3)}}, r"env_infos\['a'\].* 6 rows.*\(3,\)"),
        ({"episode_infos": {"a": np.zeros(6)}}, r"episode_infos\['a'\].* 3 rows.*\(6,\)"),
        ({"agent_versions": np.ones(2, int)}, r"agent_versions .*\(2,\).*\(3,\)"),
        ({"worker_numbers": np.ones(2, int)}, r"worker_numbers .*\(2,\).*\(3,\)"),
    ]
    for changes, words in cases:
        with pytest.raises(DataError, match=words):
            dataclasses.replace(batch, **changes)


class ComparedArrays(S.Discrete):
    times = 0

    def __eq__(self, other):
        ComparedArrays.times += 1
        return super().__eq__(other)


def test_joining_batches_of_several_samplers_and_what_cannot_be_joined(batch):
    other = dataclasses.replace(batch, seed=8, stats="something", agent_versions=np.full(3, 2))
    joined = TrajectoryBatch.concatenate(batch, other)
    assert (joined.seed, joined.stats, joined.agent_version) == (None, None, None)
    assert joined[3:].rewards.tolist() == batch.rewards.tolist()
    with pytest.raises(DataError, match="0 batches"):
        TrajectoryBatch.concatenate([])
    ours, others = (dataclasses.replace(batch, action_space=ComparedArrays(3)).split() for _ in range(2))
    assert len(TrajectoryBatch.concatenate(ours, others)) == 6
    assert ComparedArrays.times == 1, "a space that many batches share is compared once"
    other = dataclasses.replace(batch, action_space=S.Discrete(4))
    with pytest.raises(DataError, match=r"action_space.*Discrete\(3\) in batch 0, Discrete\(4\) in batch 2"):
        TrajectoryBatch.concatenate(batch, copy.deepcopy(batch), other, other)


class Listing(Nested):
    """Has lists and tuples among its infos."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return observation, info | {"list": [1, 2], "pair": (1, 2), "nothing": None, "inner": {"list": [3]}}


def assert_round_trip(batch):
    again = TrajectoryBatch.from_list(batch.to_list(), batch.observation_space, batch.action_space)
    for name in (
        *("observations", "last_observations", "rewards", "raw_observations", "raw_last_observations", "raw_rewards"),
        *("actions", "terminated", "truncated", "continued", "cut", "env_numbers", "lengths", "indices"),
        *("agent_versions", "env_infos", "agent_infos", "episode_infos"),
    ):
        assert trees.same(getattr(again, name), getattr(batch, name)), name
    assert again.seeds == batch.seeds
    assert (again.raw is None) == (batch.raw is None)
    return again


def test_lists_of_episodes_become_the_same_batch_of_fragments_and_with_filters_too():
    filters: dict[str, Any] = {"observation_filter": RunningNorm(), "reward_filter": RunningReturnNorm(0.9)}
    with LocalSampler("random", Listing, seed=1, check=None) as sampler:
        again = assert_round_trip(sampler.obtain_trajectories(5))
    assert all(type(value) is list for value in again.episode_infos["list"])
    assert again.episode_infos["pair"].tolist() == [(1, 2)] * 5
    with LocalSampler("random", Nested, seed=1, **filters) as sampler:
        sampler.warm_up(50)
        assert_round_trip(sampler.obtain_trajectories(5))
        sampler.obtain_fragments(7, 3)
        again = assert_round_trip(sampler.obtain_fragments(7, 3))
    assert again.continued.any()
    assert again.cut.any()


def test_episodes_and_timesteps_one_by_one():
    with LocalSampler("random", Nested, seed=1) as sampler:
        batch = sampler.obtain_trajectories(7)
    steps = iter(batch.time_steps())
    for number, (one, episode) in enumerate(zip(batch, batch.to_list(), strict=True)):
        assert np.shares_memory(episode["rewards"], batch.rewards)
        assert trees.same(episode["observations"], one.observations)
        assert ("kind" in episode["episode_info"]) == ("kind" in one.episode_infos)
        assert (episode["terminated"], episode["truncated"]) == (one.terminated[0], one.truncated[0])
        events = one.env_infos.get("event", {"name": [None] * 99})["name"]
        for timestep, step in enumerate(itertools.islice(steps, len(one.rewards))):
            ends = timestep == len(one.rewards) - 1
            assert (step.trajectory, step.timestep) == (number, timestep)
            assert (step.action, step.reward) == (one.actions[timestep], one.rewards[timestep])
            assert step.env_info.get("event", {"name": None})["name"] == events[timestep]
            assert np.array_equal(step.observation["image"], one.observations["image"][timestep])
            assert np.array_equal(step.next_observation["image"], one.next_observations["image"][timestep])
            assert (step.terminated, step.truncated) == (ends and one.terminated[0], ends and one.truncated[0])
    assert next(steps, None) is None
    rows = np.arange(batch.n_timesteps)
    some = dataclasses.replace(batch, env_infos={"t": rows, "_t": rows % 2 == 0})
    assert [step.env_info for step in some.time_steps()] == [{} if t % 2 else {"t": t} for t in rows]


BOX = S.Box(-9, 9, (1,), np.float32)
EPISODE: dict[str, Any] = {
    "observations": np.arange(4, dtype=np.float32)[:, None], "actions": np.zeros(3, np.int64), "rewards": [1, 2, 3],
    "terminated": False, "truncated": True,
}  # fmt: skip


def test_episodes_that_do_not_fit_are_errors():
    fine = TrajectoryBatch.from_list([EPISODE, EPISODE], BOX, S.Discrete(2))
    assert fine.observations.ravel().tolist() == [0, 1, 2, 0, 1, 2]
    assert fine.last_observations.ravel().tolist() == [3, 3], "one more observation takes the place of the last one"
    assert (fine.rewards.tolist(), fine.indices.tolist()) == ([1, 2, 3] * 2, [0, 1])
    cases: list[Any] = [
        ({"rewards": [1.0]}, DataError, "1 rewards: without last_observation it needs 2 observations, but has 4"),
        ({"rewards": []}, DataError, r"should have the shape \(t,\)"),
        ({"reward": [1.0]}, UsageError, "unknown keys: 'reward'"),
        ({"truncated": False}, DataError, "episode 1 is neither terminated nor truncated"),
        ({"terminated": "False"}, DataError, "terminated of episode 1 should be True or False, not str 'False'"),
        ({"truncated": np.ones(3, bool)}, DataError, "truncated of episode 1 should be True or False"),
        ({"actions": np.zeros(2, np.int64)}, DataError, "actions"),
        ({"actions": np.array([0, 7, 0])}, DataError, r"episode 1: action is outside its space: .*7.*, at timestep 1"),
        ({"rewards": ["a", "b", "c"]}, DataError, "the rewards of episode 1 should be numbers"),
        ({"index": -1}, UsageError, "index of episode 1 must be"),
        ({"index": 2.7}, UsageError, "index of episode 1 must be an integer"),
        ({"seed": "x"}, UsageError, "seed of episode 1 must be an integer"),
        ({"agent_version": 1.5}, UsageError, "agent_version of episode 1 must be an integer"),
        ({"env_number": 0.5}, UsageError, "env_number of episode 1 must be an integer"),
        (
            {"raw_rewards": np.zeros(3)},
            UsageError,
            "episode 1 has only raw_rewards: raw data need all of raw_observations",
        ),
    ]
    for change, error, words in cases:
        with pytest.raises(error, match=words):
            TrajectoryBatch.from_list([EPISODE, EPISODE | change], BOX, S.Discrete(2))
    lacking: Any = {key: EPISODE[key] for key in EPISODE.keys() - {"rewards"}}
    wrong: Any = [
        ([lacking], "has no rewards"),
        ([], "at least one"),
        (3, "one for each episode, got 3"),
        ([1], "a dict"),
    ]
    for episodes, words in wrong:
        with pytest.raises(UsageError, match=words):
            TrajectoryBatch.from_list(episodes, BOX, S.Discrete(2))
