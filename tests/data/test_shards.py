"""Folders of shards: the same wherever the writer is killed, with nobody else in it; and read lazily."""

import itertools
import json
import os
import pickle
import select
import signal
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import streamsampler
from streamsampler import TrajectoryBatch, TrajectoryFolder
from streamsampler.data import npz as storage
from streamsampler.data import shards as files
from streamsampler.data.portions import Portion, Target
from streamsampler.data.shard_writer import ShardWriter
from streamsampler.data.shards import MANIFEST, Manifest, read_manifest, shard_name
from streamsampler.errors import DataError, StorageError, UsageError
from tests.data.test_recorder import batch_of, tickets
from tests.patience import PATIENCE

LENGTHS = [2, 1, 3, 2, 2, 4, 1, 1, 5]
SHARDS = [(0, 3), (3, 6), (6, 9)]
WANTED = Manifest(seed=7, shard_size=6, wanted={"trajectories": 9}, provenance={"environment": "X"})


@pytest.fixture(scope="module")
def batch():
    return batch_of(tickets(LENGTHS, []))


def write_all(folder, batch, resume=False):
    with ShardWriter(folder, resume=resume) as writer:
        writer.begin(WANTED)
        for start, stop in SHARDS[len(writer.shards) :]:
            writer.write(batch[start:stop])
        writer.finish()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- Which trajectories go into which shard


def reference(lengths, size, target):
    """Where shards end: one trajectory after the other."""
    bounds, n, timesteps, in_shard = [0], 0, 0, 0
    for length in lengths:
        if not target.missing(n, timesteps):
            break
        n, timesteps, in_shard = n + 1, timesteps + length, in_shard + length
        if in_shard >= size:
            bounds.append(n)
            in_shard = 0
    return bounds if bounds[-1] == n else [*bounds, n]


@given(
    data=st.data(),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=60),
    size=st.integers(1, 30),
    unit=st.sampled_from(["timesteps", "trajectories"]),
)
def test_shards_depend_on_the_data_and_their_size_alone(data, lengths, size, unit):
    target = Target(unit, data.draw(st.integers(1, sum(lengths) if unit == "timesteps" else len(lengths))))
    bounds, timesteps = [0], 0
    while target.missing(bounds[-1], timesteps):
        # Each shard as if another process had just gone on, with trajectories that come in any pieces.
        portion, position = target.next_portion(size, bounds[-1], timesteps), bounds[-1]
        while not portion.met:
            piece = lengths[position : position + data.draw(st.integers(1, 7))]
            assert piece, "what is wanted is never beyond what there is"
            position += portion.fill(piece)
        assert portion.fill([1]) == 0, "a portion that is met takes nothing"
        timesteps += sum(lengths[bounds[-1] : position])
        bounds.append(position)
    assert bounds == reference(lengths, size, target)
    assert Portion(3, None).fill([1, 1, 5, 1]) == 3


# --- Killed anywhere


class Killing:
    """Kills this process before one of the steps in which a file or a folder changes."""

    def __init__(self, at):
        self.left = at
        for name in ("fsync", "rename", "replace", "open", "unlink"):
            setattr(os, name, self.before(getattr(os, name)))

    def before(self, function):
        def wrapper(*args, **options):
            self.reached()
            return function(*args, **options)

        return wrapper

    def reached(self):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def in_child(function):
    """Run a function in a forked process; returns whether it came to its end."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    descriptor = os.pidfd_open(pid)
    assert select.select([descriptor], [], [], PATIENCE)[0], "the child hangs"
    os.close(descriptor)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status == 0


@pytest.fixture
def expected(batch, tmp_path, monkeypatch):
    """The contents of a folder whose writer was not killed; and no waiting for the disk, which outlives SIGKILL."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    write_all(tmp_path / "whole", batch)
    assert read_manifest(tmp_path / "whole").complete
    return contents(tmp_path / "whole")


