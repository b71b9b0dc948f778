"""The ancestor's usage: what was written for garage's samplers runs, or is told today's name."""

from __future__ import annotations

import pickle
import re
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


MADE: Any = LocalSampler
FACTORY: Any = WorkerFactory


@pytest.fixture
def sampler() -> Any:
    with LocalSampler(Policy(), "CartPole-v1", seed=1) as sampler:
        yield sampler


def test_the_ancestors_program_runs() -> None:
    """All of it, as it was written."""
    policy, other, env = Policy(), Policy((0.0, 0.0, -0.3, -0.3)), make_env()
    make_sampler: Any = MultiprocessingSampler
    with pytest.warns(DeprecationWarning, match="max_path_length is deprecated: pass max_episode_length"):
        factory = FACTORY(seed=100, max_path_length=100, n_workers=2)
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


WEIGHTS = np.array([0.0, 0.5, 0.0, -0.5])


@pytest.mark.parametrize(
    ("args", "options", "todays"),
    [
        ((0, np.int64(40)), {}, {}),
        ((np.int32(7), 40), {}, {}),
        ((0,), {"num_samples": 40}, {}),
        ((40,), {"itr": 3}, {}),
        ((), {"itr": 3, "num_samples": 40}, {}),
        ((0, 40, None, None, False), {}, {}),
        ((0, 40), {"agent_update": None, "env_update": None, "progress": False}, {}),
        ((3, 40, WEIGHTS, make_env), {}, {"agent_update": WEIGHTS, "env_update": make_env}),
    ],
)
def test_an_iteration_number_has_no_effect(sampler: Any, args: Any, options: Any, todays: Any) -> None:
    with LocalSampler(Policy(), "CartPole-v1", seed=1) as one:
        assert sampler.obtain_samples(*args, **options) == one.obtain_samples(40, **todays)


@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        ((0, True), {}, UsageError, r"the arguments are \(num_samples"),
        ((0, 4e3), {}, UsageError, r"num_samples must be an integer, got 4000\.0"),
        ((0, 40, 5), {}, UsageError, r"obtain_samples\(40, 5\): the arguments are"),
        ((Policy(), 40), {}, UsageError, "itr, which may come before num_samples, must be an integer, got <"),
        ((True, 40), {}, UsageError, "must be at least 0, got True"),
        ((-1, 40), {}, UsageError, "itr, which may come before num_samples, must be at least 0, got -1"),
        ((), {"itr": None, "num_samples": 40}, UsageError, "itr must be an integer, got None"),
        ((0, 0), {}, UsageError, "num_samples must be at least 1"),
        ((0, 1, 40, None, None, False), {}, TypeError, "obtain_samples"),
        ((), {"itr": 3}, TypeError, "num_samples"),
        ((), {}, TypeError, "num_samples"),
    ],
)
def test_what_is_no_iteration_number_is_an_error(sampler: Any, args: Any, options: Any, error: Any, message: str):
    with pytest.raises(error, match=message):
        sampler.obtain_samples(*args, **options)
    assert sampler.agent_version == 0


def test_a_worker_factory_may_come_first_or_by_name() -> None:
    factory = WorkerFactory(seed=3, n_workers=2, max_episode_length=9)
    norm = RunningNorm()
    batches = []
    for sampler in [
        MADE(factory, Policy(), "CartPole-v1", observation_filter=norm),
        MADE(factory, agents=Policy(), envs="CartPole-v1", observation_filter=norm),
        MADE(Policy(), "CartPole-v1", worker_factory=factory, observation_filter=norm),
        LocalSampler.from_worker_factory(factory, Policy(), "CartPole-v1", observation_filter=norm),
    ]:
        with sampler:
            assert (sampler.n_workers, sampler.seed) == (2, 3)
            batches.append(sampler.obtain_samples(50))
    assert batches[0].lengths.max() == 9
    assert all(batch == batches[0] for batch in batches)


