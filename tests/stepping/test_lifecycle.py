"""Launching, closing and launching again; what is small and must be said."""

import functools
import os
import select
import signal
import subprocess
import sys
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import PerWorker
from streamsampler.errors import SerializationError, UsageError, WorkerDiedError
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from tests.patience import PATIENCE
from tests.stepping.environments import Counting, Gated, Varied, gate
from tests.stepping.test_together import kill_all


class Closable(Counting):
    closed = False

    def close(self):
        self.closed = True

    def step(self, action):
        assert not self.closed
        return super().step(action)


@pytest.mark.slow
def test_a_launch_after_close_makes_new_environments_of_one_that_was_passed(new_manager):
    manager = new_manager([Closable(), Closable()], n_envs=2, seed=0, on_failure="raise")
    before = manager.reset().observations.tolist()
    manager.set_attr("level", 3)
    manager.close()
    manager.launch()
    assert manager.get_attr("level") == [0, 0]
    assert manager.reset().observations.tolist() == before
    assert manager.step(np.array([1, 1])).timesteps.tolist() == [1, 1]


def test_one_that_cannot_be_copied_is_an_error():
    env = Closable()
    env.lock = threading.Lock()  # type: ignore[attr-defined]
    with SerialEnvManager([env], n_envs=1, seed=0) as manager:
        manager.reset()
        manager.close()
        with pytest.raises(SerializationError, match="environment 0 cannot be made anew"):
            manager.launch()


class Unclosable(Counting):
    def close(self):
        raise OSError("the port is busy")


def test_what_an_environment_raises_while_it_is_closed_is_a_warning(new_manager, caplog, capfd):
    manager = new_manager([Counting, Unclosable], n_envs=2, seed=0)
    manager.reset()
    manager.close()
    (record,) = caplog.records
    assert record.message == "environment 1 raised while it was closed: OSError: the port is busy"
    assert capfd.readouterr().err == ""


def test_random_actions_of_no_environment(new_manager):
    manager = new_manager(Varied, n_envs=2, seed=0)
    manager.reset()
    actions = manager.random_actions([])
    assert {key: (part.shape, part.dtype) for key, part in actions.items()} == {
        "choice": ((0,), np.int64),
        "force": ((0, 2), np.float32),
    }
    assert len(manager.step(actions, [])) == 0


def test_the_loop_of_the_docstring_where_nothing_has_arrived(tmp_path):
    envs = functools.partial(Gated, tmp_path / "pipe")
    with gate(tmp_path / "pipe") as let, EnvManager(envs, n_envs=2, n_workers=1, seed=0) as manager:
        manager.reset()
        manager.send(np.array([1, 1]))
        steps = manager.recv(timeout=0)
        assert len(steps) == 0
        manager.send(manager.random_actions(steps.env_ids), steps.env_ids)
        let(2)
        assert len(manager.recv(min_envs=2)) == 2


class Waiting(Counting):
    def __init__(self, seconds):
        super().__init__()
        self.seconds: Any = seconds

    def step(self, action):
        threading.Event().wait(self.seconds)
        return super().step(action % 9)


@pytest.mark.slow
def test_min_envs_and_recv_timeout_of_the_manager_are_in_effect():
    envs = [functools.partial(Waiting, seconds) for seconds in (0, 0, 60)]
    options: dict[str, Any] = {"n_envs": 3, "n_workers": 3, "seed": 0, "close_timeout": 0.1}
    with EnvManager(envs, min_envs=2, recv_timeout=0.2, **options) as manager:
        manager.reset()
        manager.send(np.array([1, 1, 1]))
        assert sorted(manager.recv(timeout=60).env_ids.tolist()) == [0, 1]
        assert manager.recv().env_ids.tolist() == []
        kill_all(manager)  # one would be waited for


@pytest.mark.slow
def test_losses_longer_ago_than_restart_window_are_forgiven():
    options: dict[str, Any] = {"n_envs": 2, "n_workers": 2, "seed": 0, "max_restarts": 1, "restart_window": 4}
    with EnvManager(Counting, **options) as manager:
        manager.reset()
        for _ in range(3):
            kill_all(manager, 1)
            assert not manager.step(np.array([1, 1])).failed.any()
            threading.Event().wait(4.5)
            manager.reset()
        kill_all(manager)
        with pytest.raises(WorkerDiedError, match=r"2 losses within 4 s, and max_restarts is 1"):
            manager.step(np.array([1, 1]))


def test_a_spec_and_one_environment_for_each(new_manager):
    spec = gymnasium.spec("CartPole-v1")
    observations = [
        new_manager(envs, n_envs=2, seed=0).reset().observations.tolist()
        for envs in (spec, PerWorker([spec, "CartPole-v1"]), ["CartPole-v1", spec])
    ]
    assert observations[0] == observations[1] == observations[2]
    levels = new_manager(PerWorker([functools.partial(Counting, 3), functools.partial(Counting, 4)]), n_envs=2, seed=0)
    assert levels.get_attr("length") == [3, 4]


LEFT = """
import gc, os, signal, sys
from streamsampler import EnvManager
from tests.stepping.environments import Counting

manager = EnvManager(Counting, n_envs=2, n_workers=2, seed=0)
manager.reset()
pids = manager.worker_pids()
print(*pids, flush=True)
if sys.argv[1] == "collected":
    ended = [os.pidfd_open(pid) for pid in pids]
    del manager
    gc.collect()
    import select
    for fd in ended:
        assert select.select([fd], [], [], 100)[0]
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", [pytest.param("collected", marks=pytest.mark.slow), "killed"])
@pytest.mark.slow
def test_nothing_is_left_of_a_manager_that_is_not_closed(how):
    run = subprocess.run([sys.executable, "-c", LEFT, how], capture_output=True, text=True, timeout=PATIENCE)
    assert run.stderr == ""
    assert run.returncode == (0 if how == "collected" else -signal.SIGKILL)
    for pid in map(int, run.stdout.split()):
        try:
            ended = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([ended], [], [], PATIENCE)[0]
        os.close(ended)


def test_async_reset_waits_for_no_step_that_is_open(tmp_path):
    """Nor does `recv`, where another result is there: the step ends only after that."""
    envs = [functools.partial(Gated, tmp_path / "pipe"), Counting]
    with gate(tmp_path / "pipe") as let, EnvManager(envs, n_envs=2, n_workers=2, seed=0) as manager:
        manager.reset()
        manager.send(np.array([1, 1]))
        manager.async_reset([0], seed=[7], options={"a": 1})
        manager.async_reset([0])  # the same once more: what was given holds
        with pytest.raises(UsageError, match="environment 0 awaits no action"):
            manager.send(np.array([1]), [0])
        assert manager.recv(min_envs=1).env_ids.tolist() == [1]
        let()
        steps = manager.recv()
        assert (steps.env_ids.tolist(), steps.timesteps.tolist()) == ([0], [0])
        assert steps.observations[0].tolist() == [7, 0]
        assert manager.get_attr("options", [0]) == [{"a": 1}]
        assert manager.stats.abandoned_trajectories == 1
        assert manager.stats.abandoned_timesteps == 1
