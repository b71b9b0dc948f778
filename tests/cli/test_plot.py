"""The command `plot`: needs matplotlib."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import evaluate
from streamsampler.data.codec import encode
from streamsampler.evaluation.charts import Source, read_source, read_sources
from tests.cli.harness import Terminal, invoke, run

SCRIPTED = ("scripted:Scripted-v0", "--seed", 5, "--workers", 0, "--quiet")
TWO = ("--agent", "random", "--agent", "scripted:always_two")


def size_of(path: Path) -> tuple[int, int]:
    """The width and height that a PNG says it has."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", data[16:24])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of everything that can be drawn, all from the same seed."""
    folder = tmp_path_factory.mktemp("drawn")
    common = ("CartPole-v1", "--seed", 5, "--workers", 0, "--quiet", "--num-trajectories", 40)
    for arguments in (
        ("sample", *common, "--out", folder / "file"),
        ("sample", *common, "--out", folder / "shards", "--shard-size", 300),
        ("evaluate", *common, "--out", folder / "evaluation"),
        ("compare", *common, "--agent", "random", "--agent", "random", "--out", folder / "comparison"),
    ):
        assert invoke(*arguments).exit_code == 0
    return folder


NAMES = ["file.npz", "shards", "evaluation.json", "comparison.json"]


@pytest.mark.parametrize("name", NAMES)
def test_all_kinds_of_files_have_the_same_returns(folder: Path, name: str) -> None:
    library = evaluate("random", "CartPole-v1", num_trajectories=40, seed=5, n_workers=0)
    source = read_source(folder / name)
    assert source.environment == "CartPole-v1"
    assert (source.comparison is not None) is name.startswith("comparison")
    for series in source.series:
        assert series.returns.tolist() == library.returns.tolist()
        assert series.lengths.tolist() == library.lengths.tolist()
        assert series.indices.tolist() == list(range(40))
        assert series.terminated.all()
        assert series.interval == library.mean_interval


@pytest.mark.extras
@pytest.mark.parametrize(("name", "n_pictures"), list(zip(NAMES, [2, 1, 1, 3], strict=True)))
@pytest.mark.core
def test_what_is_drawn(folder: Path, name: str, n_pictures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In light and in dark, next to the file; again the same bytes."""
    monkeypatch.chdir(folder)
    pictures = []
    ways = (((), "{}.png"), (("--dark",), "{}-dark.png"), (("--out", "again"), "again.png"))
    for arguments, out in ways[:n_pictures]:
        result = invoke("plot", name, *arguments)
        path = folder / out.format(name.partition(".")[0])
        assert (result.exit_code, result.stderr) == (0, ""), result.stderr
        assert result.stdout.endswith(f"{path.name}\n")
        width, height = size_of(path)
        assert (width, height > 1_200) == (1_600, True)
        pictures.append(path.read_bytes())
    assert len(set(pictures)) == min(2, n_pictures)
    assert pictures[-1] == pictures[0] or n_pictures == 2


@pytest.mark.extras
def test_on_a_terminal_and_redirected(home: Path) -> None:
    assert run("compare", *SCRIPTED, *TWO, "--num-trajectories", 20, "--out", "two", cwd=home).returncode == 0
    terminal = Terminal("plot", "two", cwd=home)
    assert terminal.finish() == 0
    assert terminal.text == f"written to: {home / 'two.png'}\r\n"
    result = run("plot", "two.json", "--dark", "--out", "night", cwd=home)
    assert (result.returncode, result.stdout, result.stderr) == (0, "written to: night.png\n", "")
    assert size_of(home / "night.png") == size_of(home / "two.png")


def _source(tmp_path: Path, returns: list[float], lengths: list[int]) -> Path:
    """An evaluation with these returns, written."""
    found = evaluate("random", "CartPole-v1", num_trajectories=1, seed=1, n_workers=0)
    facts = json.loads(found.to_json())
    n = len(returns)
    facts.update(
        returns=[encode(value, "") for value in returns],
        lengths=lengths, indices=list(range(n)), seeds=list(range(n)), terminated=[i % 2 == 0 for i in range(n)],
        truncated=[i % 2 == 1 for i in range(n)], successes=None,
    )  # fmt: skip
    path = tmp_path / "made.json"
    path.write_text(json.dumps(facts))
    return path


@pytest.mark.extras
@pytest.mark.parametrize(
    ("returns", "lengths"),
    [
        ([3.0], [1]),
        ([0.0, 0.0, 0.0], [7, 7, 7]),
        ([-1e12, -1e12], [1, 10**9]),
        ([float("nan"), 1.0, 2.0], [1, 2, 3]),
        ([float("inf"), float("-inf")], [1, 2]),
        ([1e308, -1e308, 5.0], [1, 2, 3]),
        ([float(i % 97) for i in range(5_001)], [i % 5 + 1 for i in range(5_001)]),
    ],
    ids=["one", "equal", "large", "nan", "infinite", "largest", "many"],
)
@pytest.mark.filterwarnings("error")
@pytest.mark.core
def test_strange_numbers_are_drawn(tmp_path: Path, returns: list[float], lengths: list[int]) -> None:
    result = invoke("plot", _source(tmp_path, returns, lengths))
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    assert size_of(tmp_path / "made.png")[0] == 1_600


