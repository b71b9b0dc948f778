"""Trajectories as tables: Parquet files, read by pyarrow and pandas, and data frames."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler
from streamsampler.data import trees
from streamsampler.data.codec import decode
from streamsampler.errors import DamagedShardError, DataError, StorageError, UsageError
from streamsampler.formats import export, to_pandas
from streamsampler.formats.export import FORMATS
from tests.scripted.envs import Echo

pytestmark = [pytest.mark.extras, pytest.mark.core]

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def written(odd_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("parquet") / "odd"
    export(odd_folder, out, to="parquet")
    assert os.listdir(out.parent) == ["odd"]
    assert sorted(os.listdir(out)) == ["timesteps.parquet", "trajectories.parquet"]
    return out


def stacked(table, name, dtype):
    """Return the rows of a column of lists as one array, shaped as the field says."""
    shape = json.loads(table.schema.field(name).metadata[b"shape"])
    column = table[name].combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    assert flat.dtype == dtype
    return flat.reshape(-1, *shape)


def test_a_row_for_each_timestep(odd, written):
    table = parquet.read_table(written / "timesteps.parquet")
    assert table.num_rows == odd.n_timesteps
    assert trees.same(stacked(table, "observation.image", np.uint8), odd.observations["image"])
    assert trees.same(stacked(table, "observation.place", np.float64), odd.observations["place"])
    assert trees.same(stacked(table, "observation.task.1", np.int8), odd.observations["task"][1])
    assert table["observation.task.0"].to_pylist() == odd.observations["task"][0].tolist()
    assert trees.same(stacked(table, "action.push", np.float32), odd.actions["push"])
    assert table["reward"].to_pylist() == odd.rewards.tolist()
    assert trees.same(stacked(table, "agent_info.logits", np.float64), odd.agent_infos["logits"])
    trajectory = np.array(table["trajectory"])
    assert np.bincount(trajectory).tolist() == odd.lengths.tolist()
    assert np.array(table["timestep"]).tolist() == [t for length in odd.lengths for t in range(length)]
    for name in ("terminated", "truncated"):
        ends = np.array(table[name])
        assert ends[odd.starts + odd.lengths - 1].tolist() == getattr(odd, name).tolist()
        assert ends.sum() == getattr(odd, name).sum()


def test_infos_are_missing_where_they_were_not_there(odd, written):
    table = parquet.read_table(written / "timesteps.parquet")
    infos = odd.env_infos
    late = [text if there else None for text, there in zip(infos["late"], infos["_late"], strict=True)]
    assert table["env_info.late"].to_pylist() == late
    assert table["env_info.big"].to_pylist() == infos["big"].tolist()
    assert table.schema.field("env_info.half").type == "halffloat"
    rare = table["env_info.rare"].to_pylist()
    assert [row is not None for row in rare] == infos["_rare"].tolist()
    assert [row for row in rare if row] == [[0, 1, 2, 3, 4, 5]] * int(infos["_rare"].sum())
    assert table.schema.field("env_info.list").metadata == {b"encoding": b"json"}
    for text, there, value in zip(table["env_info.list"].to_pylist(), infos["_list"], infos["list"], strict=True):
        assert (text is not None) == there
        assert text is None or trees.same(decode(json.loads(text)), value)
    mixed = table["env_info.mixed"]
    assert [value for value in mixed.to_pylist() if value is not None] == infos["mixed"][infos["_mixed"]].tolist()
    assert table["env_info.event.name"].null_count == (~infos["event"]["_name"]).sum()


def test_a_row_for_each_trajectory(odd, written):
    table = parquet.read_table(written / "trajectories.parquet")
    for name, values in (
        ("seed", odd.seeds), ("index", odd.indices), ("length", odd.lengths), ("return", odd.returns),
        ("terminated", odd.terminated),
    ):  # fmt: skip
        assert table[name].to_pylist() == list(values)
    assert trees.same(stacked(table, "last_observation.image", np.uint8), odd.last_observations["image"])
    assert [row is not None for row in table["reset_info.kind"].to_pylist()] == odd.episode_infos["_kind"].tolist()
    facts = json.loads(table.schema.metadata[b"streamsampler"])
    assert facts["seed"] == 3
    assert facts["observation_space"]["space"] == "Dict"


def test_parts_of_episodes_are_told_from_episodes():
    with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
        sampler.obtain_fragments(30, 4)
        batch = sampler.obtain_fragments(30, 4)
    table = to_pandas(batch).trajectories
    assert table["continued"].tolist() == batch.continued.tolist()
    assert table["cut"].tolist() == batch.cut.tolist()
    assert table["env_number"].tolist() == batch.env_numbers.tolist()
    ended = table[~table["cut"]]
    assert (ended["return"] + ended["earlier_return"]).tolist() == batch.episode_returns.tolist()
    assert (ended["length"] + ended["earlier_length"]).tolist() == batch.episode_lengths.tolist()
    with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
        assert "cut" not in to_pandas(sampler.obtain_trajectories(2)).trajectories


def test_row_groups_are_small_however_large_a_shard(odd, tmp_path, monkeypatch):
    monkeypatch.setattr("streamsampler.formats.parquet._GROUP_BYTES", 4_000)
    export(odd, tmp_path / "out", to="parquet")
    file = parquet.ParquetFile(tmp_path / "out" / "timesteps.parquet")
    assert file.num_row_groups > 5
    assert file.read()["reward"].to_pylist() == odd.rewards.tolist()


def test_pandas_reads_what_it_is_given(odd, odd_folder, written):
    for mine, same, name in zip(to_pandas(odd_folder), to_pandas(odd), ("timesteps", "trajectories"), strict=True):
        read = pandas.read_parquet(written / f"{name}.parquet", dtype_backend="numpy_nullable")
        assert list(mine.columns) == list(read.columns) == list(same.columns)
        for column in mine.columns:
            for one, other, third in zip(mine[column], read[column], same[column], strict=True):
                if pandas.api.types.is_scalar(one) and pandas.isna(one):
                    assert pandas.isna(other) is pandas.isna(third) is True
                else:
                    assert np.array_equal(np.ravel(one), np.ravel(other))
                    assert np.array_equal(one, third)


def test_frames_keep_dtypes_and_integers_where_some_are_missing(odd):
    rows = odd.n_timesteps
    mask = np.arange(rows) % 2 == 0
    infos = {
        "i": np.where(mask, 2**62 + 1, 0), "_i": mask, "b": mask.copy(), "_b": mask,
        "f": np.where(mask, np.nan, 0.0), "_f": mask, "h": np.zeros(rows, np.float16), "_h": mask,
    }  # fmt: skip
    frame = to_pandas(dataclasses.replace(odd, env_infos=infos)).timesteps
    assert frame["env_info.i"].dtype == "Int64"
    assert frame["env_info.i"].dropna().tolist() == [2**62 + 1] * mask.sum()
    assert frame["env_info.b"].dtype == "boolean"
    assert frame["env_info.f"].isna().sum() >= (~mask).sum()
    assert frame["env_info.h"].dtype == "Float32"
    assert frame["reward"].dtype == np.float64
    assert frame["observation.image"][0].shape == (4, 4, 3)
    assert frame.groupby("trajectory")["reward"].sum().to_numpy() == pytest.approx(odd.returns)


def test_names_that_would_be_the_same_are_kept_apart_and_large_seeds_are_text(odd):
    infos = {"a": {"b": np.zeros(odd.n_timesteps)}, "a.b": np.ones(odd.n_timesteps)}
    seeds = (2**100, *odd.seeds[1:])
    timesteps, trajectories = to_pandas(dataclasses.replace(odd, env_infos=infos, seeds=seeds))
    assert (timesteps["env_info.a.b"] == 0).all()
    assert (timesteps["env_info.a.b~2"] == 1).all()
    assert tuple(map(int, trajectories["seed"])) == seeds


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(3)),
        spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
    ],
    ids=lambda space: type(space).__name__,
)
def test_spaces_that_are_no_numbers_are_text_or_json(space, tmp_path):
    with LocalSampler("random", lambda: Echo(space), seed=1) as sampler:
        batch = sampler.obtain_trajectories(2)
    export(batch, tmp_path / "out", to="parquet")
    found = parquet.read_table(tmp_path / "out" / "timesteps.parquet")["observation"].to_pylist()
    values = found if isinstance(space, spaces.Text) else [decode(json.loads(text)) for text in found]
    assert trees.same(values, list(batch.observations))


# --- Sources and targets


def test_a_file_a_folder_and_a_batch_give_the_same(odd, odd_folder, tmp_path):
    odd.save(tmp_path / "odd.npz")
    export(tmp_path / "odd", tmp_path / "of-file", to="parquet")
    export(str(odd_folder.path), tmp_path / "of-folder", to="parquet")
    one, other = (parquet.read_table(tmp_path / name / "timesteps.parquet") for name in ("of-file", "of-folder"))
    assert one.equals(other)


def test_what_is_there_stays(odd, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "empty").mkdir()
    for name, words in (
        ("file", "is a file, but this format needs a folder"),
        ("full", "is not empty: it holds 'mine'"),
        ("nowhere/out", "no such directory"),
    ):
        with pytest.raises(UsageError, match=words):
            export(odd, tmp_path / name, to="parquet")
    assert (tmp_path / "file").read_text() == "mine"
    assert os.listdir(tmp_path / "full") == ["mine"]
    export(odd, tmp_path / "empty", to="parquet")
    assert len(os.listdir(tmp_path / "empty")) == 2


def test_what_cannot_be_exported_is_an_error(odd, tmp_path):
    (tmp_path / "text.npz").write_text("words")
    cases: list[Any] = [
        (odd, {"to": "excel"}, UsageError, f"unknown format 'excel': use {' or '.join(FORMATS)} "),
        (odd, {"to": "parquet", "dataset_id": "a/b-v0"}, UsageError, "takes no dataset_id"),
        (odd, {"to": "sb3"}, UsageError, "save_evaluations .* write evaluations"),
        (5, {"to": "parquet"}, UsageError, "not 5"),
        (["a", "b"], {"to": "parquet"}, UsageError, "several folders as TrajectoryFolder"),
        (odd[:0], {"to": "parquet"}, DataError, "no trajectories to export"),
        (tmp_path / "nowhere.npz", {"to": "parquet"}, FileNotFoundError, "nowhere"),
        (tmp_path / "text.npz", {"to": "parquet"}, StorageError, "no trajectory batch"),
    ]
    for source, options, error, words in cases:
        with pytest.raises(error, match=words):
            export(source, tmp_path / "out", **options)
    assert os.listdir(tmp_path) == ["text.npz"]


@pytest.mark.parametrize("to", ["parquet", "minari"])
def test_a_damaged_shard_is_named_and_nothing_is_left(to, odd_folder, tmp_path):
    pytest.importorskip({"parquet": "pyarrow"}.get(to, to))
    folder = tmp_path / "folder"
    damaged = shutil.copytree(odd_folder.path, folder) / "shard-000002.npz"
    data = bytearray(damaged.read_bytes())
    data[data.index(b"observations.image.npy") + 500] ^= 4
    damaged.write_bytes(data)
    with pytest.raises(DamagedShardError, match=r"shard-000002\.npz cannot be read"):
        export(folder, tmp_path / "out", to=to)
    assert os.listdir(tmp_path) == ["folder"]


def test_progress_is_told_shard_by_shard_and_an_interrupted_export_leaves_nothing(odd_folder, tmp_path):
    seen = []

    def see(snapshot):
        seen.append((snapshot.n_timesteps, snapshot.complete))
        if snapshot.n_timesteps and stops:
            raise KeyboardInterrupt

    see.interval, stops = 0.0, True  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        export(odd_folder, tmp_path / "out", to="parquet", progress=see)
    assert os.listdir(tmp_path) == []
    seen.clear()
    stops = False
    export(odd_folder, tmp_path / "out", to="parquet", progress=see)
    bounds = np.cumsum([timesteps for _, timesteps in odd_folder.shard_sizes]).tolist()
    assert seen == [(0, False), *((n, False) for n in bounds), (bounds[-1], True)]


@pytest.mark.parametrize(("to", "library"), [("parquet", "pyarrow"), ("minari", "minari")])
def test_files_get_their_names_when_they_are_complete(to, library, odd_folder, tmp_path):
    pytest.importorskip(library)
    seen = []

    def see(snapshot):
        if not snapshot.complete:
            seen.append(os.listdir(tmp_path / "out") if snapshot.n_timesteps else [])

    see.interval = 0.0  # type: ignore[attr-defined]
    export(odd_folder, tmp_path / "out", to=to, progress=see)
    assert seen == [[], *[[".export.tmp"]] * len(odd_folder.shards)]
    assert len(os.listdir(tmp_path / "out")) == 2
    (tmp_path / "killed" / ".export.tmp").mkdir(parents=True)
    with pytest.raises(UsageError, match="holds an export that was killed or is still running: remove the folder"):
        export(odd_folder, tmp_path / "killed", to=to)


def test_a_library_that_is_missing_is_named(odd, tmp_path, monkeypatch):
    for to, module in (("parquet", "pyarrow"), ("minari", "h5py")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=rf"needs .*: pip install {module} .*'\.\[{to}\]'"):
            export(odd, tmp_path / "out", to=to)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"to_pandas needs pandas: pip install pandas \(in a clone"):
        to_pandas(odd)
    assert os.listdir(tmp_path) == []
