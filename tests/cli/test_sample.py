"""The command as a user runs it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamsampler
from streamsampler.data.npz import read
from streamsampler.workers.kernels import fingerprint
from tests.cli.harness import SCRIPTED as MODULE
from tests.cli.harness import finish, run, start

SCRIPTED = ("sample", "scripted:Scripted-v0", "--workers", 2)


def test_a_whole_run_writes_what_the_library_samples(home: Path) -> None:
    result = run("sample", "CartPole-v1", "--num-samples", 2000, "--seed", 7, "--out", "cartpole", cwd=home)

    assert result.returncode == 0, result.stderr
    batch = streamsampler.load(home / "cartpole.npz")
    agent = streamsampler.RandomAgent(batch.action_space)
    with streamsampler.LocalSampler(agent, "CartPole-v1", seed=7) as sampler:
        assert batch == sampler.obtain_samples(2000)

    rows = dict(line.split(maxsplit=1) for line in result.stdout.replace("wall time", "wall").splitlines())
    assert rows["environment"] == "CartPole-v1"
    assert rows["agent"] == "random"
    assert rows["trajectories"] == str(len(batch))
    assert rows["timesteps"] == f"{batch.n_timesteps:,}"
    error = batch.returns.std(ddof=1) / np.sqrt(len(batch))
    low, high = batch.returns.min(), batch.returns.max()
    decimals = 2 if error < 1 else 1
    error = f"{error:.{decimals}f} standard error"
    assert rows["return"] == f"{batch.returns.mean():.{decimals}f} ± {error}, from {low:g} to {high:g}"
    assert rows["length"].endswith(f"from {low:g} to {high:g}")
    assert rows["seed"] == "7"
    assert "written to  " in result.stdout
    assert "cartpole.npz" in result.stdout

    # Before the last line there is one for each thirty seconds that it took.
    *progress, last = result.stderr.splitlines()
    assert all(line.startswith("sampling: ") for line in progress), result.stderr
    assert last.startswith(f"{len(batch)} trajectories, {batch.n_timesteps:,} timesteps in ")


@pytest.mark.slow
def test_json_is_all_there_is_on_stdout_even_if_environments_print(home: Path) -> None:
    (home / "scripted.py").write_text(f"print('hello from scripted')\n{MODULE}")
    arguments = ("--env-kwarg", "chatty=true", "--num-trajectories", 5, "--json", "--out", "out.npz")
    result = run(*SCRIPTED, *arguments, cwd=home)

    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert "hello from scripted" in result.stderr
    assert "chatty reset" in result.stderr

    batch = streamsampler.load(home / "out.npz")
    assert summary["environment"] == "scripted:Scripted-v0"
    assert summary["env_kwargs"] == {"chatty": True}
    assert summary["agent"] == "random"
    assert summary["wanted"] == {"trajectories": 5}
    assert summary["interrupted"] is False
    assert summary["trajectories"] == 5
    assert summary["timesteps"] == batch.n_timesteps
    assert summary["return"]["mean"] == batch.returns.mean()
    assert summary["return"]["minimum"] == batch.returns.min()
    assert summary["return"]["maximum"] == batch.returns.max()
    assert summary["return"]["standard_error"] == batch.returns.std(ddof=1) / np.sqrt(5)
    assert summary["length"] == {
        "mean": batch.lengths.mean(), "minimum": batch.lengths.min(), "maximum": batch.lengths.max()
    }  # fmt: skip
    assert summary["seed"] == batch.seed
    assert summary["workers"] == 2
    assert summary["out"] == "out.npz"
    for name in ("stale", "surplus", "abandoned"):
        assert set(summary[name]) == {"trajectories", "timesteps"}


@pytest.mark.slow
def test_the_file_tells_where_it_comes_from(home: Path) -> None:
    arguments = ("--env-kwarg", "fail_at=(1, 2)", "--agent", "scripted:always_two", "--num-samples", 9)
    assert run(*SCRIPTED, *arguments, "--out", "o.npz", cwd=home).returncode == 0

    provenance = read(home / "o.npz")[1]["provenance"]
    assert provenance.pop("versions")["numpy"] == np.__version__
    assert provenance == {
        "library": f"streamsampler {streamsampler.__version__}",
        "environment": "scripted:Scripted-v0",
        "env_kwargs": {"fail_at": "(1, 2)"},
        "agent": "scripted:always_two",
        "max_episode_length": None,
        "order": "index",
        "on_failure": "raise",
        "worker_threads": 1,
        "vec": None,
        "wanted": {"timesteps": 9},
        "interrupted": False,
        "fingerprints": [fingerprint().without_torch().bits],
    }


@pytest.mark.slow
def test_the_seed_that_is_told_repeats_the_run(home: Path) -> None:
    first = run(*SCRIPTED, "--num-trajectories", 3, "--json", "--quiet", "--out", "first.npz", cwd=home)
    seed = json.loads(first.stdout)["seed"]
    assert float(seed) == seed  # also for readers that know no big integers
    run(*SCRIPTED, "--num-trajectories", 3, "--seed", seed, "--quiet", "--out", "second.npz", cwd=home)
    assert streamsampler.load(home / "first.npz") == streamsampler.load(home / "second.npz")


@pytest.mark.slow
def test_an_agent_and_an_environment_from_the_current_directory(home: Path) -> None:
    result = run(
        "sample", "Scripted-v0", "--import", "scripted", "--agent", "scripted:Repeating",
        "--trajectories-per-worker", 2, "--workers", 2, "--out", "out.npz", "--max-episode-length", 3, cwd=home,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    batch = streamsampler.load(home / "out.npz")
    assert len(batch) == 4
    assert (batch.actions == 2).all()
    assert batch.lengths.max() <= 3
    assert "scripted:Repeating" in result.stdout


@pytest.mark.slow
def test_quiet_leaves_stderr_empty(home: Path) -> None:
    result = run("sample", "CartPole-v0", "--num-trajectories", 1, "--workers", 1, "--quiet", cwd=home)
    assert result.stderr == ""  # not even Gymnasium's warning that there is a newer version
    assert result.returncode == 0
    assert "±" not in result.stdout


def test_an_exception_in_a_worker_is_shown_from_the_users_code_on(home: Path) -> None:
    arguments = ("--env-kwarg", "fail_at=1", "--num-samples", 5, "--seed", 11, "--json", "--out", "out.npz")
    result = run(*SCRIPTED, *arguments, cwd=home)

    assert result.returncode == 1
    assert result.stdout == ""
    assert not (home / "out.npz").exists()
    assert "Error: worker " in result.stderr
    assert "while stepping the environment" in result.stderr
    assert "RuntimeError: the robot stumbled" in result.stderr
    assert "self.stumble()" in result.stderr
    assert "--seed 11" in result.stderr
    assert f"{os.sep}streamsampler{os.sep}" not in result.stderr


@pytest.mark.slow
def test_what_was_sampled_survives_an_environment_that_fails_to_close(home: Path) -> None:
    # A worker that waits for a core for seconds is to say what it found, and not to be killed.
    patience = "from streamsampler.engines import linked\nlinked.STUCK_SECONDS = 60.0\n"
    (home / "scripted.py").write_text(MODULE + patience)
    arguments = ("--env-kwarg", "fail_in_close=True", "--num-trajectories", 2, "--out", "out.npz")
    result = run(*SCRIPTED, *arguments, cwd=home)
    assert result.returncode == 1
    assert "the door is stuck" in result.stderr
    assert "written to out.npz" in result.stderr
    assert len(streamsampler.load(home / "out.npz")) == 2


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error(home: Path) -> None:
    process = start(*SCRIPTED, "--num-trajectories", 1, "--out", "out.npz", cwd=home)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None  # communicate() would want to read it
    result = finish(process)
    assert "Traceback" not in result.stderr
    assert "Exception" not in result.stderr
    assert len(streamsampler.load(home / "out.npz")) == 1


@pytest.mark.slow
def test_it_runs_without_standard_streams(home: Path) -> None:
    script = f'exec "{sys.executable}" -m streamsampler sample CartPole-v1 --num-samples 9 --out o >&- 2>&- <&-'
    assert os.waitstatus_to_exitcode(os.system(f"cd '{home}' && {script}")) == 0
    assert (home / "o.npz").exists()


def test_version() -> None:
    result = run("--version", cwd=Path.cwd())
    assert result.stdout == f"streamsampler {streamsampler.__version__}\n"


@pytest.mark.slow
def test_environments_side_by_side_are_those_of_the_library(home: Path) -> None:
    arguments = ("sample", "CartPole-v1", "--num-trajectories", 9, "--seed", 7, "--vec", 3)
    for workers in (0, 2):
        out = f"out{workers}"
        result = run(*arguments, "--workers", workers, "--out", out, cwd=home)
        assert result.returncode == 0, result.stderr
        assert read(home / f"{out}.npz")[1]["provenance"]["vec"] == 3
    batch = streamsampler.load(home / "out0.npz")
    assert batch == streamsampler.load(home / "out2.npz")
    agent = streamsampler.RandomAgent(batch.action_space)
    vec: dict[str, Any] = {"worker_class": streamsampler.VecWorker, "worker_args": {"n_envs": 3}}
    with streamsampler.LocalSampler(agent, "CartPole-v1", seed=7, **vec) as sampler:
        assert batch == sampler.obtain_trajectories(9)


TIMED = """
from streamsampler import timed


