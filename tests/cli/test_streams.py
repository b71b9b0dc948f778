"""Standard streams that cannot be written: one line and exit code 1, never a traceback; and what terminals ask for."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import IO, Any

import pytest

import streamsampler
from streamsampler.core.words import duration
from tests.cli.harness import Terminal, command
from tests.patience import PATIENCE

SAMPLE = ("sample", "CartPole-v1", "--num-trajectories", 1, "--workers", 1, "--seed", 1)
FULL = "Error: standard output could not be written: No space left on device"


def run(*arguments: object, cwd: Path, **streams: IO[str]) -> subprocess.CompletedProcess[str]:
    pipes: dict[str, Any] = {name: streams.get(name, subprocess.PIPE) for name in ("stdout", "stderr")}
    return subprocess.run(command(*arguments), cwd=cwd, text=True, timeout=PATIENCE, check=False, **pipes)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        *(
            pytest.param(more, marks=pytest.mark.slow)
            for more in (("--version",), ("sample", "--help"), (*SAMPLE, "--quiet"))
        ),
    ],
    ids=str,
)
def test_standard_output_that_is_full_is_one_line(tmp_path: Path, arguments: tuple[object, ...]) -> None:
    with open("/dev/full", "w") as full:
        result = run(*arguments, cwd=tmp_path, stdout=full)
    assert (result.returncode, result.stderr) == (1, f"{FULL}\n")


@pytest.mark.slow
def test_what_was_sampled_is_where_the_error_says(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        result = run(*SAMPLE, "--json", "--quiet", "--out", "a", cwd=tmp_path, stdout=full)
    assert (result.returncode, result.stderr) == (1, f"{FULL}. What was sampled is in a.npz\n")
    assert len(streamsampler.load(tmp_path / "a.npz")) == 1


@pytest.mark.slow
def test_standard_error_that_is_full_loses_no_result(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        result = run(*SAMPLE, cwd=tmp_path, stderr=full)
        assert result.returncode == 1
        assert "trajectories  1" in result.stdout
        assert run("sample", "CartPol-v1", "--num-samples", 1, cwd=tmp_path, stderr=full).returncode != 0


WARNING = """
import gymnasium
gymnasium.logger.warn("beware of the dog")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environ", "drawn", "coloured"),
    [
        ({}, True, True),
        ({"NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_terminals_get_what_they_can_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], drawn: bool, coloured: bool
) -> None:
    (tmp_path / "warning.py").write_text(WARNING)
    for name, value in {"TERM": "xterm", "NO_COLOR": "", "CI": "", **environ}.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal(*SAMPLE, "--import", "warning", cwd=tmp_path)
    assert terminal.finish() == 0
    assert ("\x1b[33mbeware of the dog\x1b[0m" in terminal.text) == coloured
    assert "Warning: " in terminal.text
    assert "beware of the dog" in terminal.text
    assert ("[####" in terminal.text) == drawn
    assert ("\x1b" in terminal.text) == drawn


@pytest.mark.slow
def test_numbers_agree_wherever_they_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the bar, in the summary, and in JSON; in the singular where there is one."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("CI", "")
    for sharding in ((), ("--out", "out", "--shard-size", 5)):
        terminal = Terminal(*SAMPLE, *sharding, cwd=tmp_path, columns=120)
        assert terminal.finish() == 0
        bar, summary = terminal.text.split("\x1b[?25h")
        last = re.search(r"100%  1/1 trajectory  (\d+) timesteps  in (\S+ s) +(\S+)/s", bar)
        assert last is not None, terminal.text
        assert f"wall time     {last[2]}, {last[3]} timesteps per second" in summary
        assert re.search(rf"timesteps +{last[1]}\r", summary)
    result = run(*SAMPLE, "--json", cwd=tmp_path)
    seconds = json.loads(result.stdout)["seconds"]
    assert result.stderr.startswith("1 trajectory, ")
    assert result.stderr.endswith(f" timesteps in {duration(seconds)}\n")
