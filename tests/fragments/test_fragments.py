"""Fragments: a fixed number of timesteps of each environment, of episodes that go on in the next call."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler import (
    DefaultWorker,
    LocalSampler,
    MultiprocessingSampler,
    PerWorker,
    TrajectoryBatch,
    VecWorker,
    load,
)
from streamsampler.data.batch import StepType
from streamsampler.errors import DataError, RolloutError, UsageError
from tests.fragments.agents import Recurrent, Restorable, Sticky
from tests.scripted.agents import Drawing, Rowwise, always_zero
from tests.scripted.envs import GlobalNoise, Rough, Steps, Wide

SEED = 20_260_711
N_TIMESTEPS, N_ENVS = 16, 5


class WithoutFragments(DefaultWorker):
    """A kind of worker that does not know of fragments."""

    can_continue = False


def ten_calls(sampler: Any) -> list[TrajectoryBatch]:
    """Ten calls, with other parameters in each, another agent in one, and another number of timesteps in another."""
    return [
        sampler.obtain_fragments(
            30 if call == 4 else N_TIMESTEPS,
            N_ENVS,
            agent_update=Recurrent((0.0, 0.1, 0.0, 0.1)) if call == 6 else np.array([0.0, 0.0, 0.3, 0.1 * call]),
        )
        for call in range(10)
    ]


def local(agent: Any = None, env: Any = Sticky, **options: Any) -> LocalSampler:
    return LocalSampler(agent or Restorable(), env, seed=SEED, **options)


@pytest.mark.parametrize("n_workers", [pytest.param(2, marks=pytest.mark.slow), 3, 7])
@pytest.mark.parametrize("env", ["CartPole-v1", Sticky])
def test_any_number_of_workers_gives_the_same(n_workers, env):
    with local(Recurrent(), env) as one, local(Recurrent(), env, n_workers=n_workers) as several:
        assert ten_calls(several) == ten_calls(one)


def test_global_generators_go_on_in_each_environment():
    with local(Drawing(), GlobalNoise) as one, local(Drawing(), GlobalNoise, n_workers=3) as several:
        for _ in range(4):
            assert several.obtain_fragments(7, 5) == one.obtain_fragments(7, 5)


@pytest.mark.parametrize("n_workers", [1, 3])
def test_processes_give_the_same(n_workers):
    with (
        local(Recurrent()) as reference,
        MultiprocessingSampler(Recurrent(), Sticky, seed=SEED, n_workers=n_workers) as sampler,
    ):
        assert ten_calls(sampler) == ten_calls(reference)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "queues"])
@pytest.mark.parametrize("n_workers", [1, 2, 3, 7])
def test_all_engines_of_processes_give_the_same(engine, n_workers):
    with (
        local(Recurrent(), "CartPole-v1") as reference,
        MultiprocessingSampler(Recurrent(), "CartPole-v1", seed=SEED, n_workers=n_workers, engine=engine) as sampler,
    ):
        assert ten_calls(sampler) == ten_calls(reference)


def test_short_fragments_are_long_ones_cut():
    """What a call returns is where the one before ended, as if there had been one call."""
    with local(Recurrent()) as sampler:
        whole = sampler.obtain_fragments(60, 3)
    with local(Recurrent()) as sampler:
        pieces = [sampler.obtain_fragments(n, 3) for n in (1, 20, 9, 30)]
    for name in ("observations", "actions", "rewards", "episode_starts", "next_observations"):
        joined = np.concatenate([piece.as_grid(name) for piece in pieces])
        assert joined.tobytes() == whole.as_grid(name).tobytes()


def vec(n_envs: int) -> dict[str, Any]:
    return {"worker_class": VecWorker, "worker_args": {"n_envs": n_envs}}


@pytest.mark.parametrize("agent", [Restorable, Rowwise])
@pytest.mark.parametrize("options", [{}, vec(3), *(pytest.param(vec(n), marks=pytest.mark.slow) for n in (1, 4))])
@pytest.mark.parametrize("env", [Sticky, lambda: gymnasium.make("CartPole-v1")])
def test_equals_the_vector_environment_of_gymnasium(env, options, agent):
    """Step for step, for the same actions, with each episode's seed."""
    n_envs, vector = 4, SyncVectorEnv([env] * 4, autoreset_mode=AutoresetMode.DISABLED)
    with local(agent(), env, n_workers=2, **options) as sampler:
        batches = [sampler.obtain_fragments(25, n_envs) for _ in range(6)]
    episode = [0] * n_envs
    seeds = {}
    for batch in batches:
        for index, seed in zip(batch.indices.tolist(), batch.seeds, strict=True):
            seeds[index % n_envs, index // n_envs] = seed
    observations, _ = vector.reset(seed=[seeds[number, 0] for number in range(n_envs)])
    starts = np.ones(n_envs, bool)
    for batch in batches:
        grid = {name: batch.as_grid(name) for name in ("observations", "next_observations", "rewards", "actions")}
        step_types = batch.as_grid("step_types")
        for t in range(25):
            assert (batch.as_grid("episode_starts")[t] == starts).all()
            assert grid["observations"][t].tobytes() == observations.tobytes()
            observations, rewards, terminated, truncated, _ = vector.step(grid["actions"][t])
            assert grid["next_observations"][t].tobytes() == observations.tobytes()
            assert grid["rewards"][t].tobytes() == rewards.tobytes()
            assert ((step_types[t] == StepType.TERMINAL) == terminated).all()
            assert ((step_types[t] == StepType.TIMEOUT) == (truncated & ~terminated)).all()
            starts = terminated | truncated
            if starts.any():
                reset_seeds: list[int | None] = []
                for number in range(n_envs):
                    episode[number] += int(starts[number])
                    reset_seeds.append(seeds.get((number, episode[number]), 0))
                observations, _ = vector.reset(seed=reset_seeds, options={"reset_mask": starts.copy()})
    vector.close()
    assert sum(episode) >= 20


def test_what_a_batch_says():
    with local(always_zero, lambda: Steps(7)) as sampler:
        first, second = sampler.obtain_fragments(5, 2), sampler.obtain_fragments(11, 2)
    assert first.lengths.tolist() == [5, 5]
    assert first.cut.tolist() == [True, True]
    assert not first.terminated.any()
    assert not first.truncated.any()
    assert second.lengths.tolist() == [2, 7, 2] * 2
    assert second.continued.tolist() == [True, False, False] * 2
    assert second.cut.tolist() == [False, False, True] * 2
    assert second.terminated.tolist() == [True, True, False] * 2
    assert second.env_numbers.tolist() == [0, 0, 0, 1, 1, 1]
    assert second.indices.tolist() == [0, 2, 4, 1, 3, 5]
    assert np.flatnonzero(second.episode_starts).tolist() == [2, 9, 13, 20]
    assert second.last_observations[:, 0].tolist() == [7, 7, 2] * 2
    assert second.agent_versions.tolist() == [2] * 6
    assert second.seeds[0] == first.seeds[0] == sampler.seeds(1, [0])[0]
    assert second.as_grid("rewards").shape == (11, 2)
    assert second.as_grid("rewards")[:, 1].tolist() == [6, 7, 1, 2, 3, 4, 5, 6, 7, 1, 2]
    assert second.step_types.tolist()[:3] == [StepType.MID, StepType.TERMINAL, StepType.FIRST]
    assert second.stats.kept_timesteps == 22
    assert second.stats.ran_timesteps == 22


def test_the_limit_truncates_over_calls():
    with local(always_zero, lambda: Steps(100), max_episode_length=6) as sampler:
        batches = [sampler.obtain_fragments(4, 1) for _ in range(3)]
    assert [batch.lengths.tolist() for batch in batches] == [[4], [2, 2], [4]]
    assert [batch.truncated.tolist() for batch in batches] == [[False], [True, False], [True]]
    assert [batch.cut.tolist() for batch in batches] == [[True], [False, True], [False]]


def test_other_calls_begin_fresh_environments():
    with local() as sampler, local() as whole:
        sampler.obtain_fragments(4, 2)
        whole.obtain_fragments(4, 2)
        assert sampler.obtain_trajectories(3) == whole.obtain_trajectories(3)
        after = sampler.obtain_fragments(4, 2)
        assert not after.continued.any()
        assert after.seeds[0] == sampler.seeds(3, [0])[0]
        again = sampler.obtain_fragments(4, 2, env_update=Sticky)
        assert not again.continued.any()
        assert not sampler.obtain_fragments(4, 3).continued.any()


def test_a_pickled_sampler_begins_fresh_environments():
    with local() as sampler:
        sampler.obtain_fragments(5, 2)
        with pickle.loads(pickle.dumps(sampler)) as copied:
            batch = copied.obtain_fragments(5)
            assert batch.as_grid("rewards").shape == (5, 2)
            assert not batch.continued.any()
            assert batch.agent_version == 2


def test_an_exception_names_the_worker_and_ends_the_episodes():
    with local(always_zero, Rough) as sampler:
        with pytest.raises(RolloutError, match="worker 0 failed while stepping"):
            sampler.obtain_fragments(2000, 4)
        assert not sampler.obtain_fragments(1, 4).continued.any()


def test_files_and_parts_of_batches(tmp_path):
    with local() as sampler:
        sampler.obtain_fragments(6, 3)
        batch = sampler.obtain_fragments(6, 3)
        whole = sampler.obtain_trajectories(2)
    assert load(batch.save(tmp_path / "batch.npz")) == batch
    assert TrajectoryBatch.concatenate(batch.split()) == batch
    assert batch[1:].cut.tolist() == batch.cut[1:].tolist()
    joined = TrajectoryBatch.concatenate(batch, whole)
    assert joined.env_numbers.tolist() == [*batch.env_numbers.tolist(), -1, -1]
    with pytest.raises(DataError, match="a grid needs a batch"):
        joined.as_grid("rewards")
    with pytest.raises(UsageError, match="no grid of 'lengths'"):
        batch.as_grid("lengths")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "arrival"}, 'order="index"'),
        ({"on_failure": "drop"}, 'on_failure="raise"'),
        ({"worker_class": WithoutFragments}, "WithoutFragments runs no fragments"),
        ({"agents": [Restorable(), Restorable()], "n_workers": 2}, "one agent and one environment"),
    ],
)
def test_what_fragments_do_not_go_with(options, message):
    options = {"agents": Restorable(), **options}
    with LocalSampler(envs=Sticky, seed=SEED, **options) as sampler, pytest.raises(UsageError, match=message):
        sampler.obtain_fragments(5, 2)


