"""Stable-Baselines3's VecNormalize and this package's filters, read and written."""

from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from streamsampler import LocalSampler
from streamsampler.adapters.vec_normalize import read_vec_normalize, write_vec_normalize
from streamsampler.errors import UsageError
from streamsampler.filters import Filters, RunningNorm, RunningReturnNorm

pytestmark = pytest.mark.extras


def pendulums():
    return DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")])


@pytest.fixture
def trained():
    normalize = VecNormalize(pendulums(), clip_obs=1.5, clip_reward=2.0, gamma=0.9)
    normalize.seed(0)
    normalize.reset()
    for _ in range(50):
        normalize.step(np.array([[0.5]], np.float32))
    yield normalize
    normalize.close()


def test_filters_do_what_vec_normalize_does(trained, tmp_path):
    filters = read_vec_normalize(trained)
    observations = np.random.default_rng(0).normal(size=(20, 3)) * 3
    rewards = np.linspace(-20.0, 1.0, 20)
    np.testing.assert_allclose(filters.observation.apply(observations), trained.normalize_obs(observations), rtol=1e-6)
    np.testing.assert_allclose(filters.reward.apply(rewards), trained.normalize_reward(rewards), rtol=1e-6)
    trained.save(str(tmp_path / "normalize.pkl"))
    assert read_vec_normalize(tmp_path / "normalize.pkl") == filters


def test_vec_normalize_does_what_filters_do(tmp_path):
    given: dict[str, Any] = {
        "observation_filter": RunningNorm(clip=1.5),
        "reward_filter": RunningReturnNorm(0.9, clip=2.0),
    }
    with LocalSampler("random", "Pendulum-v1", seed=1, max_episode_length=30, **given) as sampler:
        sampler.warm_up(90)
        batch, filters = sampler.obtain_trajectories(1), sampler.filters
    write_vec_normalize(filters, tmp_path / "normalize.pkl", "Pendulum-v1")
    normalize = VecNormalize.load(str(tmp_path / "normalize.pkl"), pendulums())
    again = normalize.normalize_obs(batch.raw_observations)
    np.testing.assert_allclose(filters.observation.apply(batch.raw_observations), again, atol=1e-5)
    np.testing.assert_allclose(
        filters.reward.apply(batch.raw_rewards), normalize.normalize_reward(batch.raw_rewards), rtol=1e-6
    )
    assert normalize.gamma == 0.9
    normalize.close()


def test_what_cannot_be_read_or_written(tmp_path):
    with pytest.raises(UsageError, match="this is no VecNormalize, but a int"):
        read_vec_normalize(3)
    with pytest.raises(UsageError, match="no statistics yet"):
        write_vec_normalize(Filters(RunningNorm()), tmp_path / "a.pkl", "Pendulum-v1")
