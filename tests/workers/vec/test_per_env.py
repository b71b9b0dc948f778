"""Environments of one VecWorker that differ: trajectory i runs in environment i modulo n_envs, wherever it runs."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import (
    LocalSampler,
    MultiprocessingSampler,
    PerWorker,
    SetParameters,
    SetTaskUpdate,
    VecWorker,
    evaluate,
)
from streamsampler.environments import PerEnv, Uniform
from streamsampler.errors import RolloutError, UsageError
from streamsampler.testing import Fault, Faults
from tests.tiers import mostly_slow

VEC: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}


class Numbered(gymnasium.Env):
    """Shows its number; its trajectories are of random lengths, longer ones in environments of higher numbers."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, number, mass=1.0):
        self.number, self.mass, self.task = number, mass, 0

    def set_task(self, task):
        self.task = task

    def set_parameters(self, parameters):
        self.mass = parameters["mass"]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.n = 0, int(self.np_random.integers(1, 4 + 5 * (self.number % 3)))
        return self._observation(), {"number": self.number}

    def step(self, action):
        self.t += 1
        return self._observation(), float(action), self.t >= self.n, False, {}

    def _observation(self):
        noise = self.np_random.uniform()
        return np.array([self.number, self.mass, self.task, noise], np.float32)


class Rows:
    """An agent that is batched; whose rows do not depend on each other where it says so."""

    def __init__(self, row_independent):
        self.row_independent = row_independent

    def get_actions(self, observations, *, draws=None):
        return (observations[:, 3] > 0.5).astype(np.int64), {}

    def get_action(self, observation):
        return int(observation[3] > 0.5), {}


def envs(first=0, n=3):
    return [functools.partial(Numbered, number) for number in range(first, first + n)]


def numbers(batch):
    assert np.array_equal(batch.observations[batch.starts, 0], batch.episode_infos["number"])
    return batch.episode_infos["number"].tolist()


AGENTS = {"lanes": Rows(row_independent=True), "blocks": Rows(row_independent=False)}
WORKERS = [
    (LocalSampler, {"n_workers": 1}), (LocalSampler, {"n_workers": 3}), (MultiprocessingSampler, {"n_workers": 3}),
    pytest.param(MultiprocessingSampler, {"n_workers": 2, "engine": "queues"}, marks=pytest.mark.slow),
]  # fmt: skip


@functools.cache
def expected(kind, block_size=None):
    options = {**VEC, "worker_args": {"n_envs": 3, "block_size": block_size}}
    with LocalSampler(AGENTS[kind], PerEnv(envs()), seed=4, n_workers=1, **options) as sampler:
        return sampler.obtain_trajectories(20), sampler.obtain_samples(70), sampler.obtain_exact_trajectories(4)


@pytest.mark.parametrize(("make", "options"), mostly_slow(WORKERS))
@pytest.mark.parametrize(
    ("kind", "block_size"), mostly_slow([("lanes", None), ("blocks", 5), ("blocks", None), ("blocks", 6)], 2)
)
def test_trajectory_i_runs_in_environment_i_modulo_n_envs_on_any_workers(make, options, kind, block_size):
    worker_args = {"n_envs": 3, "block_size": block_size}
    with make(AGENTS[kind], PerEnv(envs()), seed=4, **{**VEC, "worker_args": worker_args}, **options) as sampler:
        batches = sampler.obtain_trajectories(20), sampler.obtain_samples(70)
    for batch, one in zip(batches, expected(kind, block_size), strict=False):
        assert batch == one
        assert numbers(batch) == [index % 3 for index in batch.indices.tolist()]


