"""Sampling into a folder, without the command line: what it holds, what it refuses, and what ends it."""

import errno
import os
import resource
import signal
import subprocess
import sys
import weakref
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, PerWorker, TrajectoryFolder, VecWorker, sample_to_folder
from streamsampler.data import npz as storage
from streamsampler.data.shard_writer import ShardWriter
from streamsampler.data.shards import shard_name
from streamsampler.errors import ClosedError, DamagedShardError, RolloutError, StorageError, UsageError
from streamsampler.filters import RunningNorm, RunningReturnNorm
from streamsampler.samplers.streaming import Stream
from tests.data.test_shards import Killing, in_child
from tests.tiers import mostly_slow

AMOUNT: dict[str, Any] = {"n_timesteps": 500, "shard_size": 100}


def make(kind: Any = LocalSampler, env: Any = "CartPole-v1", **options: Any) -> Any:
    return kind("random", env, **{"seed": 3, **options})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted call."""
    path = tmp_path_factory.mktemp("whole") / "out"
    with make() as sampler:
        sample_to_folder(sampler, path, **AMOUNT)
    return path


@pytest.mark.parametrize("amount", [{"n_timesteps": 500}, {"n_trajectories": 20}])
def test_a_folder_holds_what_one_call_returns_and_where_it_is_from(
    tmp_path: Path, amount: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    provenance = {"agent": "mine", "rate": (1, 2)}
    with make(max_episode_length=90) as sampler:
        out = str(tmp_path / "out")
        folder = sample_to_folder(sampler, out, shard_size=100, provenance=provenance, progress=True, **amount)
        assert sampler.agent_version == 1
        assert sampler.stats.kept_timesteps == folder.n_timesteps
    with make(max_episode_length=90) as sampler:
        obtain = sampler.obtain_samples if "n_timesteps" in amount else sampler.obtain_trajectories
        expected = obtain(*amount.values())
    assert isinstance(folder, TrajectoryFolder)
    assert folder.complete
    assert folder.to_batch() == expected
    assert all(shard.n_timesteps >= 100 > shard[:-1].n_timesteps for shard in list(folder.shards)[:-1])
    assert folder.provenance == {
        "environment": "CartPole-v1", "agent": "mine", "rate": [1, 2], "max_episode_length": 90, "order": "index",
        "on_failure": "raise", "worker_threads": 1, "versions": folder.provenance["versions"],
    }  # fmt: skip
    for library in (np, gymnasium):
        assert folder.provenance["versions"][library.__name__] == library.__version__
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sampling: 100%")


def test_processes_write_the_same_folder(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with make(MultiprocessingSampler, n_workers=2) as sampler:
        sample_to_folder(sampler, tmp_path / "out", **AMOUNT)
    assert contents(tmp_path / "out") == contents(whole)
    assert capsys.readouterr().err == "", "progress is shown when it is asked for"


def interrupted(sampler: Any, folder: Path, at: int = 3, **amount: Any) -> None:
    """Press Ctrl-C before a file is written, by default the third one."""
    n, save = 0, storage.save

    def saving(*arguments: Any, **options: Any) -> Any:
        nonlocal n
        n += 1
        if n == at:
            signal.raise_signal(signal.SIGINT)
        return save(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "save", saving)
        with pytest.raises(KeyboardInterrupt):
            sample_to_folder(sampler, folder, **AMOUNT, **amount)


class Follower(list[Any]):
    """Keeps all snapshots, one after each report."""

    interval = 0.0

    def __call__(self, snapshot: Any) -> None:
        self.append(snapshot)


def test_after_ctrl_c_the_same_call_completes_the_folder(whole: Path, tmp_path: Path) -> None:
    with make(n_workers=2) as sampler:
        interrupted(sampler, tmp_path / "out")
        there = TrajectoryFolder(tmp_path / "out")
        assert (there.complete, len(there.shards)) == (False, 2)
        with pytest.raises(UsageError, match="agent_version was 1, now 2"):
            sample_to_folder(sampler, tmp_path / "out", **AMOUNT, resume=True)
        assert len(sampler.obtain_trajectories(1)) == 1, "the sampler is usable"
    seen = Follower()
    with make() as sampler:
        sample_to_folder(sampler, tmp_path / "out", **AMOUNT, resume=True, progress=seen)
    assert contents(tmp_path / "out") == contents(whole)
    assert (seen[0].n_timesteps, seen[0].earlier_timesteps) == (there.n_timesteps, there.n_timesteps)
    assert len(seen) > 2
    assert all(snapshot.n_trajectories >= len(there) for snapshot in seen), "those that were there count"
    assert [snapshot.complete for snapshot in seen] == [False] * (len(seen) - 1) + [True]
    assert seen[-1].n_timesteps == TrajectoryFolder(whole).n_timesteps


@pytest.mark.parametrize("at", ["full", 1, *(pytest.param(at, marks=pytest.mark.slow) for at in (7, 14))])
def test_after_sigkill_or_a_full_disk_the_same_call_completes_the_folder(
    whole: Path, tmp_path: Path, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        if sum(path.suffix == ".npz" for path in (tmp_path / "out").iterdir()) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    def body() -> None:
        if at != "full":
            Killing(at)
        with make() as sampler:
            sample_to_folder(sampler, tmp_path / "out", **AMOUNT)

    if at == "full":
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left on device"):
            body()
        monkeypatch.undo()
    else:
        assert not in_child(body)
    with make(n_workers=2) as sampler:
        sample_to_folder(sampler, tmp_path / "out", **AMOUNT, resume=True)
    assert contents(tmp_path / "out") == contents(whole)


def test_an_uncompressed_folder_is_resumed_with_compression_and_holds_the_same(whole: Path, tmp_path: Path) -> None:
    with make() as sampler:
        interrupted(sampler, tmp_path / "out")
    with make() as sampler:
        folder = sample_to_folder(sampler, tmp_path / "out", **AMOUNT, resume=True, compress=True)
    kinds = [{member.compress_type for member in zipfile.ZipFile(path).infolist()} for path in folder.files]
    assert kinds[1:4] == [{zipfile.ZIP_STORED}, {zipfile.ZIP_DEFLATED}, {zipfile.ZIP_DEFLATED}]
    assert folder.to_batch() == TrajectoryFolder(whole).to_batch()


def test_a_written_shard_leaves_memory_before_the_next_one_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[weakref.ref[Any]] = []
    take = Stream.take

    def taking(stream: Any, portion: Any) -> Any:
        assert [ref() for ref in written] == [None] * len(written)
        batch = take(stream, portion)
        written.append(weakref.ref(batch))
        return batch

    monkeypatch.setattr(Stream, "take", taking)
    with make() as sampler:
        sample_to_folder(sampler, tmp_path / "out", **AMOUNT)
    assert len(written) > 2


def test_a_complete_folder_stays_as_it_is(whole: Path) -> None:
    before, seen = contents(whole), Follower()
    with make() as sampler:
        folder = sample_to_folder(sampler, whole, **AMOUNT, resume=True, progress=seen)
        assert sampler.agent_version == 1, "it counts as a call, as an uninterrupted one does"
        assert sampler.stats.ran_timesteps == 0, "no worker had anything to do"
    assert (folder.complete, contents(whole), seen) == (True, before, [])


class Brittle(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises in a quarter of all trajectories, until there is a file."""

    def __init__(self, repaired: Path) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.repaired = repaired

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.fails = seed % 4 == 0 and not self.repaired.exists()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if self.fails:
            raise RuntimeError("the arm is stuck")
        return super().step(action)