def test_bad_numbers_and_updates():
    with local(n_workers=2) as sampler:
        for arguments in ((0, 2), (-3, 2), (5, 0), (2.5, 2)):
            with pytest.raises(UsageError):
                sampler.obtain_fragments(*arguments)
        with pytest.raises(UsageError, match="one agent and one environment"):
            sampler.obtain_fragments(5, 2, agent_update=PerWorker([np.zeros(4), np.ones(4)]))
        with pytest.raises(UsageError, match="one agent and one environment"):
            sampler.obtain_fragments(5, 2, env_update=PerWorker([Sticky, Sticky]))
        for number in (5, np.int64(5), 0.5):
            with pytest.raises(UsageError, match=r"The third one updates the agent, which a number cannot") as it:
                sampler.obtain_fragments(5, 2, number)
            assert str(it.value).startswith(
                f"obtain_fragments(5, 2, {number!r}): the arguments are (n_timesteps, n_envs="
            )
        sampler.obtain_fragments(5, 2)
        with pytest.raises(UsageError, match="replayed from what was recorded"):
            sampler.replay(1, 0)


@pytest.mark.parametrize("n_workers", [1, 3])
def test_large_rows_are_copied_as_they_arrive(n_workers):
    with (
        local(always_zero, Wide) as reference,
        MultiprocessingSampler(always_zero, Wide, seed=SEED, n_workers=n_workers) as sampler,
    ):
        for n_timesteps in (7, 40, 1):
            batch = sampler.obtain_fragments(n_timesteps, 4)
            assert batch == reference.obtain_fragments(n_timesteps, 4)
            assert batch.stats.kept_trajectories == batch.n_trajectories


def test_progress_counts_timesteps():
    seen: list[Any] = []
    with local() as sampler:
        sampler.obtain_fragments(10, 3, progress=seen.append)
    assert seen[-1].target == 30
    assert seen[-1].unit == "timesteps"
    assert seen[-1].timesteps == 30
