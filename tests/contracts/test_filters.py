"""Filters: the same statistics and batches for any number of workers, and no timestep filtered with others."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from functools import cache
from typing import Any, cast

import gymnasium
import numpy as np
import pytest

from streamsampler import (
    LocalSampler,
    MultiprocessingSampler,
    NewEnvUpdate,
    TrajectoryBatch,
    UsageError,
    VecWorker,
    evaluate,
    load,
    sample_to_folder,
)
from streamsampler.data import trees
from streamsampler.filters import FilteredAgent, Filters, RunningNorm, RunningReturnNorm
from tests.contracts.conftest import LANES, PARENT, Maker
from tests.data.damage import forget_shards
from tests.scripted.agents import Attentive
from tests.scripted.envs import Nested

SEED = 20_261_123
OF_ONE = np.array([0.1, 0.5, 3.0, 2.0])


class Seeing:
    """Acts on what it sees, which is recorded."""

    row_independent = True

    def __init__(self) -> None:
        self.weights = OF_ONE

    def get_action(self, observation):
        return int(observation @ self.weights > 0), {"seen": np.array(observation)}

    def get_actions(self, observations):
        chosen = (np.multiply(observations, self.weights).sum(axis=1) > 0).astype(np.int64)
        return chosen, {"seen": observations.copy()}

    def set_param_values(self, values):
        self.weights = values


class OneByOne:
    """The same, without `get_actions`."""

    def __init__(self) -> None:
        self.agent = Seeing()
        self.get_action, self.set_param_values = self.agent.get_action, self.agent.set_param_values

    def __reduce__(self):
        return OneByOne, ()


def ten_calls(sampler: Any) -> tuple[list[TrajectoryBatch], Filters]:
    with sampler:
        batches = [sampler.obtain_samples(150, agent_update=OF_ONE - 0.2 * call) for call in range(8)]
        batches.append(sampler.obtain_trajectories(3))
        with sampler.stream() as stream:
            batches += [TrajectoryBatch.concatenate(next(stream), next(stream))]
        return batches, sampler.filters


FILTERED: dict[str, Any] = {"observation_filter": RunningNorm(clip=1.5), "reward_filter": RunningReturnNorm(0.9)}
OPTIONS: dict[str, Any] = {**FILTERED, "seed": SEED, "max_episode_length": 40}


@cache
def expected(agent: Any = OneByOne) -> tuple[list[TrajectoryBatch], Filters]:
    return ten_calls(LocalSampler(agent(), "CartPole-v1", **OPTIONS))


ENGINES = [
    ("local", 3),
    ("forkserver", 3),
    pytest.param("ray", 2, marks=[pytest.mark.ray, pytest.mark.extras]),
    *(
        pytest.param(engine, n_workers, marks=pytest.mark.slow)
        for engine in ("local", "forkserver", "queues fork", "vec", "vec forkserver")
        for n_workers in (1, 2, 3, 7)
    ),
]


@pytest.mark.parametrize(("engine", "n_workers"), ENGINES, indirect=["engine"])
def test_batches_and_statistics_are_the_same_for_any_number_of_workers(make_sampler: Maker, n_workers: int):
    batches, filters = ten_calls(make_sampler(OneByOne(), "CartPole-v1", n_workers=n_workers, **OPTIONS))
    assert batches == expected()[0]
    assert filters == expected()[1]


@pytest.mark.parametrize(
    ("engine", "n_workers"),
    [
        (PARENT, 2),
        *(pytest.param(engine, n, marks=pytest.mark.slow) for engine in (*LANES, PARENT) for n in (1, 2, 3, 7)),
    ],
    indirect=["engine"],
)
@pytest.mark.slow
def test_lanes_see_the_same(make_sampler: Maker, n_workers: int):
    batches, filters = ten_calls(make_sampler(Seeing(), "CartPole-v1", n_workers=n_workers, **OPTIONS))
    assert filters == lanes_alone()[1]
    assert batches == lanes_alone()[0]
    assert_seen(batches)


@cache
def lanes_alone() -> tuple[list[TrajectoryBatch], Filters]:
    options: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
    return ten_calls(LocalSampler(Seeing(), "CartPole-v1", **options, **OPTIONS))


def assert_seen(batches: list[TrajectoryBatch]) -> None:
    for batch in batches:
        assert batch.observations.dtype == np.float32
        assert batch.observations.tobytes() == batch.agent_infos["seen"].tobytes()


def test_the_batch_has_what_the_agent_saw_and_the_raw_data():
    batches = expected()[0]
    assert_seen(batches)
    first, second = batches[:2]
    assert first.observations.tobytes() == first.raw_observations.tobytes()  # there were no statistics
    assert np.abs(second.observations).max() == 1.5
    assert second.observations.tobytes() != second.raw_observations.tobytes()
    assert (second.raw_rewards == 1.0).all()
    assert (second.rewards != 1.0).all()
    assert second.raw_returns.tolist() == second.lengths.tolist()
    env = gymnasium.make("CartPole-v1")
    shown, _ = env.reset(seed=second.seeds[1])
    assert second[1].raw_observations[0].tobytes() == shown.tobytes()


@pytest.mark.parametrize("alone", [expected, lanes_alone], ids=["default", "lanes"])
def test_the_statistics_are_those_folded_afterwards_and_numpys(alone: Any):
    batches, filters = alone()
    again = Filters(**{name.partition("_")[0]: given for name, given in FILTERED.items()})
    observation, reward = again.observation, again.reward
    assert observation is not None
    assert reward is not None
    for batch in batches:
        before = observation, reward
        assert batch.observations.tobytes() == before[0].apply(batch.raw_observations).tobytes()
        assert batch.last_observations.tobytes() == before[0].apply(batch.raw_last_observations).tobytes()
        assert batch.rewards.tobytes() == before[1].apply(batch.raw_rewards).tobytes()
        observation = observation.merge([observation.summarise(one.raw_observations) for one in batch])
        reward = reward.merge([reward.summarise(one.raw_rewards) for one in batch])
    assert Filters(observation, reward) == filters
    rows = np.concatenate([batch.raw_observations for batch in batches]).astype(np.float64)
    assert isinstance(observation, RunningNorm)
    np.testing.assert_allclose(observation.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(observation.variance, rows.var(axis=0), rtol=1e-12)


@pytest.mark.slow
def test_killed_workers_change_nothing():
    options: dict[str, Any] = {"n_workers": 2, "max_restarts": None, **OPTIONS}
    with MultiprocessingSampler(OneByOne(), "CartPole-v1", **options) as sampler:
        for call in range(4):
            with contextlib.suppress(ProcessLookupError):  # it was killed, and was not needed
                os.kill(sampler.worker_pids()[call % 2], signal.SIGKILL)
            assert sampler.obtain_samples(150, agent_update=OF_ONE - 0.2 * call) == expected()[0][call]
        assert sampler.stats.restarts >= 2


def four_fragments(sampler: Any) -> tuple[list[TrajectoryBatch], Filters]:
    with sampler:
        batches = [sampler.obtain_fragments(20, n_envs=4, agent_update=OF_ONE - 0.2 * call) for call in range(4)]
        return batches, sampler.filters


@pytest.mark.parametrize(
    ("engine", "n_workers"),
    [("local", 3), *(pytest.param("forkserver", n, marks=pytest.mark.slow) for n in (1, 2, 3))],
    indirect=["engine"],
)
def test_fragments_are_filtered_and_each_part_counts(make_sampler: Maker, n_workers: int):
    alone = four_fragments(LocalSampler(OneByOne(), "CartPole-v1", **OPTIONS))
    assert_seen(alone[0])
    assert np.abs(alone[0][1].observations).max() == 1.5
    found = RunningNorm(clip=1.5)
    for batch in alone[0]:
        found = found.merge([found.summarise(one.raw_observations) for one in batch])
    assert found == alone[1].observation
    assert four_fragments(make_sampler(OneByOne(), "CartPole-v1", n_workers=n_workers, **OPTIONS)) == alone


def by_calls(batches: list[TrajectoryBatch]) -> list[Any]:
    return [(batch.actions.tolist(), batch.rewards.tolist()) for batch in batches]


def test_a_filter_of_rewards_alone_leaves_the_agent_as_it_is():
    """Its parameters stay its own: also where environments are side by side, and in fragments."""
    options: dict[str, Any] = {**OPTIONS, "observation_filter": None}
    in_lanes: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}
    alone, filters = four_fragments(LocalSampler(OneByOne(), "CartPole-v1", **options))
    found, others = four_fragments(LocalSampler(Seeing(), "CartPole-v1", **options, **in_lanes))
    assert by_calls(found) == by_calls(alone)
    assert others == filters != Filters(None, FILTERED["reward_filter"])
    assert np.array_equal(found[-1].observations, found[-1].agent_infos["seen"])


class SeeingNested(Attentive):
    """Records what it sees."""

    def get_action(self, observation):
        return super().get_action(observation)[0], {f"seen{path}": leaf for path, leaf in trees.leaves(observation)}


def test_nested_observations_are_filtered_array_by_array():
    with LocalSampler(SeeingNested(), Nested, seed=1, observation_filter=RunningNorm()) as sampler:
        first, second = sampler.obtain_trajectories(3), sampler.obtain_trajectories(3)
    raw = dict(trees.leaves(second.raw_observations))
    changed = set()
    for batch in (first, second):
        for path, leaf in trees.leaves(batch.observations):
            assert leaf.tolist() == batch.agent_infos[f"seen{path}"].tolist(), path
            if leaf.tolist() != raw[path].tolist() and batch is second:
                changed.add(path)
    assert changed == {path for path, leaf in raw.items() if leaf.dtype.kind == "f"}


def test_warm_up_feeds_the_statistics_alone():
    with LocalSampler(OneByOne(), "CartPole-v1", **OPTIONS) as sampler:
        assert sampler.warm_up(150) is None
        assert sampler.agent_version == 1
        warmed = sampler.obtain_samples(150)
    found = RunningNorm(clip=1.5)
    found = found.merge([found.summarise(one.raw_observations) for one in expected()[0][0]])
    assert warmed.observations.tobytes() == found.apply(warmed.raw_observations).tobytes()
    with LocalSampler(OneByOne(), "CartPole-v1") as plain, pytest.raises(UsageError, match="statistics of filters"):
        plain.warm_up(10)


def test_a_pickled_sampler_goes_on_with_its_statistics():
    with LocalSampler(OneByOne(), "CartPole-v1", **OPTIONS) as sampler:
        sampler.obtain_samples(150, agent_update=OF_ONE)
        with pickle.loads(pickle.dumps(sampler)) as other:
            assert other.filters == sampler.filters
            assert other.obtain_samples(150, agent_update=OF_ONE - 0.2) == expected()[0][1]


def test_files_hold_both(tmp_path):
    batch = expected()[0][1]
    assert load(batch.save(tmp_path / "both.npz")) == batch
    joined = TrajectoryBatch.concatenate(batch.split())
    assert joined == batch
    assert batch.unfiltered().raw is None
    assert batch.unfiltered().observations is batch.raw_observations
    assert load(batch.unfiltered().save(tmp_path / "raw.npz")).raw is None


def test_a_call_that_raises_changes_no_statistics():
    with LocalSampler(OneByOne(), "CartPole-v1", **OPTIONS) as sampler:
        sampler.obtain_samples(150)
        before = sampler.filters
        with pytest.raises(Exception, match="cannot"):
            sampler.obtain_samples(150, agent_update=(lambda observation: "cannot"))
        assert sampler.filters == before


def test_a_replay_shows_the_agent_the_same():
    with LocalSampler(OneByOne(), "CartPole-v1", **OPTIONS) as sampler:
        earlier = sampler.obtain_samples(150)
        filters = sampler.filters
        batch = sampler.obtain_samples(150)
        assert sampler.replay(2, 1, recorded=batch).same
        assert sampler.replay(2, 1, recorded=batch, actions=True).same
        assert filters.observation is not None
        assert sampler.replay(1, 1, recorded=earlier, agent=OneByOne()).same
        assert not sampler.replay(1, 1, recorded=earlier, agent=FilteredAgent(OneByOne(), filters.observation)).same


def test_a_new_agent_and_a_new_environment_see_filtered_observations():
    with LocalSampler(OneByOne(), "CartPole-v1", **OPTIONS) as sampler:
        sampler.obtain_samples(150)
        assert_seen([sampler.obtain_samples(150, agent_update=OneByOne())])
        assert_seen(
            [
                sampler.obtain_samples(
                    60, env_update=NewEnvUpdate(gymnasium.make, {"id": "CartPole-v1", "max_episode_steps": 12})
                )
            ]
        )
        assert_seen([sampler.obtain_samples(150)])


class Without:
    def __init__(self, missing):
        for name in {"apply", "summarise", "merge"} - {missing}:
            setattr(self, name, len)


@pytest.mark.parametrize("missing", ["apply", "summarise", "merge"])
@pytest.mark.parametrize("name", FILTERED)
def test_a_filter_without_a_method_is_an_error(name, missing):
    options: dict[str, Any] = {name: Without(missing)}
    with pytest.raises(UsageError, match=f"{name}, a Without, has no {missing}: "):
        LocalSampler("random", "CartPole-v1", **options)


def test_a_class_is_no_filter():
    with pytest.raises(UsageError, match="the class RunningNorm itself"):
        LocalSampler("random", "CartPole-v1", observation_filter=cast("Any", RunningNorm))


def test_evaluations_use_the_statistics_and_change_none():
    with LocalSampler(OneByOne(), "CartPole-v1", **OPTIONS) as sampler:
        sampler.obtain_samples(150)
        before = sampler.filters
        found = evaluate(None, None, num_trajectories=5, sampler=sampler)
        assert sampler.filters == before
        sampler.obtain_samples(150)
        assert sampler.filters.observation != before.observation
    alone = evaluate(
        OneByOne(), "CartPole-v1", seeds=found.seeds, n_workers=0, max_episode_length=40,
        observation_filter=before.observation,
    )  # fmt: skip
    assert found.returns.tolist() == found.lengths.tolist() == alone.returns.tolist()  # not those of filtered rewards


def test_a_folder_is_resumed_with_the_same_statistics_alone(tmp_path):
    with LocalSampler(OneByOne(), "CartPole-v1", **OPTIONS) as sampler:
        sampler.warm_up(150)
        warm = {"observation_filter": sampler.filters.observation, "reward_filter": sampler.filters.reward}
    options: dict[str, Any] = {**OPTIONS, **warm}
    with LocalSampler(OneByOne(), "CartPole-v1", **options) as sampler, sampler.stream() as stream:
        expected_first = next(stream)
    arguments: dict[str, Any] = {"num_samples": 400, "shard_size": 100, "resume": True}
    with LocalSampler(OneByOne(), "CartPole-v1", **options) as sampler:
        folder = sample_to_folder(sampler, tmp_path / "folder", **arguments)
    assert folder.shards[0][0] == expected_first
    second = folder.shards[1][0]
    with LocalSampler(OneByOne(), "CartPole-v1", **options) as sampler:
        forget_shards(tmp_path / "folder", 1)
        again = sample_to_folder(sampler, tmp_path / "folder", **arguments)
        assert again.shards[1][0].raw is not None
        assert again.shards[1][0].observations.tobytes() == second.observations.tobytes()
    with LocalSampler(OneByOne(), "CartPole-v1", **OPTIONS) as cold, pytest.raises(UsageError, match="_filter is"):
        sample_to_folder(cold, tmp_path / "folder", **arguments)
