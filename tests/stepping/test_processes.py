"""What only worker processes do: die, hang, and give the same data whatever their number."""

import contextlib
import functools
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from streamsampler.engines.processes import stacks
from streamsampler.errors import RolloutError, WorkerDiedError, WorkerHungError
from streamsampler.samplers.processes import LocalSampler, MultiprocessingSampler
from streamsampler.stepping.ledger import EnvState
from streamsampler.stepping.managers import EnvManager
from tests.patience import PATIENCE
from tests.stepping.environments import Counting, Doomed
from tests.stepping.test_together import kill_all


def test_a_worker_that_dies_is_an_error_that_names_its_environments():
    with EnvManager(Doomed, n_envs=4, n_workers=2, seed=0, on_failure="raise") as manager:
        manager.reset()
        with pytest.raises(WorkerDiedError, match=r"worker 0 was killed by SIGKILL.*in it are environments 0, 1"):
            manager.step(np.array([7, 1, 1, 1]))
        assert [state is EnvState.FAILED for state in manager.states] == [True, True, False, False]
        assert manager.recv(min_envs=2).rewards.tolist() == [1, 1]
        manager.reset([0, 1])
        assert manager.step(np.ones(4, np.int64)).rewards.tolist() == [1] * 4


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_after_a_death_episodes_end_and_others_begin(autoreset):
    with EnvManager(Doomed, n_envs=4, n_workers=2, seed=0, on_failure="reset", autoreset=autoreset) as manager:
        manager.reset(options={"kept": 1})
        steps = manager.step(np.array([1, 7, 1, 1]))
        assert steps.failed[1:].tolist() == [True, False, False]
        assert steps.truncated[1]
        # The environment next to it lost its episode, too: at once, or with its next action.
        if not steps.failed[0]:
            assert manager.step(np.array([1]), [0]).failed.tolist() == [True]
        if autoreset == "disabled":
            manager.reset([0, 1])
        elif autoreset == "next_step":
            assert manager.step(np.array([1, 1]), [0, 1]).timesteps.tolist() == [0, 0]
        steps = manager.step(np.array([1, 1, 1, 1]))
        assert steps.timesteps.tolist() == [1, 1, 2, 2]
        assert steps.episodes.tolist() == [1, 1, 0, 0]
        assert manager.get_attr("options") == [{"kept": 1}] * 4


def test_deaths_are_counted_against_a_quota():
    with EnvManager(Doomed, n_envs=1, n_workers=1, seed=0, on_failure="reset", max_restarts=1) as manager:
        manager.reset()
        assert manager.step(np.array([7])).failed.all()
        manager.step(np.array([0]))
        with pytest.raises(WorkerDiedError, match="that is 2 losses within 60 s, and max_restarts is 1"):
            manager.step(np.array([7]))
        manager.reset()
        assert manager.step(np.array([1])).rewards.tolist() == [1]


@pytest.mark.slow
def test_a_worker_that_hangs_is_killed_and_shows_its_stack(monkeypatch):
    monkeypatch.setattr(stacks, "_FIRST_SECONDS", PATIENCE)
    with EnvManager(Doomed, n_envs=2, n_workers=2, seed=0, step_timeout=5, on_failure="raise") as manager:
        manager.reset()
        with pytest.raises(WorkerHungError, match="worker 1 made no progress") as caught:
            manager.step(np.array([1, 8]))
        assert "environments.py" in caught.value.stack
        manager.reset([1])
        assert sorted(manager.ready) in ([0, 1], [1])


def test_an_idle_worker_that_was_killed():
    with EnvManager(Counting, n_envs=2, n_workers=2, seed=0, on_failure="reset") as manager:
        manager.reset()
        pid = manager.worker_pids()[0]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        steps = manager.step(np.array([1, 1]))
        assert steps.failed.tolist() == [True, False]
        assert manager.step(np.array([1, 1])).timesteps.tolist() == [0, 2]


def test_an_environment_that_cannot_be_made():
    def make():
        raise OSError("no display")

    with pytest.raises(RolloutError, match=r"raised in its construction.*no display"):
        EnvManager(make, n_envs=2, n_workers=1).launch()


@pytest.mark.slow
def test_waiting_uses_no_cpu():
    with EnvManager(Doomed, n_envs=1, n_workers=1, seed=0, close_timeout=0.1) as manager:
        manager.reset()
        manager.send(np.array([8]))
        before = time.process_time()
        assert len(manager.recv(timeout=2)) == 0
        assert time.process_time() - before < 0.2
        kill_all(manager)  # it would be waited for, as long as these tests wait for ends


class Sleeping(Counting):
    """Takes most of a second for a step, and no CPU."""

    def step(self, action):
        threading.Event().wait(0.7)
        return super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{}, {"step_timeout": 30, "reset_timeout": 20, "construction_timeout": 60}])
