"""Environments for Gymnasium's and Stable-Baselines3's own vector environments that take the seeds of a manager."""

import functools

import gymnasium

from streamsampler.environments.updates import apply_env_update, as_env_update
from streamsampler.stepping.episodes import EpisodeSeeds
from streamsampler.stepping.ledger import EnvState


class FollowsSeeds(gymnasium.Wrapper):
    """Gives an episode that is begun without a seed the one that a manager would give it.

    The vector environments of other libraries reset an environment without a seed when its episode has ended.
    """

    def __init__(self, env, env_id, n_envs):
        super().__init__(env)
        self._env_id = env_id
        self._seeds = EpisodeSeeds(0, n_envs)

    def reset(self, *, seed=None, options=None):
        if seed is None:
            seed = self._seeds.next(self._env_id)
        else:
            self._seeds.restart([self._env_id], [seed])
        return self.env.reset(seed=seed, options=options)


def following(env, n_envs):
    """Return a function that makes each environment, for managers whose seed is 0 and for their peers."""
    update = as_env_update(env)
    return [
        functools.partial(lambda env_id: FollowsSeeds(apply_env_update(update, None), env_id, n_envs), env_id)
        for env_id in range(n_envs)
    ]


def check_ledger(ledger):
    """Each open request waits for its answer, or has arrived."""
    opened = set(ledger.of(EnvState.RESETTING, EnvState.STEPPING))
    assert opened == ledger.waiting | ledger.arrived.keys()
    assert not ledger.waiting & ledger.arrived.keys()