@pytest.mark.slow
def test_killed_at_any_point_the_folder_becomes_what_it_would_have_been(batch, tmp_path, expected):
    assert sorted(expected) == [MANIFEST, *map(shard_name, range(3))]

    def killed(folder, at):
        def body():
            Killing(at)
            write_all(folder, batch, resume=True)

        return not in_child(body)

    n_points = next(at for at in itertools.count(1) if not killed(tmp_path / f"{at}", at)) - 1
    assert n_points > 3 * 4, "each shard has a temporary file, its rename and two waits for the disk"
    states = set()
    for at in range(1, n_points + 1):
        folder = tmp_path / f"{at}"
        states.add(len(list(folder.iterdir())) if folder.exists() else None)
        write_all(folder, batch, resume=True)
        assert contents(folder) == expected, f"killed at point {at} of {n_points}"
    assert states >= {0, 1, 2, 3, 4, 5}, "it was killed with temporary files and without"


def test_killed_again_and_again_the_folder_becomes_what_it_would_have_been(batch, tmp_path, expected):
    folder = tmp_path / "often"

    def body():
        Killing(12)
        write_all(folder, batch, resume=True)

    kills = 0
    while not in_child(body):
        kills += 1
        assert kills < 50, "each run comes further than the one before"
    assert kills > 2
    assert contents(folder) == expected


# --- One writer, and what it finds


def test_a_second_writer_is_kept_out_unless_only_forked_children_have_the_first_ones_lock(tmp_path):
    """Such as forked workers that have not noticed yet that their parent was killed."""
    (ready, is_ready), (over, is_over) = os.pipe(), os.pipe()
    writer = ShardWriter(tmp_path / "folder")
    pid = os.fork()
    if pid == 0:
        os.close(is_over)
        os.write(is_ready, b"!")
        os.read(over, 1)
        os._exit(0)
    try:
        os.read(ready, 1)
        with pytest.raises(StorageError, match="folder is being written by another process"):
            ShardWriter(tmp_path / "folder")
        writer._lock.drop()  # what happens to the lock when its process is killed
        ShardWriter(tmp_path / "folder").close()
        assert list((tmp_path / "folder").iterdir()) == [], "the lock leaves no file"
    finally:
        os.close(is_over)
        os.waitpid(pid, 0)
        for descriptor in (ready, is_ready, over):
            os.close(descriptor)


def test_going_on_with_something_else_is_refused(tmp_path):
    with ShardWriter(tmp_path / "folder") as writer:
        writer.begin(WANTED)
    before = contents(tmp_path / "folder")
    cases: list[Any] = [
        ({"seed": 8}, "seed was 7, now 8"),
        ({"shard_size": 5}, "shard_size was 6, now 5"),
        ({"wanted": {"trajectories": 8}}, "was created for 9 trajectories, not for 8 trajectories: resume it with"),
        ({"wanted": {"timesteps": 99}}, "was created for 9 trajectories, not for 99 timesteps: resume it with"),
        ({"provenance": {"environment": "X", "agent": "a"}}, "agent was None, now 'a'"),
        ({"package_version": "0.0"}, "package_version was "),
    ]
    for change, words in cases:
        with ShardWriter(tmp_path / "folder", resume=True) as writer, pytest.raises(UsageError, match=words):
            writer.begin(replace(WANTED, **change))
        assert contents(tmp_path / "folder") == before
    later = {"environment": "X", "versions": {"numpy": "9"}}
    assert replace(WANTED, provenance=later).decides() == WANTED.decides(), "versions of libraries do not decide"


def test_what_is_there_already_is_not_written_over(batch, tmp_path):
    folder, other = tmp_path / "folder", tmp_path / "other"
    with ShardWriter(folder) as writer:
        with pytest.raises(UsageError, match="begin before writing"):
            writer.write(batch)
        writer.begin(WANTED)
    with pytest.raises(UsageError, match=r"0 shards, incomplete\): resume it"):
        ShardWriter(folder)
    write_all(folder, batch, resume=True)
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    for path, resume, words in (
        (folder, False, r"3 shards, complete\): name another folder"),
        (other, False, r"other files, such as 'thesis\.txt'"),
        (other, True, r"other files, such as 'thesis\.txt'"),
        (other / "thesis.txt", False, "is a file"),
        (tmp_path / "nowhere" / "folder", False, "no such directory"),
    ):
        with pytest.raises(UsageError, match=words):
            ShardWriter(path, resume=resume)


