"""The options `--resume` and the files of `compare`: saved evaluations go on, and are compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamsampler import compare
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from tests.cli.harness import invoke, told

EVALUATE = ("evaluate", "CartPole-v1", "--workers", 0)
SCRIPTED = ("scripted:Scripted-v0", "--workers", 0, "--agent", "scripted:always_two")
MANY = ("--num-trajectories", 700, "--seed", 5)


def done(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_file_goes_on_to_what_one_command_writes(tmp_path: Path) -> None:
    whole, path, other = (tmp_path / f"{name}.json" for name in ("whole", "x", "other"))
    done(*EVALUATE, "--num-trajectories", 30, "--seed", 1, "--out", whole)
    done(*EVALUATE, "--num-trajectories", 12, "--seed", 1, "--out", path)
    before = path.read_text()
    assert f"written to: {other}\n" in done(*EVALUATE, "--num-trajectories", 30, "--resume", path, "--out", other)
    assert (other.read_text(), path.read_text()) == (whole.read_text(), before)
    for more in (("--num-trajectories", "30"), ()):  # the second time there is nothing to do
        printed = done(*EVALUATE, "--resume", tmp_path / "x", *more)
        assert "RandomAgent in CartPole-v1: 30 trajectories\n" in printed
        assert f"stopped: as many as were asked for\nwritten to: {path}\n" in printed
        assert path.read_text() == whole.read_text()
    new = invoke(*EVALUATE, "--num-trajectories", 30, "--seed", 1, "--resume", tmp_path / "new.json")
    assert f"Warning: no {tmp_path / 'new.json'} to resume yet: the run begins\n" in new.stderr
    assert (tmp_path / "new.json").read_text() == whole.read_text()
    (tmp_path / "options.toml").write_text(f"resume = {json.dumps(str(path))}\nnum-trajectories = 40\n")
    assert "40 trajectories\n" in done(*EVALUATE, "--config", tmp_path / "options.toml")


def test_what_was_interrupted_goes_on(at_home: Path) -> None:
    later = ("evaluate", *SCRIPTED[:-1], "scripted:later")
    assert invoke(*later, *MANY, "--out", "x.json").exit_code == 143
    found = Evaluation.load("x.json")
    assert found.asked == {"n_trajectories": 700}
    more = invoke(*later, "--num-trajectories", 1200, "--resume", "x.json")  # interrupted again: `x.json` stays
    assert more.exit_code == 143, more.output
    assert "written to: x.partial.json\n" in more.stdout
    assert len(Evaluation.load("x.json")) == len(found) < len(Evaluation.load("x.partial.json"))
    assert "to get all: streamsampler evaluate scripted:Scripted-v0 " in more.stdout
    nothing = invoke(*later[:-1], "scripted:at_once", "--num-trajectories", 1300, "--resume", "x.json")
    assert nothing.exit_code == 143
    done(*later, "--num-trajectories", 1300, "--resume", "x.json")
    assert len(Evaluation.load("x.json")) == 1300
    assert not Path("x.partial.json").exists()


@pytest.mark.parametrize(("second", "then"), [("at_once", "always_two"), ("later", "later")])
def test_an_interrupted_comparison_goes_on(at_home: Path, second: str, then: str) -> None:
    """Of the first one the second agent has no trajectories, so that the file has an evaluation."""
    given = ("compare", *SCRIPTED, "--agent")
    assert invoke(*given, f"scripted:{second}", *MANY, "--out", "x.json").exit_code == 143
    text = done(*given, f"scripted:{then}", "--resume", "x.json")
    found = Comparison.load("x.json")
    assert (list(map(len, found.evaluations)), found.stopped) == ([700, 700], "as many as were asked for")
    assert text.startswith(f"{', '.join(found.names)} in Scripted-v0, on the same seeds\n")


def test_files_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, seeds in (("old", "0-19"), ("new", "10-39"), ("apart", "90-99")):
        done(*EVALUATE, "--seeds", seeds, "--out", f"{name}.json")
    printed = done("compare", "old.json", "new.json", "--out", "both.json")
    found = Comparison.load("both.json")
    assert printed == f"{found}\nwritten to: both.json\n"
    assert found == compare({f"{name}.json": Evaluation.load(f"{name}.json") for name in ("old", "new")})
    assert "note: 10 pairs with common seeds: old.json has 20 trajectories, and new.json 30\n" in printed
    assert Comparison.from_json(done("compare", "old.json", "new.json", "--json", "--bounds", 0, 500)).bounds == (
        0,
        500,
    )
    (tmp_path / "folder").mkdir()
    Path("folder/old.json").write_text(Path("old.json").read_text())
    assert "old.json, folder/old.json in CartPole-v1" in done("compare", "old.json", "folder/old.json")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "evaluation.json", "nowhere.json"), "no such file or folder: 'nowhere.json'"),
        (("compare", "evaluation.json"), "a comparison needs at least two agents, got 1"),
        (("compare", "evaluation.json", "comparison.json"), "comparison.json holds a comparison, and only evaluations"),
        (("compare", "evaluation.json", "file.npz"), "file.npz holds a file of trajectories, and only evaluations"),
        (("compare", "CartPole-v1", "Pendulum-v1"), "and 'CartPole-v1' is none."),
        (
            ("compare", "evaluation.json", "evaluation.json", "--agent", "random", "--seed", 1),
            "Error: --agent and --seed are for agents that run, and not for saved evaluations.",
        ),
        ((*EVALUATE, "--resume", "comparison.json"), "comparison.json holds a comparison, and no evaluation"),
        ((*EVALUATE, "--resume", "evaluation.json", "--seed", 6), "evaluation.json is of another run: seed is 5 in"),
        ((*EVALUATE, "--resume", "evaluation.json", "--part", "1/2"), "part is None in evaluation.json, and 'part 1"),
        ((*EVALUATE, "--resume", "nowhere"), "there is neither nowhere.json nor nowhere.partial.json to resume"),
        ((*EVALUATE, "--resume", "file.npz"), "Invalid value for '--resume': 'file.npz': .npz is not supported"),
        ((*EVALUATE, "--resume", "evaluation.json", "--num-trajectories", 5), "has 40 trajectories, and only 5 are"),
    ],
)  # fmt: skip
def test_what_cannot_go_on_or_be_compared(
    made: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], words: str
) -> None:
    monkeypatch.chdir(made)
    before = {path.name: path.stat().st_mtime_ns for path in made.iterdir()}
    assert words in told(invoke(*arguments))
    assert {path.name: path.stat().st_mtime_ns for path in made.iterdir()} == before


def test_a_run_that_fails_says_what_goes_on_with_it(at_home: Path) -> None:
    given = ("evaluate", *SCRIPTED, "--seed", 5, "--env-kwarg", "fail_at=9", "--num-trajectories", 30)
    failed = told(invoke(*given, "--out", "x.json"))
    assert "8 trajectories are in x.partial.json: --resume x.json resumes them" in failed
    refused = told(invoke(*given, "--out", "x.json"))
    assert "x.partial.json has 8 trajectories of an earlier run: resume it with --resume x.json, remove" in refused
    text = done("info", "x.partial.json")
    assert "always_two in Scripted-v0: 8 trajectories\n" in text
    assert "stopped: interrupted" in text
