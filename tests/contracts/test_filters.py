"""Filters: what the agent saw and what the environment said are in the batch; statistics are folded call by call."""

from __future__ import annotations

import pickle
from functools import cache, partial
from typing import Any, cast

import gymnasium
import numpy as np
import pytest

from streamsampler import (
    LocalSampler,
    NewEnvUpdate,
    TrajectoryBatch,
    UsageError,
    VecWorker,
    evaluate,
    load,
    sample_to_folder,
)
from streamsampler.filters import FilteredAgent, Filters, RunningNorm, RunningReturnNorm
from tests.data.damage import forget_shards

OF_ONE = np.array([0.1, 0.5, 3.0, 2.0])
FILTERED: dict[str, Any] = {"observation_filter": RunningNorm(clip=1.5), "reward_filter": RunningReturnNorm(0.9)}
OPTIONS: dict[str, Any] = {**FILTERED, "seed": 20_261_123, "max_episode_length": 40}


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


WORKERS: dict[str, Any] = {
    "default": (OneByOne, {}),
    "lanes": (Seeing, {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}),
}
make: Any = partial(LocalSampler, OneByOne(), "CartPole-v1", **OPTIONS)


@cache
def expected(worker: str = "default") -> tuple[list[TrajectoryBatch], Filters, Filters]:
    """Batches of calls of all kinds, and the filters after those of whole trajectories, and after all."""
    agent, options = WORKERS[worker]
    with LocalSampler(agent(), "CartPole-v1", **options, **OPTIONS) as sampler:
        batches = [sampler.obtain_samples(150, agent_update=OF_ONE - 0.2 * call) for call in range(4)]
        batches.append(sampler.obtain_trajectories(3))
        with sampler.stream() as stream:
            batches += [TrajectoryBatch.concatenate(next(stream), next(stream))]
        of_whole = sampler.filters
        batches += [sampler.obtain_fragments(20, n_envs=4) for _ in range(2)]  # of which each part counts
        return batches, of_whole, sampler.filters


def assert_seen(*batches: TrajectoryBatch) -> None:
    for batch in batches:
        assert batch.observations.dtype == np.float32
        assert batch.observations.tobytes() == batch.agent_infos["seen"].tobytes()


