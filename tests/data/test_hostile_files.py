"""Small files that unpack to much, and what is no regular file, are refused before memory or time is taken for it."""

import contextlib
import os
import socket
import tracemalloc
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as S

import streamsampler
from streamsampler.data.npz import read, save
from streamsampler.data.shard_writer import ShardWriter
from streamsampler.data.shards import MANIFEST, load, shard_name
from streamsampler.errors import DamagedShardError, StorageError
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.merging import kind_of
from tests.cli.harness import invoke, told
from tests.data.damage import header_of, npy, with_bomb, with_header
from tests.data.test_recorder import batch_of, tickets
from tests.data.test_shards import LENGTHS, write_all

SPACE = S.Dict({"a": S.Box(-1, 1, (2,), np.float32), "b": S.Text(4)})
MUCH = 48_000_000
"""Bytes that a bomb unpacks to, from a fifth of a MB."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A file's bytes, of 6 timesteps in 3 trajectories."""
    batch = batch_of(tickets([2, 1, 3], [], SPACE), SPACE)
    return save(batch, tmp_path_factory.mktemp("saved") / "a.npz").read_bytes()


@contextlib.contextmanager
def little_memory():
    """Fail if a block takes much memory at a time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MUCH / 8
    finally:
        tracemalloc.stop()


BOMBS = {
    "more timesteps than the trajectories have": ("rewards", npy((MUCH // 8,), "<f8")),
    "more trajectories than there are seeds": ("lengths", npy((MUCH // 8,), "<i8")),
    "flags of more trajectories": ("terminated", npy((MUCH,), "|b1")),
    "texts in the place of rewards": ("rewards", npy((6,), f"<U{MUCH // 24}")),
    "rows of another shape": ("observations.a", npy((6, MUCH // 24), "<f4")),
    "a text where the space has numbers": ("observations.a", npy((6,), f"<U{MUCH // 24}")),
    "infos of more timesteps": ("env_infos.a", npy((MUCH // 8,), "<i8")),
    "a column of text": ("observations.b", npy((MUCH,), "|u1")),
    "a header of this package": ("header", npy((MUCH,), "|u1")),
    "a header of an array": ("rewards", b"\x93NUMPY\x02\x00" + (MUCH - 12).to_bytes(4, "little")),
    "more than an array's header says": ("rewards", npy((6,), "<f8")),
    "less than an array's header says": ("rewards", npy((MUCH,), "<f8")),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_file_that_would_be_refused_is_refused_before_it_is_unpacked(bomb, plain, tmp_path, monkeypatch):
    name, begin = BOMBS[bomb]
    monkeypatch.setattr("streamsampler.data.archive._TEXT_BYTES", 1 << 20)
    path = tmp_path / "a.npz"
    if name.startswith("env_infos"):
        header = header_of(plain)
        header["structure"]["env_infos"] = {"dict": {"a": {"array": name}}}
        plain = with_header(plain, header)
    path.write_bytes(with_bomb(plain, name, begin, MUCH))
    for use in (load, lambda path: read(path, "rewards" if name == "header" else name)):
        with little_memory(), pytest.raises(StorageError, match=r"a\.npz (cannot be read: \S+ is damaged|is damaged)"):
            use(path)


def test_an_entry_that_nothing_refers_to_is_not_unpacked(plain, tmp_path):
    (tmp_path / "a.npz").write_bytes(with_bomb(plain, "other", npy((MUCH,), "|u1"), MUCH))
    with little_memory():
        assert len(load(tmp_path / "a.npz")) == 3


def test_text_that_is_packed_well_is_read(tmp_path):
    """Such as bounds of large spaces, which are one number over and over."""
    batch = batch_of(tickets([1], [], S.Discrete(2)), S.Discrete(2))
    path = save(batch, tmp_path / "a.npz", provenance={"text": "x" * 20_000_000}, compress=True)
    assert path.stat().st_size < 100_000
    assert load(path) == batch


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def bound_socket(path):
    with socket.socket(socket.AF_UNIX) as one:
        cwd = os.getcwd()
        os.chdir(path.parent)  # the names of sockets are short
        try:
            one.bind(path.name)
        finally:
            os.chdir(cwd)


def folder(path):
    path.mkdir()


KINDS = {"a named pipe": pipe, "a device": device, "a socket": bound_socket, "a folder": folder}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


READERS: dict[str, Any] = {"load": load, "read": read, "evaluation": Evaluation.load, "comparison": Comparison.load}


@pytest.mark.parametrize("reader", READERS)
def test_files_are_regular_files(kind, reader, tmp_path):
    """Opening a pipe would wait for a writer, and /dev/zero has no end."""
    path = tmp_path / "a.npz"
    KINDS[kind](path)
    with pytest.raises(StorageError, match=rf"a\.npz is {kind}"):
        READERS[reader](path)
    if kind != "a folder":
        with pytest.raises(StorageError, match=rf"a\.npz is {kind}, not a regular file"):
            kind_of(path)
        with pytest.raises(StorageError, match=rf"a\.npz is {kind}, not a regular file"):
            streamsampler.load(path)


@pytest.mark.parametrize("name", [shard_name(1), MANIFEST])
def test_shards_and_manifests_are_regular_files(kind, name, tmp_path):
    path = tmp_path / "all"
    write_all(path, batch_of(tickets(LENGTHS, [])))
    (path / name).unlink()
    KINDS[kind](path / name)
    with pytest.raises(StorageError, match=rf"{name} is {kind}"):
        streamsampler.TrajectoryFolder(path).to_batch()
    with pytest.raises(DamagedShardError if name != MANIFEST else StorageError, match=rf"{name} is {kind}"):
        ShardWriter(path, resume=True)


COMMANDS = {
    "info": (),
    "plot": ("--out", "x.png"),
    "merge": ("--out", "x.json"),
    "replay": ("--index", 0, "--env", "CartPole-v1", "--agent", "random"),
    "export": ("--to", "parquet", "--out", "x"),
}


@pytest.mark.parametrize(
    "command", [pytest.param(it, marks=pytest.mark.extras) if it == "plot" else it for it in COMMANDS]
)
def test_commands_refuse_what_is_no_regular_file(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("a.npz")
    done = invoke(command, "a.npz", *COMMANDS[command])
    assert "a.npz is a named pipe, not a regular file" in told(done)


def test_the_command_resumes_no_folder_whose_shard_is_a_pipe(tmp_path):
    command = ["sample", "CartPole-v1", "--num-trajectories", 9, "--seed", 1, "--workers", 0]
    command += ["--shard-size", 20, "--out", tmp_path / "all"]
    assert not invoke(*command).exit_code
    (tmp_path / "all" / shard_name(0)).unlink()
    os.mkfifo(tmp_path / "all" / shard_name(0))
    done = invoke(*command, "--resume")
    assert "is a named pipe, not a regular file" in told(done)
