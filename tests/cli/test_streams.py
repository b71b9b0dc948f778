"""Standard streams that cannot be written: one line and exit code 1, never a traceback; and what terminals ask for."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import IO

import pytest

import streamsampler
from tests.cli.harness import PATIENCE, command

SAMPLE = ("sample", "CartPole-v1", "--num-trajectories", 1, "--workers", 1, "--start-method", "fork", "--seed", 1)
FULL = "Error: standard output could not be written: No space left on device"


def run(*arguments: object, cwd: Path, **streams: IO[str]) -> subprocess.CompletedProcess[str]:
    pipes = {name: streams.get(name, subprocess.PIPE) for name in ("stdout", "stderr")}
    return subprocess.run(command(*arguments), cwd=cwd, text=True, timeout=PATIENCE, check=False, **pipes)


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), ("sample", "--help"), (*SAMPLE, "--quiet")], ids=str
)
def test_standard_output_that_is_full_is_one_line(tmp_path: Path, arguments: tuple[object, ...]) -> None:
    with open("/dev/full", "w") as full:
        result = run(*arguments, cwd=tmp_path, stdout=full)
    assert (result.returncode, result.stderr) == (1, f"{FULL}\n")


def test_what_was_sampled_is_where_the_error_says(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        result = run(*SAMPLE, "--json", "--quiet", "--out", "a", cwd=tmp_path, stdout=full)
    assert (result.returncode, result.stderr) == (1, f"{FULL}. What was sampled is in a.npz\n")
    assert len(streamsampler.load(tmp_path / "a.npz")) == 1


def test_standard_error_that_is_full_loses_no_result(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        result = run(*SAMPLE, cwd=tmp_path, stderr=full)
        assert result.returncode == 1
        assert "trajectories  1" in result.stdout
        assert run("sample", "CartPol-v1", "--num-samples", 1, cwd=tmp_path, stderr=full).returncode != 0
