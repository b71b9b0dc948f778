"""Workers see the environment variables and the working directory of the script, as they are now."""

import os
import shutil
import signal
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from streamsampler import EnvManager, MultiprocessingSampler
from streamsampler.engines.launch.start_methods import import_path
from streamsampler.errors import SamplerError
from tests.faults.conftest import slow


class Looks(gymnasium.Env):
    """Its rewards are what a variable says; the info of a reset has the working directory."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {"directory": os.getcwd()}

    def step(self, action):
        return np.zeros(1, np.float32), float(os.environ.get("LEVEL", "-1")), True, False, {}


def seen(**options):
    """Return what workers of a sampler see: the variable, and the working directory."""
    with MultiprocessingSampler("random", Looks, n_workers=1, seed=1, **options) as sampler:
        batch = sampler.obtain_trajectories(1)
        return batch.returns.tolist(), batch.episode_infos["directory"].tolist()


QUEUES = [{"engine": "queues", "start_method": method} for method in ("fork", "spawn", "forkserver")]
EACH = pytest.mark.parametrize("how", [{}, *map(slow, QUEUES)], ids=lambda how: how.get("start_method", "default"))


@EACH
def test_a_variable_that_was_deleted_is_gone_in_workers(monkeypatch, how):
    """A fork server that was started while it was set still has it."""
    monkeypatch.setenv("LEVEL", "3")
    assert seen(**how)[0] == [3]
    monkeypatch.delenv("LEVEL")
    assert seen(**how)[0] == [-1]


def test_a_variable_that_was_deleted_is_gone_in_managers(monkeypatch):
    for level in ("3", None):
        monkeypatch.delenv("LEVEL", raising=False)
        if level:
            monkeypatch.setenv("LEVEL", level)
        with EnvManager(Looks, n_envs=1, seed=1) as manager:
            manager.reset()
            assert manager.step(np.zeros(1, int)).rewards.tolist() == [float(level or -1)]


@EACH
def test_where_the_working_directory_is_gone_workers_run_from_the_root(monkeypatch, tmp_path, how):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    shutil.rmtree(folder)
    if how.get("start_method", "fork") != "fork":
        with pytest.raises(SamplerError, match=r'the working directory was removed\. Call os\.chdir\("/"\)'):
            seen(**how)
    else:
        assert seen(**how)[1] == ["/"]


def test_a_working_directory_that_is_removed_later(monkeypatch, tmp_path):
    """Workers that are started then are not wherever the fork server was started."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with MultiprocessingSampler("random", Looks, n_workers=1, seed=1) as sampler:
        assert sampler.obtain_trajectories(1).episode_infos["directory"].tolist() == [str(folder)]
        shutil.rmtree(folder)
        os.kill(sampler.worker_pids()[0], signal.SIGKILL)
        assert sampler.obtain_trajectories(1).episode_infos["directory"].tolist() == ["/"]


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
    arguments = ["sample", "CartPole-v1", "--num-trajectories", "1"]

    def run(*more):
        (tmp_path / "gone").mkdir()
        return subprocess.run(
            [sys.executable, "-c", command, *arguments, *more],
            cwd=tmp_path / "gone",
            env={**os.environ, "PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
        )

    assert "trajectories  1" in run().stdout
    refused = run("--agent", "nowhere:agent")
    assert "there is no module 'nowhere', and the working directory was removed" in refused.stderr
    assert refused.returncode == 2


KILLED = """
import os, signal
from streamsampler import MultiprocessingSampler
options = {{"n_workers": 1, "seed": 1, "engine": "queues", "start_method": "forkserver"}}
sampler = MultiprocessingSampler("random", "CartPole-v1", **options)
sampler.obtain_trajectories(1)
{close}
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("close", ["", pytest.param("sampler.close()", marks=pytest.mark.slow)])
def test_the_fork_server_of_queues_leaves_no_file_where_its_parent_was_killed(tmp_path, close):
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.getcwd()}
    # Its output ends when the last of its processes has: the fork server and the workers have inherited it.
    done = subprocess.run([sys.executable, "-c", KILLED.format(close=close)], env=env, stdout=subprocess.PIPE)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
