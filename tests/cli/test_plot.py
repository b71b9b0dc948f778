"""The command `plot`: what it reads, and that it draws; drawing needs matplotlib."""

from __future__ import annotations

import json
import re
import shutil
import struct
import uuid
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import evaluate
from streamsampler.data.codec import encode
from streamsampler.errors import UsageError
from streamsampler.evaluation import charts
from streamsampler.evaluation.charts import read_source, read_sources
from tests.cli.harness import Terminal, invoke

NAMES = ["file.npz", "folder", "evaluation.json", "comparison.json"]


def always_left(_observation: Any) -> int:
    return 0


@pytest.mark.parametrize("name", NAMES)
def test_all_kinds_of_files_have_the_same_returns(made: Path, name: str) -> None:
    library = evaluate("random", "CartPole-v1", num_trajectories=40, seed=5, n_workers=0)
    source = read_source(made / name)
    assert source.environment == "CartPole-v1"
    assert (source.comparison is not None) is name.startswith("comparison")
    for series in source.series:
        assert series.returns.tolist() == library.returns.tolist()
        assert series.lengths.tolist() == library.lengths.tolist()
        assert series.indices.tolist() == list(range(40))
        assert series.terminated.all()
        assert series.interval == library.mean_interval


def test_damaged_shards_are_left_out_with_a_warning(
    made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(made / "folder", tmp_path / "shards")
    shard = tmp_path / "shards" / "shard-000000.npz"
    shard.write_bytes(shard.read_bytes()[:100])
    assert 0 < len(read_source(tmp_path / "shards").series[0].returns) < 40
    assert "1 shard of" in caplog.text


def test_several_files_are_one_source_whose_agents_have_different_names(made: Path, tmp_path: Path) -> None:
    def names(*paths: Path) -> tuple[str, list[str]]:
        source = read_sources(paths)
        assert source.comparison is None or len(paths) == 1
        return source.environment, [each.name for each in source.series]

    left = evaluate(always_left, "CartPole-v1", num_trajectories=3, seed=1, n_workers=0).save(tmp_path / "left.json")
    other = evaluate("random", "MountainCar-v0", num_trajectories=3, seed=1, n_workers=0).save(tmp_path / "car.json")
    mine, same = made / "evaluation.json", Path(shutil.copy(made / "evaluation.json", tmp_path))
    assert names(mine) == ("CartPole-v1", ["RandomAgent"])
    assert names(mine, made / "file.npz", left) == ("CartPole-v1", ["RandomAgent", "random", "always_left"])
    assert names(mine, same) == ("CartPole-v1", [str(mine), str(same)])
    assert names(mine, mine) == ("CartPole-v1", [str(mine), f"{mine} #2"])
    assert names(made / "comparison.json", made / "file.npz")[1] == [
        "comparison: random", "comparison: random #2", "file"
    ]  # fmt: skip
    assert names(left, other) == ("", ["always_left in CartPole-v1", "RandomAgent in MountainCar-v0"])


def edges(*columns: list[float]) -> list[float]:
    return charts._edges([np.array(column, np.float64) for column in columns]).tolist()


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


def drawn(path: Path) -> bytes:
    """Return the bytes of a PNG that is as wide as all are."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height > 1_200) == (1_600, True)
    return data


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a copy of one of everything that can be drawn."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.extras
@pytest.mark.core
def test_each_kind_is_drawn_in_light_and_in_dark_next_to_the_file(here: Path) -> None:
    for name in NAMES:
        result = invoke("plot", name)
        path = (here / name).with_suffix(".png")
        assert (result.exit_code, result.stderr) == (0, ""), result.stderr
        assert result.stdout == f"written to: {path}\n"
        drawn(path)
    assert invoke("plot", "comparison", "--dark").stdout == f"written to: {here / 'comparison-dark.png'}\n"
    assert invoke("plot", "comparison", "--out", "again").stdout == "written to: again.png\n"
    assert drawn(here / "again.png") == drawn(here / "comparison.png") != drawn(here / "comparison-dark.png")
    assert invoke("plot", "evaluation", "file.npz", "folder").stdout.endswith("evaluation-file-folder.png\n")
    drawn(here / "evaluation-file-folder.png")
    assert invoke("plot", *NAMES).stdout.endswith("file-and-3-others.png\n")
    terminal = Terminal("plot", "file", cwd=here)
    assert (terminal.finish(), terminal.text) == (0, f"written to: {here / 'file.png'}\r\n")


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
def test_strange_numbers_and_names_are_drawn(here: Path, returns: list[float], lengths: list[int]) -> None:
    """Dollars do not begin mathematics, and long names leave room for the chart."""
    n = len(returns)
    facts = json.loads((here / "evaluation.json").read_text())
    facts.update(
        returns=[encode(value, "") for value in returns], lengths=lengths, indices=list(range(n)), seeds=list(range(n)),
        terminated=[i % 2 == 0 for i in range(n)], truncated=[i % 2 == 1 for i in range(n)], successes=None,
        agent={"name": "$a_{b$ " + "long " * 30}, environment="$\\frac{",
    )  # fmt: skip
    (here / "made.json").write_text(json.dumps(facts))
    result = invoke("plot", "made.json")
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    drawn(here / "made.png")


def words_and_numbers(picture: bytes) -> tuple[list[bytes], list[float]]:
    """Return a vector picture's text and its numbers apart: the layout's solver leaves their last digits open.

    Names that are made from such numbers and lengths of compressed text go.
    """
    if picture.startswith(b"%PDF"):
        streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", picture, re.DOTALL)
        picture = b"\n".join(zlib.decompressobj().decompress(it) if it[:1] == b"x" else it for it in streams)
    else:
        picture = re.sub(rb"\b[a-z]+[0-9a-f]{10}\b", b"name", picture)
    number = rb"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])"
    return re.sub(number, b"", picture).split(), [float(it) for it in re.findall(number, picture)]


@pytest.mark.extras
@pytest.mark.parametrize(("suffix", "first", "last"), [(".svg", b"<?xml", b"</svg>"), (".pdf", b"%PDF-", b"%%EOF")])
def test_pictures_are_written_as_vectors_too(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, first: bytes, last: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(uuid, "uuid4", lambda: pytest.fail("a random name"))
    pictures = []
    for name in ("one", "two"):
        said = invoke("plot", str(made / "comparison.json"), "--out", f"{name}{suffix}").stdout
        assert said == f"written to: {name}{suffix}\n"
        written = (tmp_path / f"{name}{suffix}").read_bytes()
        assert b"date" not in written.lower()
        pictures.append(words_and_numbers(written))
    (words, numbers), (its_words, its_numbers) = pictures
    assert words == its_words
    np.testing.assert_allclose(numbers, its_numbers, atol=1e-3)
    assert written.startswith(first)
    assert written.rstrip().endswith(last)


def test_a_picture_of_another_format_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match=r"pictures are written to \.png, \.svg, \.pdf files, got"):
        charts.draw(tmp_path / "nothing", tmp_path / "picture.gif")