class Timed(Scripted):
    def reset(self, seed=None, options=None):
        with timed("posing"):  # from the first timestep on each one is measured, and not one in so many
            return super().reset(seed=seed, options=options)

    def step(self, action):
        with timed("physics"):
            return super().step(action)


gym.register("Timed-v0", Timed)
"""


@pytest.mark.slow
def test_timers_are_printed_where_they_are_asked_for(home: Path) -> None:
    (home / "scripted.py").write_text(MODULE + TIMED)
    arguments = ("sample", "scripted:Timed-v0", "--workers", 1, "--num-trajectories", 9)
    text, plain, summary = (
        run(*arguments, *options, cwd=home) for options in (("--timers",), (), ("--timers", "--json"))
    )
    table = text.stdout.partition("\n\n")[2].splitlines()
    assert table[0].split() == ["share", "ms/timestep", "own", "entries"]
    assert [line.split()[0] for line in table[1:7]] == ["all", "reset", "posing", "agent", "step", "physics"]
    assert "physics" not in plain.stdout
    timers = json.loads(summary.stdout)["timers"]
    assert timers["ms/step"] >= timers["ms/step/physics"] > 0


TASKED = """

class Tasked(Scripted):
    task = None

    def set_task(self, task):
        self.task = task

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(self.task), *rest


