"""Where there is no POSIX (Windows): everything works on the engine `queues`, and what cannot says so."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# Takes away what Windows lacks, before the package is imported. Other packages and the standard library have looked for
# what they need before.
FOLDER = Path(__file__).parent / "without_posix"


def run(tmp_path, script):
    """Run a script where there is no POSIX; return what it printed."""
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(script))
    path = os.pathsep.join((str(FOLDER), os.getcwd()))
    environ = {**os.environ, "COLUMNS": "200", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, file], cwd=tmp_path, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_local_sampler_works_without_posix(tmp_path):
    printed = run(
        tmp_path,
        """
        import functools
        import streamsampler as s
        from streamsampler.testing import ScriptedAgent, ScriptedEnv

        env = functools.partial(ScriptedEnv, length=(2, 9), shape=(1_000,))
        for options in ({}, {"worker_class": s.VecWorker, "worker_args": {"n_envs": 3}}):
            with s.LocalSampler(ScriptedAgent(), env, n_workers=2, seed=3, **options) as sampler:
                batch = sampler.obtain_samples(2_000, progress=True)
                batch.save("batch.npz")
                assert s.load("batch.npz") == batch
                assert sampler.obtain_trajectories(3, agent_update={"offset": 1}).n_trajectories == 3
                assert next(iter(sampler.stream())).n_trajectories == 1
                assert sampler.obtain_exact_trajectories(2).n_trajectories == 4
        print(batch.n_timesteps)
        """,
    )
    assert int(printed) >= 2_000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "processes"}, 'needs Linux:.*engine="queues" returns the same.*LocalSampler'),
        pytest.param(
            {"start_method": "fork"}, "this system cannot fork: start_method must be spawn", marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_what_the_process_sampler_cannot_do_without_posix_it_says(tmp_path, options, said):
    run(
        tmp_path,
        f"""
        import re
        import streamsampler as s
        try:
            s.MultiprocessingSampler(lambda observation: 0, "CartPole-v1", n_workers=2, **{options!r})
        except s.errors.SamplerError as error:
            assert re.search({said!r}, str(error)), error
        else:
            raise AssertionError("it was made")
        """,
    )


def test_all_public_names_can_be_imported_and_a_manager_says_what_it_needs(tmp_path):
    """Where it cannot be made, it names the manager that can, and does the same."""
    printed = run(
        tmp_path,
        """
        from streamsampler import *
        import streamsampler
        from streamsampler import EnvManager
        try:
            EnvManager("CartPole-v1", n_envs=2)
        except streamsampler.SamplerError as error:
            assert "EnvManager needs Linux:" in str(error) and "SerialEnvManager has the same" in str(error)
        else:
            raise AssertionError("it was made")
        with SerialEnvManager("CartPole-v1", n_envs=2, seed=1) as manager:
            manager.reset()
            print(manager.step(manager.random_actions()).rewards.tolist())
        """,
    )
    assert printed == "[1.0, 1.0]\n"


CONTRACTS = ["c1_forms", "c1_reproducible", "c2_unbiased", "c3_on_policy", "c4_bounded", "c9_exact_data"]


@pytest.mark.slow
def test_the_contracts_hold_without_posix(tmp_path):
    """Those left out need POSIX themselves: they count in named pipes, and kill processes."""
    files = [f"tests/contracts/test_{name}.py" for name in CONTRACTS]
    names = "queues and spawn and not test_same_batches[ and not load and not stops and not stalled and not 200"
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "slow or not slow", "-k", names]
    # In a folder of its own: pytest leaves a folder that it lists open where it cannot lock the ones of earlier runs.
    command = [sys.executable, "-m", "pytest", f"--basetemp={tmp_path / 'base'}", *options, *files]
    path = os.pathsep.join((str(FOLDER), os.getcwd()))
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path, "ALL_BY_ALL": "1"}
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


COMMANDS = """
import json, os
from click.testing import CliRunner
import streamsampler
from streamsampler.cli.app import cli

def sample(*arguments):
    result = CliRunner().invoke(cli, ["sample", "CartPole-v1", "--seed", "1", *map(str, arguments)])
    if not isinstance(result.exception, (SystemExit, type(None))):
        raise result.exception
    return result
"""


@pytest.mark.slow
def test_the_command_works_without_posix(tmp_path):
    run(
        tmp_path,
        COMMANDS
        + """
result = sample("--num-samples", 500, "--out", "batch.npz", "--json", "--workers", 1)
assert result.exit_code == 0, result.output
told = json.loads(result.stdout)
batch = streamsampler.load("batch.npz")
assert told["timesteps"] == batch.n_timesteps >= 500 and told["workers"] == 1
result = sample("--num-samples", 500, "--out", "alone.npz", "--workers", 0)
assert result.exit_code == 0 and batch == streamsampler.load("alone.npz"), result.output
assert os.listdir(".").count("batch.npz") == 1 and not [name for name in os.listdir(".") if name.endswith(".tmp")]
assert sample("--trajectories-per-worker", 2, "--workers", 0).exit_code == 0
assert CliRunner().invoke(cli, ["sample", "--help"]).exit_code == 0
""",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--engine", "processes"), "needs Linux:"),
        (("--start-method", "spawn", "--workers", 0), "only worker processes take --start-method"),
        (
            ("--engine", "queues", "--step-timeout", 2, "--workers", 0),
            "take --engine and --step-timeout",
        ),
        (("--max-worker-memory", "2G"), "this system takes no --max-worker-memory"),
        (("--shard-size", 100, "--out", "folder", "--workers", 0), "needs Linux or macOS"),
    ],
    ids=str,
)
def test_what_the_command_cannot_do_without_posix_it_says(tmp_path, arguments, said):
    run(
        tmp_path,
        COMMANDS
        + f"""
result = sample("--num-samples", 500, *{arguments!r})
assert result.exit_code in (1, 2), result.output
assert {said!r} in " ".join(result.stderr.split()), result.stderr
assert not os.path.exists("folder")
""",
    )


@pytest.mark.slow
def test_folders_of_shards_can_be_read_without_posix(tmp_path):
    folder = tmp_path / "folder"
    arguments = ["CartPole-v1", "--num-samples", "300", "--shard-size", "100", "--seed", "1", "--workers", "1"]
    subprocess.run(
        [sys.executable, "-m", "streamsampler", "sample", *arguments, "--out", folder], check=True, capture_output=True
    )
    printed = run(
        tmp_path,
        """
        import streamsampler
        print(sum(batch.n_timesteps for batch in streamsampler.load("folder")))
        """,
    )
    assert int(printed) >= 300
