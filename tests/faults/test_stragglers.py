"""A worker that is much slower than the others: what it holds is run a second time by an idle one."""

import time

import gymnasium
import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.testing.fail_points import Records

N_STEPS = 5
SLOW_STEP = 1.5


class SlowInOneProcess(gymnasium.Env):
    """Random rewards; steps are slow in the process that stepped first, once there is a file `since`."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, folder, since=None):
        self._folder, self._pause, self._t, self._since = folder, None, 0, since

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return self.np_random.normal(size=2), {}

    def step(self, action):
        if self._pause is None:
            self._pause = SLOW_STEP if Records(self._folder).add("slow", most=1) else 0.001
        is_slow = self._since is None or self._since.exists()
        time.sleep(self._pause if is_slow else 0.001)
        self._t += 1
        return self.np_random.normal(size=2), self.np_random.normal(), False, self._t == N_STEPS, {}


def zero(observation):
    return 0


@pytest.mark.slow
def test_a_call_does_not_wait_for_a_slow_worker(tmp_path):
    def make_env():
        return SlowInOneProcess(tmp_path)

    with MultiprocessingSampler(zero, make_env, n_workers=2, seed=5) as sampler:
        sampler.obtain_exact_trajectories(1, agent_update=[zero, zero])  # one for each: their speeds are known now
        batch = sampler.obtain_trajectories(6, agent_update=zero)
    assert batch.stats.seconds < N_STEPS * SLOW_STEP, "less than what the slow worker needs for one"
    with LocalSampler(zero, make_env, seed=5) as local:
        local.obtain_trajectories(2)
        assert batch == local.obtain_trajectories(6)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "queues"])
def test_a_call_does_not_wait_for_a_worker_that_has_just_become_slow(tmp_path, engine):
    """Its speed is known from before; nothing but its steps, and that its ticket is overdue, tells that it is slow."""
    since = tmp_path / "since"

    def make_env():
        return SlowInOneProcess(tmp_path, since)

    with MultiprocessingSampler(zero, make_env, n_workers=3, seed=5, engine=engine) as sampler:
        for _ in range(2):
            sampler.obtain_trajectories(60)
        since.touch()
        batch = sampler.obtain_trajectories(60)
    with LocalSampler(zero, make_env, seed=5) as local:
        since.unlink()
        local.obtain_trajectories(60)
        local.obtain_trajectories(60)
        assert batch == local.obtain_trajectories(60)
    assert batch.stats.seconds < 2 * N_STEPS * SLOW_STEP, "what the slow worker needs for two"
