"""Suites of tasks on the command line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from streamsampler import evaluate
from streamsampler.evaluation.suites.suite_comparison import SuiteComparison
from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation
from tests.cli.harness import invoke

SUITE = """
num-trajectories = 6
seed = 3
workers = 0
[tasks.cart]
env = "CartPole-v1"
normalise = [0, 500]
[tasks.hills.acro]
env = "Acrobot-v1"
num-trajectories = 2
max_steps = 1
[tasks."hills/car"]
env = "MountainCar-v0"
normalise = [-200, -90]
env-kwargs = { goal_velocity = 0.1 }
"""
VALID = SUITE.replace("max_steps = 1\n", "normalise = [-500, -60]\n")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite.toml"
    path.write_text(VALID)
    return path


def test_the_command_finds_the_result_of_the_library(suite: Path, tmp_path: Path) -> None:
    result = invoke("evaluate", "--suite", suite, "--out", tmp_path / "out.json")
    assert result.exit_code == 0, result.stderr
    envs = {"cart": "CartPole-v1", "hills/acro": "Acrobot-v1"}
    found = SuiteEvaluation.load(tmp_path / "out.json")
    assert result.stdout == f"{found}\nwritten to: {tmp_path / 'out.json'}\n"
    assert {name: len(found[name]) for name in found} == {"cart": 6, "hills/acro": 2, "hills/car": 6}
    for name, env in envs.items():
        assert found[name] == evaluate("random", env, n_trajectories=len(found[name]), seed=3, n_workers=0)
    assert found.normalise is not None
    assert found.normalise["cart"] == (0, 500)


def test_typed_numbers_win_over_those_of_tasks(suite: Path) -> None:
    result = invoke("evaluate", "--suite", suite, "--num-trajectories", 3, "--json")
    assert result.exit_code == 0, result.stderr
    assert {len(it) for it in SuiteEvaluation.from_json(result.stdout).evaluations} == {3}


@pytest.mark.parametrize("numbers", ["", "num-trajectories = 9"])
def test_a_file_goes_on_without_a_number(tmp_path: Path, numbers: str) -> None:
    suite, out = tmp_path / "suite.toml", tmp_path / "out.json"
    suite.write_text(f"workers = 0\n[tasks.cart]\nenv = 'CartPole-v1'\n[tasks.acro]\nenv = 'Acrobot-v1'\n{numbers}\n")
    assert invoke("evaluate", "--suite", suite, "--num-trajectories", 2, "--seed", 3, "--out", out).exit_code == 0
    whole = out.read_text()
    result = invoke("evaluate", "--suite", suite, "--resume", out)
    assert result.exit_code == 0, result.stderr
    assert out.read_text() == whole
    assert invoke("evaluate", "--suite", suite, "--resume", tmp_path / "other.json").exit_code == 2


def test_tables_are_printed_alone(suite: Path) -> None:
    markdown = invoke("evaluate", "--suite", suite, "--table", "md", "--task", "cart")
    assert markdown.stdout.startswith("| task | trajectories |")
    rows = list(csv.DictReader(io.StringIO(invoke("evaluate", "--suite", suite, "--table", "csv").stdout)))
    assert [row["name"] for row in rows] == ["cart", "hills/acro", "hills/car", "hills", "all tasks"]


def left(observation: Any) -> int:
    return 0


def in_hills_alone(observation: Any) -> int:
    if len(observation) == 4:
        raise ValueError("four numbers")
    return 0


def test_each_task_may_have_an_agent(suite: Path) -> None:
    suite.write_text(VALID.replace("[tasks.cart]\n", f'[tasks.cart]\nagent = "{__name__}:left"\n'))
    result = invoke("evaluate", "--suite", suite, "--json")
    assert result.exit_code == 0, result.stderr
    found = SuiteEvaluation.from_json(result.stdout)
    assert [found[name].agent["name"] for name in found] == ["left", "RandomAgent", "RandomAgent"]


def test_a_failed_task_is_an_exit_code_and_the_others_are_printed(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = invoke("evaluate", "--suite", suite, "--agent", f"{__name__}:in_hills_alone", "--out", out)
    assert result.exit_code == 1, result.stdout
    assert "cart: worker 0 failed while choosing an action" in result.stdout
    found = SuiteEvaluation.load(out)
    assert (list(found), list(found.failed)) == (["hills/acro", "hills/car"], ["cart"])


def test_a_file_is_shown_and_drawn(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    invoke("evaluate", "--suite", suite, "--out", out)
    shown = invoke("info", out)
    assert shown.exit_code == 0, shown.stderr
    assert "suite: " in shown.stdout
    assert "hills/car" in shown.stdout
    assert json.loads(invoke("info", out, "--json").stdout)["kind"] == "suite"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SUITE, "[tasks.hills.acro] has 'max-steps', which no task has"),
        ("seed = 1\n", "has no tasks: write a table for each"),
        ("[tasks.push]\nnum-trajectories = 2\n", "[tasks.push] has no env"),
        ("[tasks]\npush = 3\n", "[tasks.push] should be a table"),
        ("[tasks.push]\nenv = 3\n", "env should be a text, but is 3"),
        ('[tasks.push]\nenv = "CartPole-v1"\nnormalise = 3\n', "normalise should be a list of two numbers"),
        (
            'sede = 1\n[tasks.push]\nenv = "CartPole-v1"\n',
            "'sede', which is not an option of evaluate. Did you mean 'seed'",
        ),
        ('[tasks.push]\nenv = "CartPole-v1"\n', "How much? Give one of"),
        (
            '[tasks.a]\nenv = "CartPole-v1"\nnum-trajectories = 2\n[tasks.b]\nenv = "CartPole-v1"\n',
            "trajectories of 'b'",
        ),
        ('[tasks.a]\nenv = "Nothing-v1"\nnum-trajectories = 2\n', "task 'a': "),
        ('[tasks.a]\nenv = "CartPole-v1"\n[tasks.a]\nenv = "CartPole-v1"\n', "is no TOML"),
    ],
)
def test_wrong_files_are_refused(suite: Path, text: str, message: str) -> None:
    suite.write_text(text)
    result = invoke("evaluate", "--suite", suite)
    assert result.exit_code == 2, result.stderr
    assert message in " ".join(result.stderr.split())


def test_wrong_options_are_refused(suite: Path) -> None:
    for options, message in (
        (("CartPole-v1", "--suite", suite), "ENV_ID and --suite exclude each other"),
        (("--num-trajectories", 3), "Missing argument 'ENV_ID', or --suite FILE"),
        (("CartPole-v1", "--num-trajectories", 3, "--task", "a"), "--task needs a suite"),
        (("CartPole-v1", "--num-trajectories", 3, "--table", "md"), "--table needs a suite"),
        (("--suite", suite, "--task", "push"), "'push', which is no task"),
        (("--suite", "nothing.toml"), "cannot be read"),
    ):
        result = invoke("evaluate", *options)
        assert result.exit_code == 2, result.stderr
        assert message in " ".join(result.stderr.split())


def test_a_gate_on_a_suite_goes_on_until_it_is_decided(tmp_path: Path) -> None:
    path, out = tmp_path / "suite.toml", tmp_path / "both.json"
    path.write_text(
        'num-trajectories = 6\nseed = 3\nworkers = 0\n[tasks.cart]\nenv = "CartPole-v1"\nbounds = [0, 500]\n'
        '[tasks.car]\nenv = "MountainCar-v0"\nbounds = [-200, 0]\n'
    )
    command = ("compare", "--suite", path, "--agent", "random", "--agent", "random", "--fail-if-worse", 5, "--quiet")
    result = invoke(*command, "--until-decided", 0.05, "--max-trajectories", 23, "--out", out)
    assert result.exit_code == 0, result.stderr  # the agents are equal in all pairs
    assert "stopped: undecided after 23 trajectories of each task, the most" in result.stdout
    found = SuiteComparison.load(out)
    assert (found.until_decided, found.margin) == (0.05, 5)
    assert [it.bounds for it in found.suites[0].evaluations] == [(0, 500), (-200, 0)]
    result = invoke(*command, "--until-decided", 0.05, "--part", "1/2")
    assert (result.exit_code, "a part is for" in result.stderr) == (2, True)
    path.write_text(path.read_text().replace("bounds = [-200, 0]\n", ""))
    result = invoke(*command, "--until-decided", 0.05)
    assert (result.exit_code, "'car' has none" in result.stderr) == (2, True)