def test_shards_that_are_lost_damaged_or_too_many_are_named(batch, tmp_path):
    folder = tmp_path / "folder"
    write_all(folder, batch)
    zero, one, two, seven = (folder / shard_name(number) for number in (0, 1, 2, 7))
    for change, words in (
        (lambda: one.rename(seven), r"shard-000001\.npz is missing"),
        (
            lambda: (seven.rename(one), seven.write_bytes(b"")),
            r"shard-000007\.npz is not listed in manifest\.json, which has 3 shards",
        ),
        (lambda: (seven.unlink(), two.write_bytes(two.read_bytes()[:-100])), r"shard-000002\.npz"),
        (lambda: two.write_bytes(zero.read_bytes()), r"000002\.npz should hold trajectories 6 to 8 with 7 timesteps"),
    ):
        change()
        with pytest.raises(StorageError, match=words):
            ShardWriter(folder, resume=True)


# --- Reading


@pytest.fixture
def path(batch, tmp_path):
    write_all(tmp_path / "folder", batch)
    return tmp_path / "folder"


def test_a_folder_is_the_batch(batch, path):
    folder = streamsampler.load(path)
    assert isinstance(folder, TrajectoryFolder)
    assert (len(folder), folder.n_trajectories, folder.n_timesteps) == (9, 9, sum(LENGTHS))
    assert (folder.complete, folder.seed, folder.provenance) == (True, 7, {"environment": "X"})
    assert repr(folder) == f"TrajectoryFolder('{path}', 9 trajectories, {sum(LENGTHS)} timesteps, 3 shards)"
    assert folder.to_batch() == TrajectoryBatch.concatenate(folder) == batch
    assert folder.to_batch().seed == batch.seed
    assert [len(shard) for shard in folder.shards] == [stop - start for start, stop in SHARDS]
    assert folder.shards[-1] == batch[6:]
    assert pickle.loads(pickle.dumps(folder))[8] == folder[8]
    assert streamsampler.load(path / shard_name(1)) == batch[3:6]
    some = np.array([True, False, True] * 3)
    indices: list[Any] = [0, 5, -1, slice(None), slice(2, 7), slice(7, 2, -2), slice(4, 4), [8, 0, 4, 4], some]
    for index in indices:
        assert folder[index] == batch[index]
    indices = [9, -10, [9], [True], np.zeros((1, 1), int)]
    for beyond in indices:
        with pytest.raises(IndexError):
            folder[beyond]


def test_one_shard_is_loaded_at_a_time_and_only_when_it_is_needed(path, monkeypatch):
    loaded = []

    def load(path):
        loaded.append(path.name)
        if len(loaded) > 4:
            assert folder.shards._last is None, "the shard before is let go of first"  # type: ignore[attr-defined]
        return original(path)

    original = files.load_with_header
    monkeypatch.setattr("streamsampler.data.shards.load_with_header", load)
    folder = TrajectoryFolder(path)
    assert len(folder) == 9
    assert loaded == []
    one = folder[4]
    assert folder[3].indices == 3
    assert loaded == [shard_name(1)]
    assert not np.shares_memory(one.observations, folder.shards[1].observations), "one trajectory keeps no shard"
    assert [int(trajectory.indices[0]) for trajectory in folder] == list(range(9))
    assert loaded == [shard_name(number) for number in (1, 0, 1, 2)]
    assert folder.shards[0] is folder.shards[0]
    assert len(pickle.dumps(folder)) < len(pickle.dumps(folder.shards[0]))


def test_what_is_incomplete_is_as_far_as_it_got(batch, tmp_path):
    with ShardWriter(tmp_path / "folder") as writer:
        writer.begin(WANTED)
        empty = TrajectoryFolder(tmp_path / "folder")
        assert len(empty) == 0
        for nothing in (empty.to_batch, lambda: empty[:]):
            with pytest.raises(DataError, match="folder holds no trajectories yet"):
                nothing()
        writer.write(batch[:3])
    # One that the manifest does not list yet does not count.
    storage.save(batch[3:6], tmp_path / "folder" / shard_name(1), provenance=WANTED.provenance)
    folder = TrajectoryFolder(tmp_path / "folder")
    assert not folder.complete
    assert "incomplete" in repr(folder)
    assert folder.to_batch() == batch[:3]