@pytest.mark.slow
def test_a_folder_with_gaps_is_resumed_from_anywhere(tmp_path: Path) -> None:
    def brittle(n_workers: int = 1) -> Any:
        return make(env=lambda: Brittle(tmp_path / "never"), n_workers=n_workers, on_failure="drop")

    with brittle() as sampler:
        folder = sample_to_folder(sampler, tmp_path / "whole", **AMOUNT)
    assert folder.to_batch().indices[-1] + 1 - len(folder) > 5
    for at in (1, 2, len(folder.shards)):
        with brittle() as sampler:
            interrupted(sampler, tmp_path / f"cut{at}", at)
        with brittle(1 + at % 2) as sampler:
            sample_to_folder(sampler, tmp_path / f"cut{at}", **AMOUNT, resume=True)
        assert contents(tmp_path / f"cut{at}") == contents(tmp_path / "whole")


def test_what_fails_leaves_what_is_complete(tmp_path: Path) -> None:
    repaired = tmp_path / "repaired"
    amount: dict[str, Any] = {"n_trajectories": 20, "shard_size": 1}
    with make(env=lambda: Brittle(repaired), check=None) as sampler, pytest.raises(RolloutError, match="arm is stuck"):
        sample_to_folder(sampler, tmp_path / "out", **amount)
    assert 1 <= len(TrajectoryFolder(tmp_path / "out")) < 20
    repaired.touch()
    with make(env=lambda: Brittle(repaired), check=None) as sampler:
        folder = sample_to_folder(sampler, tmp_path / "out", **amount, resume=True)
    with make(env=lambda: Brittle(repaired), check=None) as sampler:
        assert folder.to_batch() == sampler.obtain_trajectories(20)


