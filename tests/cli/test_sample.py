"""The command `sample` as a user runs it: what it prints, what it writes, and what it says when something fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from click.testing import Result

import streamsampler
from streamsampler.data.npz import read
from streamsampler.workers.threads import fingerprint
from tests.cli.harness import SCRIPTED, Terminal, command, finish, invoke, run, start, told
from tests.patience import PATIENCE, wait_for_stacks

HERE = ("sample", "scripted:Scripted-v0", "--workers", 0)
ELSEWHERE = ("sample", "scripted:Scripted-v0", "--workers", 2)


def done(*arguments: object) -> Result:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    return result


def summary_of(*arguments: object) -> dict[str, Any]:
    return json.loads(done(*arguments, "--json").stdout)


def test_a_whole_run_writes_what_the_library_samples(home: Path) -> None:
    result = run("sample", "CartPole-v1", "--num-samples", 2000, "--seed", 7, "--out", "cartpole", cwd=home)
    assert result.returncode == 0, result.stderr
    batch = streamsampler.load(home / "cartpole.npz")
    with streamsampler.LocalSampler("random", "CartPole-v1", seed=7) as sampler:
        assert batch == sampler.obtain_samples(2000)

    rows = dict(line.split(maxsplit=1) for line in result.stdout.replace("wall time", "wall").splitlines())
    low, high = batch.returns.min(), batch.returns.max()
    error = batch.returns.std(ddof=1) / np.sqrt(len(batch))
    decimals = 2 if error < 1 else 1
    spread = f"{batch.returns.mean():.{decimals}f} ± {error:.{decimals}f} standard error, from {low:g} to {high:g}"
    expected = {"environment": "CartPole-v1", "agent": "random", "seed": "7", "return": spread}
    expected |= {"trajectories": str(len(batch)), "timesteps": f"{batch.n_timesteps:,}"}
    assert {name: rows[name] for name in expected} == expected
    assert rows["length"].endswith(f"from {low:g} to {high:g}")
    assert "cartpole.npz" in result.stdout.partition("written to  ")[2]
    # Before the last line there is one for each thirty seconds that it took.
    *progress, last = result.stderr.splitlines()
    assert all(line.startswith("sampling: ") for line in progress), result.stderr
    assert last.startswith(f"{len(batch)} trajectories, {batch.n_timesteps:,} timesteps in ")


@pytest.mark.slow
def test_json_is_all_there_is_on_stdout_even_if_environments_print(home: Path) -> None:
    (home / "scripted.py").write_text(f"print('hello from scripted')\n{SCRIPTED}")
    arguments = ("--env-kwarg", "chatty=true", "--num-trajectories", 5, "--json", "--out", "out.npz")
    result = run(*ELSEWHERE, *arguments, "--agent", "scripted:always_two", cwd=home)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    assert "hello from scripted" in result.stderr
    assert "chatty reset" in result.stderr
    summary, batch = json.loads(result.stdout), streamsampler.load(home / "out.npz")
    assert float(summary["seed"]) == summary["seed"] == batch.seed, "readers that know no big integers read it as well"
    assert (batch.actions == 2).all()
    expected = {
        "environment": "scripted:Scripted-v0", "env_kwargs": {"chatty": True}, "agent": "scripted:always_two",
        "wanted": {"trajectories": 5}, "interrupted": False, "trajectories": 5, "timesteps": batch.n_timesteps,
        "length": {
            "mean": batch.lengths.mean(), "minimum": batch.lengths.min(), "maximum": batch.lengths.max()
        },
        "return": {
            "mean": batch.returns.mean(), "minimum": batch.returns.min(), "maximum": batch.returns.max(),
            "standard_error": batch.returns.std(ddof=1) / np.sqrt(5),
        },
        "workers": 2, "out": "out.npz",
    }  # fmt: skip
    assert {name: summary[name] for name in expected} == expected
    for name in ("stale", "surplus", "abandoned"):
        assert set(summary[name]) == {"trajectories", "timesteps"}


def test_the_file_tells_where_it_comes_from_and_its_seed_repeats_it(at_home: Path) -> None:
    given = (*HERE, "--env-kwarg", "fail_at=(1, 2)", "--num-samples", 9, "--vec", 3, "--max-episode-length", 3)
    facts = summary_of(*given, "--out", "o.npz")
    batch, provenance = streamsampler.load("o.npz"), read(at_home / "o.npz")[1]["provenance"]
    assert provenance.pop("versions")["numpy"] == np.__version__
    assert provenance == {
        "library": f"streamsampler {streamsampler.__version__}",
        "environment": "scripted:Scripted-v0",
        "env_kwargs": {"fail_at": "(1, 2)"},
        "agent": "random",
        "max_episode_length": 3,
        "order": "index",
        "on_failure": "raise",
        "worker_threads": 1,
        "vec": 3,
        "wanted": {"timesteps": 9},
        "interrupted": False,
        "fingerprints": [fingerprint().without_torch().bits],
        "worker": "VecWorker: trajectories in lanes of whole multiples of 16 rows, or in blocks of one size",
        "worker_class": "VecWorker",
        "worker_args": {"n_envs": 3},
    }
    assert batch.lengths.max() == 3
    done(*given, "--seed", facts["seed"], "--out", "again.npz")
    assert streamsampler.load("again.npz") == batch


@pytest.mark.filterwarnings("default")
def test_an_id_without_a_version_is_recorded_with_the_one_that_was_taken(tmp_path: Path) -> None:
    given = ("--num-trajectories", 1, "--workers", 0, "--json", "--out", tmp_path / "out")
    result = invoke("sample", "CartPole", *given)
    assert result.stderr.startswith("Warning: CartPole has no version: CartPole-v1 is used, the latest one.\n")
    assert json.loads(result.stdout)["environment"] == "CartPole-v1"
    told = invoke("info", tmp_path / "out", "--json").stdout
    assert json.loads(told)["provenance"]["environment"] == "CartPole-v1"


def test_version() -> None:
    assert invoke("--version").stdout == f"streamsampler {streamsampler.__version__}\n"


@pytest.mark.slow
def test_quiet_leaves_stderr_empty(home: Path) -> None:
    result = run("sample", "CartPole-v0", "--num-trajectories", 1, "--workers", 1, "--quiet", cwd=home)
    assert (result.returncode, result.stderr) == (0, "")  # not even Gymnasium's warning that there is a newer version


TIMED = """
from streamsampler import timed

