"""Where a sampler is made, and what goes on around it: threads, daemons, clocks, variables, the working directory."""

import functools
import multiprocessing
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import gymnasium
import numpy as np
import pytest

import streamsampler
from streamsampler import Limits, LocalSampler, MultiprocessingSampler
from streamsampler.engines.launch.start_methods import import_path
from streamsampler.errors import SamplerError
from streamsampler.testing import Fault, Faults, ScriptedAgent, ScriptedEnv
from streamsampler.workers.fail_points import Records
from tests.faults.conftest import slow
from tests.faults.undisturbed import SEED, calls, undisturbed
from tests.patience import PATIENCE


def is_right(folder, **options):
    """Whether a sampler here gives the right batches, with a worker killed in between."""
    faults = Faults(folder, Fault("kill", trajectory=2, step=3, version=2), seed=SEED)
    options = {"n_workers": 2, "seed": SEED, **options}
    with MultiprocessingSampler(ScriptedAgent(), faults.env(ScriptedEnv), **options) as sampler:
        return calls(sampler, 3) == undisturbed(3) and faults.fired() == 1


def exit_with_the_answer(folder):
    sys.exit(0 if is_right(folder) else 5)


@pytest.mark.slow
def test_in_a_daemonic_process(tmp_path):
    """`multiprocessing` would not let it have children."""
    daemon = multiprocessing.get_context("fork").Process(target=exit_with_the_answer, args=(tmp_path,), daemon=True)
    daemon.start()
    daemon.join(PATIENCE)
    assert daemon.exitcode == 0


def test_in_a_thread_that_ends_before_the_sampler(tmp_path):
    """The kernel's own signal for a parent's death would come when the thread ends."""
    made = []

    def make():
        made.append(MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2, seed=SEED))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    with made[0] as sampler:
        pids = sampler.worker_pids()
        assert calls(sampler, 2) == undisturbed(2)
        assert sampler.worker_pids() == pids


THREADS_OF_TORCH = """
import pathlib, sys
import torch
from tests.faults.test_surroundings import is_right

torch.set_num_threads(2)
matrix = torch.rand(1000, 1000)
(matrix @ matrix).sum()
assert is_right(pathlib.Path(sys.argv[1]))
(matrix @ matrix).sum()
"""


@pytest.mark.extras
def test_in_a_process_with_threads_of_torch(tmp_path):
    """In a new process: torch in a forked one, as those of tests are, waits for ever for threads that it had before."""
    subprocess.run([sys.executable, "-c", THREADS_OF_TORCH, tmp_path], check=True)


def test_a_wall_clock_that_is_set_back_and_forth(tmp_path, monkeypatch):
    """By hours, at each look, with all limits on: none of them is taken from it."""
    dice = random.Random(SEED)
    monkeypatch.setattr(time, "time", lambda: 1.7e9 + dice.uniform(-10_000, 10_000))
    limits = {
        "step_timeout": 60.0,
        "limits": Limits(construction_timeout=60.0, max_worker_memory=1 << 40, restart_window=60.0),
    }
    assert is_right(tmp_path, **limits)


def test_no_module_looks_at_the_wall_clock_to_decide():
    wall_clock = re.compile(r"\btime\.time\b|from time import (.*, )?time\b")
    package = pathlib.Path(streamsampler.__file__).parent
    assert [path for path in package.rglob("*.py") if wall_clock.search(path.read_text())] == []


