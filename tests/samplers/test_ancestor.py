"""The ancestor's usage: what was written for garage's samplers runs, or is told today's name."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest

import streamsampler
from streamsampler import LocalSampler, MultiprocessingSampler, WorkerFactory
from streamsampler.errors import UsageError
from streamsampler.filters import RunningNorm
from tests.scripted.agents import Linear


class Policy(Linear):
    """A policy with parameters that can be read."""

    def get_param_values(self) -> Any:
        return self.weights


def make_env() -> Any:
    return gymnasium.make("CartPole-v1")


# ---------------------------------------------------------------------- all of it, as it was written


def test_the_ancestors_program_runs():
    policy, other, env = Policy(), Policy((0.0, 0.0, -0.3, -0.3)), make_env()
    make_factory: Any = WorkerFactory
    make_sampler: Any = MultiprocessingSampler
    with pytest.warns(DeprecationWarning, match="max_path_length is called max_episode_length"):
        factory = make_factory(seed=100, max_path_length=100, n_workers=2)
    sampler = make_sampler(factory, policy, env)
    copied = MultiprocessingSampler.from_worker_factory(factory, policy, env)
    try:
        batches = [
            [
                each.obtain_samples(0, 1000, policy.get_param_values()),
                each.obtain_samples(itr=1, num_samples=1000, agent_update=policy),
                each.obtain_samples(2, 1000, policy, env),
                each.obtain_exact_trajectories(5, policy),
                each.obtain_exact_trajectories(5, [policy, other]),
            ]
            for each in (sampler, copied)
        ]
        assert batches[0] == batches[1]
        assert [batch.agent_version for batch in batches[0]] == [1, 2, 3, 4, 5]
        assert all(batch.n_timesteps >= 1000 for batch in batches[0][:3])
        assert all(batch.lengths.max() <= 100 for batch in batches[0])
        assert [len(batch) for batch in batches[0][3:]] == [10, 10]
        with pickle.loads(pickle.dumps(sampler)) as again:
            expected = sampler.obtain_samples(5, 300)
            assert again.obtain_samples(num_samples=300, itr=5) == expected
    finally:
        for _ in range(2):
            sampler.shutdown_worker()
            copied.shutdown_worker()


# ---------------------------------------------------------------------- obtain_samples


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((0, 40), {}),
        ((0, np.int64(40)), {}),
        ((np.int32(7), 40), {}),
        ((0,), {"num_samples": 40}),
        ((40,), {"itr": 3}),
        ((), {"itr": 3, "num_samples": 40}),
        ((0, 40, None), {}),
        ((0, 40, None, None), {}),
        ((0, 40, None, None, False), {}),
        ((0, 40), {"agent_update": None, "env_update": None, "progress": False}),
    ],
)
def test_an_iteration_number_has_no_effect(args, options):
    with (
        LocalSampler(Policy(), "CartPole-v1", seed=1) as one,
        LocalSampler(Policy(), "CartPole-v1", seed=1) as it,
    ):
        sampler: Any = it
        assert sampler.obtain_samples(*args, **options) == one.obtain_samples(40)


def test_updates_follow_the_number_of_samples():
    with (
        LocalSampler(Policy(), "CartPole-v1", seed=1) as one,
        LocalSampler(Policy(), "CartPole-v1", seed=1) as it,
    ):
        weights = np.array([0.0, 0.5, 0.0, -0.5])
        expected = one.obtain_samples(90, agent_update=weights, env_update=make_env)
        assert it.obtain_samples(3, 90, weights, make_env) == expected
        seen: list[Any] = []
        it.obtain_samples(4, 90, weights, progress=seen.append)
        assert seen[-1].complete


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((0, True), {}, r"the arguments are \(num_samples"),
        ((0, 4e3), {}, r"num_samples must be an integer"),
        ((0, 40, 5), {}, r"obtain_samples\(40, 5\): the arguments are"),
        ((Policy(), 40), {}, "itr, which may come before num_samples, must be an integer, got <"),
        ((True, 40), {}, "must be at least 0, got True"),
        ((-1, 40), {}, "itr, which may come before num_samples, must be at least 0, got -1"),
        ((), {"itr": None, "num_samples": 40}, "itr must be an integer, got None"),
        ((0, 0), {}, "num_samples must be at least 1"),
    ],
)
def test_what_is_no_iteration_number_is_an_error(args, options, message):
    with LocalSampler(Policy(), "CartPole-v1", seed=1) as given:
        sampler: Any = given
        with pytest.raises(UsageError, match=message):
            sampler.obtain_samples(*args, **options)
        assert sampler.agent_version == 0


def test_more_arguments_than_there_are_are_an_error():
    with LocalSampler(Policy(), "CartPole-v1", seed=1) as given:
        sampler: Any = given
        with pytest.raises(TypeError, match="obtain_samples"):
            sampler.obtain_samples(0, 1, 40, None, None, False)
        with pytest.raises(TypeError, match="num_samples"):
            sampler.obtain_samples()
        with pytest.raises(TypeError, match="num_samples"):
            sampler.obtain_samples(itr=3)


# ---------------------------------------------------------------------- making samplers


def test_a_worker_factory_may_come_first_or_by_name():
    factory = WorkerFactory(seed=3, n_workers=2, max_episode_length=9)
    made: Any = LocalSampler
    norm = RunningNorm()
    ways = [
        made(factory, Policy(), "CartPole-v1", observation_filter=norm),
        made(factory, agents=Policy(), envs="CartPole-v1", observation_filter=norm),
        made(Policy(), "CartPole-v1", worker_factory=factory, observation_filter=norm),
        LocalSampler.from_worker_factory(factory, Policy(), "CartPole-v1", observation_filter=norm),
    ]
    batches = []
    for sampler in ways:
        with sampler:
            assert (sampler.n_workers, sampler.seed) == (2, 3)
            batches.append(sampler.obtain_samples(50))
    assert batches[0].lengths.max() == 9
    assert all(batch == batches[0] for batch in batches)


def test_what_the_factory_has_and_what_is_none_are_errors():
    made: Any = LocalSampler
    with pytest.raises(TypeError, match="LocalSampler takes n_workers, seed from the worker factory: give it there"):
        made(WorkerFactory(n_workers=1), Policy(), "CartPole-v1", seed=3, n_workers=2)
    with pytest.raises(UsageError, match="worker_factory of LocalSampler must be a WorkerFactory, got 3"):
        made(Policy(), "CartPole-v1", worker_factory=3)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'envs'"):
        made(WorkerFactory(n_workers=1), Policy())


def test_old_arguments_of_worker_factories_are_taken_with_a_warning():
    factory: Any = WorkerFactory
    with pytest.warns(DeprecationWarning, match="max_path_length is called max_episode_length") as seen:
        assert factory(max_path_length=7).max_episode_length == 7
    assert seen[0].filename == __file__, "the line of the caller"
    with pytest.warns(DeprecationWarning, match="is_tf_worker has no effect"):
        factory(is_tf_worker=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        factory(max_episode_length=7)


def test_old_arguments_of_worker_factories_that_cannot_work_are_errors():
    factory: Any = WorkerFactory
    with pytest.raises(TypeError, match="max_path_length is the old name of max_episode_length"):
        factory(max_path_length=7, max_episode_length=8)
    with pytest.raises(UsageError, match="workers open no TensorFlow session"):
        factory(is_tf_worker=True)
    with pytest.raises(UsageError, match="max_episode_length must be"), pytest.warns(DeprecationWarning, match="max"):
        factory(max_path_length=0)
    with pytest.raises(TypeError, match="max_path"):
        factory(max_path=7)


# ---------------------------------------------------------------------- names of today


@pytest.mark.parametrize(
    ("name", "todays"),
    [
        ("terminals", r"`terminated`, \(N,\)"),
        ("dones", "`terminated` and `truncated`"),
        ("to_trajectory_list", r"`to_list\(\)`"),
        ("padded_rewards", r'`padded\("rewards"\)`'),
        ("padded_env_infos", r'`padded\("env_infos"\)`'),
        ("valids", "`mask`"),
        ("env_spec", "`observation_space` and `action_space`"),
        ("actions_list", r"`\[one.actions for one in batch\]`"),
    ],
)
def test_old_names_of_batches_are_errors_that_name_todays(name, todays):
    with LocalSampler(Policy(), "CartPole-v1", seed=1) as sampler:
        batch = sampler.obtain_trajectories(2)
    with pytest.raises(AttributeError, match=f"no attribute '{name}': here it is {todays}"):
        getattr(batch, name)
    assert not hasattr(batch, name)


def test_what_takes_the_place_of_old_names_is_there():
    with LocalSampler(Policy(), "CartPole-v1", seed=1) as sampler:
        batch = sampler.obtain_trajectories(2)
    for value in (batch.terminated, batch.truncated, batch.to_list(), batch.padded("rewards"), batch.mask):
        assert len(value) == 2
    for name in ("observations", "next_observations", "actions", "step_types", "env_infos", "agent_infos"):
        batch.padded(name)
    assert [len(one.actions) for one in batch] == batch.lengths.tolist()


def test_old_names_of_samplers_are_errors_that_name_todays():
    with LocalSampler(Policy(), "CartPole-v1", seed=1) as given:
        sampler: Any = given
        for name, todays in {
            "obtain_exact_episodes": r"obtain_exact_trajectories\(n_traj_per_worker, agent_update\)",
            "obtain_episodes": r"obtain_trajectories\(n_trajectories, agent_update\)",
            "start_worker": "left out: workers start when the sampler is made",
        }.items():
            with pytest.raises(AttributeError, match=f"no attribute '{name}': here it is `?{todays}"):
                getattr(sampler, name)


def test_other_names_are_errors_as_ever():
    with LocalSampler(Policy(), "CartPole-v1", seed=1) as given:
        sampler: Any = given
        batch: Any = given.obtain_trajectories(1)
        with pytest.raises(AttributeError, match="'LocalSampler' object has no attribute 'obtain_sample'"):
            sampler.obtain_sample(3)
    with pytest.raises(AttributeError, match="'TrajectoryBatch' object has no attribute 'reward'"):
        batch.reward  # noqa: B018


@pytest.mark.parametrize("lists", [lambda item: [[item], [item]], lambda item: [[item, item], [item, item]]])
def test_lists_of_lists_name_per_worker(lists):
    made: Any = LocalSampler
    per_worker = r"PerWorker\(\[…\]\)"
    with pytest.raises(UsageError, match=per_worker):
        made(lists(Policy()), "CartPole-v1", n_workers=2)
    with pytest.raises(TypeError, match=per_worker):
        made(Policy(), lists("CartPole-v1"), n_workers=2)
    with made(Policy(), "CartPole-v1", n_workers=2) as sampler:
        for update in (Policy(), np.zeros(4), 3.0):
            with pytest.raises(UsageError, match=per_worker):
                sampler.obtain_samples(0, 40, lists(update))
        with pytest.raises(TypeError, match=per_worker):
            sampler.obtain_samples(0, 40, None, lists(make_env()))


@pytest.mark.parametrize("name", ["EpisodeBatch", "TimeStepBatch", "TimeStep", "FragmentWorker", "BatchSampler"])
def test_names_of_its_package_are_errors_that_name_todays(name):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}': here it is "):
        getattr(streamsampler, name)


def test_a_number_of_timesteps_that_is_no_integer_is_named():
    with LocalSampler("random", "CartPole-v1", seed=1) as sampler, pytest.raises(UsageError, match=r"got 1000\.0"):
        sampler.obtain_samples(0, 1e3, None)
