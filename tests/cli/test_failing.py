"""Environments that raise, hang, die and grow: what the command makes good, what it says, and when it gives up."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import streamsampler
from streamsampler.data.manifest import Shard
from streamsampler.data.shards import check_shard
from streamsampler.errors import StorageError
from tests.cli.harness import Terminal, invoke, run
from tests.patience import wait_for_stacks

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


def make(folder, kind="kill", trajectory=None, times=1, n_bytes=1 << 20):
    return Weary(Faults(folder, Fault(kind, trajectory=trajectory, times=times, n_bytes=n_bytes), seed=7))


gym.register("Weary-v0", make)
'''
# One worker: of two, the other one may do all that is left, a copy of the faulty trajectory included, before a worker
# that takes its time to fail is heard of.
WEARY = ("sample", "faulty:Weary-v0", "--num-trajectories", 60, "--seed", 7, "--workers", 1)
BRITTLE = ("sample", "scripted:Scripted-v0", "--env-kwarg", "fail_share=0.3", "--seed", 5)


@pytest.fixture
def users_modules(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the command imports and registers in this process is forgotten again."""
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(home)
    known, modules = set(gymnasium.registry), set(sys.modules)
    yield
    for env_id in gymnasium.registry.keys() - known:
        del gymnasium.registry[env_id]
    for name in {"scripted", "faulty"} - modules:
        sys.modules.pop(name, None)


@pytest.fixture
def weary(home: Path, users_modules: None) -> Path:
    (home / "faulty.py").write_text(FAULTY)
    return home


def summary_of(result: Any) -> dict[str, Any]:
    assert getattr(result, "exit_code", 0) == getattr(result, "returncode", 0) == 0, result.stderr
    return json.loads(result.stdout)


def test_what_is_lost_is_made_good_and_told(weary: Path) -> None:
    options = ("--env-kwarg", f"folder={weary / 'faults'}", "--json")
    lost = invoke(*WEARY, *options, "--env-kwarg", "times=2", "--out", "lost.npz", "--env-kwarg", "kind=exit")
    facts = summary_of(lost)
    assert (facts["restarts"], facts["hangs"], facts["replaced"]) == (2, 0, 0)
    assert facts["dropped"] == {"trajectories": 0, "errors": []}
    warnings = [line for line in lost.stderr.splitlines() if line.startswith("Warning: worker")]
    assert len(warnings) == 2
    assert all("ended with exit code 7 while stepping the environment in trajectory" in line for line in warnings)
    assert streamsampler.load(weary / "lost.npz") == undisturbed(weary)


def undisturbed(folder: Path) -> Any:
    """The same batch without any fault: all that may happen has been recorded already."""
    options = ("--env-kwarg", f"folder={folder / 'faults'}", "--env-kwarg", "kind=exit")
    facts = summary_of(invoke(*WEARY, *options, "--env-kwarg", "times=2", "--out", "calm.npz", "--json"))
    assert facts["restarts"] == 0
    return streamsampler.load(folder / "calm.npz")


