"""`streamsampler export`: from files and folders to other libraries' formats, through the real entry point."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from streamsampler import LocalSampler, evaluate, load, sample_to_folder
from streamsampler.cli.app import cli
from streamsampler.formats.export import FORMATS
from tests.cli.harness import Terminal, finish, run, start


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["export", *map(str, arguments)], prog_name="streamsampler")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a folder of shards, a file and two evaluations."""
    home = tmp_path_factory.mktemp("home")
    with LocalSampler("random", "CartPole-v1", seed=3) as sampler:
        sample_to_folder(sampler, home / "folder", num_samples=300, shard_size=100)
    load(home / "folder").to_batch().save(home / "file")  # type: ignore[attr-defined]
    for name, seed in (("early", 1), ("late", 2)):
        evaluate("random", "CartPole-v1", num_trajectories=12, seed=seed, n_workers=0).save(home / f"{name}.json")
    return home


def test_help_names_all_formats_and_shows_an_example() -> None:
    text = invoke("--help").stdout
    for name in (*FORMATS, "sb3"):
        assert f"'{name}'" in text
    assert "streamsampler export big --to minari --out cartpole" in text


def test_evaluations(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "evaluations.npz"
    arguments = (home / "late.json", home / "early.json", "--to", "sb3", "--timesteps", "2k", "--timesteps", "1e3")
    result = invoke(*arguments, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "format        sb3", "evaluations   2", "trajectories  24", f"written to    {out}",
    ]  # fmt: skip
    with np.load(out) as found:
        assert found["timesteps"].tolist() == [1_000, 2_000]
        assert found["results"].shape == (2, 12)
    one = invoke(home / "early.json", "--to", "sb3", "--out", out, "--json")
    assert json.loads(one.stdout) == {"format": "sb3", "evaluations": 1, "trajectories": 12, "out": str(out)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "--to", "parquet"], "there is no file or folder 'nowhere'"),
        (["folder", "--to", "excel"], "there is no format 'excel' of trajectories, only minari, parquet"),
        (["folder", "--to", "parquet", "--dataset-id", "a/b-v0"], "takes no --dataset-id"),
        (["folder", "--to", "parquet", "--timesteps", "5"], "--timesteps is for evaluations"),
        (["folder", "file.npz", "--to", "parquet"], "--to parquet takes one FILE or FOLDER, and not 2"),
        (["folder", "--to", "minari", "--metadata", "author"], "'author' is not of the form key=text"),
        (["early.json", "late.json", "--to", "sb3"], "Give --timesteps once for each FILE"),
        (["early.json", "--to", "sb3", "--dataset-id", "a/b-v0"], "--dataset-id and --metadata are for trajectories"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage_is_a_line_that_says_what_to_do(
    arguments: list[str], words: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    result = invoke(*arguments, "--out", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in " ".join(result.stderr.split())
    assert os.listdir(tmp_path) == []


def test_options_come_from_a_file(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    (tmp_path / "options.toml").write_text(
        "sources = ['late.json', 'early.json']\nto = 'sb3'\ntimesteps = [2000, 1000]\n"
        f"out = {json.dumps(str(tmp_path / 'evaluations.npz'))}\n"
    )
    result = invoke("--config", tmp_path / "options.toml")
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "evaluations.npz") as found:
        assert found["timesteps"].tolist() == [1_000, 2_000]


def test_what_is_no_file_of_its_kind_is_a_failure(home: Path, tmp_path: Path) -> None:
    for source, to, words in (
        ("early.json", "parquet", "is no trajectory batch"),
        ("file.npz", "sb3", "is no evaluation of streamsampler"),
    ):
        result = invoke(home / source, "--to", to, "--out", tmp_path / "out")
        assert (result.exit_code, result.stdout) == (1, "")
        assert words in result.stderr
        assert "Traceback" not in result.stderr
    assert os.listdir(tmp_path) == []


def test_a_library_that_is_missing_is_named(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = invoke(home / "folder", "--to", "parquet", "--out", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "needs pyarrow: pip install pyarrow (in a clone" in result.stderr


@pytest.mark.extras
@pytest.mark.parametrize("to", sorted(FORMATS))
def test_redirected_and_in_a_terminal(to: str, home: Path, tmp_path: Path) -> None:
    pytest.importorskip({"parquet": "pyarrow"}.get(to, to))
    result = run("export", "folder", "--to", to, "--out", tmp_path / "redirected", cwd=home)
    assert result.returncode == 0, result.stderr
    rows = dict(line.split(maxsplit=1) for line in result.stdout.splitlines() if not line.startswith("written"))
    assert rows["format"] == to
    assert int(rows["timesteps"]) == load(home / "folder").n_timesteps
    # One for each thirty seconds that it took.
    assert all(line.startswith("exporting: ") for line in result.stderr.splitlines()), result.stderr
    terminal = Terminal("export", "file", "--to", to, "--out", tmp_path / "terminal", cwd=home)
    assert terminal.finish() == 0, terminal.text
    assert "100%" in terminal.text
    assert sorted(os.listdir(tmp_path / "redirected")) == sorted(os.listdir(tmp_path / "terminal"))
    again = run("export", "folder", "--to", to, "--out", tmp_path / "terminal", cwd=home)
    assert again.returncode == 2
    assert "holds something already" in again.stderr


@pytest.mark.extras
def test_ctrl_c_leaves_nothing(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("minari")
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\n"
        "if os.environ.get('INTERRUPT'):\n"
        "    from streamsampler.formats import minari as module\n"
        "    module.allocate = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
    )
    before = dict(os.environ)
    os.environ |= {"INTERRUPT": "1", "PYTHONPATH": os.pathsep.join([str(tmp_path), before.get("PYTHONPATH", "")])}
    try:
        process = start("export", "folder", "--to", "minari", "--out", tmp_path / "out", cwd=home)
    finally:
        os.environ.clear()
        os.environ.update(before)
    ended = finish(process)
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGINT, "")
    assert ended.stderr.splitlines()[-1] == "Interrupted: nothing was written."
    assert {path.name for path in tmp_path.iterdir()} <= {"sitecustomize.py", "__pycache__"}
