"""The example of an on-policy algorithm learns, and learns the same whatever the number of workers."""

import re
import subprocess
import sys

import pytest

MODULE = "streamsampler.examples.reinforce"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", MODULE, *arguments], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def outcomes() -> dict[int, subprocess.CompletedProcess[str]]:
    return {workers: run("--workers", str(workers), "--seed", "11") for workers in (1, 2, 5)}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_it_solves_cartpole(outcomes: dict[int, subprocess.CompletedProcess[str]], workers: int) -> None:
    outcome = outcomes[workers]
    assert outcome.returncode == 0, outcome.stderr
    found = re.search(r"evaluation: mean return ([\d.]+) of (\d+) trajectories", outcome.stdout)
    assert found is not None, outcome.stdout
    assert float(found[1]) >= 475
    assert int(found[2]) == 100


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing(outcomes: dict[int, subprocess.CompletedProcess[str]]) -> None:
    """The curve, the evaluation and the digest of the parameters: all of what is on stdout."""
    lines = outcomes[1].stdout.splitlines()
    assert len([line for line in lines if line.startswith("iteration ")]) >= 5
    assert re.fullmatch(r"parameters: [0-9a-f]{64}", lines[-1])
    assert outcomes[2].stdout == outcomes[1].stdout
    assert outcomes[5].stdout == outcomes[1].stdout


@pytest.mark.slow
def test_another_seed_gives_another_curve(outcomes: dict[int, subprocess.CompletedProcess[str]]) -> None:
    first, other = outcomes[2].stdout.splitlines()[0], run("--seed", "12", "--iterations", "1").stdout.splitlines()[0]
    assert first.startswith("iteration 0: ")
    assert other.startswith("iteration 0: ")
    assert first != other
