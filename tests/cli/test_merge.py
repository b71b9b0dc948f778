"""`--part` and the command `merge`: the bytes of one run, also where a part was killed and run again."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from streamsampler.cli.app import cli
from streamsampler.engines.processes import links
from tests.cli.harness import Announcements, finish, run, start

AMOUNT = ("--num-trajectories", 23, "--seed", 3)
HERE = ("--workers", 0)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="streamsampler")


def done(*arguments: object) -> Result:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    return result


def contents(path: Path) -> dict[str, bytes]:
    files = path.iterdir() if path.is_dir() else [path]
    return {file.name if path.is_dir() else "": file.read_bytes() for file in files}


EVALUATED = ("evaluate", "CartPole-v1", "--out")
COMPARED = ("compare", "CartPole-v1", "--agent", "random", "--agent", "random", "--out")


@pytest.mark.parametrize(
    ("command", "suffix", "printed"),
    [
        (EVALUATED, ".json", "RandomAgent in CartPole-v1: 23 trajectories\n"),
        pytest.param(
            COMPARED, ".json", "random, random #2 in CartPole-v1, on the same seeds\n", marks=pytest.mark.slow
        ),
    ],
)
def test_parts_are_merged_to_what_one_run_writes(
    tmp_path: Path, command: tuple[object, ...], suffix: str, printed: str
) -> None:
    done(*command, tmp_path / f"whole{suffix}", *AMOUNT, *HERE)
    parts = [tmp_path / f"part-{number}{suffix}" for number in (2, 3, 1)]
    for part in parts:
        done(*command, part, *AMOUNT, *HERE, "--part", f"{part.stem[-1]}/3")
    result = done("merge", *parts, "--out", tmp_path / "merged")
    merged = tmp_path / f"merged{suffix}"
    assert contents(merged) == contents(tmp_path / f"whole{suffix}")
    assert printed in result.stdout
    assert str(merged) in result.stdout
    assert result.stderr == "3 parts merged\n"

    result = done("merge", *parts, "--out", tmp_path / f"again{suffix}", "--json", "--quiet")
    assert json.loads(result.stdout) == json.loads(merged.read_text())
    assert result.stderr == ""
    missing = invoke("merge", *parts[1:], "--out", tmp_path / "other")
    assert (missing.exit_code, "Error: part 2 of 3 is missing" in missing.stderr) == (2, True)


EVALUATE = ("evaluate", "CartPole-v1", "--part", "1/2")
COMPARE = ("compare", "CartPole-v1", "--agent", "random", "--agent", "random", "--part", "1/2")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*EVALUATE, *AMOUNT, *HERE, "--part", "3/2"), "there is no part 3 of 2"),
        ((*EVALUATE, *AMOUNT, "--part", "two"), "'two' is not a part's number and how many there are, such as 2/7"),
        ((*EVALUATE, "--until-halfwidth", 5, "--seed", 1), "where --until-halfwidth stops is known only when all"),
        ((*EVALUATE, "--num-trajectories", 5), "give --seed, the same for all parts"),
        ((*EVALUATE, *AMOUNT, "--on-failure", "drop"), "a part cannot be sampled with --on-failure drop"),
        (("evaluate", "CartPole-v1", *AMOUNT, "--part", "1/24"), "23 trajectories cannot be cut into 24 parts"),
        ((*COMPARE, *AMOUNT, "--on-failure", "drop"), "a part cannot be sampled with --on-failure drop"),
        (("merge", "nowhere.npz", "--out", "x"), "Invalid value for PART: there is no file or folder 'nowhere.npz'"),
        (("merge", "here.txt", "--out", "x"), "here.txt is no part: it holds neither an evaluation nor a comparison"),
        (("merge", "here.txt"), "Missing option '-o' / '--out'"),
        (("merge", "--out", "x"), "Missing argument 'PART...'"),
    ],
)
def test_wrong_usage(home: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], words: str) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setattr(links, "launch", lambda *_: pytest.fail("a worker was started"))
    (home / "here.txt").write_text("something")
    result = invoke(*arguments)
    assert result.exit_code == (1 if words.startswith("here.txt") else 2)
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(home.glob("x*"))


def test_the_output_is_checked_as_that_of_other_commands(tmp_path: Path) -> None:
    done(*EVALUATED, tmp_path / "part.json", *AMOUNT, *HERE, "--part", "1/1")
    for out, words in (("x.npz", ".npz is not written"), ("nowhere/x", "there is no directory"), (".", "a directory")):
        result = invoke("merge", tmp_path / "part.json", "--out", tmp_path / out)
        assert result.exit_code == 2
        assert "Invalid value for '--out': " in result.stderr
        assert words in result.stderr


def test_seeds_and_scenarios_in_parts_need_no_seed(tmp_path: Path) -> None:
    scenarios = tmp_path / "scenarios.json"
    scenarios.write_text(json.dumps([{"seed": number, "name": f"s{number}"} for number in range(5)]))
    for number, amount in enumerate([("--seeds", "0-9"), ("--scenarios", scenarios)]):
        done(*EVALUATED, tmp_path / f"{number}.json", *amount, *HERE)
        parts = [tmp_path / f"{number}-{part}.json" for part in (1, 2)]
        for part, path in enumerate(parts, 1):
            done(*EVALUATED, path, *amount, *HERE, "--part", f"{part}/2")
        done("merge", *parts, "--out", tmp_path / "merged.json")
        assert (tmp_path / "merged.json").read_bytes() == (tmp_path / f"{number}.json").read_bytes()
    scenarios.write_text('[{"name": "a"}, {"name": "b"}]')
    assert (
        "give --seed, the same for all parts"
        in invoke(*EVALUATED, tmp_path / "x", "--scenarios", scenarios, "--part", "1/2").stderr
    )


@pytest.mark.slow
def test_a_part_that_ctrl_c_ended_is_not_taken_for_a_whole_one(home: Path, announcements: Announcements) -> None:
    # So many that they are in several tickets: the command must have taken some before the worker gets there.
    endless = ("--env-kwarg", "endless_from=20000", "--env-kwarg", f"announce={announcements.path}")
    several = (
        "scripted:Scripted-v0",
        "--seed",
        3,
        "--num-trajectories",
        40_000,
        "--workers",
        1,
        "--part",
        "1/1",
        *endless,
    )
    process = start("evaluate", "--out", "found.json", *several, cwd=home)
    announcements.wait()
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert result.returncode == 130, result.stderr
    merged = invoke("merge", home / "found.json", "--out", home / "merged")
    assert (merged.exit_code, "part 1 of 1, has" in merged.stderr) == (2, True), merged.stderr
    assert not list(home.glob("merged*"))


@pytest.mark.slow
def test_one_of_seven_parts_is_killed_and_run_again(home: Path, announcements: Announcements) -> None:
    """Through the entry point."""
    # The part has four trajectories: whichever of two workers runs which, one of them begins a second one.
    endless = ("--env-kwarg", "endless_from=2", "--env-kwarg", f"announce={announcements.path}")
    command = ("evaluate", "CartPole-v1", *AMOUNT)
    assert run(*command, "--out", "found.json", "--workers", 2, cwd=home).returncode == 0
    parts = [home / f"{number}.json" for number in range(1, 8)]
    # Each a process of its own, as the one that is killed: files have the versions of libraries that it loaded.
    others = [
        start(*command, "--out", part, "--part", f"{number}/7", *HERE, cwd=home)
        for number, part in enumerate(parts, 1)
        if number != 4
    ]
    assert [finish(process).returncode for process in others] == [0] * 6
    process = start("evaluate", "scripted:Scripted-v0", *AMOUNT, "--out", parts[3], "--part", "4/7",
                    "--workers", 2, *endless, cwd=home)  # fmt: skip
    announcements.wait()
    process.send_signal(signal.SIGKILL)
    assert finish(process).returncode == -signal.SIGKILL
    there = [part for part in parts if part.exists()]
    assert run("merge", *there, "--out", "merged.json", cwd=home).returncode == 2
    assert not (home / "merged.json").exists()
    assert run(*command, "--out", parts[3], "--part", "4/7", "--workers", 1, cwd=home).returncode == 0
    result = run("merge", *reversed(parts), "--out", "merged.json", cwd=home)
    assert result.returncode == 0, result.stderr
    assert (home / "merged.json").read_bytes() == (home / "found.json").read_bytes()
