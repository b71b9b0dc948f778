"""Where there is no POSIX (Windows): everything works on the engine `queues`, and what cannot says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Takes away what Windows lacks, before the package is imported. Other packages and the standard library have looked for
# what they need before.
FOLDER = Path(__file__).parent / "without_posix"


def run(command, **environment):
    """Run a command where there is no POSIX."""
    path = os.pathsep.join((str(FOLDER), os.getcwd()))
    environ = {**os.environ, "COLUMNS": "200", "PYTHONPATH": path, **environment}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


LIBRARY = """
import functools, os, re, sys
os.chdir(sys.argv[1])
from streamsampler import *
import streamsampler as s
from streamsampler.testing import ScriptedAgent, ScriptedEnv

env = functools.partial(ScriptedEnv, length=(2, 9), shape=(1_000,))
for options in ({}, {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}):
    with LocalSampler(ScriptedAgent(), env, n_workers=2, seed=3, **options) as sampler:
        batch = sampler.obtain_samples(2_000, progress=True)
        batch.save("batch.npz")
        assert load("batch.npz") == batch and batch.n_timesteps >= 2_000
        assert sampler.obtain_trajectories(3, agent_update={"offset": 1}).n_trajectories == 3
        assert next(iter(sampler.stream())).n_trajectories == 1
with SerialEnvManager("CartPole-v1", n_envs=2, seed=1) as manager:
    manager.reset()
    assert manager.step(manager.random_actions()).rewards.tolist() == [1.0, 1.0]

def says(words, make, *args, **options):
    try:
        make(*args, **options)
    except s.errors.SamplerError as error:
        assert re.search(words, str(error)), error
    else:
        raise AssertionError("it was made")

sampler = functools.partial(MultiprocessingSampler, lambda observation: 0, "CartPole-v1", n_workers=2)
says('needs Linux,.*engine="queues".*LocalSampler.*the same results', sampler, engine="processes")
says('start_method="fork" does not work on this system: use "spawn"', sampler, start_method="fork")
says("needs Linux,.*SerialEnvManager", EnvManager, "CartPole-v1", n_envs=2, engine="processes")
"""


def test_the_library(tmp_path):
    run(["-c", LIBRARY, tmp_path])


STEPPED = """
from streamsampler import EnvManager, LocalSampler, MultiprocessingSampler, SerialEnvManager, VecWorker
from streamsampler.testing import ScriptedAgent, ScriptedEnv
import contextlib, functools, os, sys

class Ends(ScriptedEnv):
    def step(self, action):
        if os.getpid() != here:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(file, os.O_CREAT | os.O_EXCL))
                os._exit(3)
        return super().step(action)

file, here = os.path.join(sys.argv[1], "ended"), os.getpid()
env = functools.partial(Ends, length=(2, 9), shape=(1_000,))
options = {"worker_args": {"n_envs": 3}, "seed": 3, "check": None}
with (
    LocalSampler(ScriptedAgent(), env, worker_class=VecWorker, **options) as one,
    MultiprocessingSampler(ScriptedAgent(), env, n_workers=2, inference="parent", **options) as other,
):
    for call in (lambda it: it.obtain_trajectories(7), lambda it: it.obtain_fragments(5, 3)):
        assert call(one) == call(other)
    assert other.stats.restarts == 1 and os.path.exists(file)
with EnvManager("CartPole-v1", n_envs=3, n_workers=2, seed=1) as manager, SerialEnvManager(
    "CartPole-v1", n_envs=3, seed=1
) as serial:
    manager.reset(), serial.reset()
    for _ in range(50):
        actions = serial.random_actions()
        one, other = serial.step(actions), manager.step(actions)
        assert (one.observations == other.observations).all() and (one.rewards == other.rewards).all()
"""


@pytest.mark.slow
def test_environments_that_are_stepped_from_here(tmp_path):
    run(["-c", STEPPED, tmp_path])


@pytest.mark.slow
def test_the_contracts(tmp_path):
    tests = [
        "tests/contracts/test_scenarios.py",
        "tests/contracts/test_c2_unbiased.py",
        "tests/contracts/test_c3_on_policy.py::test_no_action_of_an_old_version",
        "tests/contracts/test_c9_exact_data.py",
    ]
    # In a folder of its own: pytest leaves a folder that it lists open where it cannot lock the ones of earlier runs.
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "slow", "-k", "queues and spawn and not True"]
    run(["-m", "pytest", f"--basetemp={tmp_path / 'base'}", *options, *tests], ALL_BY_ALL="1")


COMMAND = """
import json, os, sys
os.chdir(sys.argv[1])
from click.testing import CliRunner
import streamsampler
from streamsampler.cli.app import cli

def sample(*arguments):
    result = CliRunner().invoke(cli, ["sample", "CartPole-v1", "--seed", "1", *map(str, arguments)])
    if not isinstance(result.exception, (SystemExit, type(None))):
        raise result.exception
    return result

result = sample("--num-samples", 500, "--out", "batch.npz", "--json", "--workers", 1)
assert result.exit_code == 0, result.output
told = json.loads(result.stdout)
batch = streamsampler.load("batch.npz")
assert told["timesteps"] == batch.n_timesteps >= 500 and told["workers"] == 1
result = sample("--num-samples", 500, "--out", "alone.npz", "--workers", 0)
assert result.exit_code == 0 and batch == streamsampler.load("alone.npz"), result.output
assert sum(batch.n_timesteps for batch in streamsampler.load("shards")) >= 300
assert not [name for name in os.listdir(".") if name.endswith(".tmp")]
for words, *arguments in (
    ("needs Linux,", "--engine", "processes"),
    ("only worker processes take --start-method", "--start-method", "spawn", "--workers", 0),
    ("take --engine and --step-timeout", "--engine", "queues", "--step-timeout", 2, "--workers", 0),
    ("this system takes no --max-worker-memory", "--max-worker-memory", "2G"),
    ("needs Linux or macOS", "--shard-size", 100, "--out", "folder", "--workers", 0),
):
    result = sample("--num-samples", 500, *arguments)
    assert result.exit_code in (1, 2), result.output
    assert words in " ".join(result.stderr.split()), result.stderr
assert not os.path.exists("folder")
"""


@pytest.mark.slow
def test_the_command(tmp_path):
    """Folders of shards can be read, too, which are written elsewhere."""
    arguments = ["CartPole-v1", "--num-samples", "300", "--shard-size", "100", "--seed", "1", "--workers", "1"]
    command = [sys.executable, "-m", "streamsampler", "sample", *arguments, "--out", tmp_path / "shards"]
    subprocess.run(command, check=True, capture_output=True)
    run(["-c", COMMAND, tmp_path])