FILTERS = {"observation_filter": RunningNorm(clip=3.0), "reward_filter": RunningReturnNorm(0.9)}


@pytest.mark.parametrize("kind", [LocalSampler, pytest.param(MultiprocessingSampler, marks=pytest.mark.slow)])
def test_a_sampler_that_has_resumed_goes_on_as_one_that_was_never_interrupted(tmp_path: Path, kind: Any) -> None:
    """Versions, statistics of filters, and batches; also where there was nothing left to sample."""
    found: list[Any] = []
    with make(**FILTERS) as sampler:
        sampler.warm_up(80)
        interrupted(sampler, tmp_path / "cut")
    for name, resume in [("whole", False), ("cut", True), ("cut", True)]:
        with make(kind, **FILTERS) as sampler:
            sampler.warm_up(80)
            sample_to_folder(sampler, tmp_path / name, **AMOUNT, resume=resume)
            filters = sampler.filters
            found.append((filters.observation, filters.reward, sampler.obtain_samples(100), sampler.agent_version))
    assert found[1] == found[0]
    assert found[2] == found[0]


class Large(gymnasium.Env[Any, Any]):
    """Has observations of 400 bytes and trajectories of 100 timesteps, each of some 30 µs."""

    observation_space = gymnasium.spaces.Box(0, 255, (20, 20), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.frame, self.timestep = self.np_random.integers(0, 256, (20, 20), np.uint8), 0
        return self.frame, {}

    def step(self, action: Any) -> Any:
        self.timestep += 1
        sum(range(2_000))
        return self.frame, 1.0, self.timestep == 100, False, {}


def peak_of(folder: str, number: int) -> None:
    with make(MultiprocessingSampler, Large, n_workers=2) as sampler:
        sample_to_folder(sampler, folder, n_timesteps=number, shard_size=5_000)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


@pytest.mark.slow
def test_memory_does_not_grow_with_what_is_sampled(tmp_path: Path) -> None:
    peaks = []
    # 32 MB and 128 MB, in shards of 2 MB: both are more than workers may be ahead, which is some 10 MB.
    for number in (80_000, 320_000):
        code = f"from tests.samplers.test_sharded import peak_of; peak_of({str(tmp_path / str(number))!r}, {number})"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        peaks.append(int(run.stdout))
    assert peaks[1] < peaks[0] + 30, f"{peaks} MB"


def extended(folder: Path, amounts: list[dict[str, Any]], **options: Any) -> list[TrajectoryFolder[Any, Any]]:
    """Ask for one amount after the other, each in a sampler of its own; return what came of each."""
    found = []
    for amount in amounts:
        with make(**options) as sampler:
            found.append(sample_to_folder(sampler, folder, **amount, shard_size=100, resume=True))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["n_timesteps", "n_trajectories"])
@pytest.mark.parametrize("options", [{}, {"observation_filter": RunningNorm()}])
def test_a_finished_folder_is_extended_to_what_one_call_would_have_written(
    tmp_path: Path, unit: str, options: Any
) -> None:
    steps = (1, 7, 96, 230, 231, 512) if unit == "n_timesteps" else (1, 3, 5, 6, 20)
    (expected,) = extended(tmp_path / "one", [{unit: steps[-1]}], **options)
    assert len(expected.shards) > 3
    found = extended(tmp_path / "more", [{unit: number} for number in steps], **options)
    for folder, number in zip(found, steps, strict=True):
        assert folder.complete
        (alone,) = extended(tmp_path / f"{number}", [{unit: number}], **options)
    assert contents(tmp_path / "more") == contents(tmp_path / "one") == contents(alone.path)


@pytest.mark.parametrize("at", mostly_slow([2, 1, 3]))
def test_an_extension_that_is_interrupted_goes_on(tmp_path: Path, at: int) -> None:
    out = tmp_path / "out"
    extended(out, [{"n_timesteps": 230}])  # whose last shard is short
    with make() as sampler:
        interrupted(sampler, out, at, resume=True)
    with make() as sampler, pytest.raises(UsageError, match="was created for 500 timesteps, not for 230"):
        sample_to_folder(sampler, out, n_timesteps=230, shard_size=100, resume=True)
    extended(out, [{"n_timesteps": 500}])
    extended(tmp_path / "one", [{"n_timesteps": 500}])
    assert contents(out) == contents(tmp_path / "one")


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (
            {"n_timesteps": 499},
            "created for 500 timesteps, not for 499 timesteps: resume it with n_timesteps of 500 or more",
        ),
        (
            {"n_trajectories": 1},
            "created for 500 timesteps, not for 1 trajectory: resume it with n_timesteps of 500 or more",
        ),
    ],
)
def test_a_folder_is_not_resumed_with_less_or_by_another_count(whole: Path, amount: dict[str, Any], words: str) -> None:
    before = contents(whole)
    with make() as sampler, pytest.raises(UsageError, match=words):
        sample_to_folder(sampler, whole, **amount, shard_size=100, resume=True)
    assert contents(whole) == before


