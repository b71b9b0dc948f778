"""Whatever is asked for, a batch is the prefix that one process has run block by block."""

from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from streamsampler import LocalSampler, MultiprocessingSampler, TrajectoryBatch, VecWorker
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


@pytest.mark.slow
@settings(max_examples=20)
@given(data=st.data())
def test_any_request_gives_the_same_batch(data):
    options = {
        "n_envs": data.draw(st.integers(1, 4)),
        "block_size": data.draw(st.sampled_from([None, 4, 9])),
        "env": partial(Varied, data.draw(st.sampled_from([(1, 5, LONGEST), (7,), (1, LONGEST)]))),
    }
    with make_sampler(LocalSampler, n_workers=data.draw(st.integers(1, 3)), **options) as sampler:
        for version in range(3):
            n = data.draw(st.integers(1, 300))
            assert sampler.obtain_samples(n) == whole(version, n, **options)


@pytest.mark.slow
def test_the_same_in_processes():
    options = {"n_envs": 3, "block_size": None, "env": Varied}
    with make_sampler(MultiprocessingSampler, n_workers=2, **options) as sampler:
        for version, n in enumerate((100, 1, 300, 30)):
            assert sampler.obtain_samples(n) == whole(version, n, **options)


@pytest.mark.slow
def test_vector_environments_give_the_same_batches_too():
    for mode in AutoresetMode:
        env = partial(SyncVectorEnv, [Varied] * 3, autoreset_mode=mode)
        options = {"n_envs": 3, "block_size": 9, "env": env}
        with make_sampler(LocalSampler, n_workers=2, **options) as sampler:
            for version, n in enumerate((20, 1, 150)):
                assert sampler.obtain_samples(n) == whole(version, n, **options)


def test_a_memory_is_not_confused():
    options = {"n_envs": 3, "block_size": None, "env": Varied, "agent": Remembering()}
    with make_sampler(LocalSampler, n_workers=2, **options) as sampler:
        for version, n in enumerate((40, 200, 3)):
            assert sampler.obtain_samples(n) == whole(version, n, **options)