def step(self, action, step=Scripted.step):
    with timed("physics"):
        return step(self, action)

Scripted.step = step
"""


def test_timers_are_printed_where_they_are_asked_for(at_home: Path) -> None:
    (at_home / "scripted.py").write_text(SCRIPTED + TIMED)
    given = (*HERE, "--num-trajectories", 300)
    table = done(*given, "--timers").stdout.partition("\n\n")[2].splitlines()
    assert table[0].split() == ["share", "ms/timestep", "own", "entries"]
    assert [line.split()[0] for line in table[1:6]] == ["all", "reset", "agent", "step", "physics"]
    assert "physics" not in done(*given).stdout
    timers = summary_of(*given, "--timers")["timers"]
    assert timers["ms/step"] >= timers["ms/step/physics"] > 0


def test_tasks_come_from_a_file_and_are_replayed_from_what_was_written(at_home: Path) -> None:
    (at_home / "tasks.json").write_text("[2, 5.5, -1]")
    given = (*HERE, "--seed", 3, "--tasks", "tasks.json")
    done(*given, "--num-trajectories", 2, "--out", "each.npz")
    done(*given, "--num-samples", 30, "--out", "turns.npz")
    each, turns = streamsampler.load("each.npz"), streamsampler.load("turns.npz")
    assert each.rewards[each.starts].tolist() == [2.0, 2.0, 5.5, 5.5, -1.0, -1.0]
    assert turns.rewards[turns.starts].tolist() == ([2.0, 5.5, -1.0] * len(turns))[: len(turns)]
    for name, index in (("each.npz", 3), ("turns.npz", 1)):
        assert "the same as recorded" in done("replay", name, "--index", index, "--import", "scripted").stdout


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> None:
    make = "tests.data.test_kept_infos:Handles"
    monkeypatch.setitem(gymnasium.registry, "Handles-v0", gymnasium.envs.registration.EnvSpec("Handles-v0", make))


@pytest.mark.usefixtures("handles")
@pytest.mark.parametrize("sharding", [(), ("--shard-size", 200)])
def test_infos_that_no_file_can_hold_are_left_out_by_name(tmp_path: Path, sharding: tuple[object, ...]) -> None:
    given = ("sample", "Handles-v0", "--seed", 1, "--workers", 0, "--num-trajectories", 300)
    out = ("--out", tmp_path / "x", *sharding)
    said = told(invoke(*given, *out))
    assert "env_infos['handle'] holds a tests.data.test_kept_infos.Handle" in said
    assert ". --without-infos handle,poses leaves them out" in said
    assert told(invoke(*given, *out, "--without-infos", "handle")).count("handle,poses") == 1
    done(*given, *out, "--without-infos", "handle,poses")
    assert set(streamsampler.load(tmp_path / "x")[:2].env_infos) == {"deep", "mixed", "rare", "_rare", "x"}
    if sharding:
        return
    few = (*given[:-1], 3, "--out", tmp_path / "y")
    done(*few, "--without-infos")
    assert streamsampler.load(tmp_path / "y").env_infos == streamsampler.load(tmp_path / "y").episode_infos == {}
    (tmp_path / "o.toml").write_text('without-infos = ["handle", "poses", "hands"]\n')
    assert "no trajectory had an info 'hands'" in done(*few, "--config", tmp_path / "o.toml").stderr
    assert "handle" not in streamsampler.load(tmp_path / "y").env_infos


def test_an_exception_in_a_worker_is_shown_from_the_users_code_on(at_home: Path) -> None:
    arguments = ("--env-kwarg", "fail_at=1", "--num-samples", 5, "--seed", 11, "--json", "--out", "out.npz")
    said = told(invoke(*ELSEWHERE, *arguments))
    for words in ("Error: worker ", "while stepping the environment", "RuntimeError: the robot stumbled", "--seed 11"):
        assert words in said
    assert ("self.stumble()" in said, (at_home / "out.npz").exists()) == (True, False)


def test_what_was_sampled_survives_an_environment_that_fails_to_close(at_home: Path) -> None:
    given = ("--env-kwarg", "fail_in_close=True", "--num-trajectories", 2, "--out", "out.npz")
    said = told(invoke(*HERE, *given))
    assert "the door is stuck" in said
    assert "All trajectories are in out.npz" in said
    assert len(streamsampler.load("out.npz")) == 2


def test_what_raises_is_left_out_and_told(at_home: Path) -> None:
    given = (*HERE, "--env-kwarg", "fail_share=0.3", "--seed", 5, "--num-trajectories", 50, "--on-failure", "drop")
    text = done(*given, "--out", "out.npz").stdout
    batch = streamsampler.load("out.npz")
    assert len(batch) == 50
    missing = sorted(set(range(int(batch.indices[-1]))) - set(batch.indices.tolist()))
    first, *lines = text.partition("dropped       ")[2].splitlines()
    assert first == f"{len(missing)} trajectories"
    assert [line.strip() for line in lines[:6]] == [
        *(f"trajectory {n}, stepping the environment: RuntimeError: the robot stumbled" for n in missing[:5]), "…"
    ]  # fmt: skip
    facts = summary_of(*given)
    assert (facts["on_failure"], facts["dropped"]["trajectories"]) == ("drop", len(missing))
    assert [error["trajectory"] for error in facts["dropped"]["errors"]] == missing[:5]


@pytest.mark.slow
def test_data_that_may_be_wrong_are_told(at_home: Path) -> None:
    nan = "Scripted.observe = lambda self: np.full(2, np.nan if self.timestep else 0, np.float32)\n"
    (at_home / "scripted.py").write_text(SCRIPTED + nan)
    given = (*HERE, "--num-trajectories", 3, "--max-episode-length", 1)
    assert summary_of(*given)["anomalies"] == 3
    result = done(*given)
    assert re.search(r"^anomalies +3: NaN, or outside of its space$", result.stdout, re.MULTILINE)
    assert result.stderr.count("Scripted-v0: final observation holds nan: ") == 1, result.stderr


# A user's module: the kit's environment, with one fault of each kind that is asked for.
FAULTY = '''
import gymnasium as gym
from streamsampler.testing import Fault, Faults, ScriptedEnv


class Weary(ScriptedEnv):
    """What the user wrote."""

    def __init__(self, faults):
        super().__init__((2, 9))
        self.faults = faults

    def step(self, action):
        self.faults.maybe("step", self.seed, 1)
        return super().step(action)

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return super().reset(seed=seed, options=options)


def make(kind="kill", times=1, trajectory=None, n_bytes=1 << 20):
    return Weary(Faults("faults", Fault(kind, trajectory=trajectory, times=times, n_bytes=n_bytes), seed=7))


gym.register("Weary-v0", make)
'''


@pytest.fixture
def weary(at_home: Path) -> tuple[object, ...]:
    """A command: with one worker, of two the other may do all that is left before the first is heard of."""
    (at_home / "faulty.py").write_text(FAULTY)
    return ("sample", "faulty:Weary-v0", "--num-trajectories", 60, "--seed", 7, "--workers", 1)


def test_workers_that_end_are_replaced_and_told(weary: tuple[object, ...]) -> None:
    options = ("--env-kwarg", "times=2", "--env-kwarg", "kind=exit", "--json", "--out")
    lost = done(*weary, *options, "lost.npz")
    facts = json.loads(lost.stdout)
    assert (facts["restarts"], facts["hangs"], facts["replaced"]) == (2, 0, 0)
    assert facts["dropped"] == {"trajectories": 0, "errors": []}
    warnings = [line for line in lost.stderr.splitlines() if line.startswith("Warning: worker")]
    assert len(warnings) == 2
    assert all("ended with exit code 7 while stepping the environment in trajectory" in line for line in warnings)
    calm = done(*weary, *options, "calm.npz", "--quiet")  # all that may happen has been recorded already
    assert (json.loads(calm.stdout)["restarts"], calm.stderr) == (0, "")
    assert streamsampler.load("lost.npz") == streamsampler.load("calm.npz")


@pytest.mark.parametrize(
    ("quota", "losses", "n_named"), [pytest.param(0, "1 loss", 1, marks=pytest.mark.slow), (1, "2 losses", 3)]
)
def test_one_loss_too_many_ends_the_command_with_all_of_them(
    weary: tuple[object, ...], quota: int, losses: str, n_named: int
) -> None:
    said = told(invoke(*weary, "--env-kwarg", "times=null", "--max-restarts", quota)).partition("Error: ")[2]
    assert re.match(r"worker \d was killed by SIGKILL .* while stepping the environment in trajectory \d", said)
    assert f"that is {losses} within 60 s, and --max-restarts is {quota} " in said
    assert said.count("was killed by SIGKILL") == n_named
    assert "--seed 7 samples the same again" in said
    assert "next call" not in said


@pytest.mark.slow
def test_a_hang_is_found_and_told_with_the_users_own_code(
    weary: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_stacks(monkeypatch)
    # So long that nothing but the fault is taken for a hang.
    result = done(*weary, "--env-kwarg", "kind=hang", "--step-timeout", 15)
    assert re.search(r"^restarts +1, 1 hung$", result.stdout, re.MULTILINE)
    assert re.search(r"^Warning: worker \d made no progress for \d+(\.\d+)? s while stepping", result.stderr)
    assert f'File "{Path.cwd() / "faulty.py"}", line 14 in step' in result.stderr
    assert "workers/default.py" not in result.stderr


@pytest.mark.slow
def test_a_process_that_grows_is_replaced(weary: tuple[object, ...]) -> None:
    leak = [it for pair in ("kind=leak", f"n_bytes={300 << 20}", "trajectory=3") for it in ("--env-kwarg", pair)]
    result = run(*weary, *leak, "--max-worker-memory", "150M", cwd=Path.cwd())
    assert result.returncode == 0, result.stderr
    assert re.search(r"^restarts +[01], 1 used too much memory$", result.stdout, re.MULTILINE)


@pytest.mark.slow
def test_warnings_do_not_tear_the_bar(weary: tuple[object, ...]) -> None:
    terminal = Terminal(*weary, "--env-kwarg", "times=3", "--env-kwarg", "kind=exit", cwd=Path.cwd(), columns=300)
    assert terminal.finish() == 0
    bar = terminal.text.partition("\r\nenvironment")[0].replace("\x1b[?25l", "")
    # Of what a terminal shows in the end, each line is either a warning or the bar, which follows as it was.
    *warnings, last = [re.split(r"\r(?!$)", line)[-1].strip() for line in bar.split("\n")][:4]
    assert [line.startswith("\x1b[KWarning: worker") for line in warnings] == [True] * 3
    assert re.fullmatch(r"\[#+\]  100%  60/60 trajectories .*", last.replace("\x1b[?25h", ""))
    assert len(re.findall(r"takes its place\r\n\r\[", bar)) == 3


ONE = ("sample", "CartPole-v1", "--num-trajectories", 1, "--workers", 1, "--seed", 1)
FULL = "Error: standard output could not be written: No space left on device"


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("--help",), ""),
        pytest.param((*ONE, "--quiet"), "", marks=pytest.mark.slow),
        pytest.param(
            (*ONE, "--json", "--quiet", "--out", "a"), ". What was sampled is in a.npz", marks=pytest.mark.slow
        ),
    ],
)
def test_standard_output_that_is_full_is_one_line(tmp_path: Path, arguments: tuple[object, ...], where: str) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            command(*arguments), cwd=tmp_path, text=True, stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE
        )
    assert (result.returncode, result.stderr) == (1, f"{FULL}{where}\n")
    assert (tmp_path / "a.npz").exists() is bool(where)


@pytest.mark.slow
def test_other_streams_that_cannot_be_written_lose_no_result(home: Path) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            command(*ONE), cwd=home, text=True, stderr=full, stdout=subprocess.PIPE, timeout=PATIENCE
        )
    assert (result.returncode, "trajectories  1" in result.stdout) == (1, True)
    # A reader that leaves early is no error.
    process = start(*ONE, "--out", "out.npz", cwd=home)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None  # communicate() would want to read it
    result = finish(process)
    assert ("Traceback" in result.stderr, "Exception" in result.stderr) == (False, False)
    assert len(streamsampler.load(home / "out.npz")) == 1
    script = f'exec "{sys.executable}" -m streamsampler sample CartPole-v1 --num-samples 9 --out o >&- 2>&- <&-'
    assert os.waitstatus_to_exitcode(os.system(f"cd '{home}' && {script}")) == 0
    assert (home / "o.npz").exists()


WAITING = """
import gymnasium
from tests.workers.waiting.envs import Game, Waits
gymnasium.register("Waits-v0", Waits)
gymnasium.register("Game-v0", Game)
"""


def test_an_environment_that_waits(home: Path) -> None:
    (home / "waiting_env.py").write_text(WAITING)
    sys.path.insert(0, str(home))
    try:
        common = ("--num-trajectories", 20, "--seed", 3, "--workers", 0)
        done(
            "sample",
            "waiting_env:Waits-v0",
            *common,
            "--in-flight",
            5,
            "--trajectory-timeout",
            60,
            "--out",
            home / "waits",
        )
        done("sample", "waiting_env:Game-v0", *common, "--out", home / "game")
        assert streamsampler.load(home / "waits.npz") == streamsampler.load(home / "game.npz")
        for wrong, words in (
            (
                ("--in-flight", 5, "--vec", 3),
                "--vec asks an agent for many actions at once, --in-flight for a single action",
            ),
            (("--trajectory-timeout", 5), "DefaultWorker has no --trajectory-timeout.*--in-flight 100"),
            (("--in-flight", 0), "Invalid value for '--in-flight'"),
        ):
            result = invoke("sample", "waiting_env:Game-v0", *common, *wrong)
            assert result.exit_code == 2
            assert re.search(words, result.stderr), result.stderr
    finally:
        sys.path.remove(str(home))
        for name in ("Waits-v0", "Game-v0"):
            gymnasium.registry.pop(name, None)