def test_a_manifest_that_is_damaged(path):
    manifest = (path / MANIFEST).read_text()
    for change, words in (
        (lambda facts: facts.update(format="something"), "it holds dict {'format': 'something'"),
        (lambda facts: facts.update(format_version=2), r"has format version 2, .* reads up to 1"),
        (lambda facts: facts.pop("seed"), r"manifest\.json is damaged: KeyError: 'seed'"),
        (lambda facts: facts["shards"].pop(0), "damaged.*shard 0 should be shard-000000.npz, not 'shard-000001.npz'"),
        (
            lambda facts: facts["shards"][1].update(first_trajectory=4),
            "shard 1 starts at trajectory 4, but should start at 3",
        ),
        (lambda facts: facts["shards"][1].update(surprise=4), "surprise"),
    ):
        facts = json.loads(manifest)
        change(facts)
        (path / MANIFEST).write_text(json.dumps(facts))
        with pytest.raises(StorageError, match=words):
            streamsampler.load(path)
    facts = json.loads(manifest)
    assert facts.pop("fingerprints") == []
    (path / MANIFEST).write_text(json.dumps(facts))
    assert read_manifest(path).fingerprints == frozenset(), "those of before have none"


def test_shards_that_are_missing_or_others_are_named(path):
    folder = TrajectoryFolder(path)
    (path / shard_name(1)).unlink()
    assert folder[0].indices == 0
    with pytest.raises(StorageError, match=r"shard-000001\.npz is missing"):
        folder.to_batch()
    (path / shard_name(2)).write_bytes((path / shard_name(0)).read_bytes())
    with pytest.raises(StorageError, match=r"shard-000002\.npz should hold trajectories 6 to 8"):
        folder[-1]


def test_what_is_no_folder_of_shards(tmp_path):
    readers: list[Any] = [streamsampler.load, TrajectoryFolder]
    for read in readers:
        with pytest.raises(StorageError, match=r"no folder of trajectories: it has no manifest\.json"):
            read(tmp_path)
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "nothing")
    with pytest.raises(StorageError, match=r"is a folder, .* streamsampler\.load"):
        TrajectoryBatch.load(tmp_path)


def test_several_folders_are_one(batch, path, tmp_path):
    other = replace(batch_of(tickets(LENGTHS[:3], [])), seed=8)
    with ShardWriter(tmp_path / "other") as writer:
        writer.begin(replace(WANTED, seed=8, provenance={"environment": "X", "agent": "a"}))
        writer.write(other)
    folder = streamsampler.load(path, tmp_path / "other")
    assert isinstance(folder, TrajectoryFolder)
    assert (len(folder), folder.seed, folder.complete) == (12, None, False)
    assert folder.provenance == {"environment": "X"}
    assert folder.files == [*(path / shard_name(number) for number in range(3)), tmp_path / "other" / shard_name(0)]
    whole = TrajectoryBatch.concatenate(batch, other)
    assert folder.to_batch() == whole
    assert folder[[10, 2]] == whole[[10, 2]]
    assert repr(folder).startswith(f"TrajectoryFolder('{path}', '{tmp_path / 'other'}', 12 trajectories")
    with pytest.raises(UsageError, match="needs a single folder, but this has 2"):
        print(folder.path)
    with pytest.raises(StorageError, match=r"shard-000000\.npz is no folder of trajectories"):
        streamsampler.load(path, path / shard_name(0))
    (tmp_path / "link").symlink_to(path)
    for same in (path, tmp_path / "link"):
        with pytest.raises(UsageError, match="is given twice: its trajectories would count twice"):
            streamsampler.load(path, tmp_path / "other", same)


def test_a_list_of_folders_is_answered_with_the_call(path):
    with pytest.raises(UsageError, match=r"one by one, not as a list: load\(\*paths\)"):
        streamsampler.load(cast("Any", [path, path]))


def test_folders_of_different_spaces_are_refused_when_they_are_opened(batch, path, tmp_path):
    write_all(tmp_path / "other", replace(batch, action_space=spaces.Discrete(99)))
    with pytest.raises(DataError, match=r"action_space differs: .* in .*, Discrete\(99\) in .*other; open"):
        streamsampler.load(path, tmp_path / "other")
    (tmp_path / "other" / shard_name(0)).unlink()
    with pytest.raises(StorageError, match="is missing, but the folder's"):
        streamsampler.load(path, tmp_path / "other")
