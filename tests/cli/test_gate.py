"""The command `compare --fail-if-worse`: its exit codes, and where the verdict stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamsampler.evaluation.comparison import Comparison
from tests.cli.harness import invoke

COMPARE = ("compare", "scripted:Scripted-v0", "--seed", 5, "--workers", 0)
BETTER = ("--agent", "random", "--agent", "scripted:always_two")
WORSE = ("--agent", "scripted:always_two", "--agent", "random")
SAME = ("--agent", "scripted:always_two", "--agent", "scripted:always_two")
FIXED = ("--num-trajectories", 40)
SURE = ("--until-decided", 0.05, "--bounds", 0, 20)


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        ((*BETTER, *FIXED, "--fail-if-worse", 0), 0, "scripted:always_two is not worse than random: difference"),
        ((*WORSE, *FIXED, "--fail-if-worse", 1), 3, "random is worse than scripted:always_two by more than 1: "),
        ((*SAME, *FIXED, "--fail-if-worse", 0), 0, "is 0 in all 40 pairs"),
        (
            (*WORSE, *FIXED, "--fail-if-worse", 5.2),
            4,
            "undecided: random may be worse than scripted:always_two by more",
        ),
        ((*WORSE, "--num-trajectories", 5, "--fail-if-worse", 1), 4, "it likely takes at least 15 more pairs"),
        ((*BETTER, *WORSE[2:], *FIXED, "--fail-if-worse", 0), 0, "scripted:always_two is not worse than random"),
        ((*WORSE, *SAME[2:], *FIXED, "--fail-if-worse", 1), 3, "random is worse than"),
        ((*WORSE, *SURE, "--fail-if-worse", 1), 3, "random is worse than scripted:always_two by more than 1"),
        ((*SAME, *SURE, "--fail-if-worse", 4), 0, "is 0 in all"),
        ((*WORSE, *FIXED), 0, ""),
        ((*WORSE, *SURE), 0, ""),
    ],
)
def test_the_exit_code_is_the_verdict(at_home: Path, arguments: tuple[object, ...], code: int, line: str) -> None:
    result = invoke(*COMPARE, *arguments, "--quiet")
    assert (result.exit_code, result.stderr) == (code, "")
    verdicts = [each for each in result.stdout.splitlines() if each.startswith("verdict: ")]
    assert any(line in each for each in verdicts) is bool(line)
    assert len(verdicts) == (arguments.count("--agent") - 1) * bool(line)


def test_files_and_json_have_the_verdict(at_home: Path) -> None:
    result = invoke(*COMPARE, *WORSE, *FIXED, "--fail-if-worse", 1, "--out", "found", "--json", "--quiet")
    assert (result.exit_code, result.stdout) == (3, Path("found.json").read_text())
    found = Comparison.load("found.json")
    facts = json.loads(result.stdout)
    assert (facts["margin"], facts["verdict"]) == (1.0, found.verdict().facts())
    assert facts["verdict"]["outcome"] == "worse"
    shown = invoke("info", "found.json")
    assert (shown.exit_code, str(found.verdict()) in shown.stdout) == (0, True)
    printed = invoke(*COMPARE, *WORSE, *FIXED, "--fail-if-worse", 1, "--out", "found", "--quiet")
    assert printed.stdout == f"{found}\nwritten to: found.json\n"


def test_a_file_of_options_has_a_margin(at_home: Path) -> None:
    agents = '["scripted:always_two", "random"]'
    Path("gate.toml").write_text(f"agent = {agents}\nnum-trajectories = 40\nfail-if-worse = 1\n")
    assert invoke(*COMPARE, "--config", "gate.toml").exit_code == 3
    assert invoke(*COMPARE, "--config", "gate.toml", "--fail-if-worse", 15).exit_code == 0


def test_a_signal_has_its_own_exit_code(at_home: Path) -> None:
    agents = ("--agent", "scripted:always_two", "--agent", "scripted:later", "--num-trajectories", 700)
    result = invoke(*COMPARE, *agents, "--fail-if-worse", 1)
    assert result.exit_code == 143, result.stderr
    assert "scripted:later is worse than scripted:always_two by more than 1" in result.stdout
    before = invoke(*COMPARE, *agents[:2], "--agent", "scripted:at_once", *FIXED, "--fail-if-worse", 1)
    assert (before.exit_code, "verdict" in before.stdout) == (143, False)


def test_the_help_explains_the_exit_codes() -> None:
    text = invoke("compare", "--help").stdout
    assert "with --fail-if-worse 0 no agent is worse, 3 an agent is worse, 4 undecided" in text
    assert "3 an agent" not in invoke("evaluate", "--help").stdout
