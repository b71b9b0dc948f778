"""The command `replay`, and the videos of `evaluate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import streamsampler
from streamsampler.evaluation.evaluate import EvaluationInterruptedError
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.videos import VideoError, Videos
from tests.cli.harness import Terminal, invoke, run

HERE = ("--env", "scripted:Scripted-v0")
PAINTED = """
import gymnasium as gym
import numpy as np
from scripted import Scripted


class Painted(Scripted):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return np.full((32, 32, 3), 20 * self.timestep, np.uint8)


gym.register("Painted-v0", Painted)
"""


@pytest.fixture
def cartpole(tmp_path: Path) -> Path:
    result = invoke(
        "sample", "CartPole-v1", "--num-trajectories", 6, "--seed", 1, "--vec", 4, "--workers", 0, "--quiet", "--out",
        tmp_path / "a",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return tmp_path / "a"


def test_a_file_of_the_command_says_all_that_is_needed(cartpole: Path) -> None:
    for index in range(6):
        result = invoke("replay", cartpole, "--index", index)
        assert result.exit_code == 0, result.output
        assert "the same as recorded, bit for bit" in result.stdout


@pytest.mark.slow
def test_redirected_and_on_a_terminal(home: Path) -> None:
    sampled = ("scripted:Scripted-v0", "--agent", "scripted:always_two", "--env-kwarg", "chatty=true")
    assert run("sample", *sampled, "--num-trajectories", 9, "--seed", 5, "--out", "a", cwd=home).returncode == 0
    result = run("replay", "a", "--index", 8, *HERE, "--agent", "scripted:always_two", "--json", cwd=home)
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    batch = streamsampler.load(home / "a.npz")
    assert (facts["same"], facts["seed"], facts["return"]) == (True, batch.seeds[8], batch.returns[8])
    assert "chatty reset" in result.stderr, "what environments print does not get into the result"

    terminal = Terminal("replay", "a", "--index", 8, *HERE, "--agent", "random", cwd=home, columns=100)
    assert terminal.finish() == 1
    assert "differs from what was recorded, first in the action of timestep" in terminal.text
    assert "- another agent, or other parameters" in terminal.text
    assert run("replay", "a", "--index", 8, *HERE, "--actions", cwd=home).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("a", "--index", 6), 2, "there is no trajectory 6: there are trajectories 0 to 5"),
        (("a", "--index", 0, "--agent-version", 2), 2, "there are trajectories of agent versions 1"),
        (("b", "--index", 0), 2, "there is no file or folder 'b'"),
        (("a",), 2, "Missing option '--index'"),
        (
            ("a", "--index", 0, "--actions", "--agent", "random"),
            2,
            "the recorded actions are replayed without an agent: leave it out",
        ),
        (("a", "--index", 0, "--vec-normalize", "x"), 2, "give --agent model.zip, too"),
        (("a", "--index", 0, "--agent", "nobody"), 2, "unknown agent 'nobody'"),
        (("a", "--index", 0, "--env", "CartPoel-v1"), 2, "Did you mean 'CartPole-v1'"),
        (("broken.npz", "--index", 0), 1, "broken.npz"),
        (("other.npz", "--index", 0), 2, "Give --agent, or --actions for the recorded actions"),
        (("module.npz", "--index", 0), 2, "does not decide which module is imported: give --env 'this:It-v0'"),
    ],
)
def test_wrong_usage(arguments, code, message, cartpole, monkeypatch):
    monkeypatch.chdir(cartpole.parent)
    Path("broken.npz").write_bytes(b"PK")
    batch: Any = streamsampler.load("a.npz")
    batch.save("other", provenance={"environment": "CartPole-v1", "agent": "mine:it"})
    batch.save("module", provenance={"environment": "this:It-v0", "agent": "random"})
    result = invoke("replay", *arguments)
    assert result.exit_code == code, result.output
    assert message in " ".join(result.stderr.split())
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--video-of", "best"), "--video-of says what to film"),
        (("--video", "v", "--video-of", "bets"), "'bets' is neither first, best, median, worst nor an index"),
    ],
)
def test_wrong_usage_of_videos(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("evaluate", "CartPole-v1", "--num-trajectories", 2, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_without_the_library_the_error_says_how_to_install_it(cartpole, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    for arguments in (
        ("replay", cartpole, "--index", 1, "--video", cartpole.parent / "a.mp4"),
        ("evaluate", "CartPole-v1", "--num-trajectories", 2, "--workers", 0, "--video", cartpole.parent),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 1
        assert "a video needs PyAV: pip install av (in a clone" in result.stderr


@pytest.mark.parametrize("error", [VideoError, EvaluationInterruptedError])
def test_the_numbers_are_printed_although_a_video_fails(error, tmp_path, monkeypatch):
    def film(*_: Any) -> None:
        raise OSError(28, "no space left") if error is VideoError else KeyboardInterrupt

    monkeypatch.setattr(Videos, "asked", lambda *_: Videos(tmp_path, ("best",)))
    monkeypatch.setattr(Videos, "check", lambda *_: None)
    monkeypatch.setattr(Videos, "film", film)
    arguments = ("--num-trajectories", 5, "--seed", 1, "--workers", 0, "--out", tmp_path / "e.json")
    result = invoke("evaluate", "CartPole-v1", *arguments, "--video", tmp_path)
    assert "mean return" in result.stdout
    assert len(Evaluation.load(tmp_path / "e.json")) == 5
    if error is VideoError:
        assert (result.exit_code, "no space left" in result.stderr) == (1, True)


@pytest.mark.extras
def test_videos(home: Path) -> None:
    (home / "painted.py").write_text(PAINTED)
    seed = ("--seed", 5)
    arguments = ("painted:Painted-v0", *seed, "--num-trajectories", 9)
    result = run("evaluate", *arguments, "--video", "v", "--video-of", "best", "--video-of", 3, cwd=home)
    assert result.returncode == 0, result.stderr
    assert "videos in: v" in result.stdout
    assert len(list((home / "v").glob("trajectory-00000?_seed-*_return+*.mp4"))) == 2
    assert run("sample", *arguments, "--out", "a", cwd=home).returncode == 0
    result = run("replay", "a", "--index", 3, "--env", "painted:Painted-v0", "--video", "3.mp4", cwd=home)
    assert (result.returncode, "video: 3.mp4" in result.stdout) == (0, True), result.stderr
    assert (home / "3.mp4").stat().st_size > 1_000