def test_an_unfinished_folder_is_not_resumed_with_other_arguments(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with make() as sampler:
        interrupted(sampler, out)
    before = contents(out)
    others: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"seed": 4}, {}, "seed was 3, now 4"),
        ({"max_episode_length": 9}, {}, "max_episode_length was None, now 9"),
        ({"on_failure": "drop"}, {}, "on_failure was 'raise', now 'drop'"),
        ({"worker_threads": None}, {}, "worker_threads was 1, now None"),
        ({"env": "Acrobot-v1"}, {}, "environment was 'CartPole-v1', now 'Acrobot-v1'"),
        ({"env": PerWorker(["CartPole-v1"] * 2)}, {}, "n_workers was None, now 2"),
        ({}, {"shard_size": 101}, "shard_size was 100, now 101"),
        ({}, {"provenance": {"agent": "b"}}, "agent was None, now 'b'"),
        ({}, {"provenance": {"environment": "b"}}, "environment was 'CartPole-v1', now 'b'"),
    ]
    for options, arguments, words in others:
        with make(**options) as sampler, pytest.raises(UsageError, match="created with other arguments") as caught:
            sample_to_folder(sampler, out, **{**AMOUNT, **arguments}, resume=True)
        assert words in str(caught.value)
        assert "counts a sampler's calls" not in str(caught.value)
    with make() as sampler:
        sampler.obtain_samples(1)
        with pytest.raises(UsageError, match="counts a sampler's calls: make a new sampler with the same seed"):
            sample_to_folder(sampler, out, **AMOUNT, resume=True)
    assert contents(out) == before
    (out / shard_name(1)).unlink()
    with make() as sampler, pytest.raises(DamagedShardError, match=r"shard-000001\.npz is missing"):
        sample_to_folder(sampler, out, **AMOUNT, resume=True)


@pytest.mark.parametrize(
    ("options", "arguments", "words"),
    [
        ({}, {"n_timesteps": None}, "one of n_timesteps and n_trajectories"),
        ({}, {"n_trajectories": 5}, "one of n_timesteps and n_trajectories"),
        ({}, {"n_timesteps": 0}, "n_timesteps must be at least 1, got 0"),
        ({}, {"n_timesteps": 2.5}, "n_timesteps must be an integer, got 2.5"),
        ({}, {"n_timesteps": None, "n_trajectories": -1}, "n_trajectories must be at least 1"),
        ({}, {"shard_size": 0}, "shard_size must be at least 1"),
        ({}, {"shard_size": "100"}, "shard_size must be an integer"),
        ({}, {"provenance": {"agent": object()}}, "provenance must be a dict that JSON can hold: .*object"),
        ({}, {"provenance": {"rate": float("nan")}}, "provenance must be a dict that JSON can hold"),
        ({}, {"provenance": 5}, "provenance must be a dict that JSON can hold"),
        ({"order": "arrival"}, {}, 'a sampler with order="index"'),
        ({"worker_class": VecWorker}, {}, "run blocks of"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_made(
    tmp_path: Path, options: Any, arguments: Any, words: str
) -> None:
    with make(**options) as sampler, pytest.raises(UsageError, match=words):
        sample_to_folder(sampler, tmp_path / "out", **{**AMOUNT, **arguments})
    assert os.listdir(tmp_path) == []


def test_what_is_no_sampler_or_no_folder_is_refused(whole: Path, tmp_path: Path) -> None:
    wrong: Any = "CartPole-v1"
    with pytest.raises(UsageError, match="sample_to_folder takes a sampler first, not a str"):
        sample_to_folder(wrong, tmp_path / "out", **AMOUNT)
    sampler = make()
    sampler.close()
    with pytest.raises(ClosedError):
        sample_to_folder(sampler, tmp_path / "out", **AMOUNT)
    assert os.listdir(tmp_path) == []
    with make() as sampler:
        with pytest.raises(
            UsageError, match=r"already holds trajectories \(\d+ shards, complete\): name another folder"
        ):
            sample_to_folder(sampler, whole, **AMOUNT)
        with ShardWriter(tmp_path / "out"), pytest.raises(StorageError, match="is being written by another process"):
            sample_to_folder(sampler, tmp_path / "out", **AMOUNT)
        assert sampler.agent_version == 0
        assert os.listdir(tmp_path / "out") == []
