"""The example that evaluates a model of Stable-Baselines3 prints what the library finds."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("stable_baselines3")

from click.testing import CliRunner
from stable_baselines3 import PPO

import streamsampler
from streamsampler.examples.evaluate_sb3 import main

pytestmark = pytest.mark.extras


def run(*arguments: str) -> str:
    outcome = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def test_a_saved_model(tmp_path: Path) -> None:
    PPO("MlpPolicy", "CartPole-v1", seed=1, device="cpu").save(tmp_path / "model.zip")
    model = str(tmp_path / "model.zip")
    few = ("CartPole-v1", "--model", model, "--trajectories", "8", "--seed", "1")
    printed = run(*few, "--workers", "1")
    expected = streamsampler.evaluate(model, "CartPole-v1", num_trajectories=8, seed=1, n_workers=0)
    assert printed == f"{expected}\n"
    assert run(*few, "--workers", "3") == printed


@pytest.mark.slow
def test_more_training_is_better() -> None:
    printed = run("CartPole-v1", "--timesteps", "4096", "--trajectories", "20", "--workers", "1")
    words = next(line for line in printed.splitlines() if "difference of means" in line).split()
    assert float(words[3]) > 10


def test_without_stable_baselines3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    outcome = CliRunner().invoke(main, ["CartPole-v1"])
    assert outcome.exit_code == 2
    assert "training needs Stable-Baselines3: pip install stable-baselines3 (in a clone" in outcome.stderr
