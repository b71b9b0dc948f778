"""A script as users write it type-checks under `mypy --strict`, without a cast; and it runs."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
SCRIPT = HERE / "script.py"

CONFIGURATION = """
[mypy]
strict = True

# Not installed wherever these tests run, or without types of its own.
[mypy-cloudpickle.*,torch.*,stable_baselines3.*,minari.*,ray.*,pettingzoo.*,av.*,tensordict.*,pandas.*]
ignore_missing_imports = True
follow_imports = skip
"""

# What the lines below take for granted.
PREAMBLE = """
from typing import Any
import gymnasium
import streamsampler
from streamsampler import MultiprocessingSampler, TrajectoryBatch

agent: Any
env: gymnasium.Env[Any, Any]
batch: TrajectoryBatch
sampler: MultiprocessingSampler
"""


def checked(tmp_path, *files):
    """Return what mypy says of some files."""
    (tmp_path / "mypy.ini").write_text(CONFIGURATION)
    options = ["--config-file", tmp_path / "mypy.ini", "--cache-dir", ROOT / ".mypy_cache" / "users"]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *options, *files],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.types
def test_what_users_write_type_checks(tmp_path):
    run = checked(tmp_path, SCRIPT)
    assert run.stdout.startswith("Success"), run.stdout + run.stderr


# Each line is wrong: no agent, or no environment.
WRONG = """
MultiprocessingSampler(3, "CartPole-v1")
MultiprocessingSampler(agent, 4)
MultiprocessingSampler("CartPole-v1", agent)
MultiprocessingSampler([3, 4], "CartPole-v1")
MultiprocessingSampler(agent, [3, 4])
LocalSampler(object(), "CartPole-v1")
RaySampler(agent, lambda: 3)
MultiprocessingSampler.from_worker_factory(WorkerFactory(), 3, env)
sampler.obtain_samples(5, env_update=4)
sampler.obtain_samples(0, 5, agent, 4)
sampler.obtain_fragments(5, env_update=4)
streamsampler.evaluate(3, "CartPole-v1", num_trajectories=2)
streamsampler.evaluate(agent, 4, num_trajectories=2)
streamsampler.check(3)
batch.terminals
sampler.obtain_exact_episodes(3)
"""


@pytest.mark.types
def test_what_is_no_agent_or_environment_is_an_error_of_types(tmp_path):
    path = tmp_path / "wrong.py"
    before = f"{PREAMBLE}from streamsampler import LocalSampler, RaySampler, WorkerFactory\n"
    path.write_text(before + WRONG)
    run = checked(tmp_path, path)
    lines = {int(line) for line in re.findall(r"^[^:]*wrong\.py:(\d+): error", run.stdout, re.MULTILINE)}
    first = before.count("\n") + 2
    assert lines == set(range(first, first + WRONG.strip().count("\n") + 1)), run.stdout


def test_the_script_runs_and_needs_no_casts(tmp_path):
    text = SCRIPT.read_text()
    assert "cast(" not in text
    assert "ignore" not in text
    subprocess.run([sys.executable, SCRIPT, tmp_path], check=True)
