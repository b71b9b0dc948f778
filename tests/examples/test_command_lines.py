"""Each example has a help, refuses wrong input in a sentence, and ends at Ctrl-C with what it printed."""

import importlib
import os
import signal
import subprocess
import sys
from typing import Any

import gymnasium
import pytest
from click.testing import CliRunner, Result

IN_TORCH = ["evaluate_sb3", "ppo", "ppo_recurrent", "trpo"]
ALL = ["evolution_strategy", "reinforce", *(pytest.param(name, marks=pytest.mark.extras) for name in IN_TORCH)]


def invoked(name: str, *arguments: str) -> Result:
    return CliRunner().invoke(importlib.import_module(f"streamsampler.examples.{name}").main, arguments)


@pytest.mark.parametrize("name", ALL)
def test_help(name: str) -> None:
    outcome = invoked(name, "--help")
    assert outcome.exit_code == 0
    for option in ("ENVIRONMENT", "--workers", "--seed", "[default: 2"):
        assert option in outcome.stdout.replace("[CartPole-v1]", "ENVIRONMENT")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("arguments", [("NoSuch-v9",), ("CartPole-v1", "--workers", "many")])
def test_wrong_input(name: str, arguments: tuple[str, ...]) -> None:
    outcome = invoked(name, *arguments)
    assert outcome.exit_code == 2
    assert arguments[-1].removesuffix("-v9") in outcome.stderr
    assert "Traceback" not in outcome.output


EXTRAS = pytest.mark.extras
WITH_ENVIRONMENT = ["evolution_strategy", *(pytest.param(name, marks=EXTRAS) for name in IN_TORCH)]


@pytest.mark.parametrize("name", WITH_ENVIRONMENT)
@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ("CartPole-v9", "unknown environment 'CartPole-v9'. Did you mean 'CartPole-v1'"),
        ("nowhere:Env-v0", "unknown environment 'nowhere:Env-v0': there is no module 'nowhere'"),
        ("Breaks-v0", "the environment Breaks-v0 cannot be made: ValueError: no robot is connected"),
    ],
)
def test_an_environment_that_cannot_be_made_is_one_sentence(
    name: str, environment: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(**_: Any) -> Any:
        raise ValueError("no robot is connected")

    monkeypatch.setitem(gymnasium.registry, "Breaks-v0", gymnasium.envs.registration.EnvSpec("Breaks-v0", make))
    outcome = invoked(name, environment)
    assert outcome.exit_code == 2
    assert words in outcome.stderr
    assert "Traceback" not in outcome.output


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("evolution_strategy", "--sigma", "0"),
        ("evolution_strategy", "--pairs", "0"),
        ("reinforce", "--workers", "0"),
        ("reinforce", "--seed", "-1"),
        ("reinforce", "--gamma", "1.5"),
        pytest.param("trpo", "--radius", "-1", marks=EXTRAS),
        pytest.param("ppo", "--minibatch", "0", marks=EXTRAS),
        pytest.param("ppo_recurrent", "--iterations", "-1", marks=EXTRAS),
        pytest.param("evaluate_sb3", "--trajectories", "0", marks=EXTRAS),
    ],
)
def test_numbers_out_of_range(name: str, option: str, value: str) -> None:
    outcome = invoked(name, option, value)
    assert outcome.exit_code == 2
    assert f"Invalid value for '{option}'" in outcome.stderr
    assert "Traceback" not in outcome.output


@pytest.mark.parametrize("name", ["ppo", "ppo_recurrent", "trpo"])
def test_the_error_without_pytorch_says_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for module in ("ppo", "ppo_recurrent", "trpo", "pytorch"):
        monkeypatch.delitem(sys.modules, f"streamsampler.examples.{module}", raising=False)
    with pytest.raises(ImportError, match=r"needs PyTorch: pip install torch \(in a clone"):
        importlib.import_module(f"streamsampler.examples.{name}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reinforce", pytest.param("ppo", marks=pytest.mark.extras)])
def test_an_interrupt_loses_no_line(name: str) -> None:
    command = [sys.executable, "-m", f"streamsampler.examples.{name}", "CartPole-v1", "--workers", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()  # printed at once, though stdout is a pipe
        os.kill(process.pid, signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert first.startswith("iteration 0: ")
    assert process.returncode == 1
    assert "evaluation" not in rest
    assert errors.strip().endswith("Aborted!")
    assert "Traceback" not in errors
