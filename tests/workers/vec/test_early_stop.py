"""Blocks that are cut short give the same batches, and cost no more than a block's rows for its longest trajectory."""

from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamsampler import LocalSampler, MultiprocessingSampler, TrajectoryBatch, VecWorker
from streamsampler.scheduling.early_stop import CAUTION
from tests.scripted.agents import Remembering
from tests.scripted.envs import Steps

LONGEST = 30


class Varied(Steps):
    """As long as the reset draws, among a few lengths; tells much of it in infos that come and go."""

    def __init__(self, lengths=(1, 5, LONGEST)):
        super().__init__()
        self.lengths = lengths

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = int(self.np_random.choice(self.lengths))
        return np.array([self.np_random.random()], np.float32), {"long": True} if self.length > 5 else {}

    def step(self, action):
        _, reward, *flags, _ = super().step(action)
        info = {"t": self.t} if self.t % 2 else {}
        return np.array([self.np_random.random()], np.float32), reward, *flags, info


class Drawing:
    """Draws for a whole batch from one generator, and tells how many rows it had: whatever else ran, it shows."""

    def reset(self, seed=None):
        self.rng = np.random.default_rng(seed)

    def get_action(self, observation):
        raise AssertionError("it has get_actions")

    def get_actions(self, observations):
        n = len(observations)
        return self.rng.integers(0, 2, n), {"drawn": self.rng.random(n), "rows": np.full(n, n)}


def make_sampler(kind, env, *, n_workers, n_envs, block_size, agent=None):
    args = {"n_envs": n_envs, "block_size": block_size}
    return kind(agent or Drawing(), env, seed=3, n_workers=n_workers, worker_class=VecWorker, worker_args=args)


def whole(version, n, env, **options):
    """The prefix with at least `n` timesteps, of blocks that were run whole."""
    with make_sampler(LocalSampler, env, n_workers=1, **options) as sampler:
        for _ in range(version):
            sampler.obtain_trajectories(1)
        taken = []
        for trajectory in sampler.stream():
            taken.append(trajectory)
            if sum(one.n_timesteps for one in taken) >= n:
                break
        return TrajectoryBatch.concatenate(taken)


def executed(stats):
    """All timesteps that were run."""
    fates = ("kept", "surplus", "stale", "abandoned")
    return sum(getattr(stats, f"{fate}_timesteps") for fate in fates)


def cut_at_random(data, longest_batch):
    options = {
        "n_envs": data.draw(st.integers(1, 4)),
        "block_size": data.draw(st.sampled_from([None, 4, 9])),
        "env": partial(Varied, data.draw(st.sampled_from([(1, 5, LONGEST), (7,), (1, LONGEST)]))),
    }
    with make_sampler(LocalSampler, n_workers=data.draw(st.integers(1, 3)), **options) as sampler:
        for version in range(3):
            n = data.draw(st.integers(1, longest_batch))
            assert sampler.obtain_samples(n) == whole(version, n, **options)


@pytest.mark.slow
@settings(max_examples=3)
@given(data=st.data())
def test_any_cut_gives_the_same_batch(data):
    cut_at_random(data, 100)


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_any_cut_gives_the_same_batch_at_length(data):
    cut_at_random(data, 500)


@settings(max_examples=12)
@given(
    n_envs=st.integers(1, 6), block_size=st.sampled_from([None, 9]), n=st.integers(1, 300), length=st.integers(1, 40)
)
@example(n_envs=1, block_size=9, n=83, length=1)
def test_one_worker_runs_no_more_than_a_row_of_trajectories_in_vain(n_envs, block_size, n, length):
    """And what `CAUTION` adds while another ticket is under way, up to a whole trajectory."""
    caution = CAUTION[1] * n + length
    env = partial(Varied, (length,))
    with make_sampler(LocalSampler, env, n_workers=1, n_envs=n_envs, block_size=block_size) as sampler:
        for _ in range(3):
            batch = sampler.obtain_samples(n)
            assert executed(batch.stats) <= batch.n_timesteps + (n_envs - 1) * length + caution


@pytest.mark.slow
@settings(max_examples=12)
@given(n_envs=st.integers(1, 6), n_workers=st.integers(2, 3), n=st.integers(1, 600))
def test_workers_together_run_little_in_vain(n_envs, n_workers, n):
    with make_sampler(LocalSampler, Varied, n_workers=n_workers, n_envs=n_envs, block_size=None) as sampler:
        sampler.obtain_samples(500)
        for _ in range(3):
            sampler.obtain_samples(n)
        # A row of the longest for each worker; and what 5 % and two standard deviations are of all that is under way.
        assert executed(sampler.stats) - sampler.stats.kept_timesteps <= 4 * 3 * n_workers * n_envs * LONGEST


def test_the_same_in_processes():
    options = {"n_envs": 3, "block_size": None, "env": Varied}
    with make_sampler(MultiprocessingSampler, n_workers=2, **options) as sampler:
        for version, n in enumerate((100, 1, 300, 30)):
            assert sampler.obtain_samples(n) == whole(version, n, **options)


@pytest.mark.slow
def test_vector_environments_are_cut_short_too():
    for mode in AutoresetMode:
        env = partial(SyncVectorEnv, [Varied] * 3, autoreset_mode=mode)
        options = {"n_envs": 3, "block_size": 9, "env": env}
        with make_sampler(LocalSampler, n_workers=2, **options) as sampler:
            for version, n in enumerate((20, 1, 150)):
                batch = sampler.obtain_samples(n)
                assert batch == whole(version, n, **options)
            assert sampler.stats.abandoned_timesteps > 0


def test_a_memory_is_not_confused():
    options = {"n_envs": 3, "block_size": None, "env": Varied, "agent": Remembering()}
    with make_sampler(LocalSampler, n_workers=2, **options) as sampler:
        for version, n in enumerate((40, 200, 3)):
            assert sampler.obtain_samples(n) == whole(version, n, **options)
