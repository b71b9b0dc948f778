"""Stable-Baselines3's VecNormalize and this package's filters, read and written."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("stable_baselines3")
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from streamsampler import LocalSampler
from streamsampler.agents.running_norms import Moments
from streamsampler.agents.vec_normalize import read_vec_normalize, write_vec_normalize
from streamsampler.errors import UsageError
from streamsampler.filters import Filters, RunningNorm, RunningReturnNorm

pytestmark = [pytest.mark.extras, pytest.mark.core]


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


class Pictures(gymnasium.Env[Any, Any]):
    """Dict observations, one of which no filter changes."""

    observation_space = spaces.Dict({
        "a": spaces.Box(-np.inf, np.inf, (2,), np.float64),
        "b": spaces.Box(-np.inf, np.inf, (3,), np.float32),
        "picture": spaces.Box(0, 255, (2,), np.uint8),
    })  # fmt: skip
    action_space = spaces.Discrete(2)

    def _observation(self) -> dict[str, Any]:
        numbers = self.np_random.normal(2, 5, 5)
        return {"a": numbers[:2], "b": numbers[2:].astype(np.float32), "picture": np.array([3, 200], np.uint8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 9
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, ...]:
        self.left -= 1
        return self._observation(), 1.0, self.left == 0, False, {}


def test_arrays_that_no_filter_changes_stay_as_they_are(tmp_path):
    with LocalSampler("random", Pictures, seed=1, observation_filter=RunningNorm()) as sampler:
        sampler.warm_up(50)
        batch, filters = sampler.obtain_trajectories(2), sampler.filters
        expected = filters.observation.apply(batch.raw_observations)
    path = tmp_path / "normalize.pkl"
    write_vec_normalize(filters, path, Pictures)
    normalize = VecNormalize.load(str(path), DummyVecEnv([Pictures]))
    assert normalize.norm_obs_keys == ["a", "b"]
    found = normalize.normalize_obs(batch.raw_observations)
    for key in ("a", "b", "picture"):
        np.testing.assert_allclose(found[key], expected[key], atol=1e-5)
    for source in (normalize, path):
        read = read_vec_normalize(source).observation.apply(batch.raw_observations)
        for key in ("a", "b", "picture"):
            np.testing.assert_allclose(read[key], expected[key], rtol=1e-12)
    with pytest.raises(UsageError, match="normalises a alone"):
        read_vec_normalize(VecNormalize(DummyVecEnv([Pictures]), norm_obs_keys=["a"]))
    normalize.close()


def _moments(*shape: int) -> Moments:
    return Moments(10.0, np.zeros(shape), np.ones(shape))


@pytest.mark.parametrize(
    ("observation", "envs", "wrong"),
    [
        (_moments(3), "CartPole-v1", r"statistics of the shape \(3,\), and .* \(4,\)"),
        ({"a": _moments(2)}, Pictures, "of the keys a, and the environment has observations Dict"),
        (
            {"a": _moments(2), "b": _moments(2), "picture": None},
            Pictures,
            r"\['b'\] has statistics of the shape \(2,\)",
        ),
    ],
)
def test_a_filter_of_another_environment_is_not_written(tmp_path, observation, envs, wrong):
    with pytest.raises(UsageError, match=wrong):
        write_vec_normalize(Filters(RunningNorm().with_moments(observation)), tmp_path / "a.pkl", envs)
    assert not (tmp_path / "a.pkl").exists()


def test_one_file_has_one_epsilon(tmp_path):
    filters = Filters(
        RunningNorm(epsilon=0.5).with_moments(_moments(4)), RunningReturnNorm(epsilon=0.1).with_moments(_moments())
    )
    with pytest.raises(UsageError, match=r"observation_filter has epsilon=0.5, and reward_filter has epsilon=0.1"):
        write_vec_normalize(filters, tmp_path / "a.pkl", "CartPole-v1")
