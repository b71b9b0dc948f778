"""The values of options, as people write them: on the command line, and in the file of `--config`."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from streamsampler.cli.app import cli
from streamsampler.cli.sampler_options import storable
from streamsampler.cli.values import Count, parse_value, size
from streamsampler.evaluation.evaluation import Evaluation
from tests.cli.harness import invoke, told


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1000", 1000), ("1_000", 1000), ("1,000,000", 10**6), ("1.5e3", 1500), ("10k", 10_000), ("2M", 2 * 10**6),
        (".5K", 500), ("1g", 10**9), ("9007199254740993", 2**53 + 1), (" 7 ", 7), ("1 k", 1000), (5, 5),
    ],
)  # fmt: skip
def test_counts(text: object, number: int) -> None:
    converted = Count(min=1).convert(text, None, None)
    assert (converted, type(converted)) == (number, int)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-0.5", -0.5), ("True", True), ("true", True), ("false", False), ("null", None), ("None", None),
        ("human", "human"), ("'3'", "3"), ("{'a': 1}", {"a": 1}), ("", ""), ("4x4", "4x4"), ("a=b", "a=b"),
        ("(" * 10_000, "(" * 10_000),
    ],
)  # fmt: skip
def test_values_are_literals_or_text(text: str, value: object) -> None:
    parsed = parse_value(text)
    assert (parsed, type(parsed)) == (value, type(value))


def test_what_json_cannot_hold_is_stored_as_python_writes_it() -> None:
    assert storable({"a": [1, None], "b": {2, 1}, "c": (1,), "d": {1: 2}, "e": float("nan")}) == {
        "a": [1, None], "b": "{1, 2}", "c": "(1,)", "d": "{1: 2}", "e": "nan",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("2G", 2 << 30), ("500m", 500 << 20), ("1.5K", 1536), ("500MB", 500 << 20), ("2GiB", 2 << 30), ("3 MB", 3 << 20)],
)
def test_amounts_of_memory(text: str, n_bytes: int) -> None:
    assert size(text) == n_bytes


@pytest.mark.parametrize("name", cli.commands)
def test_the_options_that_are_typed_most_have_short_names(name: str) -> None:
    options = [option for option in cli.commands[name].params if isinstance(option, click.Option)]
    expected = {"--out": "-o", "--quiet": "-q"}  # and no -n, which would mean timesteps here and trajectories there
    short = {option.opts[-1]: option.opts[0] for option in options if not option.opts[0].startswith("--")}
    assert short == {long: expected[long] for option in options for long in option.opts if long in expected}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.toml"


def test_a_file_holds_options_and_what_is_typed_wins(at_home: Path, file: Path) -> None:
    lines = (
        'env-id = "scripted:Scripted-v0"', 'agent = "scripted:always_two"', "num_trajectories = 6", "seed = 5",
        "workers = 0", "json = true", "quiet = true", "[env-kwarg]", "endless_from = 100", "announce = 'nowhere'",
    )  # fmt: skip
    file.write_text("\n".join(lines))
    result = invoke("evaluate", "--config", file)
    assert (result.exit_code, result.stderr) == (0, "")
    found = Evaluation.from_json(result.stdout)
    assert (len(found), found.seed, found.agent["name"]) == (6, 5, "always_two")
    assert found.settings["env_kwargs"] == {"endless_from": 100, "announce": "nowhere"}

    typed = ("--seeds", "3-5", "--agent", "random", "--env-kwarg", "endless_from=50")
    found = Evaluation.from_json(invoke("evaluate", "--config", file, *typed).stdout)
    assert (found.seeds, found.agent["name"]) == ((3, 4, 5), "RandomAgent")
    assert found.settings["env_kwargs"] == {"endless_from": 50}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "num-trajectorys = 5",
            "'num-trajectorys', which is not an option of evaluate. Did you mean 'num-trajectories'?",
        ),
        ("qqqqqqqq = 5", "has 'qqqqqqqq', which is not an option of evaluate. There are aec, agent, "),
        ("config = 'x'", "has 'config', which is not an option"),
        ("shard-size = 5", "has 'shard-size', which is not an option of evaluate"),
        ("num-trajectories = ", "is no TOML: Invalid value (at end of document)"),
        ("num-trajectories = true", "num-trajectories should be a text or a number, but is True"),
        ("num-trajectories = 12.5", "'--num-trajectories': '12.5' is not a whole number (in "),
        ("num-trajectories = [5]", "num-trajectories should be a text or a number, but is [5]"),
        ("json = 1", "json should be true or false, but is 1"),
        ("bounds = [1, 2, 3]", "bounds should be a list of 2 values, but is [1, 2, 3]"),
        ("env-kwarg = ['size']", "'--env-kwarg': 'size' is not of the form key=value (in"),
        ("seeds = [3, 1979-05-27]", "seeds should be a text or a number"),
        ("num-trajectories = 5\nseeds = '3'", "--num-trajectories and --seeds exclude each other"),
        (None, "run.toml' cannot be read: No such file or directory"),
    ],
)
def test_what_is_wrong_in_a_file(file: Path, text: str | None, words: str) -> None:
    if text is not None:
        file.write_text(text)
    result = invoke("evaluate", "CartPole-v1", "--config", file)
    assert (result.exit_code, words in told(result)) == (2, True), result.stderr


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("until-halfwidth = 5\nguarantee = true\nbounds = [0, 500]", ("--num-trajectories", 3)),
        ("num-trajectories = 900000", ("--seeds", "1-3")),
        ("seeds = [7, '1-2']", ()),
    ],
)
def test_what_is_typed_replaces_what_it_excludes(file: Path, text: str, typed: tuple[object, ...]) -> None:
    file.write_text(f"{text}\njson = true\nworkers = 0")
    result = invoke("evaluate", "CartPole-v1", "--config", file, *typed)
    assert result.exit_code == 0, result.stderr
    assert len(Evaluation.from_json(result.stdout)) == 3
