"""Agents and environments that use one array again and again, or keep what they are given, change no batch."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, VecWorker
from tests.scripted.vectors import Vector

PLANE = spaces.Box(-9, 9, (2,), np.float32)


class Keeping(gymnasium.Env):
    """Shows the action before the last one: it keeps the actions that it was given, and copies none."""

    observation_space = PLANE
    action_space = PLANE

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.kept = [np.zeros(2, np.float32)]
        self.length = int(self.np_random.integers(3, 7))
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.kept.append(action)
        reward = float(np.sum(self.kept[-2]))
        return np.array(self.kept[-2], np.float32), reward, len(self.kept) > self.length, False, {"kept": self.kept[-2]}


class Reusing:
    """Acts on what it sees, and puts all its actions and infos into the same arrays if it is to."""

    def __init__(self, reuse, dtype=np.float32):
        self.reuse, self.dtype = reuse, dtype
        self.actions, self.infos = np.zeros((8, 2), dtype), np.zeros((8, 2))
        self.one, self.info = np.zeros(2, dtype), np.zeros(2)

    def get_action(self, observation):
        observation = np.array(observation)
        one, info = (self.one, self.info) if self.reuse else (np.zeros(2, self.dtype), np.zeros(2))
        one[:] = 0.5 * observation[::-1] + 0.25
        info[:] = observation
        return one, {"seen": info}


class ReusingBatches(Reusing):
    def get_actions(self, observations):
        n = len(observations)
        fresh = np.zeros((n, 2), self.dtype), np.zeros((n, 2))
        actions, infos = (self.actions[:n], self.infos[:n]) if self.reuse else fresh
        actions[:] = 0.5 * observations[:, ::-1] + 0.25
        infos[:] = observations
        if self.reuse:
            observations[:] = 7
        return actions, {"seen": infos}


def batch_of(agent, env):
    args = {"n_envs": 3, "block_size": 6}
    with LocalSampler(agent, env, seed=3, worker_class=VecWorker, worker_args=args) as sampler:
        return sampler.obtain_trajectories(12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("agent", [Reusing, ReusingBatches], ids=["one by one", "batched"])
@pytest.mark.parametrize("env", [Keeping, Vector("DISABLED", Keeping)], ids=["slots", "native"])
def test_agents_that_reuse_their_arrays(agent, env, dtype):
    expected = batch_of(agent(False, dtype), env)
    assert batch_of(agent(True, dtype), env) == expected
    if env is Keeping or dtype is np.float32:  # a vector environment gets actions of its space's dtype
        with LocalSampler(Reusing(False, dtype), Keeping, seed=3) as sampler:
            assert sampler.obtain_trajectories(12) == expected


class Spoiling:
    """Keeps and changes the objects that it sees."""

    def get_action(self, observation):
        observation["list"].append(99)
        return 0, {}

    def get_actions(self, observations):
        for value in observations["list"]:
            value.append(99)
        return np.zeros(len(observations["list"]), np.int64), {}


class Lists(gymnasium.Env):
    """Shows lists, of a space that has no arrays."""

    action_space = spaces.Discrete(2)

    class Any(spaces.Space):
        def contains(self, x):
            return isinstance(x, list)

        def __eq__(self, other):
            return type(self) is type(other)

    observation_space = spaces.Dict(list=Any())

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {"list": [0]}, {}

    def step(self, action):
        self.t += 1
        return {"list": [self.t]}, 0.0, self.t == 3, False, {}


class SpoilingOne:
    get_action = Spoiling.get_action


@pytest.mark.parametrize("agent", [Spoiling(), SpoilingOne()], ids=["batched", "one by one"])
def test_objects_that_an_agent_changes_are_its_own(agent):
    batch = batch_of(agent, Lists)
    assert batch.observations["list"].tolist() == [[0], [1], [2]] * 12
    assert batch.last_observations["list"].tolist() == [[3]] * 12


class ChangingActions(Keeping):
    """Changes the actions that it was given."""

    def step(self, action):
        result = super().step(np.array(action))
        action[:] = 9
        return result


@pytest.mark.parametrize("agent", [Reusing, ReusingBatches], ids=["one by one", "batched"])
def test_environments_that_change_their_actions_change_no_record(agent):
    vec: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 6}}
    with (
        LocalSampler(agent(False), ChangingActions, seed=3, **vec) as sampler,
        LocalSampler(agent(False), Keeping, seed=3) as one,
    ):
        batch, expected = sampler.obtain_trajectories(7), one.obtain_trajectories(7)
    assert np.array_equal(batch.actions, expected.actions)
    assert np.array_equal(batch.observations, expected.observations)
