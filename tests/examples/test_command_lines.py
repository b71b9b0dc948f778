"""Each example has a help, refuses wrong input in a sentence, and ends at Ctrl-C with what it printed."""

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from click.testing import CliRunner, Result

import streamsampler

IN_TORCH = ["evaluate_sb3", "ppo", "ppo_multiagent", "ppo_recurrent", "trpo"]
ALL = ["evolution_strategy", "reinforce", *(pytest.param(name, marks=pytest.mark.extras) for name in IN_TORCH)]


def invoked(name: str, *arguments: str) -> Result:
    return CliRunner().invoke(importlib.import_module(f"streamsampler.examples.{name}").main, arguments)


@pytest.mark.parametrize("name", ALL)
def test_help_and_wrong_input(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = invoked(name, "--help").stdout
    assert all(option in text for option in ("--workers", "--seed", "[default: 2"))
    wrong: list[tuple[str, ...]] = [
        ("CartPole-v1", "--workers", "many"),
        ("CartPole-v1", "--workers", "0"),
        ("CartPole-v1", "--seed", "-1"),
    ]
    words = ["'many'", "Invalid value for '--workers'", "Invalid value for '--seed'"]
    if name not in ("reinforce", "ppo_multiagent"):

        def make(**_: Any) -> Any:
            raise ValueError("no robot is connected")

        monkeypatch.setitem(gymnasium.registry, "Breaks-v0", gymnasium.envs.registration.EnvSpec("Breaks-v0", make))
        wrong += [("CartPole-v9",), ("nowhere:Env-v0",), ("Breaks-v0",)]
        words += [
            "unknown environment 'CartPole-v9'. Did you mean 'CartPole-v1'",
            "unknown environment 'nowhere:Env-v0': there is no module 'nowhere'",
            "the environment Breaks-v0 cannot be made: ValueError: no robot is connected",
        ]
    for arguments, said in zip(wrong, words, strict=True):
        outcome = invoked(name, *arguments)
        assert (outcome.exit_code, "Traceback" in outcome.output) == (2, False)
        assert said in outcome.stderr


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("evolution_strategy", ("--sigma", "0"), "Invalid value for '--sigma'"),
        ("evolution_strategy", ("--pairs", "0"), "Invalid value for '--pairs'"),
        ("reinforce", ("--gamma", "1.5"), "Invalid value for '--gamma'"),
        *(
            pytest.param(*row, marks=pytest.mark.extras)
            for row in (
                ("trpo", ("--radius", "-1"), "Invalid value for '--radius'"),
                ("ppo", ("--minibatch", "0"), "Invalid value for '--minibatch'"),
                ("ppo", ("--out", "missing/policy.pt"), "the folder missing does not exist"),
                ("ppo_recurrent", ("CartPole-v1", "--hide", "1,4"), "the entries of --hide, and actions in a"),
                ("ppo_recurrent", ("Pendulum-v1",), "the entries of --hide, and actions in a Discrete"),
                ("ppo_multiagent", ("CartPole-v1",), "has a single agent"),
                ("ppo_multiagent", ("no_such_module:env",), "unknown environment"),
                ("evaluate_sb3", ("--trajectories", "0"), "Invalid value for '--trajectories'"),
            )
        ),
    ],
)
def test_what_each_refuses(name: str, arguments: tuple[str, ...], words: str) -> None:
    outcome = invoked(name, *arguments)
    assert (outcome.exit_code, words in outcome.output, "Traceback" in outcome.output) == (2, True, False), (
        outcome.output
    )


@pytest.mark.parametrize("name", ["ppo", "ppo_recurrent", "trpo"])
def test_the_error_without_pytorch_says_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for module in ("ppo", "ppo_recurrent", "trpo", "pytorch"):
        monkeypatch.delitem(sys.modules, f"streamsampler.examples.{module}", raising=False)
    with pytest.raises(ImportError, match=r"needs PyTorch: pip install torch \(in a clone"):
        importlib.import_module(f"streamsampler.examples.{name}")


@pytest.mark.slow
def test_an_interrupt_loses_no_line() -> None:
    command = [sys.executable, "-m", "streamsampler.examples.reinforce", "CartPole-v1", "--workers", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()  # printed at once, though stdout is a pipe
        os.kill(process.pid, signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert first.startswith("iteration 0: ")
    assert (process.returncode, "evaluation" in rest, "Traceback" in errors) == (1, False, False)
    assert errors.strip().endswith("Aborted!")


@pytest.mark.slow
@pytest.mark.extras
def test_a_model_that_was_trained_longer_is_better() -> None:
    text = invoked(
        "evaluate_sb3", "CartPole-v1", "--timesteps", "4096", "--trajectories", "20", "--workers", "1"
    ).stdout
    words = next(line for line in text.splitlines() if "difference of means" in line).split()
    assert float(words[3]) > 10


@pytest.mark.extras
def test_a_saved_model_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    model = str(tmp_path / "model.zip")
    stable_baselines3.PPO("MlpPolicy", "CartPole-v1", seed=1, device="cpu").save(model)
    few = ("CartPole-v1", "--model", model, "--trajectories", "8", "--seed", "1", "--workers", "1")
    expected = streamsampler.evaluate(model, "CartPole-v1", num_trajectories=8, seed=1, n_workers=0)
    assert invoked("evaluate_sb3", *few).stdout == f"{expected}\n"
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    outcome = invoked("evaluate_sb3", "CartPole-v1")
    assert (outcome.exit_code, "training needs Stable-Baselines3: pip install" in outcome.stderr) == (2, True)
