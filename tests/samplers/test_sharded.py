"""Sampling into a folder, without the command line: what it holds, what it refuses, and what ends it."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, PerWorker, TrajectoryFolder, VecWorker, sample_to_folder
from streamsampler.data import npz as storage
from streamsampler.data.manifest import MANIFEST, shard_name
from streamsampler.data.shards import ShardWriter
from streamsampler.errors import ClosedError, DamagedShardError, RolloutError, StorageError, UsageError
from tests.data.test_shards import Killing, in_child

AMOUNT: dict[str, Any] = {"num_samples": 500, "shard_size": 100}


def make(**options):
    return LocalSampler("random", "CartPole-v1", **{"seed": 3, **options})


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of an uninterrupted call."""
    path = tmp_path_factory.mktemp("whole") / "out"
    with make() as sampler:
        sample_to_folder(sampler, path, **AMOUNT)
    return path


# ---------------------------------------------------------------------- what the folder holds


@pytest.mark.parametrize("amount", [{"num_samples": 500}, pytest.param({"n_trajectories": 20}, marks=pytest.mark.slow)])
def test_a_folder_holds_what_one_call_returns(tmp_path, amount):
    with make() as sampler:
        folder = sample_to_folder(sampler, str(tmp_path / "out"), shard_size=100, **amount)
        assert sampler.agent_version == 1
        assert sampler.stats.kept_timesteps == folder.n_timesteps
    with make() as sampler:
        obtain = sampler.obtain_samples if "num_samples" in amount else sampler.obtain_trajectories
        expected = obtain(*amount.values())
    assert isinstance(folder, TrajectoryFolder)
    assert folder.complete
    assert folder.to_batch() == expected
    assert all(shard.n_timesteps >= 100 > shard[:-1].n_timesteps for shard in list(folder.shards)[:-1])


def test_processes_write_the_same_folder(whole, tmp_path):
    with MultiprocessingSampler("random", "CartPole-v1", n_workers=2, seed=3) as sampler:
        sample_to_folder(sampler, tmp_path / "out", **AMOUNT)
    assert contents(tmp_path / "out") == contents(whole)


def test_each_file_says_where_its_data_are_from(tmp_path):
    with make(max_episode_length=9) as sampler:
        folder = sample_to_folder(sampler, tmp_path / "a", **AMOUNT, provenance={"agent": "mine", "rate": (1, 2)})
    versions = folder.provenance["versions"]
    assert folder.provenance == {
        "environment": "CartPole-v1", "agent": "mine", "rate": [1, 2], "max_episode_length": 9, "order": "index",
        "on_failure": "raise", "worker_threads": 1, "versions": versions,
    }  # fmt: skip
    assert versions["numpy"] == np.__version__
    assert versions["gymnasium"] == gymnasium.__version__


# ---------------------------------------------------------------------- ended, and resumed


def interrupted(sampler, folder, at=3, **amount):
    """Press Ctrl-C before a file is written, by default the third one."""
    n, save = 0, storage.save

    def saving(*arguments, **options):
        nonlocal n
        n += 1
        if n == at:
            signal.raise_signal(signal.SIGINT)
        return save(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "save", saving)
        with pytest.raises(KeyboardInterrupt):
            sample_to_folder(sampler, folder, **AMOUNT, **amount)


class Follower(list):
    """Keeps all snapshots, one after each report."""

    interval = 0.0

    def __call__(self, snapshot):
        self.append(snapshot)


def test_after_ctrl_c_the_same_call_completes_the_folder(whole, tmp_path):
    with make(n_workers=2) as sampler:
        interrupted(sampler, tmp_path / "out")
        there = TrajectoryFolder(tmp_path / "out")
        assert not there.complete
        assert len(there.shards) == 2
        with pytest.raises(UsageError, match="agent_version is 1 there, and 2 here"):
            sample_to_folder(sampler, tmp_path / "out", **AMOUNT, resume=True)
        assert len(sampler.obtain_trajectories(1)) == 1, "the sampler is usable"
    seen = Follower()
    with make() as sampler:
        sample_to_folder(sampler, tmp_path / "out", **AMOUNT, resume=True, progress=seen)
    assert contents(tmp_path / "out") == contents(whole)
    assert (seen[0].timesteps, seen[0].earlier_timesteps) == (there.n_timesteps, there.n_timesteps)
    assert len(seen) > 2
    assert all(snapshot.trajectories >= len(there) for snapshot in seen), "those that were there count"
    assert [snapshot.complete for snapshot in seen] == [False] * (len(seen) - 1) + [True]
    assert seen[-1].timesteps == TrajectoryFolder(whole).n_timesteps


