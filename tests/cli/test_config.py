"""Options from a file: `--config` and `--print-config`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.cli.commands import cli
from streamsampler.evaluation.evaluation import Evaluation
from tests.cli.harness import Terminal, run


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="streamsampler")


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


@pytest.mark.slow
def test_what_is_printed_can_be_read_again(home: Path) -> None:
    """On a terminal and redirected."""
    arguments = ("scripted:Scripted-v0", "--num-samples", "1e2", "--seed", 3, "--workers", 0, "--out", "one", "--quiet")
    terminal = Terminal("sample", *arguments, "--print-config", cwd=home)
    assert terminal.finish() == 0
    result = run("sample", *arguments, "--print-config", cwd=home)
    assert result.stdout.replace("\n", "\r\n") == terminal.text
    (home / "run.toml").write_text(result.stdout)
    assert not (home / "one.npz").exists()
    assert run("sample", *arguments, cwd=home).returncode == 0
    one = (home / "one.npz").read_bytes()
    assert run("sample", "--config", "run.toml", "--out", "two", cwd=home).returncode == 0
    assert (home / "two.npz").read_bytes() == one


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda text: not text.startswith("-"))


@given(
    env_id=TEXTS, agent=TEXTS, imports=st.lists(TEXTS, max_size=3),
    kwargs=st.dictionaries(st.sampled_from("abc"), TEXTS), chosen=st.none() | st.booleans(),
    seed=st.none() | st.integers(0, 2**62), timeout=st.none() | st.floats(1e-300, 1e300),
    threads=st.none() | st.just("none") | st.integers(0, 9), bounds=st.none() | st.tuples(st.floats(), st.floats()),
)  # fmt: skip
def test_a_printed_file_has_the_same_options(tmp_path_factory: pytest.TempPathFactory, **given: Any) -> None:
    """With any text and any number."""
    args = [given["env_id"], "--agent", given["agent"], "--num-trajectories", "1_000"]
    for name in given["imports"]:
        args += ["--import", name]
    for key, value in given["kwargs"].items():
        args += ["--env-kwarg", f"{key}={value}"]
    for option, name in {"--seed": "seed", "--step-timeout": "timeout", "--worker-threads": "threads"}.items():
        if given[name] is not None:
            args += [option, str(given[name])]
    if given["bounds"] is not None:
        args += ["--bounds", *map(repr, given["bounds"])]
    if given["chosen"] is not None:
        args += ["--deterministic" if given["chosen"] else "--stochastic"]
    path = tmp_path_factory.getbasetemp() / "printed.toml"
    path.write_text(invoke("evaluate", *args, "--print-config").stdout)
    command = cli.commands["evaluate"]
    typed, read = (command.make_context("evaluate", list(each)).params for each in (args, ["--config", str(path)]))
    assert repr(sorted(typed.items())) == repr(sorted(read.items()))  # NaN among the bounds is not equal to itself


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_prints_a_file_with_every_option(name: str) -> None:
    command = cli.commands[name]
    text = invoke(name, "--print-config").stdout
    options = {option for param in command.params for option in param.opts if option.startswith("--")}
    for option in options - {"--config", "--print-config"}:
        assert f"\n# {option[2:]} = " in text
    assert tomllib.loads(text) == {}
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
        ("num-trajectories = 5\nguarantee = true", "--guarantee needs --until-halfwidth"),
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
