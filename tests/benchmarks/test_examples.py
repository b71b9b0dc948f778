"""The curves of the examples are what they print."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.examples import EXAMPLES, curve_of

ROOT = Path(__file__).parents[2]


def test_a_curve_is_what_was_printed() -> None:
    printed = (
        "iteration 0: mean return 20.5 of 98 trajectories\n"
        "iteration 1: TrajectoryBatch(125 trajectories, 4,012 timesteps, return 32.1 ± 1.89 standard error)\n"
        "iteration 2: mean return -3, best 7\nevaluation: mean return 500.0 of 100 trajectories\n"
    )
    assert curve_of(printed) == [20.5, 32.1, -3.0]


@pytest.mark.slow
def test_it_adds_to_the_curves_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "curves.json"
    path.write_text('{"ppo": {"4": [1.0, 2.0]}}')
    options = ["--only", "reinforce", "--seeds", "1", "--iterations", "2", "--workers", "1", "--out", str(path)]
    done = subprocess.run([sys.executable, "-m", "benchmarks", "examples", *options], cwd=ROOT, check=False)
    assert done.returncode == 0
    curves = json.loads(path.read_text())
    assert list(curves) == ["reinforce", "ppo"]
    assert len(curves["reinforce"]["0"]) == 2
    assert curves["ppo"] == {"4": [1.0, 2.0]}


def test_each_example_has_its_environment_and_options() -> None:
    assert EXAMPLES["ppo"].arguments(None) == ["CartPole-v1"]
    several = EXAMPLES["ppo_multiagent"].arguments(2)
    assert several[0] == "mpe2.simple_spread_v3"
    assert several[-3:] == ["--iterations", "100", "--iterations=2"]