@pytest.mark.parametrize("at", [1, *(pytest.param(at, marks=pytest.mark.slow) for at in (7, 14))])
def test_after_sigkill_the_same_call_completes_the_folder(whole, tmp_path, at):
    def body():
        Killing(at)
        with make() as sampler:
            sample_to_folder(sampler, tmp_path / "out", **AMOUNT)

    assert not in_child(body)
    with make(n_workers=2) as sampler:
        sample_to_folder(sampler, tmp_path / "out", **AMOUNT, resume=True)
    assert contents(tmp_path / "out") == contents(whole)


def test_after_a_full_disk_the_same_call_completes_the_folder(whole, tmp_path, monkeypatch):
    n, write = 0, storage._write

    def full(file, *rest):
        nonlocal n
        n += 1
        if n == 4:
            file.write(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, *rest)

    with make() as sampler, monkeypatch.context() as patch:
        patch.setattr(storage, "_write", full)
        with pytest.raises(OSError, match="No space left on device"):
            sample_to_folder(sampler, tmp_path / "out", **AMOUNT)
    assert len(TrajectoryFolder(tmp_path / "out").shards) == 3
    with make() as sampler:
        sample_to_folder(sampler, tmp_path / "out", **AMOUNT, resume=True)
    assert contents(tmp_path / "out") == contents(whole)


class Brittle(gymnasium.Wrapper):
    """Raises in a quarter of all trajectories."""

    def reset(self, *, seed=None, options=None):
        self.fails = seed % 4 == 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.fails:
            raise RuntimeError("broken")
        return super().step(action)


def test_a_folder_with_gaps_is_resumed_from_anywhere(tmp_path):
    def brittle(n_workers=1):
        factory = lambda: Brittle(gymnasium.make("CartPole-v1"))  # noqa: E731
        return LocalSampler("random", factory, seed=3, n_workers=n_workers, on_failure="drop")

    with brittle() as sampler:
        folder = sample_to_folder(sampler, tmp_path / "whole", **AMOUNT)
    assert folder.to_batch().indices[-1] + 1 - len(folder) > 5
    for at in range(1, len(folder.shards) + 1):
        with brittle() as sampler:
            interrupted(sampler, tmp_path / f"cut{at}", at)
        with brittle(1 + at % 2) as sampler:
            sample_to_folder(sampler, tmp_path / f"cut{at}", **AMOUNT, resume=True)
        assert contents(tmp_path / f"cut{at}") == contents(tmp_path / "whole")


