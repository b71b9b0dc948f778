"""Parameters of environments in fragments, evaluations, checks and pickled samplers."""

import pickle

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, SetParameters, SetTaskUpdate
from tests.contracts.test_tasks import Tasked
from tests.environments.test_parameters import DRAWN, Weighed, check_drawn, same
from tests.scripted.agents import always_zero


def test_fragments_draw_them_for_each_episode():
    batches = []
    for n_workers in (1, 3):
        with LocalSampler(always_zero, Weighed, n_workers=n_workers, seed=1) as sampler:
            first = sampler.obtain_fragments(9, n_envs=4, env_update=SetParameters(DRAWN))
            batches.append((first, sampler.obtain_fragments(9)))
    for one, three in zip(*batches, strict=True):
        assert np.array_equal(one.rewards, three.rewards)
        assert np.array_equal(one.observations, three.observations)
        assert ((one.rewards >= 51) & (one.rewards <= 52)).all()
        assert len(set(one.rewards.tolist())) > 4


@pytest.mark.parametrize("tasks", [None, [1.0, 2.0]])
def test_a_strict_check_finds_nothing(tasks):
    env = SetParameters(DRAWN, Weighed) if tasks is None else Tasked
    with LocalSampler(always_zero, env, seed=1, check="error") as sampler:
        assert len(sampler.obtain_trajectories(3, tasks=tasks)) in (3, 6)


def test_a_pickled_sampler_keeps_them():
    with LocalSampler(always_zero, Weighed, seed=1) as sampler:
        sampler.obtain_trajectories(2, env_update=SetParameters(DRAWN))
        copied = pickle.loads(pickle.dumps(sampler))
        with copied:
            batch = copied.obtain_trajectories(5)
        same(batch, sampler.obtain_trajectories(5))
        check_drawn(batch)


def test_they_are_set_in_an_environment_with_a_task():
    with MultiprocessingSampler(always_zero, SetTaskUpdate(Tasked, 8.0), n_workers=2, seed=1) as sampler:
        batch = sampler.obtain_trajectories(3, env_update=SetParameters({"number": 2.0}))
        assert set(batch.rewards.tolist()) == {2.0}  # set_task is the environment's way
        assert set(sampler.obtain_trajectories(3, env_update=SetTaskUpdate(Tasked, 8.0)).rewards.tolist()) == {8.0}
