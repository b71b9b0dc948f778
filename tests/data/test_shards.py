"""Writing shards: the same folder wherever the writer is killed, and nobody else in it."""

import dataclasses
import itertools
import os
import select
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.core import atomic
from streamsampler.data.manifest import MANIFEST, Manifest, read_manifest, shard_name
from streamsampler.data.shards import ShardWriter
from streamsampler.errors import StorageError, UsageError
from streamsampler.protocol.plans import Portion, Target
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
        for start, stop in SHARDS[writer.n_shards :]:
            writer.write(batch[start:stop])
        writer.finish()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- Which trajectories go into which shard


def reference(lengths, size, target):
    """Where shards end: one trajectory after the other."""
    bounds, n, timesteps = [0], 0, 0
    in_shard = 0
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
            position += portion.take(piece)
        timesteps += sum(lengths[bounds[-1] : position])
        bounds.append(position)
    assert bounds == reference(lengths, size, target)
    prefix = next(n for n in range(len(lengths) + 1) if not target.missing(n, sum(lengths[:n])))
    assert bounds[-1] == prefix, "all shards together are the shortest prefix that suffices"


def test_a_portion_that_is_met_takes_nothing():
    portion = Portion(3, None)
    assert portion.take([1, 1, 5, 1]) == 3
    assert portion.met
    assert portion.take([1]) == 0


# --- Killed anywhere


@pytest.fixture
def no_waiting(monkeypatch):
    """No waiting for the disk: what a process has written outlives its SIGKILL."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


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


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.slow
def test_killed_at_any_point_the_folder_becomes_what_it_would_have_been(batch, tmp_path):
    write_all(tmp_path / "whole", batch)
    expected = contents(tmp_path / "whole")
    assert sorted(expected) == [MANIFEST, *map(shard_name, range(3))]
    assert read_manifest(tmp_path / "whole").complete

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


@pytest.mark.usefixtures("no_waiting")
def test_killed_again_and_again(batch, tmp_path):
    write_all(tmp_path / "whole", batch)
    folder = tmp_path / "often"

    def body():
        Killing(12)
        write_all(folder, batch, resume=True)

    kills = 0
    while not in_child(body):
        kills += 1
        assert kills < 50, "each run comes further than the one before"
    assert kills > 2
    assert contents(folder) == contents(tmp_path / "whole")


def test_what_raises_leaves_no_temporary_file(tmp_path):
    def write(file):
        file.write(b"half")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        atomic.write_whole(tmp_path / "x", write)
    assert list(tmp_path.iterdir()) == []


# --- One writer, and what it finds


def test_a_second_writer_is_kept_out(batch, tmp_path):
    with (
        ShardWriter(tmp_path / "folder"),
        pytest.raises(StorageError, match="folder is being written by another process"),
    ):
        ShardWriter(tmp_path / "folder")
    write_all(tmp_path / "folder", batch)
    assert not [name for name in os.listdir(tmp_path / "folder") if "lock" in name]


def test_a_forked_child_that_lives_on_does_not_keep_the_folder_locked(tmp_path):
    """What forked workers do that have not noticed yet that their parent was killed."""
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
        with pytest.raises(StorageError, match="another process"):
            ShardWriter(tmp_path / "folder")
        writer._lock.drop()  # what happens to the lock when its process is killed
        ShardWriter(tmp_path / "folder").close()
    finally:
        os.close(is_over)
        os.waitpid(pid, 0)
        for descriptor in (ready, is_ready, over):
            os.close(descriptor)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 8}, "seed is 7 there, and 8 here"),
        ({"shard_size": 5}, "shard_size is 6 there, and 5 here"),
        ({"wanted": {"trajectories": 13}}, "wanted is {'trajectories': 9} there, and {'trajectories': 13} here"),
        ({"provenance": {"environment": "Y"}}, "environment is 'X' there, and 'Y' here"),
        ({"provenance": {"environment": "X", "agent": "a"}}, "agent is None there, and 'a' here"),
        ({"package_version": "0.0"}, "package_version is "),
    ],
)
def test_going_on_with_something_else_is_refused(tmp_path, change, words):
    with ShardWriter(tmp_path / "folder") as writer:
        writer.begin(WANTED)
    before = contents(tmp_path / "folder")
    with ShardWriter(tmp_path / "folder", resume=True) as writer, pytest.raises(UsageError) as caught:
        writer.begin(dataclasses.replace(WANTED, **change))
    assert words in str(caught.value)
    assert contents(tmp_path / "folder") == before


def test_what_is_there_already_is_not_written_over(batch, tmp_path):
    folder = tmp_path / "folder"
    with ShardWriter(folder) as writer:
        writer.begin(WANTED)
    with pytest.raises(UsageError, match=r"0 shards, incomplete\): resume it"):
        ShardWriter(folder)
    write_all(folder, batch, resume=True)
    with pytest.raises(UsageError, match=r"3 shards, complete\): name another folder"):
        ShardWriter(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")
    for resume in (False, True):
        with pytest.raises(UsageError, match=r"something else, such as 'thesis\.txt'"):
            ShardWriter(tmp_path / "other", resume=resume)
    with pytest.raises(UsageError, match="is a file"):
        ShardWriter(tmp_path / "other" / "thesis.txt")
    with pytest.raises(UsageError, match="no directory"):
        ShardWriter(tmp_path / "nowhere" / "folder")
    with ShardWriter(tmp_path / "new") as writer, pytest.raises(UsageError, match="begun"):
        writer.write(batch)


def test_shards_that_are_lost_or_too_many_are_named(batch, tmp_path):
    folder = tmp_path / "folder"
    write_all(folder, batch)
    (folder / shard_name(1)).rename(folder / shard_name(7))
    with pytest.raises(StorageError, match=r"shard-000001\.npz is missing"):
        ShardWriter(folder, resume=True)
    (folder / shard_name(7)).rename(folder / shard_name(1))
    (folder / shard_name(9)).write_bytes(b"")
    with pytest.raises(StorageError, match=r"shard-000009\.npz does not follow on 3 shards"):
        ShardWriter(folder, resume=True)


def test_a_damaged_shard_is_named_when_the_folder_is_resumed(batch, tmp_path):
    folder = tmp_path / "folder"
    write_all(folder, batch)
    path = folder / shard_name(2)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StorageError, match=r"shard-000002\.npz"):
        ShardWriter(folder, resume=True)
    path.write_bytes((folder / shard_name(1)).read_bytes())
    with pytest.raises(StorageError, match=r"shard-000002\.npz should hold trajectories 6 to 8 with 7 timesteps"):
        ShardWriter(folder, resume=True)
