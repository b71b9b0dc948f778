"""A worker that makes progress does not hang, whatever kept its parent from seeing it."""

import threading

import numpy as np
import pytest

from streamsampler.errors import WorkerHungError
from streamsampler.stepping.managers import EnvManager
from tests.stepping.environments import Counting
from tests.stepping.test_together import kill_all

LIMIT = 3.0
"""Seconds: long enough that no worker that runs is taken for one that hangs."""


class Large(Counting):
    """Its infos and options are larger than what a pipe holds."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"size": len((options or {}).get("text", ""))}

    def step(self, action):
        observation, *rest, _ = super().step(action)
        return observation, *rest, {"large": np.zeros(300_000, np.uint8)}


def be_away():
    threading.Event().wait(1.5 * LIMIT)


@pytest.mark.slow
def test_a_parent_that_was_away_longer_than_a_worker_may_take():
    with EnvManager(Large, n_envs=1, n_workers=1, seed=0, step_timeout=LIMIT, on_failure="raise") as manager:
        manager.reset()
        manager.send(np.array([1]))
        be_away()
        assert manager.recv().timesteps.tolist() == [1]
        manager.async_reset(options={"text": "y" * 1_000_000})
        be_away()
        assert manager.recv().info_by_row == {0: {"size": 1_000_000}}
        assert manager.failures == 0


class Slow(Counting):
    def step(self, action):
        threading.Event().wait(0.15)  # thirty of them take longer than the limit
        return super().step(action)

    def timestep(self):
        return self._t


@pytest.mark.slow
def test_a_call_to_an_environment_that_is_being_restored():
    with EnvManager(lambda: Slow(100), n_envs=1, n_workers=1, seed=0, step_timeout=LIMIT) as manager:
        manager.reset()
        for _ in range(30):
            manager.step(np.array([1]))
        kill_all(manager)
        assert manager.call("timestep") == [30]
        assert manager.step(np.array([1])).timesteps.tolist() == [31]
        assert (manager.stats.hangs, manager.stats.restored) == (0, 1)


@pytest.mark.slow
def test_a_call_that_hangs():
    """It is noticed, also where nothing of it is seen to progress."""
    with EnvManager(Hanging, n_envs=1, n_workers=1, seed=0, step_timeout=LIMIT, on_failure="raise") as manager:
        manager.reset()
        with pytest.raises(WorkerHungError, match="worker 0 made no progress"):
            manager.call("hang")
        assert manager.reset().timesteps.tolist() == [0]


class Hanging(Counting):
    def hang(self):
        threading.Event().wait()