@pytest.mark.extras
def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    """Dollars do not begin mathematics, and long names leave room for the chart."""
    path = _source(tmp_path, [1.0, 2.0], [1, 2])
    facts = json.loads(path.read_text())
    facts["agent"] = {"name": "$a_{b$ " + "long " * 30}
    facts["environment"] = "$\\frac{"
    path.write_text(json.dumps(facts))
    result = invoke("plot", path)
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr


def test_damaged_shards_are_left_out_with_a_warning(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import shutil

    shutil.copytree(folder / "shards", tmp_path / "shards")
    shard = sorted((tmp_path / "shards").glob("*.npz"))[0]
    shard.write_bytes(shard.read_bytes()[:100])
    source = read_source(tmp_path / "shards")
    assert 0 < len(source.series[0].returns) < 40
    assert "1 shard of" in caplog.text
    assert isinstance(source, Source)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nowhere",), 2, "there is no file or folder 'nowhere'"),
        (("file.npz", "--out", "x.jpg"), 2, "'x.jpg': .jpg is not written. The picture goes into a .png file"),
        (("file.npz", "--out", "nowhere/x"), 2, "there is no directory 'nowhere'"),
        (("text.txt",), 1, "text.txt holds neither trajectories nor an evaluation nor a comparison of streamsampler"),
        (("cut.npz",), 1, "cut.npz"),
        (("cut.json",), 1, "cut.json is no evaluation of streamsampler: it is no JSON"),
        (("empty",), 1, "empty"),
    ],
)
def test_what_cannot_be_drawn(
    folder: Path, arguments: tuple[object, ...], code: int, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.npz").write_bytes((folder / "file.npz").read_bytes())
    (tmp_path / "cut.npz").write_bytes((folder / "file.npz").read_bytes()[:900])
    (tmp_path / "cut.json").write_bytes((folder / "evaluation.json").read_bytes()[:900])
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    result = invoke("plot", *arguments)
    assert result.exit_code == code, result.stderr
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_without_matplotlib_the_error_says_how_to_install_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke("plot", folder / "file.npz", "--out", folder / "x")
    assert result.exit_code == 1
    assert "drawing needs matplotlib: pip install matplotlib (in a clone" in result.stderr
    assert not (folder / "x.png").exists()


def edges(*columns: list[float]) -> list[float]:
    from streamsampler.evaluation import charts

    found: list[float] = charts._edges([np.array(column, np.float64) for column in columns]).tolist()
    return found


def test_bins_of_whole_numbers_have_them_in_the_middle() -> None:
    assert edges([3, 7]) == [2.5, 3.5, 4.5, 5.5, 6.5, 7.5]
    assert edges([200, 200]) == [199.5, 200.5]
    assert edges([-2, 0], [1]) == [-2.5, -1.5, -0.5, 0.5, 1.5]
    assert edges(list(range(9, 60))) == [4.5 + 5 * i for i in range(12)]
    assert len(edges([1, 10_000])) <= 72


@given(st.lists(st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_equal_numbers_have_equal_bins_that_hold_all_of_them(numbers: list[float]) -> None:
    """In any order, of returns and of lengths: they begin at multiples of their width."""
    found = edges(numbers)
    assert found == edges(numbers[::-1])
    assert found[0] <= min(numbers) <= max(numbers) <= found[-1]
    assert len(found) <= 80
    if all(float(number).is_integer() for number in numbers):
        assert all((2 * edge) % 2 == 1 for edge in found)


def test_several_files_are_one_source_whose_agents_have_different_names(folder: Path, tmp_path: Path) -> None:
    def names(*paths: Path) -> tuple[str, list[str]]:
        source = read_sources(paths)
        assert source.comparison is None or len(paths) == 1
        return source.environment, [each.name for each in source.series]

    left = evaluate(always_left, "CartPole-v1", num_trajectories=3, seed=1, n_workers=0).save(tmp_path / "left.json")
    other = evaluate("random", "MountainCar-v0", num_trajectories=3, seed=1, n_workers=0).save(tmp_path / "car.json")
    (tmp_path / "evaluation.json").write_bytes((folder / "evaluation.json").read_bytes())
    mine, same = folder / "evaluation.json", tmp_path / "evaluation.json"
    assert names(mine) == ("CartPole-v1", ["RandomAgent"])
    assert names(mine, left) == ("CartPole-v1", ["RandomAgent", "always_left"])
    assert names(mine, folder / "file.npz", left) == ("CartPole-v1", ["RandomAgent", "random", "always_left"])
    assert names(mine, same) == ("CartPole-v1", [str(mine), str(same)])
    assert names(mine, mine) == ("CartPole-v1", [str(mine), f"{mine} #2"])
    assert names(folder / "comparison.json", folder / "file.npz")[1] == [
        "comparison: random", "comparison: random #2", "file"
    ]  # fmt: skip
    assert names(left, other) == ("", ["always_left in CartPole-v1", "RandomAgent in MountainCar-v0"])


@pytest.mark.extras
def test_several_files_are_drawn_in_one_picture(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    result = invoke("plot", "evaluation", "file.npz", "shards")
    assert (result.exit_code, result.stdout) == (0, f"written to: {folder / 'evaluation-file-shards.png'}\n")
    assert size_of(folder / "evaluation-file-shards.png")[0] == 1_600
    result = invoke("plot", *NAMES)
    assert result.stdout == f"written to: {folder / 'file-and-3-others.png'}\n"
    result = invoke("plot", "evaluation", "nowhere")
    assert (result.exit_code, "there is no file or folder 'nowhere'" in result.stderr) == (2, True)


def always_left(_observation: Any) -> int:
    return 0
