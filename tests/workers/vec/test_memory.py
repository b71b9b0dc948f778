"""Agents with a memory under `VecWorker`: what they are told of slots that begin a trajectory."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from tests.scripted.agents import Remembering


class Lengths(gymnasium.Env):
    """Trajectories of 1 to 6 timesteps; observations count on from a number that is the trajectory's own."""

    observation_space = spaces.Box(0, 1e6, (1,), np.float64)
    action_space = spaces.Box(-np.inf, np.inf, (), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 7))
        self.value = float(self.np_random.integers(1, 1000))
        return np.array([self.value]), {}

    def step(self, action):
        self.left -= 1
        self.value += 1.0
        return np.array([self.value]), 0.0, self.left == 0, False, {}


class Summing:
    """Acts with the sum of what it has seen of a trajectory: a memory by rows, which `reset(do_resets)` clears.

    Rows that are not told to be reset keep their memory; the number of rows is that of the first mask, as in garage.
    """

    def __init__(self):
        self.memory: Any = None
        self.masks = []

    def reset(self, do_resets=None):
        do_resets = np.array([True]) if do_resets is None else np.asarray(do_resets)
        assert do_resets.dtype == bool
        if self.memory is None or len(self.memory) != len(do_resets):
            assert do_resets.all(), "there is nothing to keep"
            self.memory = np.zeros(len(do_resets))
        self.memory[do_resets] = 0.0

    def get_action(self, observation):
        self.memory[0] += observation[0]
        return self.memory[0], {}

    def get_actions(self, observations):
        assert len(observations) == len(self.memory), "always all rows"
        self.memory += observations[:, 0]
        return self.memory.copy(), {"sum": self.memory.copy(), "twice": list(2 * self.memory)}


class Rllab(Summing):
    def reset(self, dones=None):
        super().reset(dones)


class Seeded(Summing):
    """Is told a seed besides, and demands the mask."""

    def reset(self, do_resets, seed):  # type: ignore[override]
        super().reset(do_resets)
        self.seeds = [*getattr(self, "seeds", []), seed]

    def get_actions(self, observations):
        actions, _ = super().get_actions(observations)
        return list(actions), {"seed": np.full(len(actions), self.seeds[-1])}


class BySlot(Summing):
    """Wants the slots besides."""

    def get_actions(self, observations, slots):  # type: ignore[override]
        assert slots.tolist() == list(range(len(self.memory)))
        return super().get_actions(observations)


def native(mode):
    return lambda: SyncVectorEnv([Lengths] * 3, autoreset_mode=mode)


AGENTS = [Summing, Rllab, Seeded, BySlot]
ENVS = {"slots": Lengths, **{mode.name: native(mode) for mode in AutoresetMode}}
OPTIONS: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 8}}


def assert_sums(batch):
    for trajectory in batch:
        np.testing.assert_array_equal(trajectory.actions, np.cumsum(trajectory.observations[:, 0]))


@pytest.mark.parametrize("env", ENVS.values(), ids=ENVS)
@pytest.mark.parametrize("agent", AGENTS)
def test_a_memory_is_cleared_for_the_slots_that_begin(agent, env):
    with LocalSampler(agent(), env, seed=5, **OPTIONS) as sampler:
        for n in (16, 2, 11):
            batch = sampler.obtain_trajectories(n)
            assert len(batch) == n
            assert_sums(batch)
        if agent is Summing:
            np.testing.assert_array_equal(batch.agent_infos["sum"], batch.actions)
            np.testing.assert_array_equal(batch.agent_infos["twice"], 2 * batch.actions)


def test_the_same_in_processes():
    with (
        LocalSampler(Seeded(), Lengths, seed=5, **OPTIONS) as local,
        MultiprocessingSampler(Seeded(), Lengths, seed=5, n_workers=2, **OPTIONS) as sampler,
    ):
        assert local.obtain_trajectories(32) == sampler.obtain_trajectories(32)


@pytest.mark.parametrize("agent", [Summing, Rllab, Seeded])
def test_and_with_the_default_worker(agent):
    with LocalSampler(agent(), Lengths, seed=5) as sampler:
        assert_sums(sampler.obtain_trajectories(8))


def test_who_says_slots_and_starts_is_told_those():
    class Both(Remembering):
        def reset(self, do_resets=None):
            assert do_resets is None
            super().reset()

    assert Both.get_actions is Remembering.get_actions
    batches = []
    for agent in (Both(), Remembering()):
        with LocalSampler(agent, "CartPole-v1", seed=5, **OPTIONS) as sampler:
            batches.append(sampler.obtain_trajectories(8))
    assert batches[0] == batches[1]


class ResetWithoutAnything(Summing):
    def reset(self):  # type: ignore[override]
        super().reset()

    def get_actions(self, observations):
        return observations[:, 0].copy(), {}


def test_a_reset_that_is_told_nothing_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING), LocalSampler(ResetWithoutAnything(), Lengths, **OPTIONS) as sampler:
        sampler.obtain_trajectories(4)
        sampler.obtain_trajectories(4)
    (record,) = [record for record in caplog.records if "reset()" in record.getMessage()]
    assert "ResetWithoutAnything" in record.getMessage()
    assert "slots" in record.getMessage()
    assert "starts" in record.getMessage()
    assert "do_resets" in record.getMessage()


def test_what_a_reset_raises_names_its_trajectory():
    class Bad(Summing):
        def reset(self, do_resets=None):
            if do_resets is not None and not do_resets.all():
                raise ValueError("not this slot")
            super().reset(do_resets)

    with (
        LocalSampler(Bad(), Lengths, seed=5, **OPTIONS) as sampler,
        pytest.raises(Exception, match=r"resetting the agent.*not this slot"),
    ):
        sampler.obtain_trajectories(16)