class Large(gymnasium.Env):
    """Has observations of 400 bytes and trajectories of 100 timesteps, each of some 30 µs."""

    observation_space = gymnasium.spaces.Box(0, 255, (20, 20), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.frame, self.timestep = self.np_random.integers(0, 256, (20, 20), np.uint8), 0
        return self.frame, {}

    def step(self, action):
        self.timestep += 1
        sum(range(2_000))
        return self.frame, 1.0, self.timestep == 100, False, {}


def peak_of(folder, number):
    with MultiprocessingSampler("random", Large, n_workers=2, seed=1) as sampler:
        sample_to_folder(sampler, folder, num_samples=number, shard_size=5_000)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


@pytest.mark.slow
def test_memory_does_not_grow_with_what_is_sampled(tmp_path):
    peaks = []
    # 32 MB and 128 MB, in shards of 2 MB: both are more than workers may be ahead, which is some 10 MB.
    for number in (80_000, 320_000):
        code = f"from tests.samplers.test_sharded import peak_of; peak_of({str(tmp_path / str(number))!r}, {number})"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        peaks.append(int(run.stdout))
    assert peaks[1] < peaks[0] + 30, f"{peaks} MB"


def test_a_complete_folder_stays_as_it_is(whole):
    before, seen = contents(whole), []
    with make() as sampler:
        folder = sample_to_folder(sampler, whole, **AMOUNT, resume=True, progress=seen.append)
        assert sampler.agent_version == 1, "it counts as a call, as an uninterrupted one does"
        assert sampler.stats.ran_timesteps == 0, "no worker had anything to do"
    assert (folder.complete, contents(whole), seen) == (True, before, [])


def test_what_fails_leaves_what_is_complete(tmp_path):
    flag = tmp_path / "repaired"

    class Arm(gymnasium.Wrapper):
        n = 0

        def reset(self, **options):
            Arm.n += 1
            if Arm.n > 8 and not flag.exists():
                raise RuntimeError("the arm is stuck")
            return super().reset(**options)

    def arm():
        return Arm(gymnasium.make("CartPole-v1"))

    with (
        LocalSampler("random", arm, seed=1, check=None) as sampler,
        pytest.raises(RolloutError, match="the arm is stuck"),
    ):
        sample_to_folder(sampler, tmp_path / "out", n_trajectories=20, shard_size=50)
    assert 1 <= len(TrajectoryFolder(tmp_path / "out")) <= 8
    flag.touch()
    with LocalSampler("random", arm, seed=1, check=None) as sampler:
        folder = sample_to_folder(sampler, tmp_path / "out", n_trajectories=20, shard_size=50, resume=True)
    with LocalSampler("random", arm, seed=1, check=None) as sampler:
        assert folder.to_batch() == sampler.obtain_trajectories(20)


def test_a_damaged_file_is_named(whole, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for name, data in contents(whole).items():
        (out / name).write_bytes(data)
    (out / shard_name(1)).unlink()
    (out / shard_name(3)).write_bytes(b"half of it")
    with make() as sampler, pytest.raises(DamagedShardError, match=r"shard-000001\.npz is missing"):
        sample_to_folder(sampler, out, **AMOUNT, resume=True)


@pytest.mark.slow
def test_a_sampler_that_made_calls_before_is_resumed_by_one_that_made_as_many(whole, tmp_path):
    def advanced():
        sampler = make()
        sampler.obtain_trajectories(2)
        return sampler

    out = tmp_path / "out"
    with advanced() as sampler:
        interrupted(sampler, out)
    with make() as sampler, pytest.raises(UsageError, match="agent_version is 2 there, and 1 here"):
        sample_to_folder(sampler, out, **AMOUNT, resume=True)
    with advanced() as sampler:
        folder = sample_to_folder(sampler, out, **AMOUNT, resume=True)
    with advanced() as sampler:
        assert folder.to_batch() == sampler.obtain_samples(500)


# ---------------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize(
    ("options", "arguments", "words"),
    [
        ({"seed": 4}, {}, "seed is 3 there, and 4 here"),
        ({}, {"num_samples": 501}, "wanted is {'timesteps': 500} there, and {'timesteps': 501} here"),
        pytest.param(
            {}, {"num_samples": None, "n_trajectories": 5}, "and {'trajectories': 5} here", marks=pytest.mark.slow
        ),
        pytest.param({}, {"shard_size": 101}, "shard_size is 100 there, and 101 here", marks=pytest.mark.slow),
        pytest.param(
            {"max_episode_length": 9}, {}, "max_episode_length is None there, and 9 here", marks=pytest.mark.slow
        ),
        pytest.param(
            {"on_failure": "drop"}, {}, "on_failure is 'raise' there, and 'drop' here", marks=pytest.mark.slow
        ),
        pytest.param({"worker_threads": None}, {}, "worker_threads is 1 there, and None here", marks=pytest.mark.slow),
        pytest.param({}, {"provenance": {"agent": "b"}}, "agent is None there, and 'b' here", marks=pytest.mark.slow),
        ({}, {"provenance": {"environment": "b"}}, "environment is 'CartPole-v1' there, and 'b' here"),
    ],
)
def test_an_unfinished_folder_is_not_resumed_with_other_arguments(tmp_path, options, arguments, words):
    out = tmp_path / "out"
    with make() as sampler:
        interrupted(sampler, out)
    before = contents(out)
    with make(**options) as sampler, pytest.raises(UsageError, match="begun with other arguments") as caught:
        sample_to_folder(sampler, out, **{**AMOUNT, **arguments}, resume=True)
    assert words in str(caught.value)
    assert contents(out) == before


def test_an_unfinished_folder_is_not_resumed_with_another_environment_or_other_workers(tmp_path):
    out = tmp_path / "out"
    with make() as sampler:
        interrupted(sampler, out)
    with (
        LocalSampler("random", "Acrobot-v1", seed=3) as sampler,
        pytest.raises(UsageError, match="environment is 'CartPole-v1' there, and 'Acrobot-v1' here"),
    ):
        sample_to_folder(sampler, out, **AMOUNT, resume=True)
    each = PerWorker(["random", "random"])
    with (
        LocalSampler(each, "CartPole-v1", seed=3) as sampler,
        pytest.raises(UsageError, match="n_workers is None there, and 2 here"),
    ):
        sample_to_folder(sampler, out, **AMOUNT, resume=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_samples": None}, "either num_samples or n_trajectories"),
        ({"n_trajectories": 5}, "either num_samples or n_trajectories"),
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ({"num_samples": 2.5}, "num_samples must be an integer, got 2.5"),
        ({"num_samples": None, "n_trajectories": -1}, "n_trajectories must be at least 1"),
        ({"shard_size": 0}, "shard_size must be at least 1"),
        ({"shard_size": "100"}, "shard_size must be an integer"),
        ({"provenance": {"agent": object()}}, "provenance must be a dict that JSON can hold: .*object"),
        ({"provenance": {"rate": float("nan")}}, "provenance must be a dict that JSON can hold"),
        ({"provenance": 5}, "provenance must be a dict that JSON can hold"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_made(tmp_path, arguments, words):
    with make() as sampler, pytest.raises(UsageError, match=words):
        sample_to_folder(sampler, tmp_path / "out", **{**AMOUNT, **arguments})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [({"order": "arrival"}, 'a sampler with order="index"'), ({"worker_class": VecWorker}, "not blocks of them")],
)
def test_samplers_whose_calls_cannot_be_resumed_are_refused(tmp_path, options, words):
    with make(**options) as sampler, pytest.raises(UsageError, match=words):
        sample_to_folder(sampler, tmp_path / "out", **AMOUNT)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_vec_workers_began_before_they_ran_lanes_is_not_resumed(tmp_path):
    """One environment and blocks of one was all that could be resumed. The manifest said nothing of the worker then."""
    options = {"worker_class": VecWorker, "worker_args": {"n_envs": 1}}
    with pytest.MonkeyPatch.context() as patch, make(**options) as sampler:
        patch.setattr(VecWorker, "revision", "")
        interrupted(sampler, tmp_path / "out")
    assert "worker" not in json.loads((tmp_path / "out" / MANIFEST).read_text())["provenance"]
    began = "worker is None there, and 'VecWorker: trajectories in lanes, or in blocks of one size' here"
    with make(**options) as sampler, pytest.raises(UsageError, match=began):
        sample_to_folder(sampler, tmp_path / "out", **AMOUNT, resume=True)


def test_what_is_no_sampler_is_refused(tmp_path):
    with pytest.raises(UsageError, match="sample_to_folder takes a sampler first, not a str"):
        sample_to_folder("CartPole-v1", tmp_path / "out", **AMOUNT)  # type: ignore[arg-type]
    sampler = make()
    sampler.close()
    with pytest.raises(ClosedError):
        sample_to_folder(sampler, tmp_path / "out", **AMOUNT)
    assert os.listdir(tmp_path) == []


def test_folders_that_are_none_are_refused(whole, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with make() as sampler:
        for path, words in [
            (whole, r"holds trajectories already \(\d+ shards, complete\): name another folder"),
            (tmp_path, "holds something else, such as 'thesis.txt'"),
            (tmp_path / "thesis.txt", "is a file, and shards need a folder"),
            (tmp_path / "nowhere" / "out", "there is no directory"),
        ]:
            with pytest.raises(UsageError, match=words):
                sample_to_folder(sampler, path, **AMOUNT)
        with ShardWriter(tmp_path / "out"), pytest.raises(StorageError, match="is being written by another process"):
            sample_to_folder(sampler, tmp_path / "out", **AMOUNT)
        assert sampler.agent_version == 0
        assert os.listdir(tmp_path / "out") == []


# ---------------------------------------------------------------------- progress


def test_progress_is_shown_when_it_is_asked_for(tmp_path, capsys):
    with make() as sampler:
        sample_to_folder(sampler, tmp_path / "a", **AMOUNT)
        assert capsys.readouterr().err == ""
    with make() as sampler:
        folder = sample_to_folder(sampler, tmp_path / "b", **AMOUNT, progress=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sampling: 100%  500/500 timesteps")
    assert folder.n_timesteps >= 500
