"""The example of PPO with several agents learns, the same whatever the number of workers."""

import re
from typing import Any

import pytest

pytest.importorskip("torch")

from click.testing import CliRunner

from streamsampler.examples.ppo_multiagent import main

pytestmark = pytest.mark.extras

SMALL = "--n-envs", "8", "--timesteps", "32", "--minibatch", "64", "--iterations", "2"
GAME = "tests.scripted.zoo:parallel_env"


def run(*words: str) -> Any:
    return CliRunner().invoke(main, list(words))


@pytest.mark.core
def test_the_same_for_any_number_of_workers() -> None:
    outputs = [run(GAME, *SMALL, "--seed", "1", "--workers", n).output for n in ("1", "2")]
    assert outputs[0] == outputs[1]
    assert len(re.findall(r"iteration \d: mean return [\d.]+ of \d+", outputs[0])) == 2
    assert "evaluation: mean return" in outputs[0]


def test_it_learns() -> None:
    output = run(GAME, "--n-envs", "16", "--timesteps", "64", "--minibatch", "128", "--iterations", "25").output
    first, *_, last = [float(value) for value in re.findall(r"iteration \d+: mean return ([\d.]+)", output)]
    assert last > 1.3 * first


def test_what_cannot_be_learned_together() -> None:
    assert "is an environment of one agent" in run("CartPole-v1").output
    assert "unknown environment" in run("no_such_module:env").output
