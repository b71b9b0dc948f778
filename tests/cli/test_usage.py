"""What a user can get wrong, without any process being started for it."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Any

import click
import gymnasium
import pytest
from click.testing import Result

from streamsampler import load
from streamsampler.cli.app import cli
from streamsampler.cli.options import Count, parse_value, size
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.engines.processes import links
from streamsampler.errors import SerializationError
from streamsampler.evaluation.evaluation import Evaluation
from tests.cli.harness import invoke


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: Any) -> None:
        pytest.fail("a worker was started")

    monkeypatch.setattr(links, "launch", launch)


def sample(*arguments: object) -> Result:
    return invoke("sample", "CartPole-v1", *arguments)


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Give one of --num-samples, --num-trajectories and --trajectories-per-worker"),
        (["--num-samples", 5, "--num-trajectories", 5], "--num-samples and --num-trajectories exclude each other"),
        (["--num-samples", "many"], "'many' is not a whole number, such as 5000, 5_000, 5e3 or 5k"),
        (["--num-samples", "1e400"], "'1e400' is more than can be counted"),
        (["--num-samples", "-5k"], "-5000 is not in the range"),
        (["--num-samples", "1,5k"], "'1,5k' is not a whole number, such as 5000, 5_000, 5e3 or 5k; a decimal point"),
        (["--num-samples", 5, "--workers", -1], "'--workers': -1"),
        (["--num-samples", 5, "--ray-address", "h:1"], "--ray-address needs --engine ray"),
        (["--num-samples", 5, "--engine", "ray", "--start-method", "fork"], "--engine ray takes no --start-method"),
        (
            ["--num-samples", 5, "--engine", "ray", "--workers", 0],
            "only worker processes take --engine: give --workers 1 or more",
        ),
        (
            ["--num-samples", 5, "--vec", 2, "--out", "x", "--shard-size", 5],
            "--shard-size needs workers that run each trajectory by itself",
        ),
        (["--num-samples", 5, "--vec-normalize", "x.pkl"], "--vec-normalize is for a model of Stable-Baselines3"),
        (["--num-samples", 5, "--agent", "nowhere.zip"], "unknown agent 'nowhere.zip': there is no such file"),
        (["--num-samples", 5, "--out", "x.csv"], ".csv is not written. What is sampled goes into a .npz file"),
        (["--num-samples", 5, "--out", "x.H5", "--shard-size", 5], ".H5 is not written"),
        (["--num-samples", 5, "--step-timeout", "nan"], "--step-timeout must be a number of seconds above 0, got nan"),
        (
            ["--num-samples", 5, "--max-restarts", -1],
            "'--max-restarts': '-1' is neither an integer of at least 0 nor 'none'",
        ),
        (["--num-samples", 5, "--max-worker-memory", "2X"], "'--max-worker-memory': '2X' is not an amount of memory"),
        (
            ["--num-samples", 5, "--max-worker-memory", "5"],
            "'5' is not an amount of memory with its unit, such as 500MB",
        ),
        (["--num-samples", 5, "--env-kwarg", "size"], "'size' is not of the form key=value"),
        (["--num-samples", 5, "--env-kwarg", "a b=1"], "'a b' is no Python name"),
        (["--num-samples", 5, "--env-kwarg", "a=1", "--env-kwarg", "a=2"], "'a' is given twice"),
        (["--num-samples", 5, "--agent", "randm"], "Did you mean 'random'?"),
        (["--num-samples", 5, "--import", "no_such_module"], "there is no module 'no_such_module'"),
        (["--num-samples", 5, "--import", "envs/my.py"], "A module goes by its name, not its file's: 'envs.my'"),
    ],
)
def test_usage_errors(arguments: list[object], words: str) -> None:
    result = sample(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("CartPol-v1", "Did you mean 'CartPole-v1'"),
        ("ALE/Pong-v5", "The package ale_py registers such: ask for 'ale_py:ALE/Pong-v5'"),
        ("Qwertyuiop-v0", "ask for 'package:Qwertyuiop-v0'. Or import it with --import."),
    ],
)
def test_an_unknown_environment_is_a_usage_error_with_suggestions(env_id: str, words: str) -> None:
    result = invoke("sample", env_id, "--num-samples", 5)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (".", "is a directory"),
        ("folder", "is a directory"),
        ("archive", "archive.npz' is a directory"),
        ("nowhere/out.npz", "there is no directory"),
        ("x" * 250, "File name too long"),
    ],
)
def test_a_file_that_cannot_be_written_is_found_out_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "archive.npz").mkdir()
    result = sample("--num-samples", 5, "--out", name)
    assert result.exit_code == 2
    assert words in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive.npz", "folder"]


@pytest.mark.usefixtures("no_workers")
def test_a_module_that_raises_shows_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising.py").write_text("def f():\n    return 1 / 0\nf()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    result = sample("--num-samples", 5, "--import", "raising")
    assert result.exit_code == 2
    assert "--import raising: importing raising raised ZeroDivisionError" in result.stderr
    assert "return 1 / 0" in result.stderr
    assert "arguments.py" not in result.stderr


@pytest.mark.usefixtures("no_workers")
def test_an_environment_that_cannot_be_made_is_a_failure() -> None:
    result = sample("--num-samples", 5, "--env-kwarg", "wheels=4")
    assert result.exit_code == 1
    assert "the environment CartPole-v1 cannot be made" in result.stderr
    assert "wheels" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_full_disk_is_a_failure_that_tells_how_to_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "out.npz")

    monkeypatch.setattr(TrajectoryBatch, "save", save)
    result = sample("--num-samples", 5, "--workers", 1, "--seed", 3, "--out", tmp_path / "out.npz", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "out.npz could not be read or written: No space left on device" in result.stderr
    assert "--seed 3" in result.stderr


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SerializationError("no way"), "no way"),
        (MemoryError("9 GB"), "there is not enough memory: 9 GB"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "Resource temporarily unavailable"),
    ],
)
def test_what_the_library_foresees_is_a_failure(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("streamsampler.samplers.choosing.MultiprocessingSampler", refuse)
    result = sample("--num-samples", 5)
    assert result.exit_code == 1
    assert words in result.stderr


def test_help_shows_examples_groups_and_defaults() -> None:
    text = invoke("sample", "--help").stdout
    for words in (
        "Examples:\n    streamsampler sample",
        "How much (exactly one of these):",
        "Output:",
        "[default: random]",
        "Exit codes:",
    ):
        assert words in text
    assert "sample" in invoke("--help").stdout


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-0.5", -0.5), ("True", True), ("true", True), ("false", False), ("null", None), ("None", None),
        ("human", "human"), ("'3'", "3"), ("[1, 2]", [1, 2]), ("{'a': 1}", {"a": 1}), ("", ""), ("4x4", "4x4"),
        ("a=b", "a=b"), ("(" * 10_000, "(" * 10_000),
    ],
)  # fmt: skip
def test_values_are_literals_or_text(text: str, value: object) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("2G", 2 << 30), ("500m", 500 << 20), ("1.5K", 1536), ("500MB", 500 << 20), ("2GiB", 2 << 30), ("3 MB", 3 << 20)],
)
def test_amounts_of_memory(text: str, n_bytes: int) -> None:
    assert size(click.Context(cli), click.Option(["--size"]), text) == n_bytes


THINGS = """
import gymnasium as gym

