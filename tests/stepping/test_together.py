"""Failures that arrive together: each is recorded, also where the first of them is raised."""

import os
import select
import signal
from typing import Any

import numpy as np
import pytest

from streamsampler.errors import RolloutError, WorkerDiedError
from streamsampler.stepping.ledger import EnvState
from streamsampler.stepping.managers import EnvManager
from tests.stepping.environments import Counting


def kill_all(manager, n=None):
    """Kill all workers, or the first n, and wait until they have ended."""
    for pid in manager.worker_pids()[:n]:
        assert pid is not None
        ended = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([ended], [], [])
        os.close(ended)


def test_two_environments_that_raise_together(new_manager):
    manager = new_manager(Counting, n_envs=2, seed=0, on_failure="raise")
    manager.reset()
    with pytest.raises(RolloutError, match=r"environment \d raised in step"):
        manager.step(np.array([9, 9]))
    failed: list[Any] = [EnvState.FAILED, EnvState.FAILED]
    if manager.states != tuple(failed):  # the other one had not arrived yet
        with pytest.raises(RolloutError, match=r"environment \d raised in step"):
            manager.recv()
    assert manager.states == tuple(failed)
    assert manager.reset().timesteps.tolist() == [0, 0]
    assert manager.step(np.array([1, 1])).timesteps.tolist() == [1, 1]


def test_two_workers_that_die_together_and_spend_the_quota():
    with EnvManager(Counting, n_envs=2, n_workers=2, seed=0, max_restarts=0) as manager:
        manager.reset()
        kill_all(manager)
        with pytest.raises(WorkerDiedError, match="max_restarts is 0"):
            manager.step(np.array([1, 1]))
        assert manager.states == (EnvState.FAILED, EnvState.FAILED)
        assert manager.reset().timesteps.tolist() == [0, 0]