gym.register("Tasked-v0", Tasked)
"""


@pytest.mark.slow
def test_tasks_come_from_a_file_and_are_replayed_from_what_was_written(home: Path) -> None:
    (home / "scripted.py").write_text(MODULE + TASKED)
    (home / "tasks.json").write_text("[2, 5.5, -1]")
    given = ("sample", "scripted:Tasked-v0", "--seed", 3, "--workers", 0, "--tasks", "tasks.json")
    of_each = run(*given, "--num-trajectories", 4, "--out", "each.npz", cwd=home)
    assert of_each.returncode == 0, of_each.stderr
    batch = streamsampler.load(home / "each.npz")
    assert batch.rewards[batch.starts].tolist() == [2.0] * 4 + [5.5] * 4 + [-1.0] * 4
    assert batch.episode_infos["task_index"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert run(*given, "--num-samples", 30, "--out", "turns.npz", cwd=home).returncode == 0
    in_turn = streamsampler.load(home / "turns.npz")
    assert in_turn.rewards[in_turn.starts].tolist() == ([2.0, 5.5, -1.0] * len(in_turn))[: len(in_turn)]
    for name, index in (("each.npz", 7), ("turns.npz", 1)):
        replayed = run("replay", name, "--index", index, "--import", "scripted", cwd=home)
        assert replayed.returncode == 0, replayed.stderr
        assert "the same as recorded" in replayed.stdout
