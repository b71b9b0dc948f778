"""Options from a file: `--config`."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from streamsampler.cli.app import cli
from streamsampler.evaluation.evaluation import Evaluation
from tests.cli.harness import invoke, run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.toml"


@pytest.mark.slow
def test_a_file_holds_options_and_what_is_typed_wins(home: Path) -> None:
    lines = (
        'env-id = "scripted:Scripted-v0"', 'agent = "scripted:always_two"', "num_trajectories = 6", "seed = 5",
        "workers = 0", "json = true", "quiet = true", "[env-kwarg]", "endless_from = 100", "announce = 'nowhere'",
    )  # fmt: skip
    (home / "run.toml").write_text("\n".join(lines))
    result = run("evaluate", "--config", "run.toml", cwd=home)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    found = Evaluation.from_json(result.stdout)
    assert (len(found), found.seed, found.agent["name"]) == (6, 5, "always_two")
    assert found.settings["env_kwargs"] == {"endless_from": 100, "announce": "nowhere"}

    typed = ("--seeds", "3-5", "--agent", "random", "--env-kwarg", "endless_from=50")
    found = Evaluation.from_json(run("evaluate", "--config", "run.toml", *typed, cwd=home).stdout)
    assert (found.seeds, found.agent["name"]) == ((3, 4, 5), "RandomAgent")
    assert found.settings["env_kwargs"] == {"endless_from": 50}


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_takes_a_file(name: str) -> None:
    assert "--config FILE" in invoke(name, "--help").stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "num-trajectorys = 5",
            "has 'num-trajectorys', which is no option of evaluate. Did you mean 'num-trajectories'?",
        ),
        ("qqqqqqqq = 5", "has 'qqqqqqqq', which is no option of evaluate. There are aec, agent, "),
        ("config = 'x'", "has 'config', which is no option"),
        ("shard-size = 5", "has 'shard-size', which is no option of evaluate"),
        ("num-trajectories = ", "is no TOML: Invalid value (at end of document)"),
        ("num-trajectories = true", "num-trajectories should be a text or a number, and is True"),
        ("num-trajectories = 12.5", "'--num-trajectories': '12.5' is not a whole number (in "),
        ("num-trajectories = [5]", "num-trajectories should be a text or a number, and is [5]"),
        ("seed = 1.5", "'--seed': '1.5' is not a valid integer range. (in"),
        ("json = 1", "json should be true or false, and is 1"),
        ("bounds = [1, 2, 3]", "bounds should be a list of 2 values, and is [1, 2, 3]"),
        ("env-kwarg = ['size']", "'--env-kwarg': 'size' is not of the form key=value (in"),
        ("seeds = [3, 1979-05-27]", "seeds should be a text or a number"),
        ("num-trajectories = 5\nseeds = '3'", "--num-trajectories and --seeds exclude each other"),
        ("num-trajectories = 5\nguarantee = true", "--guarantee is for --until-halfwidth"),
    ],
)
def test_what_is_wrong_in_a_file(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    result = invoke("evaluate", "CartPole-v1", "--config", file)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split()), result.stderr


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = invoke("evaluate", "--config", tmp_path / "nowhere.toml")
    assert result.exit_code == 2
    assert "nowhere.toml' cannot be read: No such file or directory" in result.stderr


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("until-halfwidth = 5\nguarantee = true\nbounds = [0, 500]", ("--num-trajectories", 3)),
        ("num-trajectories = 900000", ("--seeds", "1-3")),
        ("seeds = [8, '10-20']", ("--num-trajectories", 3)),
        ("seeds = [7, '1-2']", ()),
    ],
)
def test_what_is_typed_replaces_what_it_excludes(file: Path, text: str, typed: tuple[object, ...]) -> None:
    file.write_text(f"{text}\njson = true\nworkers = 0")
    result = invoke("evaluate", "CartPole-v1", "--config", file, *typed)
    assert result.exit_code == 0, result.stderr
    assert len(Evaluation.from_json(result.stdout)) == 3


def test_two_commands_do_not_share_a_file(file: Path) -> None:
    file.write_text("seed = 5")
    command = cli.commands["evaluate"]
    with command.make_context("evaluate", ["CartPole-v1", "--config", str(file)]) as ctx:
        assert ctx.params["seed"] == 5
    with command.make_context("evaluate", ["CartPole-v1"]) as other:
        assert isinstance(other, click.Context)
        assert other.params["seed"] is None