def test_waiting_for_environments_that_sleep_takes_less_than_2_percent_of_a_core(limits):
    with EnvManager(Sleeping, n_envs=6, n_workers=3, seed=0, **limits) as manager:
        manager.reset()
        actions = np.ones(6, np.int64)

        def step_by_step():
            manager.send(actions)
            assert manager.wait()
            received = 0
            while received < 6:
                received += len(manager.recv(min_envs=1))

        for wait in (lambda: manager.step(actions), step_by_step):
            began, used = time.perf_counter(), time.process_time()
            wait()
            used, waited = time.process_time() - used, time.perf_counter() - began
            assert waited > 1.4
            assert used < 0.02 * waited


def test_samplers_and_managers_in_one_process():
    """Each kind of worker has a fork server of its own."""
    with EnvManager("CartPole-v1", n_envs=1, n_workers=1) as manager:
        manager.reset()
        with (
            MultiprocessingSampler("random", "CartPole-v1", n_workers=1, seed=1) as sampler,
            LocalSampler("random", "CartPole-v1", seed=1) as local,
        ):
            assert sampler.obtain_trajectories(1).returns == local.obtain_trajectories(1).returns


SCRIPT = """
from streamsampler.stepping.managers import EnvManager
import gymnasium

class Mine(gymnasium.Wrapper):
    pass

manager = EnvManager(lambda: Mine(gymnasium.make("CartPole-v1")), n_envs=2, n_workers=2, seed=0)
manager.reset()
print(manager.step(manager.random_actions()).timesteps.tolist(), *manager.worker_pids())
"""


@pytest.mark.slow
def test_a_script_without_a_main_guard_that_does_not_close():
    run = subprocess.run([sys.executable, "-"], input=SCRIPT, capture_output=True, text=True, timeout=PATIENCE)
    assert run.stderr == ""
    assert run.stdout.startswith("[1, 1] ")
    for pid in map(int, run.stdout.split("] ")[1].split()):
        with contextlib.suppress(ProcessLookupError):  # or its watchdog has not taken notice yet
            ended = os.pidfd_open(pid)
            assert select.select([ended], [], [], PATIENCE)[0]
            os.close(ended)


@pytest.mark.slow
def test_any_number_of_deaths_mixes_nothing_up():
    """More of them than samplers allow in their whole life by default."""
    options: dict[str, Any] = {"n_envs": 2, "n_workers": 1, "seed": 1, "on_failure": "reset", "max_restarts": None}
    with EnvManager("CartPole-v1", **options) as manager:
        steps = manager.reset()
        for number in range(360):
            observations = steps.observations
            if number % 3 == 0:
                pid = manager.worker_pids()[0]
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
            steps = manager.step(np.array([0, 1]))
            continued = (steps.timesteps > 0) & ~steps.failed
            assert np.array_equal(steps.previous_observations[continued], observations[continued])
        assert manager.failures == 120


def test_an_environment_whose_making_hangs(tmp_path):
    (tmp_path / "mark").touch()
    manager = EnvManager(functools.partial(Hanging, tmp_path / "mark"), n_envs=1, n_workers=1, construction_timeout=0.3)
    with pytest.raises(WorkerHungError, match="while making the environment"):
        manager.launch()
    manager.close()


class Hanging(Counting):
    """Hangs in a reset of the seed 13, or while it is made where `there` is a file."""

    def __init__(self, there=None):
        super().__init__()
        if there is not None and os.path.exists(there):
            threading.Event().wait()

    def reset(self, *, seed=None, options=None):
        if seed == 13:
            threading.Event().wait()
        return super().reset(seed=seed, options=options)


@pytest.mark.slow
def test_a_reset_has_a_time_limit_of_its_own():
    with EnvManager(Hanging, n_envs=3, n_workers=2, seed=0, reset_timeout=5, on_failure="raise") as manager:
        with pytest.raises(WorkerHungError, match="while resetting the environment 1; in it are environments 0, 1"):
            manager.reset(seed={1: 13})
        manager.reset(seed={1: 14})
        assert manager.step(np.ones(3, np.int64)).rewards.tolist() == [1] * 3


@pytest.mark.slow
def test_making_environments_again_has_a_time_limit_and_keeps_nobody_waiting(tmp_path):
    mark = tmp_path / "mark"
    options: dict[str, Any] = {"n_envs": 2, "n_workers": 2, "seed": 0, "on_failure": "reset", "close_timeout": 0.1}
    with EnvManager(functools.partial(Hanging, mark), construction_timeout=8, max_restarts=1, **options) as manager:
        manager.reset()
        mark.touch()
        pid = manager.worker_pids()[0]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert manager.step(np.ones(2, np.int64)).failed.tolist() == [True, False]
        manager.send(np.ones(2, np.int64))  # the first is made again for it, and that hangs
        assert manager.recv(min_envs=1).env_ids.tolist() == [1]
        with pytest.raises(WorkerHungError, match="while making the environment; in it are environments 0"):
            manager.recv()