@pytest.mark.parametrize("worker", WORKERS)
def test_the_statistics_are_those_folded_afterwards_and_numpys(worker: str):
    batches, of_whole, filters = expected(worker)
    assert_seen(*batches)
    observation, reward = FILTERED["observation_filter"], FILTERED["reward_filter"]
    for number, batch in enumerate(batches):
        assert batch.observations.tobytes() == observation.apply(batch.raw_observations).tobytes()
        assert batch.last_observations.tobytes() == observation.apply(batch.raw_last_observations).tobytes()
        if number < len(batches) - 2:  # a part's sums begin in the fragment before
            assert batch.rewards.tobytes() == reward.apply(batch.raw_rewards).tobytes()
            reward = reward.merge([reward.summarise(one.raw_rewards) for one in batch])
        observation = observation.merge([observation.summarise(one.raw_observations) for one in batch])
    assert (observation, reward) == (filters.observation, of_whole.reward)
    rows = np.concatenate([batch.raw_observations for batch in batches]).astype(np.float64)
    np.testing.assert_allclose(observation.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(observation.variance, rows.var(axis=0), rtol=1e-12)


def test_the_batch_has_what_the_agent_saw_and_the_raw_data(tmp_path):
    first, second = expected()[0][:2]
    assert first.observations.tobytes() == first.raw_observations.tobytes()  # there were no statistics
    assert np.abs(second.observations).max() == 1.5
    assert second.observations.tobytes() != second.raw_observations.tobytes()
    assert (second.raw_rewards == 1.0).all()
    assert (second.rewards != 1.0).all()
    assert second.raw_returns.tolist() == second.lengths.tolist()
    shown, _ = gymnasium.make("CartPole-v1").reset(seed=second.seeds[1])
    assert second[1].raw_observations[0].tobytes() == shown.tobytes()
    assert load(first.save(tmp_path / "first.npz")) == first
    assert load(second.save(tmp_path / "both.npz")) == second == TrajectoryBatch.concatenate(second.split())
    assert second.unfiltered().raw is None
    assert second.unfiltered().observations is second.raw_observations
    assert load(second.unfiltered().save(tmp_path / "raw.npz")).raw is None


def test_a_filter_of_rewards_alone_leaves_the_agent_as_it_is():
    """Its parameters stay its own: also where environments are side by side, and in fragments."""
    found, filters = [], []
    for agent, options in WORKERS.values():
        given = {**OPTIONS, **options, "observation_filter": None}
        with LocalSampler(agent(), "CartPole-v1", **given) as sampler:
            calls = [sampler.obtain_fragments(20, n_envs=4, agent_update=OF_ONE - 0.2 * call) for call in range(4)]
            found.append([(batch.actions.tolist(), batch.rewards.tolist()) for batch in calls])
            filters.append(sampler.filters)
    assert found[0] == found[1]
    assert filters[0] == filters[1] != Filters(None, FILTERED["reward_filter"])
    assert_seen(calls[-1])


def test_what_changes_statistics_and_what_does_not():
    with make() as sampler:
        assert sampler.warm_up(150) is None
        assert sampler.agent_version == 1
        warmed = sampler.obtain_samples(150)
        found = RunningNorm(clip=1.5)
        found = found.merge([found.summarise(one.raw_observations) for one in expected()[0][0]])
        assert warmed.observations.tobytes() == found.apply(warmed.raw_observations).tobytes()
        before = sampler.filters
        evaluated = evaluate(None, None, num_trajectories=5, sampler=sampler)
        assert sampler.filters == before
        shorter = NewEnvUpdate(gymnasium.make, {"id": "CartPole-v1", "max_episode_steps": 12})
        assert_seen(
            sampler.obtain_samples(150, agent_update=OneByOne()),
            sampler.obtain_samples(60, env_update=shorter),
            sampler.obtain_samples(150),
        )
        after = sampler.filters
        assert after.observation != before.observation
        with pytest.raises(Exception, match="cannot"):
            sampler.obtain_samples(150, agent_update=(lambda observation: "cannot"))
        assert sampler.filters == after
    alone = evaluate(
        OneByOne(), "CartPole-v1", seeds=evaluated.seeds, n_workers=0, max_episode_length=40,
        observation_filter=before.observation,
    )  # fmt: skip
    # Not those of filtered rewards.
    assert evaluated.returns.tolist() == evaluated.lengths.tolist() == alone.returns.tolist()


def test_pickles_and_replays_go_on_with_the_statistics():
    with make() as sampler:
        earlier = sampler.obtain_samples(150, agent_update=OF_ONE)
        filters = sampler.filters
        with pickle.loads(pickle.dumps(sampler)) as other:
            assert other.filters == filters
            assert other.obtain_samples(150, agent_update=OF_ONE - 0.2) == expected()[0][1]
        batch = sampler.obtain_samples(150)
        assert sampler.replay(2, 1, recorded=batch).same
        assert sampler.replay(2, 1, recorded=batch, actions=True).same
        assert filters.observation is not None
        assert sampler.replay(1, 1, recorded=earlier, agent=OneByOne()).same
        assert not sampler.replay(1, 1, recorded=earlier, agent=FilteredAgent(OneByOne(), filters.observation)).same


class Without:
    def __init__(self, missing):
        for name in {"apply", "summarise", "merge"} - {missing}:
            setattr(self, name, len)


@pytest.mark.parametrize("name", FILTERED)
def test_what_is_no_filter(name):
    for given, words in (
        *((Without(missing), f"{name}, a Without, has no {missing}: ") for missing in ("apply", "summarise", "merge")),
        (RunningNorm, "the class RunningNorm itself"),
    ):
        with pytest.raises(UsageError, match=words):
            LocalSampler("random", "CartPole-v1", **cast("Any", {name: given}))
    with LocalSampler("random", "CartPole-v1") as plain, pytest.raises(UsageError, match="statistics of filters"):
        plain.warm_up(10)


def test_a_folder_is_resumed_with_the_same_statistics_alone(tmp_path):
    arguments: dict[str, Any] = {"n_timesteps": 400, "shard_size": 100, "resume": True}
    with make() as sampler:
        sampler.warm_up(150)
        warm = {"observation_filter": sampler.filters.observation, "reward_filter": sampler.filters.reward}
    with make(**warm) as sampler:
        shards = sample_to_folder(sampler, tmp_path / "folder", **arguments).shards
        expected_shards = [shards[number] for number in range(2)]
    forget_shards(tmp_path / "folder", 1)
    with make(**warm) as sampler:
        again = sample_to_folder(sampler, tmp_path / "folder", **arguments)
    assert [again.shards[number] for number in range(2)] == expected_shards
    assert expected_shards[1].raw is not None
    with make() as cold, pytest.raises(UsageError, match="_filter was"):
        sample_to_folder(cold, tmp_path / "folder", **arguments)