@pytest.mark.slow
def test_a_hang_is_found_and_told(weary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_stacks(monkeypatch)
    arguments = (*WEARY, "--env-kwarg", f"folder={weary / 'faults'}", "--env-kwarg", "kind=hang")
    # So long that nothing but the fault is taken for a hang.
    result = invoke(*arguments, "--step-timeout", 15)
    assert result.exit_code == 0, result.stderr
    assert re.search(r"^restarts +1, 1 hung$", result.stdout, re.MULTILINE)
    assert re.search(r"^Warning: worker \d made no progress for \d+(\.\d+)? s while stepping", result.stderr)
    assert f'File "{weary / "faulty.py"}", line 14 in step' in result.stderr
    assert "workers/default.py" not in result.stderr


@pytest.mark.slow
def test_a_process_that_grows_is_replaced(weary: Path) -> None:
    arguments = (*WEARY, "--env-kwarg", f"folder={weary / 'faults'}", "--env-kwarg", "kind=leak")
    options = ("--max-worker-memory", "150M", "--env-kwarg", f"n_bytes={300 << 20}", "--env-kwarg", "trajectory=3")
    result = run(*arguments, *options, cwd=weary)
    assert result.returncode == 0, result.stderr
    assert re.search(r"^restarts +[01], 1 had too much memory$", result.stdout, re.MULTILINE)


@pytest.mark.parametrize(("quota", "n_losses"), [(0, 1), pytest.param(2, 3, marks=pytest.mark.slow)])
def test_one_loss_too_many_ends_the_command_with_all_of_them(weary: Path, quota: int, n_losses: int) -> None:
    arguments = (*WEARY, "--env-kwarg", f"folder={weary / 'faults'}", "--env-kwarg", "times=null")
    result = invoke(*arguments, "--max-restarts", quota)
    assert (result.exit_code, result.stdout) == (1, "")
    message = result.stderr.partition("Error: ")[2]
    assert re.match(r"worker \d was killed by SIGKILL .* while stepping the environment in trajectory \d", message)
    assert (
        f"that is {n_losses} loss{'es' if n_losses > 1 else ''} within 60 s, and --max-restarts is {quota}\n" in message
    )
    assert message.count("was killed by SIGKILL") == (1 if n_losses == 1 else 1 + n_losses)
    assert "--seed 7 samples the same again" in message
    assert "next call" not in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_quiet_says_nothing(weary: Path) -> None:
    arguments = (*WEARY, "--env-kwarg", f"folder={weary / 'faults'}")
    result = invoke(*arguments, "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "restarts      1" in result.stdout


@pytest.mark.slow
def test_warnings_do_not_tear_the_bar(weary: Path) -> None:
    arguments = ("--env-kwarg", f"folder={weary / 'faults'}", "--env-kwarg", "times=3", "--env-kwarg", "kind=exit")
    terminal = Terminal(*WEARY, *arguments, cwd=weary, columns=300)
    assert terminal.finish() == 0
    bar = terminal.text.partition("\r\nenvironment")[0]
    # Of what a terminal shows in the end, each line is either a warning or the bar.
    shown = [re.split(r"\r(?!$)", line)[-1].strip() for line in bar.replace("\x1b[?25l", "").split("\n")]
    assert [line.startswith("\x1b[KWarning: worker") for line in shown[:3]] == [True] * 3
    assert re.fullmatch(r"\[#+\]  100%  60/60 trajectories .*", shown[3].replace("\x1b[?25h", ""))
    # Each warning is followed by the bar as it was.
    assert len(re.findall(r"takes its place\r\n\r(?:\x1b\[\?25l)?\[", bar)) == 3


# ---------------------------------------------------------------------- left out


@pytest.fixture
def brittle(home: Path, users_modules: None) -> Path:
    return home


def test_what_raises_is_left_out_and_told(brittle: Path) -> None:
    arguments = (*BRITTLE, "--num-trajectories", 50, "--on-failure", "drop", "--workers")
    result = invoke(*arguments, 2, "--out", "out.npz")
    assert result.exit_code == 0, result.stderr
    batch = streamsampler.load(brittle / "out.npz")
    assert len(batch) == 50
    missing = sorted(set(range(int(batch.indices[-1]))) - set(batch.indices.tolist()))
    assert len(missing) > 5
    told = result.stdout.partition("dropped       ")[2].splitlines()
    assert told[0] == f"{len(missing)} trajectories"
    assert told[1:6] == [
        f"{' ' * 14}trajectory {index}, stepping the environment: RuntimeError: the robot stumbled"
        for index in missing[:5]
    ]
    assert told[6].strip() == "…"
    facts = summary_of(invoke(*arguments, 1, "--json"))
    assert facts["on_failure"] == "drop"
    assert facts["dropped"]["trajectories"] == len(missing)
    assert [error["trajectory"] for error in facts["dropped"]["errors"]] == missing[:5]


@pytest.mark.parametrize(
    ("shard", "indices"),
    [
        (Shard(2, 3, 9), [2, 3, 5]),
        (Shard(2, 3, 9), [1, 2, 3]),
        (Shard(2, 3, 9), [2, 3]),
        (Shard(2, 3, 9, dropped=1), [2, 3, 4]),
        (Shard(2, 3, 9, dropped=1), [3, 3, 5]),
        (Shard(2, 3, 9, dropped=1), [1, 3, 5]),
        (Shard(2, 3, 9, dropped=2), [3, 5]),
    ],
)
def test_a_shard_with_other_gaps_is_damaged(shard: Shard, indices: list[int]) -> None:
    check_shard(Path("x"), Shard(2, 3, 9), np.arange(2, 5), np.array([3, 3, 3]))
    check_shard(Path("x"), Shard(2, 3, 9, dropped=2), np.array([3, 4, 6]), np.array([3, 3, 3]))
    lengths = np.array([9 - 2 * (len(indices) - 1), *[2] * (len(indices) - 1)])
    with pytest.raises(StorageError, match="x should hold trajectories 2 to"):
        check_shard(Path("x"), shard, np.array(indices), lengths)


DOUBTFUL = """
import gymnasium, numpy

class Doubtful(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action):
        return numpy.full(1, numpy.nan, numpy.float32), 1.0, True, False, {}

gymnasium.register("Doubtful-v0", Doubtful)
"""


@pytest.mark.slow
def test_data_that_may_be_wrong_are_told(home: Path, users_modules: None) -> None:
    (home / "faulty.py").write_text(DOUBTFUL)
    arguments = ("sample", "Doubtful-v0", "--import", "faulty", "--num-trajectories", 3)
    assert summary_of(invoke(*arguments, "--json"))["anomalies"] == 3
    result = invoke(*arguments)
    assert re.search(r"^anomalies +3: NaN, or outside of its space$", result.stdout, re.MULTILINE)
    assert result.stderr.count("Warning: Doubtful-v0: final observation holds nan: ") == 1
