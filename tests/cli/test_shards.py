"""Runs that write shards: ended anywhere, gone on with, and in the end what they would have been."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

import streamsampler
from streamsampler.core.progress import Snapshot, describe
from streamsampler.data import npz as storage
from tests.cli.harness import Announcements, Terminal, finish, invoke, run, start

CARTPOLE = ("sample", "CartPole-v1", "--shard-size", 300, "--num-samples", 2000)
SCRIPTED = ("sample", "scripted:Scripted-v0", "--workers", 1, "--shard-size", 20)

# A user's module that kills the command before one of the steps in which a file or a folder changes.
KILLING = """
import os, signal
left = int(os.environ["KILL_AT"])
def before(function):
    def wrapper(*args, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)
    return wrapper
for name in ("fsync", "rename", "replace", "unlink"):
    setattr(os, name, before(getattr(os, name)))
"""

# A user's module that stops the command in the middle of writing the third shard, until a signal comes.
PAUSING = """
import time
from streamsampler.data import npz as storage
n, write = 0, storage._write
def pausing(file, *rest):
    global n
    n += 1
    if n < 3:
        return write(file, *rest)
    file.write(b"half of it")
    with open({fifo!r}, "w") as fifo:
        fifo.write("here")
    while True:  # not `signal.pause()`: a signal that comes right before it would not end it
        time.sleep(0.05)
storage._write = pausing
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run, with seed 3."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    result = invoke(*CARTPOLE, "--seed", 3, "--out", folder, "--workers", 2)
    assert result.exit_code == 0, result.stderr
    return folder


def test_a_folder_holds_what_a_file_holds(whole: Path, tmp_path: Path) -> None:
    folder = streamsampler.TrajectoryFolder(whole)
    agent = streamsampler.RandomAgent(folder.shards[0].action_space)
    with streamsampler.LocalSampler(agent, "CartPole-v1", seed=3) as sampler:
        assert folder.to_batch() == sampler.obtain_samples(2000)
    assert all(shard.n_timesteps >= 300 > shard[:-1].n_timesteps for shard in list(folder.shards)[:-1])

    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["complete"] is True
    assert manifest["seed"] == 3
    assert manifest["wanted"] == {"timesteps": 2000}
    assert [entry["first_trajectory"] for entry in manifest["shards"]] == [
        int(shard.indices[0]) for shard in folder.shards
    ]
    assert manifest["trajectories"] == len(folder)
    assert storage.read(whole / "shard-000002.npz")[1]["provenance"]["environment"] == "CartPole-v1"


