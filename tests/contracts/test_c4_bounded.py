"""C4: waiting costs no CPU, and a consumer that stalls costs bounded memory and loses nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamsampler import LocalSampler, RaySampler, TrajectoryBatch
from streamsampler.errors import ClosedError, SamplerError
from streamsampler.samplers.base import Sampler
from streamsampler.testing.fail_points import Records
from tests.contracts.conftest import PARENT, PROCESSES, Maker, core_on_ray, slow_on
from tests.scripted.agents import Stamping, always_zero
from tests.scripted.envs import AnyLength, SlowOne, Steps, Wide, counted, jittery

SEED = 23
SLOW_PARENT = pytest.param(PARENT, marks=pytest.mark.slow)


@pytest.mark.slow  # as all that is measured
@core_on_ray([*PROCESSES, SLOW_PARENT])
def test_the_parent_sleeps_while_workers_do(make_sampler: Maker) -> None:
    sampler = make_sampler(always_zero, partial(Steps, 2), n_workers=2, seed=SEED)
    sampler.obtain_trajectories(4)
    wall, cpu = time.perf_counter(), time.process_time()
    batch = sampler.obtain_trajectories(2, env_update=partial(Steps, 2, pause=0.75))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert len(batch) == 2
    assert wall >= 1.5
    assert cpu < 0.02 * wall


@pytest.mark.parametrize("engine", PROCESSES, indirect=True)
def test_the_parent_waits_without_a_limit(make_sampler: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing has a deadline nothing wakes it but a worker. Here each worker has its own indices: none copies."""
    sampler = make_sampler(2 * [always_zero], Steps, n_workers=2, seed=SEED)
    engine, limits = sampler._session.engine, []
    wait = engine.wait

    def noted_wait(timeout: float | None) -> Any:
        limits.append(timeout)
        return wait(timeout)

    monkeypatch.setattr(engine, "wait", noted_wait)
    assert len(sampler.obtain_trajectories(6)) == 6
    assert set(limits) == {None}


def cpu_ticks(sampler: Any) -> int:
    """CPU time of the workers' processes, in user and in kernel mode.

    In an actor the main thread is Ray's, which also works where there is nothing to do; it runs no worker.
    """
    ticks = 0
    for pid in sampler.worker_pids():
        threads = {entry.name: entry for entry in Path(f"/proc/{pid}/task").iterdir()}
        if isinstance(sampler, RaySampler):
            del threads[str(pid)]
        for entry in threads.values():
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks


def memory_files() -> dict[int, int]:
    """The memory files of this process, those it shares with workers: by inode, the bytes that they take."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if "memfd:" in str(entry.readlink()):
                status = entry.stat()
                found[status.st_ino] = status.st_blocks * 512
        except OSError:  # the one that lists the folder
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("engine", [*PROCESSES, SLOW_PARENT], indirect=True)
def test_a_stalled_consumer(make_sampler: Maker, make_local: Callable[..., LocalSampler], tmp_path: Path) -> None:
    records = Records(tmp_path)
    make_env = counted(partial(AnyLength, pause=0.0005), tmp_path)
    sampler = make_sampler(always_zero, make_env, n_workers=2, seed=SEED)
    stream = sampler.stream()
    trajectories = [next(stream) for _ in range(30)]

    stall = threading.Event()
    assert not stall.wait(4.0)
    after_a_while, memory = (records.count("resets"), records.count("steps")), memory_files()
    cpu, own_cpu = cpu_ticks(sampler), time.process_time()
    assert not stall.wait(0.8)
    own_cpu = time.process_time() - own_cpu  # before anything is looked at, which takes time of its own
    # Nothing moved any more: no step, no byte, no CPU.
    assert (records.count("resets"), records.count("steps")) == after_a_while
    assert memory_files() == memory
    assert cpu_ticks(sampler) - cpu <= 0.02 * os.sysconf("SC_CLK_TCK")
    assert own_cpu < 0.02
    # In five seconds two workers could have run thousands of trajectories.
    assert 30 <= after_a_while[0] <= 400

    trajectories += [next(stream) for _ in range(300)]
    stream.close()
    assert [int(trajectory.indices[0]) for trajectory in trajectories] == list(range(330))
    twin = make_local(always_zero, AnyLength, seed=SEED)
    assert TrajectoryBatch.concatenate(trajectories) == twin.obtain_trajectories(330)


def samples(sampler: Sampler) -> None:
    sampler.obtain_samples(200)


def trajectories(sampler: Sampler) -> None:
    sampler.obtain_trajectories(40)


def stream_left(sampler: Sampler) -> None:
    stream = sampler.stream()
    for _ in range(20):
        next(stream)
    stream.close()


def stream_overtaken(sampler: Sampler) -> None:
    stream = sampler.stream()
    for _ in range(20):
        next(stream)
    sampler.obtain_trajectories(3)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["forkserver"], indirect=True)
@pytest.mark.parametrize("call", [samples, trajectories, stream_left, stream_overtaken])
def test_memory_does_not_grow_from_call_to_call(make_sampler: Maker, call: Callable[[Sampler], None]) -> None:
    others = memory_files().keys()
    sampler = make_sampler(Stamping(), jittery(Wide, 0.0005), n_workers=3, seed=SEED)
    taken = []
    for _ in range(80):
        call(sampler)
        taken.append(sum(size for inode, size in memory_files().items() if inode not in others))
    assert max(taken[:20]) > 8_000
    # What workers run ahead varies with the machine's speed, and the most of it is kept: so there is more than ever
    # before from time to time. What grows with each call is more than ever before after each.
    assert sum(now > max(taken[:call]) for call, now in enumerate(taken) if call >= 20) < 20


@pytest.mark.parametrize("engine", slow_on("forkserver", engines=[*PROCESSES, SLOW_PARENT]), indirect=True)
def test_a_slow_trajectory_at_the_head_of_a_stream(
    make_sampler: Maker, make_local: Callable[..., LocalSampler]
) -> None:
    """The workers run ahead as far as they may, and go on when the slow one is in."""
    twin = make_local(always_zero, AnyLength, seed=SEED)
    expected = twin.obtain_trajectories(200)
    sampler = make_sampler(always_zero, partial(SlowOne, expected.seeds[0], 0.1), n_workers=3, seed=SEED)
    stream = sampler.stream()
    assert TrajectoryBatch.concatenate([next(stream) for _ in range(200)]) == expected
    stream.close()


def test_a_stream_that_was_overtaken_yields_no_more(make_sampler: Maker) -> None:
    """What it had in store was made by an older version: here many trajectories come in one report."""
    sampler = make_sampler(Stamping(), AnyLength, n_workers=2, seed=SEED)
    stream = sampler.stream()
    for _ in range(300):
        next(stream)
    sampler.obtain_trajectories(1)
    with pytest.raises(SamplerError, match="later call"):
        next(stream)


def test_a_stream_of_a_closed_sampler_yields_no_more(make_sampler: Maker) -> None:
    sampler = make_sampler(Stamping(), AnyLength, n_workers=2, seed=SEED)
    stream = sampler.stream()
    for _ in range(300):
        next(stream)
    sampler.close()
    with pytest.raises(ClosedError):
        next(stream)


@pytest.mark.parametrize("engine", slow_on("local"), indirect=True)
def test_a_stream_is_the_prefix_of_a_batch(make_sampler: Maker, make_local: Callable[..., LocalSampler]) -> None:
    sampler = make_sampler(always_zero, AnyLength, n_workers=3, seed=SEED)
    twin = make_local(always_zero, AnyLength, seed=SEED)
    for length in (1, 5, 2_000):
        trajectories = []
        for trajectory in sampler.stream():
            trajectories.append(trajectory)
            if len(trajectories) == length:
                break
        assert all(len(trajectory) == 1 for trajectory in trajectories)
        assert TrajectoryBatch.concatenate(trajectories) == twin.obtain_trajectories(length)
    assert sampler.obtain_samples(50) == twin.obtain_samples(50)
