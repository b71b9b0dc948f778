"""Values that a torch module gives: recorded in the worker, and used by estimates."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import gymnasium  # noqa: E402

from streamsampler import DefaultWorker, LocalSampler, VecWorker  # noqa: E402
from streamsampler.agents.torch import TorchAgent  # noqa: E402
from streamsampler.errors import DataError, RolloutError  # noqa: E402
from streamsampler.filters import RunningNorm  # noqa: E402

pytestmark = [pytest.mark.extras, pytest.mark.core]


class ActorCritic(torch.nn.Module):  # type: ignore[name-defined]
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.actor, self.critic = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)

    def forward(self, observations):
        return {"logits": self.actor(observations), "value": self.critic(observations)}


def agent():
    return TorchAgent(ActorCritic(), gymnasium.make("CartPole-v1").action_space)


def assert_values(batch):
    with torch.no_grad():
        critic = ActorCritic().critic
        values = critic(torch.from_numpy(batch.observations)).numpy()[:, 0]
        last = critic(torch.from_numpy(batch.last_observations)).numpy()[:, 0]
    last = np.where(batch.terminated, 0.0, last)
    np.testing.assert_allclose(batch.values, values, atol=1e-5)
    np.testing.assert_allclose(batch.last_values, last, atol=1e-5)
    assert (batch.last_values[~batch.terminated] != 0.0).all()
    given = batch.advantages(batch.values, batch.last_values, 0.9, 0.8)
    assert batch.advantages(gamma=0.9, lambda_=0.8).tolist() == given.tolist()
    assert batch.td_lambda().tolist() == batch.td_lambda(batch.values, batch.last_values).tolist()


OPTIONS: dict[str, Any] = {"seed": 1, "max_episode_length": 45}


@pytest.mark.parametrize("worker_class", [None, VecWorker])
def test_values_of_timesteps_and_of_what_would_follow(worker_class):
    options = OPTIONS if worker_class is None else {**OPTIONS, "worker_class": worker_class}
    with LocalSampler(agent(), "CartPole-v1", observation_filter=RunningNorm(), **options) as sampler:
        sampler.warm_up(100)
        batch = sampler.obtain_trajectories(12)
    assert 0 < batch.terminated.sum() < 12
    assert_values(batch)


def test_fragments_have_the_values_to_bootstrap_from():
    with LocalSampler(agent(), "CartPole-v1", **OPTIONS) as sampler:
        assert_values(sampler.obtain_fragments(9, n_envs=3))


def test_agents_without_values():
    with LocalSampler("random", "CartPole-v1", **OPTIONS) as sampler:
        batch = sampler.obtain_trajectories(12)
    with pytest.raises(DataError, match="no value for each timestep"):
        batch.advantages()
    with pytest.raises(DataError, match="did not terminate, and the agent gave no value"):
        _ = batch.last_values


class TwoValues(ActorCritic):
    def forward(self, observations):
        value = self.critic(observations)
        return {"logits": self.actor(observations), "value": torch.cat([value, value], 1)}


@pytest.mark.parametrize("worker_class", [DefaultWorker, VecWorker])
def test_two_values_for_an_observation_are_refused(worker_class):
    two = TorchAgent(TwoValues(), gymnasium.make("CartPole-v1").action_space)
    with (
        LocalSampler(two, "CartPole-v1", seed=1, max_episode_length=5, worker_class=worker_class) as sampler,
        pytest.raises(
            RolloutError, match=r"'value' should be one number for each observation, and is \(1, 2\) for one"
        ),
    ):
        sampler.obtain_samples(20)