@pytest.mark.slow
def test_trajectories_for_each_worker(tmp_path: Path) -> None:
    arguments = ("sample", "CartPole-v1", "--shard-size", 200, "--seed", 3, "--workers", 2)
    result = invoke(*arguments, "--trajectories-per-worker", 15, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.stderr
    folder = streamsampler.TrajectoryFolder(tmp_path / "out")
    agent = streamsampler.RandomAgent(folder.shards[0].action_space)
    with streamsampler.LocalSampler(agent, "CartPole-v1", seed=3) as sampler:
        assert folder.to_batch() == sampler.obtain_trajectories(30)
    summary, batch = json.loads(result.stdout), folder.to_batch()
    assert (summary["trajectories"], summary["timesteps"]) == (30, batch.n_timesteps)
    assert summary["shards"] == len(folder.shards)
    assert summary["to_go_on"] is None
    assert summary["return"]["mean"] == pytest.approx(batch.returns.mean())
    assert summary["return"]["maximum"] == batch.returns.max()


@pytest.mark.slow
@pytest.mark.parametrize("kills", [[(3, 24)], [(1, 8), (3, 11), (2, 14)]])
def test_killed_and_gone_on_with_by_another_number_of_workers(
    whole: Path, tmp_path: Path, kills: list[tuple[int, int]]
) -> None:
    (tmp_path / "killing.py").write_text(KILLING)
    for workers, at in kills:
        arguments = (*CARTPOLE, "--seed", 3, "--out", "out", "--import", "killing", "--workers", workers, "--resume")
        killed = killed_at(at, arguments, tmp_path)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (
        0
        < len(streamsampler.TrajectoryFolder(tmp_path / "out").shards)
        < len(streamsampler.TrajectoryFolder(whole).shards)
    )
    result = invoke(*CARTPOLE, "--out", tmp_path / "out", "--resume", "--json", "--workers", 2)
    assert result.exit_code == 0, result.stderr
    assert contents(tmp_path / "out") == contents(whole)

    summary, batch = json.loads(result.stdout), streamsampler.TrajectoryFolder(whole).to_batch()
    assert (summary["trajectories"], summary["timesteps"], summary["seed"]) == (len(batch), batch.n_timesteps, 3)
    assert 0 < summary["earlier_timesteps"] < batch.n_timesteps
    assert summary["return"]["mean"] == pytest.approx(batch.returns.mean())
    assert summary["return"]["standard_error"] == pytest.approx(batch.returns.std(ddof=1) / len(batch) ** 0.5)


def killed_at(at: int, arguments: tuple[object, ...], cwd: Path) -> subprocess.CompletedProcess[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KILL_AT", str(at))
        return run(*arguments, cwd=cwd)


@pytest.fixture
def pausing(tmp_path: Path, announcements: Announcements) -> Announcements:
    """Tells when the command is in the middle of writing its third shard, where it stays."""
    (tmp_path / "pausing.py").write_text(PAUSING.format(fifo=str(announcements.path)))
    return announcements


def test_ctrl_c_keeps_what_is_complete_and_says_how_to_go_on(
    whole: Path, tmp_path: Path, pausing: Announcements
) -> None:
    terminal = Terminal(*CARTPOLE, "--seed", 3, "--import", "pausing", "--out", "it's out", cwd=tmp_path)
    pausing.wait()
    terminal.type("\x03")
    assert terminal.finish() == 130
    assert "Traceback" not in terminal.text
    assert sorted(os.listdir(tmp_path / "it's out")) == ["manifest.json", "shard-000000.npz", "shard-000001.npz"]
    folder = streamsampler.TrajectoryFolder(tmp_path / "it's out")
    assert not folder.complete
    assert f"after {folder.n_timesteps} of 2,000 timesteps" in terminal.text
    assert re.search(r"written to +it's out \(2 shards\)", terminal.text)
    python, *typed = shlex.split(terminal.text.partition("to go on")[2].splitlines()[0])
    assert (python, typed[:2], typed[-1]) == ("python", ["-m", "streamsampler"], "--resume")

    (tmp_path / "pausing.py").write_text("")
    terminal = Terminal(*typed[2:], cwd=tmp_path)
    assert terminal.finish() == 0, terminal.text
    assert f"behind {folder.n_timesteps} that were there before" in terminal.text
    assert contents(tmp_path / "it's out") == contents(whole)
    shown = [int(count.replace(",", "")) for count in re.findall(r"([\d,]+)/2,000 timesteps", terminal.text)]
    assert (shown[0], shown[-1]) == (folder.n_timesteps, 2_000), "the bar goes on where it was"
    assert shown == sorted(shown)


@pytest.mark.slow
def test_an_interrupt_before_the_sampling_adds_nothing(home: Path, announcements: Announcements) -> None:
    endless = ("--env-kwarg", "endless_from=1", "--env-kwarg", f"announce={announcements.path}")
    process = start(*SCRIPTED, "--num-samples", 40, *endless, "--out", "out", "--json", cwd=home)
    announcements.wait()
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert result.returncode == 130, result.stderr
    summary = json.loads(result.stdout)
    assert (summary["trajectories"], summary["shards"], summary["interrupted"]) == (0, 0, True)
    assert summary["to_go_on"].endswith("--resume")
    assert os.listdir(home / "out") == ["manifest.json"]


@pytest.mark.slow
def test_what_fails_says_how_to_go_on(home: Path) -> None:
    result = run(*SCRIPTED, "--env-kwarg", "fail_at=14", "--num-trajectories", 40, "--out", "out", cwd=home)
    assert result.returncode == 1
    assert "the robot stumbled" in result.stderr
    assert len(streamsampler.load(home / "out")) < 14
    assert re.search(r"What is complete is in out\. To go on: .*sample scripted:.* --out out --resume\n", result.stderr)


def test_what_is_complete_stays_as_it_is(whole: Path) -> None:
    before = contents(whole)
    result = invoke(*CARTPOLE, "--out", whole, "--resume", "--json")
    assert result.exit_code == 0
    assert f"{whole} was complete before" in result.stderr
    summary, batch = json.loads(result.stdout), streamsampler.TrajectoryFolder(whole).to_batch()
    assert (summary["trajectories"], summary["timesteps"]) == (len(batch), batch.n_timesteps)
    assert (summary["interrupted"], summary["timesteps_per_second"]) == (False, 0)
    assert "none: all was there before" in invoke(*CARTPOLE, "--out", whole, "--resume").stdout
    assert contents(whole) == before


def test_an_empty_folder_is_resumed_from_its_beginning(tmp_path: Path) -> None:
    """As it is left by a command that was killed before it wrote the manifest."""
    (tmp_path / "out").mkdir()
    arguments = ("CartPole-v1", "--shard-size", 300, "--num-samples", 300, "--workers", 0, "--out", tmp_path / "out")
    result = invoke("sample", *arguments, "--resume")
    assert result.exit_code == 0, result.stderr
    assert streamsampler.TrajectoryFolder(tmp_path / "out").complete


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--seed", 4), "seed is 3 there, and 4 here"),
        pytest.param(
            ("--max-episode-length", 9), "--max-episode-length is None there, and 9 here", marks=pytest.mark.slow
        ),
        (
            ("--env-kwarg", "sutton_barto_reward=true"),
            "--env-kwarg is {} there, and {'sutton_barto_reward': True} here",
        ),
    ],
)
def test_going_on_with_something_else_is_refused(whole: Path, change: tuple[object, ...], words: str) -> None:
    before = contents(whole)
    result = invoke(*CARTPOLE, "--out", whole, "--resume", *change)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert contents(whole) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shard-size", 5], "--shard-size needs --out: give it, too"),
        (["--resume", "--out", "new"], "--resume needs --shard-size: give it, too"),
        (["--shard-size", 5, "--out", "new", "--order", "arrival"], "--shard-size needs a sampler with --order index"),
        (["--out", "whole", "--shard-size", 5], "holds trajectories already"),
        (["--out", "thesis.txt", "--shard-size", 5], "is a file, and shards need a folder"),
    ],
)
def test_usage_errors(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[object], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "whole").symlink_to(whole)
    result = invoke("sample", "CartPole-v1", "--num-samples", 5, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not (tmp_path / "new").exists()


def test_a_damaged_manifest_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    result = invoke(*CARTPOLE, "--out", tmp_path, "--resume")
    assert result.exit_code == 1
    assert "manifest.json is no manifest of trajectories" in result.stderr


def test_rates_and_times_left_are_those_of_this_run() -> None:
    snapshot = Snapshot(1_500, 15, 2_500, "timesteps", 5.0, earlier_timesteps=1_000, earlier_trajectories=10)
    assert (snapshot.timesteps_per_second, snapshot.seconds_left) == (100, 10)
    assert describe(snapshot)[0] == " 60%"
    nothing = Snapshot(1_000, 10, 20, "trajectories", 0.1, earlier_timesteps=1_000, earlier_trajectories=10)
    assert nothing.seconds_left is None
    assert "-:-- left" in describe(nothing)