def test_what_the_factory_has_and_what_is_none_are_errors() -> None:
    with pytest.raises(
        TypeError, match="LocalSampler takes n_workers, seed from its worker_factory: pass it to WorkerFactory"
    ):
        MADE(WorkerFactory(n_workers=1), Policy(), "CartPole-v1", seed=3, n_workers=2)
    with pytest.raises(UsageError, match="worker_factory of LocalSampler must be a WorkerFactory, got 3"):
        MADE(Policy(), "CartPole-v1", worker_factory=3)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'envs'"):
        MADE(WorkerFactory(n_workers=1), Policy())


def test_old_arguments_of_worker_factories_are_taken_with_a_warning_or_refused() -> None:
    with pytest.warns(DeprecationWarning, match="max_path_length is deprecated: pass max_episode_length") as seen:
        assert FACTORY(max_path_length=7).max_episode_length == 7
    assert seen[0].filename == __file__, "the line of the caller"
    with pytest.warns(DeprecationWarning, match="is_tf_worker has no effect"):
        FACTORY(is_tf_worker=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FACTORY(max_episode_length=7)
    with pytest.raises(TypeError, match="max_path_length is the old name of max_episode_length"):
        FACTORY(max_path_length=7, max_episode_length=8)
    with pytest.raises(UsageError, match="workers open no TensorFlow session"):
        FACTORY(is_tf_worker=True)
    with pytest.raises(UsageError, match="max_episode_length must be"), pytest.warns(DeprecationWarning, match="max"):
        FACTORY(max_path_length=0)
    with pytest.raises(TypeError, match="max_path"):
        FACTORY(max_path=7)


def test_old_names_are_errors_that_name_todays(sampler: Any) -> None:
    batch = sampler.obtain_trajectories(2)
    todays = "has no attribute '{}': here it is "
    for name, of_today in {
        "terminals": "`terminated`, (N,)",
        "dones": "`terminated` and `truncated`",
        "to_trajectory_list": "`to_list()`",
        "padded_rewards": '`padded("rewards")`',
        "padded_env_infos": '`padded("env_infos")`',
        "valids": "`mask`",
        "env_spec": "`observation_space` and `action_space`",
        "actions_list": "`[one.actions for one in batch]`",
    }.items():
        with pytest.raises(AttributeError, match=f"no attribute '{name}': here it is {re.escape(of_today)}"):
            getattr(batch, name)
    for name, of_today in {
        "obtain_exact_episodes": "`obtain_exact_trajectories(n_traj_per_worker, agent_update)",
        "obtain_episodes": "`obtain_trajectories(n_trajectories, agent_update)",
        "start_worker": "unnecessary: workers start when the sampler is made",
    }.items():
        with pytest.raises(AttributeError, match=f"no attribute '{name}': here it is {re.escape(of_today)}"):
            getattr(sampler, name)
    for name in ["EpisodeBatch", "TimeStepBatch", "TimeStep", "FragmentWorker", "BatchSampler"]:
        with pytest.raises(AttributeError, match=todays.format(name)):
            getattr(streamsampler, name)
    with pytest.raises(AttributeError, match="'LocalSampler' object has no attribute 'obtain_sample'"):
        sampler.obtain_sample(3)
    with pytest.raises(AttributeError, match="'TrajectoryBatch' object has no attribute 'reward'"):
        batch.reward  # noqa: B018


@pytest.mark.parametrize("lists", [lambda item: [[item], [item]], lambda item: [[item, item], [item, item]]])
def test_lists_of_lists_name_per_worker(lists: Any) -> None:
    per_worker = r"PerWorker\(\[…\]\)"
    with pytest.raises(UsageError, match=per_worker):
        MADE(lists(Policy()), "CartPole-v1", n_workers=2)
    one_kind = "environments for one worker, but DefaultWorker runs one kind of environment: use worker_class=VecWorker"
    with pytest.raises(UsageError, match=rf"{one_kind}.*{per_worker}"):
        MADE(Policy(), lists("CartPole-v1"), n_workers=2)
    with MADE(Policy(), "CartPole-v1", n_workers=2) as sampler:
        for update in (Policy(), np.zeros(4), 3.0):
            with pytest.raises(UsageError, match=per_worker):
                sampler.obtain_samples(0, 40, lists(update))
        with pytest.raises(UsageError, match=rf"{one_kind}.*{per_worker}"):
            sampler.obtain_samples(0, 40, None, lists(make_env()))
