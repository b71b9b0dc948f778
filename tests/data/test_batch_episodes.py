"""Trajectories one by one: lists of episodes, and timesteps."""

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, TrajectoryBatch
from streamsampler.data import trees
from streamsampler.errors import DataError, UsageError
from streamsampler.filters import RunningNorm, RunningReturnNorm


class Nested(gymnasium.Env):
    """Has nested observations, and infos that come and go."""

    observation_space = spaces.Dict(a=spaces.Box(-1, 99, (2,), np.float32), b=spaces.Tuple([spaces.Discrete(99)]))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.n = 0, int(self.np_random.integers(1, 6))
        return self._observation(), {"n": self.n, **({"odd": {"x": 1.5}} if self.n % 2 else {})}

    def step(self, action):
        self.t += 1
        return self._observation(), self.t / 2, self.t == self.n, False, {"t": self.t} if self.t % 2 else {}

    def _observation(self):
        return {"a": np.full(2, self.t, np.float32), "b": (self.t,)}


@pytest.fixture(scope="module")
def batch():
    with LocalSampler("random", Nested, seed=1) as sampler:
        return sampler.obtain_trajectories(7)


def test_a_list_becomes_the_same_batch(batch):
    again = TrajectoryBatch.from_list(batch.to_list(), batch.observation_space, batch.action_space)
    for name in ("observations", "last_observations", "actions", "rewards", "terminated", "lengths", "indices"):
        assert trees.same(getattr(again, name), getattr(batch, name)), name
    assert again.seeds == batch.seeds
    assert trees.same(again.env_infos, batch.env_infos)
    assert trees.same(again.episode_infos["n"], batch.episode_infos["n"])


def test_an_episode_is_one_trajectory(batch):
    for one, episode in zip(batch, batch.to_list(), strict=True):
        assert np.shares_memory(episode["rewards"], batch.rewards)
        assert trees.same(episode["observations"], one.observations)
        assert episode["last_observation"]["a"].tolist() == [len(one.rewards)] * 2
        assert episode["episode_info"]["n"] == len(one.rewards)
        assert ("odd" in episode["episode_info"]) == (len(one.rewards) % 2 == 1)
        assert (episode["terminated"], episode["truncated"]) == (True, False)


def test_timesteps_follow_one_another(batch):
    steps = list(batch.time_steps())
    assert [step.reward for step in steps] == batch.rewards.tolist()
    assert [step.action for step in steps] == batch.actions.tolist()
    for step, following in itertools.pairwise(steps):
        assert step.env_info == ({"t": step.timestep + 1} if step.timestep % 2 == 0 else {})
        if step.terminated:
            assert (following.trajectory, following.timestep) == (step.trajectory + 1, 0)
        else:
            assert trees.same(step.next_observation, following.observation)
            assert following.timestep == step.timestep + 1
    assert sum(step.terminated for step in steps) == len(batch)
    assert [step.next_observation["a"][0] for step in steps if step.terminated] == batch.lengths.tolist()


def test_one_more_observation_may_take_the_place_of_the_last_one():
    box = spaces.Box(-9, 9, (1,), np.float32)
    episode = {
        "observations": np.arange(4, dtype=np.float32)[:, None], "actions": np.zeros(3, np.int64), "rewards": [1, 2, 3],
        "terminated": False, "truncated": True,
    }  # fmt: skip
    batch = TrajectoryBatch.from_list([episode, episode], box, spaces.Discrete(2))
    assert batch.observations.ravel().tolist() == [0, 1, 2, 0, 1, 2]
    assert batch.last_observations.ravel().tolist() == [3, 3]
    assert batch.rewards.tolist() == [1, 2, 3] * 2
    assert batch.indices.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"rewards": [1.0]}, DataError, "1 rewards: without last_observation it needs 2 observations, and has 4"),
        ({"rewards": []}, DataError, r"should be \(t,\)"),
        ({"reward": [1.0]}, UsageError, "unknown keys: 'reward'"),
        ({"actions": np.zeros(2, np.int64)}, DataError, "actions"),
        ({"truncated": False}, DataError, "episode 1 is neither terminated nor truncated"),
        ({"terminated": "False"}, DataError, "terminated of episode 1 should be True or False, and is str 'False'"),
        ({"truncated": np.ones(3, bool)}, DataError, "truncated of episode 1 should be True or False"),
        ({"rewards": ["a", "b", "c"]}, DataError, "the rewards of episode 1 should be numbers"),
        ({"actions": np.array([0, 7, 0])}, DataError, r"episode 1: action is outside its space: .*7.*, at timestep 1"),
        ({"index": 2.7}, UsageError, "index of episode 1 must be an integer"),
        ({"index": -1}, UsageError, "index of episode 1 must be"),
        ({"seed": "x"}, UsageError, "seed of episode 1 must be an integer"),
        ({"agent_version": 1.5}, UsageError, "agent_version of episode 1 must be an integer"),
        ({"env_number": 0.5}, UsageError, "env_number of episode 1 must be an integer"),
        ({"raw_rewards": np.zeros(3)}, UsageError, "episode 1 has raw_rewards alone: raw data are raw_observations"),
    ],
)
def test_what_does_not_fit_is_an_error(change, error, match):
    box = spaces.Box(-9, 9, (1,), np.float32)
    episode = {
        "observations": np.zeros((4, 1), np.float32), "actions": np.zeros(3, np.int64), "rewards": np.zeros(3),
        "terminated": False, "truncated": True,
    }  # fmt: skip
    with pytest.raises(error, match=match):
        TrajectoryBatch.from_list([episode, {**episode, **change}], box, spaces.Discrete(2))
    with pytest.raises(UsageError, match="has no rewards"):
        TrajectoryBatch.from_list([{k: v for k, v in episode.items() if k != "rewards"}], box, spaces.Discrete(2))
    with pytest.raises(UsageError, match="at least one episode"):
        TrajectoryBatch.from_list([], box, spaces.Discrete(2))
    with pytest.raises(UsageError, match="a list of dicts, one for each episode, got 3"):
        TrajectoryBatch.from_list(wrong(3), box, spaces.Discrete(2))
    with pytest.raises(UsageError, match=r"episode 0 should be a dict, and is \(1, 2\)"):
        TrajectoryBatch.from_list(wrong([(1, 2)]), box, spaces.Discrete(2))


def wrong(value: Any) -> Any:
    return value


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


def test_filtered_batches_and_fragments_become_the_same():
    filters: dict[str, Any] = {"observation_filter": RunningNorm(), "reward_filter": RunningReturnNorm(0.9)}
    with LocalSampler("random", Nested, seed=1, **filters) as sampler:
        sampler.warm_up(50)
        assert_round_trip(sampler.obtain_trajectories(5))
        sampler.obtain_fragments(7, 3)
        again = assert_round_trip(sampler.obtain_fragments(7, 3))
    assert again.continued.any()
    assert again.cut.any()
    assert again.as_grid("rewards").shape == (7, 3)


class Listing(Nested):
    """Has lists and tuples among its infos."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"list": [1] * self.n, "pair": (1, 2), "nothing": None, "inner": {"list": [self.n]}}


def test_lists_among_infos_stay_lists():
    with LocalSampler("random", Listing, seed=1, check=None) as sampler:
        again = assert_round_trip(sampler.obtain_trajectories(5))
    assert all(type(value) is list for value in again.episode_infos["list"])
    assert again.episode_infos["pair"].tolist() == [(1, 2)] * 5