class Looks(gymnasium.Env):
    """Its rewards are what a variable says; the info of a reset has the working directory."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {"directory": os.getcwd()}

    def step(self, action):
        return np.zeros(1, np.float32), float(os.environ.get("LEVEL", "-1")), True, False, {}


def look(sampler):
    """Return what workers of a sampler see: the variable, and the working directory."""
    batch = sampler.obtain_trajectories(1)
    return batch.returns.tolist(), batch.episode_infos["directory"].tolist()


def looking(**options):
    return MultiprocessingSampler("random", Looks, n_workers=1, seed=1, **options)


QUEUES = [{"engine": "queues", "start_method": method} for method in ("fork", "spawn", "forkserver")]


@pytest.mark.parametrize("how", [{}, *map(slow, QUEUES)], ids=lambda how: how.get("start_method", "default"))
@pytest.mark.slow
def test_workers_see_variables_and_the_working_directory_as_they_are_now(monkeypatch, tmp_path, how):
    """A fork server that was started while a variable was set still has it."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LEVEL", "3")
    with looking(**how) as sampler:
        assert look(sampler) == ([3], [str(folder)])
        monkeypatch.delenv("LEVEL")
        shutil.rmtree(folder)
        if not how:
            os.kill(sampler.worker_pids()[0], signal.SIGKILL)
            assert look(sampler)[1] == ["/"], "a worker that is started later is not where the fork server was"
    if how.get("start_method", "fork") != "fork":
        with pytest.raises(SamplerError, match=r'the working directory was removed\. Call os\.chdir\("/"\)'):
            looking(**how)
        monkeypatch.chdir("/")
    with looking(**how) as sampler:
        assert look(sampler) == ([-1], ["/"])


def test_without_a_working_directory_only_absolute_entries_are_searched(monkeypatch, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    monkeypatch.setattr(sys, "path", ["", "here", "/there"])
    assert import_path("streamsampler") == ["/there"]


@pytest.mark.slow
def test_the_command_in_a_working_directory_that_is_gone(tmp_path):
    command = "import os; os.rmdir(os.getcwd()); from streamsampler.cli import main; main()"
    arguments = [sys.executable, "-c", command, "sample", "CartPole-v1", "--num-trajectories", "1"]
    environ, folder = {**os.environ, "PYTHONPATH": os.getcwd()}, tmp_path / "gone"
    for more, code, said in (
        ([], 0, "trajectories  1"),
        (["--agent", "nowhere:agent"], 2, "there is no module 'nowhere', and the working directory was removed"),
    ):
        folder.mkdir()
        done = subprocess.run([*arguments, *more], cwd=folder, env=environ, capture_output=True, text=True)
        assert done.returncode == code
        assert said in done.stdout + done.stderr


KILLED = """
import os, signal
from streamsampler import MultiprocessingSampler
options = {{"n_workers": 1, "seed": 1, "engine": "queues", "start_method": "forkserver"}}
sampler = MultiprocessingSampler("random", "CartPole-v1", **options)
sampler.obtain_trajectories(1)
{close}
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("close", ["", "sampler.close()"])
def test_the_fork_server_of_queues_leaves_no_file_where_its_parent_was_killed(tmp_path, close):
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.getcwd()}
    # Its output ends when the last of its processes has: the fork server and the workers have inherited it.
    done = subprocess.run([sys.executable, "-c", KILLED.format(close=close)], env=env, stdout=subprocess.PIPE)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


SLOW_STEP = 1.5


class SlowInOneProcess(ScriptedEnv):
    """Steps are slow in the process that stepped first, once there is a file `since`."""

    def __init__(self, folder, since):
        super().__init__()
        self._folder, self._since, self._is_slow = folder, since, None

    def step(self, action):
        if self._is_slow is None:
            self._is_slow = Records(self._folder).record("slow", most=1) is not None
        time.sleep(SLOW_STEP if self._is_slow and self._since.exists() else 0.001)
        return super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "queues"])
def test_a_call_does_not_wait_for_a_worker_that_has_just_become_slow(tmp_path, engine):
    """Its speed is known from before; nothing but its steps, and that its ticket is overdue, tells that it is slow."""
    since = tmp_path / "since"
    env = functools.partial(SlowInOneProcess, tmp_path, since)
    with MultiprocessingSampler(ScriptedAgent(), env, n_workers=3, seed=5, engine=engine) as sampler:
        for _ in range(2):
            sampler.obtain_trajectories(60)
        since.touch()
        batch = sampler.obtain_trajectories(60)
    with LocalSampler(ScriptedAgent(), ScriptedEnv, seed=5) as local:
        assert batch == [local.obtain_trajectories(60) for _ in range(3)][-1]
    assert batch.stats.seconds < 2 * 5 * SLOW_STEP, "what the slow worker needs for two"
