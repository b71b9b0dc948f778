"""Agents that reuse their arrays, and environments that change or keep the actions they are given, change no batch."""

import os
import signal
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import DefaultWorker, EnvManager, LocalSampler, SerialEnvManager, VecWorker
from tests.scripted.vectors import Vector

SPACES = {
    "array": spaces.Box(-9, 9, (2,), np.float32),
    "dict": spaces.Dict(a=spaces.Box(-9, 9, (2,), np.float32), b=spaces.Tuple([spaces.Box(-9, 9, (1,), np.float64)])),
}


def of(space, *rows, number=5.0):
    """Return an action of one number, or a batch of actions."""
    array = np.full((*rows, 2), number, np.float32)
    return array if space == "array" else {"a": array, "b": (np.full((*rows, 1), number),)}


def arrays_of(action):
    return [action["a"], action["b"][0]] if isinstance(action, dict) else [action]


class Clips(gymnasium.Env):
    """Shows its timestep; clips its action in place, as `np.clip(…, out=action)` does; the reward is what it was."""

    observation_space: Any = spaces.Box(-9, 9, (1,), np.float32)
    action_space: Any = SPACES["array"]
    kept: Any = None  # the action before

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.t == 0 or all((array == 1).all() for array in arrays_of(self.kept)), "it has changed since"
        self.t, self.kept = self.t + 1, action
        reward = max(float(array.max()) for array in arrays_of(action))
        for array in arrays_of(action):
            np.clip(array, -1, 1, out=array)
        return np.array([self.t], np.float32), reward, self.t == 4, False, {}


class ClipsNested(Clips):
    action_space = SPACES["dict"]


class Reusing:
    """Acts with the timestep; returns the same arrays each time, and shows them in the agent info."""

    row_independent = True

    def __init__(self, space):
        self.action, self.actions = of(space), of(space, 2)

    def get_action(self, observation):
        for array in arrays_of(self.action):
            array[...] = observation[0] + 2
        return self.action, {"mine": arrays_of(self.action)[0]}


class InBatches(Reusing):
    def get_actions(self, observations):
        for array in arrays_of(self.actions):
            array[...] = observations + 2
        observations[:] = 7
        return self.actions, {"mine": arrays_of(self.actions)[0]}


class Overrides(DefaultWorker):
    def before_step(self, context):
        return super().before_step(context)


class Hook:
    def on_timestep(self, context):
        assert min(array.min() for array in arrays_of(context.action)) == context.timestep + 1


TWO: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}


@pytest.mark.parametrize(("space", "env"), [("array", Clips), ("dict", ClipsNested)])
@pytest.mark.parametrize(
    ("agent", "options"),
    [(Reusing, {}), (Reusing, {"worker_class": Overrides}), (Reusing, {"hooks": Hook()}), (Reusing, TWO),
     (InBatches, TWO)],
)  # fmt: skip
def test_neither_reaches_the_other_nor_the_batch(space, env, agent, options):
    with LocalSampler(agent(space), env, seed=1, **options) as sampler:
        batches = [sampler.obtain_trajectories(6)]
        if options in ({}, TWO):
            batches.append(sampler.obtain_fragments(6, 2))
    for batch in batches:
        assert set(batch.rewards.tolist()) == {2.0, 3.0, 4.0, 5.0}
        assert (batch.observations[:, 0] == batch.rewards - 2).all()
        for array in (*arrays_of(batch.actions), batch.agent_infos["mine"]):
            assert (array == batch.rewards[:, None]).all()


class Lists(Clips):
    """Shows lists, of which no array is made."""

    observation_space = spaces.Sequence(Clips.observation_space)

    def reset(self, **options):
        return [super().reset(**options)[0]], {}

    def step(self, action):
        observation, *rest = super().step(action)
        return [observation], *rest


class Spoiling:
    """Adds to the lists that it sees, and changes what is in them."""

    def get_action(self, observation):
        observation[0][:] = 9
        observation.append(99)
        return of("array"), {}


class SpoilingTogether(Spoiling):
    def get_actions(self, observations):
        return np.stack([self.get_action(observation)[0] for observation in observations]), {}


@pytest.mark.parametrize(("agent", "options"), [(Spoiling(), {}), (Spoiling(), TWO), (SpoilingTogether(), TWO)])
def test_objects_that_an_agent_changes_are_its_own(agent, options):
    with LocalSampler(agent, Lists, seed=1, **options) as sampler:
        batch = sampler.obtain_trajectories(6)
    assert [[array.tolist() for array in shown] for shown in batch.observations] == [[[t]] for t in range(4)] * 6
    assert [[array.tolist() for array in shown] for shown in batch.last_observations] == [[[4.0]]] * 6


def test_native_vector_environments_change_no_batch_either():
    with LocalSampler(InBatches("array"), Vector("DISABLED", Clips, 2), seed=1, **TWO) as sampler:
        batch = sampler.obtain_trajectories(6)
    assert batch.rewards.tolist() == [2.0, 3.0, 4.0, 5.0] * 6
    assert (batch.actions == batch.rewards[:, None]).all()


@pytest.mark.parametrize(("space", "env"), [("array", Clips), ("dict", ClipsNested)])
def test_it_reaches_neither_the_callers_actions_nor_those_that_restore_an_episode(space, env):
    with SerialEnvManager(env, n_envs=2, seed=1) as manager:
        manager.reset()
        given = of(space, 2)
        for _ in range(3):
            steps = manager.step(given)
            assert steps.rewards.tolist() == [5, 5]
            assert all((array == 5).all() for array in [*arrays_of(given), *arrays_of(steps.actions)])
    with EnvManager(env, n_envs=2, n_workers=1, seed=1, on_failure="restore") as manager:
        manager.reset()
        for _ in range(3):
            manager.step(given)
            (pid,) = manager.worker_pids()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        assert manager.step(given).rewards.tolist() == [5, 5]
        assert manager.stats.restarts == 3