@pytest.mark.parametrize("kind", mostly_slow(["lanes", "blocks"]))
@pytest.mark.parametrize(("make", "options"), WORKERS[1:3])
def test_a_list_for_each_worker_is_its_own(make, options, kind):
    for given in ([envs(10 * worker) for worker in range(3)], PerWorker([envs(10 * worker) for worker in range(3)])):
        with make(AGENTS[kind], given, seed=4, **VEC, **options) as sampler:
            batch = sampler.obtain_trajectories(24)
            found = numbers(batch)
            assert found == [10 * (i % 3) + (i // 3) % 3 for i in range(24)]
            with pytest.raises(UsageError, match="fragments need the same agent and environment in all workers"):
                sampler.obtain_fragments(5, n_envs=3)
            again = sampler.obtain_trajectories(6, env_update=[None, envs(40), None])
            assert numbers(again) == [0, 40, 20, 1, 41, 21]


@pytest.mark.parametrize("kind", mostly_slow(["blocks", "lanes"]))
def test_lost_workers_change_nothing(kind, tmp_path):
    faults = Faults(tmp_path, Fault("kill", "step", trajectory=7), Fault("kill", "reset", trajectory=11), seed=4)
    given = PerEnv([faults.env(env) for env in envs()])
    with MultiprocessingSampler(AGENTS[kind], given, n_workers=2, seed=4, check=None, **VEC) as sampler:
        assert sampler.obtain_trajectories(20) == expected(kind)[0]
        assert (faults.fired(), sampler.stats.restarts) == (2, 2)


@pytest.mark.parametrize("make", [LocalSampler, MultiprocessingSampler])
def test_updates_are_of_each_environment(make):
    with make(AGENTS["lanes"], "CartPole-v1", n_workers=2, seed=1, **VEC) as sampler:
        assert numbers(sampler.obtain_trajectories(4, env_update=PerEnv(envs(5)))) == [5, 6, 7, 5]
        tasked = sampler.obtain_trajectories(4, env_update=SetTaskUpdate(PerEnv(envs()), 8))
        assert tasked.observations[tasked.starts, 2].tolist() == [8] * 4
        assert numbers(tasked) == [0, 1, 2, 0]
        update = SetParameters({"mass": Uniform(2, 3)}, PerEnv(envs(20)))
        assert numbers(sampler.obtain_trajectories(4, env_update=update)) == [20, 21, 22, 20]
        drawn = sampler.obtain_trajectories(4, env_update=SetParameters({"mass": Uniform(4, 5)}))
        assert numbers(drawn) == [20, 21, 22, 20]
        assert drawn.observations[:, 1].min() >= 4
        assert numbers(sampler.obtain_trajectories(3, tasks=[1.0, 2.0])) == [20, 21, 22, 20, 21, 22]
        with pytest.raises(
            UsageError, match="env_update has 2 environments for one worker, but the worker runs 3 side by side"
        ):
            sampler.obtain_trajectories(3, env_update=PerEnv(envs(n=2)))
        assert numbers(sampler.obtain_trajectories(2)) == [20, 21], "nothing was changed"


@pytest.mark.parametrize("n_envs", mostly_slow([4, 3, 7]))
def test_environments_of_fragments_keep_their_kind(n_envs):
    batches = []
    for make, n_workers in ((LocalSampler, 1), (LocalSampler, 3), (MultiprocessingSampler, 2)):
        with make(AGENTS["lanes"], PerEnv(envs()), n_workers=n_workers, seed=1, **VEC) as sampler:
            batches.append([sampler.obtain_fragments(9, n_envs=n_envs) for _ in range(2)])
    assert batches[0] == batches[1] == batches[2]
    for batch in batches[0]:
        assert (batch.as_grid("observations")[:, :, 0] == np.arange(n_envs) % 3).all()


@pytest.mark.parametrize("kind", ["lanes", "blocks"])
def test_replays_hooks_and_evaluations_have_the_same_environments(kind):
    class Hooks:
        def on_trajectory_start(self, context):
            pass

    batch = expected(kind)[0]
    with LocalSampler(AGENTS[kind], PerEnv(envs()), n_workers=2, seed=4, hooks=Hooks(), **VEC) as sampler:
        assert sampler.obtain_trajectories(20) == batch
        for index in (0, 7, 19):
            assert sampler.replay(1, index, recorded=batch).same
        assert sampler.provenance()["environment"] == "Numbered"
    found = evaluate(AGENTS[kind], PerEnv(envs()), num_trajectories=20, seed=4, n_workers=2, **VEC)
    assert np.array_equal(found.lengths, batch.lengths)


def test_one_object_several_times_is_several_environments():
    env = Numbered(3)
    with LocalSampler(AGENTS["lanes"], PerEnv([env] * 3), n_workers=1, seed=4, **VEC) as sampler:
        assert numbers(sampler.obtain_trajectories(6)) == [3] * 6


@pytest.mark.filterwarnings("ignore:.*out of date")
def test_provenance_names_each_environment():
    with LocalSampler("random", PerEnv(["CartPole-v1", "CartPole-v1", "CartPole-v0"]), n_workers=1, **VEC) as sampler:
        assert sampler.provenance()["environment"] == ["CartPole-v1", "CartPole-v1", "CartPole-v0"]


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        (PerEnv(envs()), {}, 'envs has 3 environments for one worker, but DefaultWorker runs one .*"n_envs": 3'),
        ([envs()], {}, "envs has 3 environments for one worker, but DefaultWorker runs one kind"),
        (PerEnv(envs()), {"worker_class": VecWorker}, r"but the worker runs 16 side by side: pass .*\"n_envs\": 3\}"),
        ([envs(n=2)], VEC, "has 2 environments for one worker, but the worker runs 3 side by side"),
        (envs(), {**VEC, "n_workers": 1}, r"envs has 3 items, but .*; for several .* VecWorker pass .*PerEnv"),
        (PerEnv(envs()), {"inference": "parent"}, "3 environments for one worker"),
        ([[envs()]], VEC, "each row of a VecWorker its own by PerEnv"),
    ],
)  # fmt: skip
def test_what_cannot_hold_is_refused_by_the_constructor(given, options, words):
    make = MultiprocessingSampler if "inference" in options else LocalSampler
    with pytest.raises((UsageError, TypeError), match=words):
        make(AGENTS["lanes"], given, **options)


def test_what_no_list_of_environments_is_refused():
    for given, words in (
        ([], "at least one, not"), ("CartPole-v1", "needs a list"), ([PerEnv(envs())], "not a PerEnv within its list"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            PerEnv(given)
    vector = functools.partial(gymnasium.make_vec, "CartPole-v1", num_envs=2)
    vectors: Any = [vector, vector, vector], ["CartPole-v1", vector, "CartPole-v1"]
    for several in vectors:
        with (
            LocalSampler("random", PerEnv(several), n_workers=1, **VEC) as sampler,
            pytest.raises(RolloutError, match="a vector environment cannot be one of a worker's several"),
        ):
            sampler.obtain_trajectories(1)
    with (
        LocalSampler("random", PerEnv(["CartPole-v1", "Pendulum-v1", "CartPole-v1"]), n_workers=1, **VEC) as sampler,
        pytest.raises(RolloutError, match="must have the same spaces"),
    ):
        sampler.obtain_trajectories(1)