class Things(gym.Space):
    def sample(self, mask=None, probability=None):
        return object()
    def contains(self, x):
        return True

class Env(gym.Env):
    observation_space = gym.spaces.Dict(thing=Things())
    action_space = gym.spaces.Discrete(2)

gym.register("Things-v0", Env)
"""


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize("sharding", [(), ("--shard-size", 5)])
def test_data_that_cannot_be_written_are_found_out_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharding: tuple[object, ...]
) -> None:
    (tmp_path / "things_env.py").write_text(THINGS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    result = invoke("sample", "things_env:Things-v0", "--num-samples", 9, "--out", "new", *sharding)
    assert result.exit_code == 1
    assert "observation_space['thing'] holds a builtins.object: only numbers, strings" in result.stderr
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".py" and path.name != "__pycache__"] == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1000", 1000), ("1_000", 1000), ("1,000", 1000), ("1e3", 1000), ("1.5e3", 1500), ("10k", 10_000),
        ("2M", 2 * 10**6), (".5K", 500), ("1g", 10**9), ("9007199254740993", 2**53 + 1), ("1e6", 10**6),
        (" 7 ", 7), ("1 k", 1000), (5, 5), ("1,000,000", 10**6), ("1_0", 10),
    ],
)  # fmt: skip
def test_counts_as_people_write_them(text: object, number: int) -> None:
    converted = Count(min=1).convert(text, None, None)
    assert (converted, type(converted)) == (number, int)


@pytest.mark.parametrize("kind", ["ParallelEnv", "AECEnv"])
def test_an_environment_of_several_agents_is_named_for_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """PettingZoo's, of which its name alone is needed here."""
    (tmp_path / "pettingzoo.py").write_text(f"class {kind}:\n    pass\n")
    chess = f"class Chess(pettingzoo.{kind}):\n    pass\ngymnasium.register('Chess-v0', Chess)\n"
    (tmp_path / "several.py").write_text(f"import gymnasium, pettingzoo\n{chess}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("pettingzoo", "several"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    result = invoke("sample", "several:Chess-v0", "--num-samples", 5)
    monkeypatch.delitem(sys.modules, "pettingzoo", raising=False)
    monkeypatch.delitem(sys.modules, "several", raising=False)
    gymnasium.registry.pop("Chess-v0", None)
    assert result.exit_code == 1
    assert "Chess-v0 is an environment of PettingZoo, for several agents" in result.stderr


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = sample("--num-samples", 5, "--engine", "ray")
    assert result.exit_code == 1
    assert "RaySampler needs Ray: pip install ray (in a clone" in result.stderr


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(
    ("file", "arguments", "words"),
    [
        ("tasks.json", ["--trajectories-per-worker", 2], "--tasks needs --num-trajectories"),
        (
            "tasks.json",
            ["--num-samples", 9, "--out", "x", "--shard-size", 5],
            "--tasks needs --num-trajectories or --num-samples, and no --shard-size",
        ),
        ("none.json", ["--num-samples", 9], "'none.json' holds no task"),
        ("one.json", ["--num-samples", 9], "'one.json' should hold a list such as [0.5"),
        ("missing.json", ["--num-samples", 9], "'missing.json' cannot be read"),
        ("tasks.json", ["--num-samples", 9, "--workers", 0], "set_task"),
    ],
)
def test_tasks_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, arguments: list[Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("tasks.json", "[1]"), ("none.json", "[]"), ("one.json", '{"task": 1}')):
        Path(name).write_text(text)
    result = sample("--tasks", file, *arguments)
    assert result.exit_code == (1 if words == "set_task" else 2)
    # Versions of click quote it, or have a colon before it.
    assert words in " ".join(result.stderr.split()).replace("option: ", "option ").replace("option '-u'", "option -u")


SHORT = {"--out": "-o", "--quiet": "-q"}
NUMBERS = {"sample": "--num-samples", "evaluate": "--num-trajectories", "compare": "--num-trajectories"}


@pytest.mark.parametrize("name", cli.commands)
def test_the_options_that_are_typed_most_have_short_names_in_each_command(name: str) -> None:
    options = [option for option in cli.commands[name].params if isinstance(option, click.Option)]
    expected = {**SHORT, **({NUMBERS[name]: "-n"} if name in NUMBERS else {})}
    short = {long: option.opts for option in options for long in option.opts if long in expected}
    for long, opts in short.items():
        assert opts == [expected[long], long], "the long name is last: errors end with it"
    assert {opt for option in options for opt in option.opts if not opt.startswith("--")} == {
        expected[long] for long in short
    }
    assert name not in NUMBERS or NUMBERS[name] in short


def test_short_names_do_what_long_ones_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    common = ("--seed", 3, "--workers", 0)
    for short, long in (
        (sample("-n", "1k", "-o", "short", "-q", *common), sample("--num-samples", 1000, "--out", "long", *common)),
        (
            invoke("evaluate", "CartPole-v1", "-qn5", "-o", "short.json", *common),
            invoke("evaluate", "CartPole-v1", "--num-trajectories", 5, "--out", "long.json", *common),
        ),
    ):
        assert (short.exit_code, short.stderr) == (long.exit_code, "") == (0, "")
    assert load("short") == load("long")
    assert load("short").n_timesteps >= 1000
    short_file, long_file = (Evaluation.load(f"{name}.json") for name in ("short", "long"))
    assert short_file.returns.tolist() == long_file.returns.tolist()
    assert len(short_file) == 5
