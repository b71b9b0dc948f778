"""What managers did, in the words of the samplers' accounts."""

import functools
import os
import signal

import numpy as np
import pytest

from streamsampler import timed
from streamsampler.stepping.managers import EnvManager
from tests.stepping.environments import Counting


class Timed(Counting):
    def reset(self, *, seed=None, options=None):
        with timed("setting up"):
            return super().reset(seed=seed, options=options)

    def step(self, action):
        with timed("physics"):
            for _ in range(2):
                with timed("contacts"):
                    pass
            return super().step(action)


def test_episodes_and_timesteps_are_counted(new_manager):
    manager = new_manager(Timed, n_envs=3, seed=0)
    manager.reset()
    for _ in range(5):
        manager.step(np.array([1, 1, 1]))  # three timesteps, a reset, and a timestep
    manager.send(np.array([1, 1, 1]))
    manager.reset([0, 1])
    stats = manager.stats
    assert (stats.kept_trajectories, stats.kept_timesteps) == (3, 12)
    assert (stats.abandoned_trajectories, stats.abandoned_timesteps) == (2, 2)
    assert (stats.failed_trajectories, stats.failures, stats.restarts, stats.lost_timesteps) == (0, 0, 0, 0)
    manager.recv()
    assert manager.stats.kept_timesteps == 13
    assert sum(manager.stats.worker_timesteps) == 15
    assert stats.seconds > 0
    assert stats.flat()["kept_timesteps"] == 13


def test_what_environments_time_is_a_tree(new_manager):
    manager = new_manager(functools.partial(Timed, length=10), n_envs=3, seed=0)
    manager.reset()
    for _ in range(4):
        manager.step(np.array([1, 1, 1]))
    manager.close()
    tree = manager.stats.timers()
    step, reset = tree.children["step"], tree.children["reset"]
    physics = step.children["physics"]
    assert (physics.count, physics.children["contacts"].count, reset.children["setting up"].count) == (12, 24, 3)
    assert 0 < physics.self_seconds < physics.seconds <= step.seconds
    assert 0 < reset.children["setting up"].seconds <= reset.seconds
    assert tree.timesteps == 12


def test_values_in_infos_are_aggregated_as_in_the_samplers(new_manager):
    manager = new_manager([functools.partial(Counting, info_at=2), Counting], n_envs=2, seed=0)
    manager.reset()
    manager.step(np.array([1, 1]))
    steps = manager.step(np.array([1, 1]))
    assert manager.stats.take_infos(steps, {"note": "sum", "missing": "mean"}) == {"note": 2.0}
    assert manager.stats.flat()["infos/note"] == 2.0


@pytest.mark.parametrize("on_failure", ["restore", "reset"])
@pytest.mark.slow
def test_losses_are_counted(on_failure):
    with EnvManager(functools.partial(Timed, 9), n_envs=4, n_workers=2, seed=0, on_failure=on_failure) as manager:
        manager.reset()
        for _ in range(3):
            manager.step(np.ones(4, np.int64))
        pid = manager.worker_pids()[1]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        failed = manager.step(np.ones(4, np.int64)).failed.sum()
        stats = manager.stats
        assert (stats.failures, stats.restarts, stats.hangs) == (1, 1, 0)
        if on_failure == "restore":
            assert (stats.restored, stats.not_restored, stats.lost_timesteps) == (2, 0, 6)
            assert (stats.failed_trajectories, stats.kept_timesteps) == (0, 16)
            assert all(times.step > 0 and times.idle > 0 for times in stats.workers)
        else:
            assert (stats.restored, stats.failed_trajectories, stats.kept_timesteps) == (0, failed, 16 - failed)
