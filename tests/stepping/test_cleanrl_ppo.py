"""A script in CleanRL's style runs unchanged over the vector face, and learns the same."""

import pytest
from gymnasium.vector import SyncVectorEnv

from streamsampler.stepping.managers import EnvManager
from tests.stepping.following import following

pytestmark = pytest.mark.extras


def test_the_same_as_over_gymnasiums_own():
    import torch

    from tests.stepping.cleanrl_ppo import train

    torch.set_num_threads(1)
    returns, digest = train(SyncVectorEnv(following("CartPole-v1", 4)), 2048)
    assert len(returns) > 50
    for n_workers in (1, 3):
        envs = EnvManager("CartPole-v1", n_envs=4, n_workers=n_workers, seed=0).vector_env()
        assert train(envs, 2048) == (returns, digest)
